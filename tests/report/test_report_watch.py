"""The watched page: as a browser gets it, over a real socket."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from report_reader import Page
from report_run import make_run

from jaxrefine.errors import UserError
from jaxrefine.report.__main__ import main
from jaxrefine.report.comparison import render_comparison
from jaxrefine.report.page import render
from jaxrefine.report.record import read_run
from jaxrefine.report.watch import Watch, serving

STARTED = {"event": "run_started", "task": "door", "method": "refine"}
FINISHED = {"event": "run_finished", "status": "finished"}


def log(run: Path, *events: dict[str, str]) -> None:
    run.mkdir(exist_ok=True)
    with (run / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


@pytest.fixture
def going(tmp_path: Path) -> Path:
    log(tmp_path / "run", STARTED)
    return tmp_path / "run"


def page_of(run: Path) -> Callable[[], str]:
    return lambda: render(read_run(run))


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all tests that change nothing of its run."""
    run = tmp_path_factory.mktemp("steady") / "run"
    log(run, STARTED)
    with serving(Watch([run], page_of(run), rest=0), 0) as address:
        yield address


@pytest.fixture
def address(going: Path) -> Iterator[str]:
    with serving(Watch([going], page_of(going), rest=0), 0) as address:
        yield address


def ask(address: str, method: str = "GET", target: str = "/", **headers: str) -> tuple[http.client.HTTPResponse, str]:
    split = urllib.parse.urlsplit(address)
    with closing(http.client.HTTPConnection(split.hostname or "", split.port, timeout=20)) as connection:
        connection.request(method, target, headers=headers)
        response = connection.getresponse()
        return response, response.read().decode()


def raw(address: str, request: bytes) -> bytes:
    split = urllib.parse.urlsplit(address)
    with socket.create_connection((split.hostname or "", split.port or 0), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def listing(folder: Path) -> list[tuple[str, int, int, int]]:
    paths = [folder, *folder.rglob("*")]
    return sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_ctime_ns, p.lstat().st_size) for p in paths)


def test_the_page_is_the_reports_own_and_asks_again_while_the_run_goes_on(going: Path, address: str) -> None:
    response, html = ask(address)
    assert response.status == 200
    assert html == render(read_run(going))
    assert int(response.headers["Refresh"]) >= 10
    assert ask(address, target="/?still")[0].headers["Refresh"] is None
    log(going, {"event": "step_started", "step": "round_0/fit"})
    assert "its last step, round_0/fit, did not finish" in ask(address)[1]
    log(going, FINISHED)
    assert ask(address)[0].headers["Refresh"] is None
    log(going, STARTED)  # and somebody goes on with it
    assert ask(address)[0].headers["Refresh"] is not None


def test_what_every_answer_says_about_itself(going: Path, address: str) -> None:
    answers = [ask(address)[0], ask(address, target="/x")[0], ask(address, "POST")[0], ask(address, Host="evil")[0]]
    assert [answer.status for answer in answers] == [200, 404, 405, 403]
    for answer in answers:
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Set-Cookie"] is None
        assert "Python" not in answer.headers["Server"]
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    own = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', render(read_run(going)))
    assert own
    sent = answers[0].headers["Content-Security-Policy"].split("; ")
    assert set(own[1].split("; ")) <= set(sent), "the header would block what the page allows itself"


@pytest.mark.parametrize("target", ["/events.jsonl", "/../run/events.jsonl", "/%2e%2e/", "/.", "/?", "/?a=/etc/passwd",
                                    "http://127.0.0.1/", "*", "/report.html"])  # fmt: skip
def test_nothing_else_is_served(steady: str, target: str) -> None:
    response, text = ask(steady, target=target)
    assert response.status == 404
    assert text == "There is nothing but the report, at /.\n"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get"])
def test_nothing_can_be_sent(steady: str, method: str) -> None:
    response, _ = ask(steady, method)
    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD"


def test_head_has_the_lengths_of_get_and_no_body(steady: str) -> None:
    got, html = ask(steady)
    response, nothing = ask(steady, "HEAD")
    assert response.status == 200
    assert response.headers["Content-Length"] == got.headers["Content-Length"] == str(len(html.encode()))
    assert nothing == ""


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:99", 200), ("127.0.0.1:8321", 200), ("[::1]:1", 200), ("evil.example", 403),
     ("localhost.evil.example", 403), ("127.0.0.1.evil.example:8321", 403), ("localhost:80@evil", 403),
     ("0.0.0.0", 403), ("", 403), ("127.0.0.2", 403)],
)  # fmt: skip
def test_only_the_names_of_this_machine_are_answered(steady: str, host: str, status: int) -> None:
    assert ask(steady, Host=host)[0].status == status


@pytest.mark.parametrize(
    "request_",
    [b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"GET /\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/9\r\n\r\n",
     b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n"],
)  # fmt: skip
def test_requests_no_browser_makes_get_no_page_and_end_nothing(steady: str, request_: bytes) -> None:
    assert b"<html" not in raw(steady, request_)
    assert ask(steady)[0].status == 200


def test_no_file_is_made_or_touched(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=1)
    (run / "summary.json").unlink()
    for path in (run / "round_0", run):
        path.chmod(0o555)
    before = listing(tmp_path)
    with serving(Watch([run], page_of(run), rest=0), 0) as address:
        response, html = ask(address)
        ask(address, "HEAD")
    assert response.status == 200
    assert "class RacecarPolicy" in Page(html).sections["round-0"]
    assert listing(tmp_path) == before


def test_a_run_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    run = tmp_path / "<b>later"
    with serving(Watch([run], page_of(run), rest=0), 0) as address:
        response, html = ask(address)
        assert response.status == 503
        assert "There is no folder" in html
        assert "&lt;b&gt;later" in html
        assert response.headers["Refresh"] == "10"
        run.mkdir()
        assert "is no run directory" in ask(address)[1]
        log(run, STARTED)
        assert ask(address)[0].status == 200
        shutil.rmtree(run)
        assert ask(address)[0].status == 503


def test_it_is_rendered_once_for_each_change_however_many_ask(going: Path) -> None:
    rendered, release = [], threading.Event()

    def slow() -> str:
        rendered.append(1)
        release.wait(10)
        return str(len(rendered))

    watch = Watch([going], slow, rest=0)
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(watch.answer().body)) for _ in range(4)]
    for thread in threads:
        thread.start()
    release.set()
    for thread in threads:
        thread.join()
    assert answers == [b"1"] * 4
    for name in (".tmp-results.txt", "report.html", "worker/tmp/x", "tensorboard/events", "wandb/log"):
        (going / name).parent.mkdir(parents=True, exist_ok=True)
        (going / name).write_text("not part of the page")
    assert watch.answer().body == b"1"
    (going / "round_0").mkdir()
    (going / "round_0" / "policy.py").write_text("a = 1")
    assert watch.answer().body == b"2"
    (going / "round_0" / "policy.py").write_text("a = 12")
    assert watch.answer().body == b"3"


def test_a_page_that_takes_long_is_asked_for_less_often(going: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("jaxrefine.report.watch.time.perf_counter", lambda: now[0])
    made: list[float] = []

    def slow() -> str:
        made.append(now[0])
        now[0] += 6
        if len(made) == 2:
            raise ValueError("torn table")
        return str(len(made))

    watch = Watch([going], slow)
    answer = watch.answer()
    assert (answer.body, answer.refresh) == (b"1", 24)
    log(going, FINISHED)
    now[0] = 16.0  # a second tab, while files change
    answer = watch.answer()
    assert (answer.body, answer.refresh) == (b"1", 14)
    now[0] = 30.0
    answer = watch.answer()
    assert (answer.status, answer.refresh) == (500, 24)
    now[0] = 59.0  # what fails rests no less
    answer = watch.answer()
    assert (answer.status, answer.refresh) == (500, 10)
    now[0] = 60.0
    answer = watch.answer()
    assert (answer.body, answer.refresh) == (b"3", None)
    log(going, STARTED)
    now[0] = 67.0  # the last answer may not be the last for ever
    answer = watch.answer()
    assert (answer.body, answer.refresh) == (b"3", 23)
    now[0] = 90.0
    assert watch.answer().body == b"4"
    assert made == [0.0, 30.0, 60.0, 90.0]


def test_a_failure_is_shown_and_outlived(going: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = [True]

    def page() -> str:
        if broken.pop():
            raise ValueError("<script>torn table")
        return "mended"

    with serving(Watch([going], page, rest=0), 0) as address:
        response, html = ask(address)
        assert response.status == 500
        assert "ValueError: &lt;script&gt;torn table" in html
        assert response.headers["Refresh"] == "10"
        assert "Traceback" in capsys.readouterr().err
        broken.append(False)
        assert ask(address)[1] == "mended"  # without waiting for the run to change


def test_a_run_that_is_written_while_it_is_read(tmp_path: Path) -> None:
    """Files come, go and are cut in two all the time; every answer is a whole page."""
    run, whole = tmp_path / "run", make_run(tmp_path / "whole", rounds=1)
    log(run, STARTED)
    stop = threading.Event()

    def write() -> None:
        files = [path for path in whole.rglob("*") if path.is_file()]
        while not stop.is_set():
            for path in files:
                target = run / path.relative_to(whole)
                target.parent.mkdir(exist_ok=True)
                data = path.read_bytes()
                target.write_bytes(data[: len(data) // 2])
                target.write_bytes(data)
            shutil.rmtree(run / "round_0")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with serving(Watch([run], page_of(run), rest=0), 0) as address:
            answers = [ask(address) for _ in range(4)]
    finally:
        stop.set()
        writer.join()
    assert {response.status for response, _ in answers} <= {200, 500, 503}
    assert all(html.rstrip().endswith("</html>") for _, html in answers)
    assert any(response.status == 200 for response, _ in answers)


def test_ipv6_where_there_is_any(steady: str) -> None:
    port = urllib.parse.urlsplit(steady).port
    try:
        connection = socket.create_connection(("::1", port or 0), timeout=5)
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with connection:
        connection.sendall(b"GET / HTTP/1.0\r\nHost: [::1]\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)


def test_it_listens_on_the_loopback_interface_alone(steady: str) -> None:
    port = f"{urllib.parse.urlsplit(steady).port:04X}"
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    listening = {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port}")}
    assert listening
    assert listening <= {"0100007F", "00000000000000000000000001000000"}


def test_a_port_that_is_taken(address: str, going: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = urllib.parse.urlsplit(address).port
    assert main([str(going), "--watch", "--port", str(port)]) == 2
    assert f"Cannot serve on port {port}" in (said := capsys.readouterr().err)
    assert "--port 0" in said


def test_the_usual_port_gives_way_to_a_free_one(address: str, going: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrefine.report.watch.DEFAULT_PORT", urllib.parse.urlsplit(address).port)
    with serving(Watch([going], page_of(going))) as other:
        assert other != address
        assert ask(other)[0].status == 200


def test_a_privileged_port_is_refused_in_words(going: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("socketserver.TCPServer.server_bind", refused)
    with (
        pytest.raises(UserError, match="Cannot serve on port 80: Permission denied"),
        serving(Watch([going], page_of(going)), 80),
    ):
        pass


def test_the_command_serves_until_ctrl_c(going: Path) -> None:
    command = [sys.executable, "-m", "jaxrefine.report", str(going), "--watch", "--port", "0"]
    before = listing(going)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        assert ask(address)[0].status == 200
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 0
        said = process.stderr.read()
    assert "Ctrl-C ends" in said
    assert "Traceback" not in said
    assert listing(going) == before


def test_several_runs_are_watched_until_all_are_over(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, rounds=1) for name in ("a", "b")]
    before = listing(tmp_path)
    with serving(Watch(runs, lambda: render_comparison(runs), rest=0), 0) as address:
        response, html = ask(address)
        assert html == render_comparison(runs)
        assert listing(tmp_path) == before
        assert response.headers["Refresh"] is not None
        log(runs[0], FINISHED)
        assert ask(address)[0].headers["Refresh"] is not None
        log(runs[1], FINISHED)
        assert ask(address)[0].headers["Refresh"] is None


def test_what_is_no_run_does_not_go_on_for_ever(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", rounds=1)
    log(run, FINISHED)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "multirun.yaml").write_text("")

    def refresh(*names: str) -> int | None:
        return Watch([tmp_path / name for name in names], lambda: "page").answer().refresh

    assert refresh("a", "notes.txt", "sweeps") is None
    assert refresh("a", "later") is not None
    (tmp_path / "begun").mkdir()
    assert refresh("a", "begun") is not None
    (tmp_path / "begun" / "config.yaml").write_text("")
    assert refresh("a", "begun") is not None

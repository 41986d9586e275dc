"""The report of a run that is still going, on localhost: made in memory; nothing is written, nothing else served."""

from __future__ import annotations

import html
import math
import os
import re
import socket
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jaxrefine.errors import UserError
from jaxrefine.report.fields import get, read_json_lines
from jaxrefine.report.page import FILE_NAME
from jaxrefine.report.rounds import round_folders
from jaxrefine.report.untrusted import visible

DEFAULT_PORT = 8321
EVERY_S = 10.0
"""Seconds between two looks of the browser at a run that is still going.

A browser keeps the place it was scrolled to, since the address is the same, and folds what was opened.
"""

REST = 4.0
"""Times what making a page took, for which it is not made again: watching takes a fifth of one core at most."""

# Of a run directory, what no report shows: the worker's scratch, and what is itself made from the run.
_PASSED_OVER = frozenset({"worker", "tensorboard", "wandb", "figures", FILE_NAME})

# A page elsewhere whose name was made to lead here (DNS rebinding) still names itself in its requests.
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)

# The page's own policy, and what only a header can say: nobody frames it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

_MESSAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere }}</style></head>
<body><h1>{title}</h1><pre>{text}</pre><p>{after}</p></body></html>
"""


@dataclass(frozen=True)
class Answer:
    """What a request for the page gets; `refresh` is after how many seconds to ask again, None for never."""

    status: int
    body: bytes
    refresh: int | None


class Watch:
    """The page of some runs, made anew when a file of theirs has changed and somebody asks for it."""

    def __init__(
        self, runs: Sequence[Path], render: Callable[[], str], every: float = EVERY_S, rest: float = REST
    ) -> None:
        """Of run directories, which need not exist yet.

        Args:
            runs: The run directories.
            render: Makes their page.
            every: Seconds between two looks.
            rest: Times what a look took, until the next one; whoever asks earlier gets the last answer again.
        """
        self._runs = tuple(runs)
        self._render = render
        self._every = every
        self._rest = rest
        self._rested = -math.inf
        self._lock = threading.Lock()
        self._seen: object = None
        self._answer: Answer | None = None

    def answer(self) -> Answer:
        """The page as it is now; while one request has it made, others wait for the same one."""
        with self._lock:
            start = time.perf_counter()
            if self._answer is not None and start < self._rested:
                # it may have changed since: even a page that was the last one asks once more
                return replace(self._answer, refresh=self._pause(self._rested - start))
            # before the page is read: what changes or ends meanwhile is found by the next look
            seen = [_fingerprint(run) for run in self._runs]
            answer = self._answer
            if answer is None or answer.status != 200 or seen != self._seen:
                going = any(_is_going(run) for run in self._runs)
                answer = self._make()
                rest = self._rest_from(start)
                asks_again = going or answer.status != 200
                self._seen = seen
                self._answer = replace(answer, refresh=self._pause(rest) if asks_again else None)
                return self._answer
            self._rest_from(start)
            return answer

    def _rest_from(self, start: float) -> float:
        """Begin to rest for what was done since `start`; for how many seconds."""
        now = time.perf_counter()
        rest = self._rest * (now - start)
        self._rested = now + rest
        return rest

    def _pause(self, rest: float) -> int:
        return math.ceil(max(self._every, rest))

    def _make(self) -> Answer:
        again = f"This page looks again every {self._every:g} seconds."
        try:
            page = self._render()
        except UserError as error:
            return self._message(503, "Nothing to show yet", str(error), again)
        except Exception as error:  # whatever is wrong with the run's files, the next look may find them mended
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}"
            return self._message(
                500, "The page could not be made", text, f"{again} The terminal shows where it failed."
            )
        return Answer(200, page.encode("utf-8", "backslashreplace"), None)

    def _message(self, status: int, title: str, text: str, after: str) -> Answer:
        page = _MESSAGE.format(title=title, text=html.escape(visible(text)), after=after)
        return Answer(status, page.encode(), None)


def _fingerprint(run: Path) -> frozenset[tuple[str, int, int]]:
    """Name, time and size of the files that a report may show; empty for a run that does not exist yet."""
    seen = set()
    for folder, folders, names in os.walk(run):
        top = Path(folder) == run
        hidden = _PASSED_OVER if top else frozenset()
        folders[:] = [name for name in folders if not name.startswith(".") and name not in hidden]
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - a run has hundreds of files
            if name.startswith(".") or name in hidden:
                continue
            try:
                status = os.lstat(path)
            except OSError:  # gone meanwhile
                continue
            seen.add((path, status.st_mtime_ns, status.st_size))
    return frozenset(seen)


def _is_going(run: Path) -> bool:
    """Whether the run may still go on: its log does not end with the end of a run.

    What is no run directory does not; one that is not there yet, or in which nothing is yet, may become one.
    """
    try:
        if run.exists() and not (run.is_dir() and _may_be_run(run)):
            return False
        events = read_json_lines(run / "events.jsonl", [])
    except OSError:
        return True
    ends = [get(event, "event") for event in events if get(event, "event") in ("run_started", "run_finished")]
    return not ends or ends[-1] == "run_started"


def _may_be_run(folder: Path) -> bool:
    signs = ("events.jsonl", "summary.json", "config.yaml")
    return any((folder / name).is_file() for name in signs) or bool(round_folders(folder)) or not any(folder.iterdir())


@contextmanager
def serving(watch: Watch, port: int | None = None) -> Iterator[str]:
    """Serve the page on the loopback interface, IPv4 and where possible IPv6, and give its address.

    Args:
        watch: makes the page.
        port: 0 for any free one; None for the usual one, or a free one if that is taken.

    Raises:
        UserError: The port is taken or not allowed.
    """
    with ExitStack() as stack:
        server = _bind(watch, port)
        servers = [server]
        with suppress(OSError):  # no IPv6 here, or the port is taken there
            servers.append(_Server(("::1", server.server_port), watch))
        for each in servers:
            stack.callback(each.server_close)
            thread = threading.Thread(target=each.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(each.shutdown)
        yield f"http://127.0.0.1:{server.server_port}/"


def _bind(watch: Watch, port: int | None) -> _Server:
    try:
        return _Server(("127.0.0.1", DEFAULT_PORT if port is None else port), watch)
    except OSError as error:
        if port is None:
            return _Server(("127.0.0.1", 0), watch)
        reason = error.strerror or str(error)
        raise UserError(
            f"Cannot serve on port {port}: {reason}. Choose another with --port, or --port 0 for any free one."
        ) from error


class _Server(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], watch: Watch) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.watch = watch
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks the name service what this machine is called
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # the browser went away
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "jaxrefine"
    sys_version = ""
    timeout = 30  # seconds that a client may be silent

    def do_GET(self) -> None:
        """Answer with the page, its address being `/`, or `/?still` for one that does not refresh itself."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0].strip()):
            self.send_error(403, explain="The report is served to localhost alone, under that name.")
        elif self.path not in ("/", "/?still"):
            self.send_error(404, explain="There is nothing but the report, at /.")
        else:
            answer = self.server.watch.answer()
            refresh = answer.refresh if self.path == "/" else None
            self._send(answer.status, "text/html; charset=utf-8", answer.body, refresh)

    do_HEAD = do_GET  # noqa: N815 - the name is http.server's

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse in one line of text."""
        if code == 501:  # what http.server makes of a method without a function here
            code, explain = 405, "The report can only be read: GET and HEAD."
        text = f"{explain or message or self.responses.get(code, ('refused', ''))[0]}\n"
        self.close_connection = True
        self._send(code, "text/plain; charset=utf-8", text.encode("utf-8", "backslashreplace"), None)

    def _send(self, status: int, kind: str, body: bytes, refresh: int | None) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if refresh is not None:
            self.send_header("Refresh", str(refresh))
        if status == 405:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: the terminal tells of failures alone."""

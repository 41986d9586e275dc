from __future__ import annotations

import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from jaxrefine.analysis import AnalysisResult, Limits, child, run_analysis
from jaxrefine.errors import UserError
from jaxrefine.sandbox import Backend, Jail, choose

LIMITS = Limits(wall_s=20, cpu_s=20, memory_mb=2048, output_kb=16, file_mb=2)
WRITE = "open('test_results.txt', 'w').write"


pytestmark = pytest.mark.usefixtures("nothing_left")


def analyse(body: str, table: Path, limits: Limits = LIMITS, backend: Backend | None = None) -> AnalysisResult:
    code = "import os, sys, time\n\n\ndef run_all(df):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return run_analysis(code, table, limits, backend)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def test_the_file_then_what_was_printed(table: Path) -> None:
    code = f"""
import numpy as np
import pandas as pd
import scipy.stats

print("étape √ 漢字")

def run_all(df):
    {WRITE}(df.groupby("episode")["reward"].sum().to_string() + "\\n±\\n")
    print(scipy.stats.norm.cdf(0.0), type(df).__name__, list(df.columns))
"""
    result = run_analysis(code, table, LIMITS)
    assert result.text == (
        "episode\n0    3.0\n1    4.0\n±\n\n--- printed ---\nétape √ 漢字\n0.5 DataFrame ['episode', 't', 'reward']\n"
    )
    assert result.status == "ok"
    assert 0.1 < result.wall_s < 20


def test_it_inherits_no_environment(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-canary")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    result = analyse("print(sorted(os.environ)); print(open('/proc/self/environ').read())", table, Limits())
    assert result.status == "ok"
    assert "canary" not in result.text
    assert "'ARROW_DEFAULT_MEMORY_POOL', 'ARROW_IO_THREADS', 'HOME', 'LANG'" in result.text
    assert "PYTHONPATH" not in result.text


def test_it_runs_in_a_folder_of_its_own(table: Path, tmp_path: Path) -> None:
    result = analyse("print(os.getcwd()); print(os.listdir()); print(sys.stdin.read() == '')", table)
    folder, listing, empty_stdin = result.text.splitlines()[1:]
    assert Path(folder).is_relative_to(tmp_path)
    assert listing == "[]"
    assert empty_stdin == "True"


def test_an_infinite_loop_ends_at_its_deadline_with_what_it_wrote(table: Path) -> None:
    result = analyse(
        f"{WRITE}('partial')\nprint('so far')\nwhile True: pass", table, Limits(wall_s=4, cpu_s=20, output_kb=16)
    )
    assert result.status == "timeout"
    assert result.text == (
        "partial\n\n--- printed ---\nso far\n\n"
        "--- outcome ---\nThe analysis was stopped because it ran longer than 4 s.\n"
    )
    assert 4 <= result.wall_s < 8


def test_processor_time_is_limited(table: Path) -> None:
    result = analyse("while True: pass", table, Limits(wall_s=20, cpu_s=2))
    assert result.status == "timeout"
    assert "used more than 2 s of processor time" in result.text


def test_ignored_signals_do_not_help(table: Path) -> None:
    body = """
    import signal
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    while True: time.sleep(1)
    """
    assert analyse(body, table, Limits(wall_s=2)).status == "timeout"


@pytest.mark.parametrize(("then", "status"), [("return", "ok"), ("time.sleep(60)", "timeout")])
def test_processes_it_leaves_are_killed_with_it(table: Path, then: str, status: str) -> None:
    body = f"""
    if (pid := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    {WRITE}(str(pid))
    {then}
    """
    start = time.monotonic()
    # A strong jail would not let it fork.
    result = analyse(body, table, Limits(wall_s=4), choose("limits"))
    assert time.monotonic() - start < 10
    assert result.status == status
    pid = int(result.text.split()[0])
    for _ in range(100):
        if not alive(pid):
            return
        time.sleep(0.01)
    pytest.fail("a process of the analysis lives on")


@pytest.mark.parametrize(
    "body",
    [
        "x = bytearray(1 << 40)",
        "import numpy as np\nx = np.ones((1 << 36,))",
        "x = []\nwhile True: x.append([0] * 9999)",
    ],
    ids=["bytes", "numpy", "piecemeal"],
)
def test_memory_is_limited(table: Path, body: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = analyse(f"print('start')\n{body}", table, Limits(memory_mb=700))
    assert result.status == "memory"
    assert result.text.startswith("--- printed ---\nstart\n\n--- traceback ---\nTraceback")
    assert "MemoryError" in result.text
    assert result.text.endswith("The analysis needed more than 700 MiB of memory.\n")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_long_text_keeps_its_head_and_tail(table: Path) -> None:
    body = f"{WRITE}(''.join(f'line {{k}}\\n' for k in range(9999)))\nprint('printed too')\nraise ValueError('bad')"
    result = analyse(body, table)
    assert result.status == "error"
    assert result.text.startswith("line 0\nline 1\n")
    assert "bytes left out ...]\n" in result.text
    assert "line 9998\n\n--- printed ---\nprinted too\n\n--- traceback ---\n" in result.text
    assert result.text.endswith("ValueError: bad\n")
    assert len(result.text.encode()) < (16 << 10) + 200


def test_printing_without_end_is_stopped(table: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = analyse("print('first')\nwhile True: print('x' * 100_000)", table)
    assert result.status == "output"
    assert result.text.startswith("--- printed ---\nfirst\nxxx")
    assert result.text.endswith("The analysis was stopped because it printed more than 2 MiB.\n")
    assert len(result.text) < 20_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_a_huge_file_is_refused(table: Path) -> None:
    result = analyse("with open('huge', 'wb') as f:\n    while True: f.write(bytes(1 << 20))", table)
    assert result.status == "output"
    assert "OSError: [Errno 27] File too large" in result.text
    assert "wrote a file of more than 2 MiB" in result.text


def test_a_traceback_is_verbatim_and_partial_results_stay(table: Path) -> None:
    code = f"""\
def helper(df):
    return df["speed"].mean()  # no such column

def run_all(df):
    out = {WRITE.removesuffix(".write")}
    out.write("== first ==\\n3 of 10 episodes\\n")
    out.write(f"{{helper(df)}}")
"""
    result = run_analysis(code, table, LIMITS)
    assert result.status == "error"
    start, trace = result.text.split("\n\n--- traceback ---\n")
    assert start == "== first ==\n3 of 10 episodes"
    lines = trace.splitlines()
    last = len(lines) - lines[::-1].index("Traceback (most recent call last):")
    assert lines[last : last + 2] == ['  File "analysis.py", line 7, in run_all', '    out.write(f"{helper(df)}")']
    assert '    return df["speed"].mean()  # no such column' in lines
    assert lines[-1] == "KeyError: 'speed'"
    assert '  File "pandas/core/frame.py"' in trace
    assert "child.py" not in trace
    assert sys.prefix not in trace


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("sys.exit(0)", "error", "SystemExit: 0"),
        ("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
        ("def deeper(): deeper()\ndeeper()", "error", "RecursionError"),
        ("os._exit(0)", "crash", "ended its own process (exit status 0) before run_all returned"),
        ("import ctypes; ctypes.string_at(0)", "crash", "signal SIGSEGV"),
        ("pass", "error", "run_all returned without writing test_results.txt or printing anything"),
        ("os.mkfifo('test_results.txt')", "error", "without writing"),
        ("os.symlink('/dev/zero', 'test_results.txt')", "error", "without writing"),
        ("sys.stderr.write('trouble'); print(1)", "ok", "--- standard error ---\ntrouble\n"),
    ],
)
def test_however_it_ends_there_is_a_readable_result(table: Path, body: str, status: str, said: str) -> None:
    result = analyse(body, table)
    assert result.status == status
    assert said in result.text


def test_results_cannot_be_smuggled_through_another_folder(table: Path) -> None:
    body = """
    here = os.getcwd()
    os.chdir('..')
    os.rename(here, 'moved')
    os.symlink('/proc/self', here)
    print('done')
    """
    result = analyse(body, table, backend=choose("limits"))
    assert result.text == "--- printed ---\ndone\n"


def test_syntax_errors_and_a_missing_entry_cost_no_process(table: Path) -> None:
    for code, said in (("def run_all(df:", "not valid Python"), ("x = 1", "does not define a function run_all(df)")):
        result = run_analysis(code, table, LIMITS)
        assert (result.status, result.wall_s) == ("error", 0.0)
        assert said in result.text


def test_warnings_stay_inside(table: Path) -> None:
    body = """
    import warnings, numpy as np
    warnings.warn("old")
    print(np.mean([]), df["reward"].astype(int).iloc[0])
    """
    assert analyse(body, table).text == "--- printed ---\nnan 1\n"


def test_the_same_analysis_gives_the_same_text(table: Path) -> None:
    body = """
    import random, numpy as np
    print(set("abcdefgh"), random.random(), np.random.rand())
    """
    assert analyse(body, table).text == analyse(body, table).text


def test_a_module_can_look_itself_up(table: Path) -> None:
    code = """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Rate:
    value: float
def run_all(df):
    print(Rate(0.5))
if __name__ == "__main__":
    raise SystemExit("not started as a program")
"""
    assert run_analysis(code, table, LIMITS).text == "--- printed ---\nRate(value=0.5)\n"


def test_a_deep_or_locked_folder_is_removed_too(table: Path) -> None:
    body = """
    os.umask(0o777); os.mkdir('locked'); os.umask(0o22)
    for _ in range(1100):
        os.mkdir('d'); os.chdir('d')
    print('deep')
    """
    assert "deep" in analyse(body, table).text


def test_an_unreadable_table_is_the_users_matter(tmp_path_factory: pytest.TempPathFactory) -> None:
    broken = tmp_path_factory.mktemp("broken") / "rollouts.parquet"
    with pytest.raises(UserError, match=r"rollouts.parquet cannot be read for an analysis: there is no such file"):
        analyse("pass", broken)
    broken.write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(UserError, match="cannot be read for an analysis: Arrow"):
        analyse("pass", broken)


def test_what_keeps_an_analysis_from_starting_is_the_users_matter(table: Path) -> None:
    class Broken(Backend):
        def command(self, jail: Jail, python: Sequence[str]) -> list[str]:
            return [sys.executable, "-c", "import sys; sys.exit('no jail here')"]

    with pytest.raises(UserError, match=r"no analysis can be started \(exit status 1\): no jail here"):
        analyse("pass", table, backend=Broken())


def test_an_analysis_cannot_pretend_that_it_never_started(table: Path) -> None:
    body = f"open('.traceback', 'w').write('gone'); os._exit({child.NO_TABLE})"
    result = analyse(body, table)
    assert result.status == "crash"
    assert "ended its own process (exit status 44)" in result.text


def test_an_orphan_ends_itself(table: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("orphan")
    (folder / "analysis.py").write_text("def run_all(df):\n    while True: pass")
    paths = [str(path) for path in (table, folder / "analysis.py", folder / "traceback.txt")]
    # Nobody watches this one.
    backend = choose()
    command = backend.command(Jail(read=(table, folder), wall_s=0), (child.__file__, *paths))
    ended = subprocess.run(command, timeout=30, check=False, capture_output=True)
    assert backend.status(ended.returncode) == -signal.SIGALRM

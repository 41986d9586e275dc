"""`python -m jaxrefine.report RUN [RUN ...]`: write the report of a run, or the comparison of several; or serve it."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from jaxrefine.errors import UserError
from jaxrefine.report.comparison import FILE_NAME as COMPARISON_NAME
from jaxrefine.report.comparison import figures_folder, render_comparison, write_comparison
from jaxrefine.report.page import FIGURES, FILE_NAME, render, write_report
from jaxrefine.report.record import read_run
from jaxrefine.report.tensorboard import require_tensorboard, write_tensorboard
from jaxrefine.report.wandb import require_wandb, write_wandb
from jaxrefine.report.watch import EVERY_S, Watch, serving
from jaxrefine.run.files import write_whole

_DESCRIPTION = f"""\
Make the report of a run, one self-contained page, from its run directory alone: RUN/{FILE_NAME}, and its figures as
PDF in RUN/{FIGURES}. Works for runs that failed, were killed or are still going too. Several runs make one page that
compares them: {COMPARISON_NAME} in the folder that holds them all, and its figures beside it; among the folders given,
an earlier comparison is passed over."""

_EPILOG = f"""\
examples:
  python -m jaxrefine.report runs/car_racing-refine-0-2026-01-31_12-00-00
  python -m jaxrefine.report runs/* --out paper/{COMPARISON_NAME}
  python -m jaxrefine.report runs/car_racing-refine-0-2026-01-31_12-00-00 --watch

--watch writes no file and is reached from this machine alone. From another one: ssh -L 8321:localhost:8321 HOST.

exit status: 0 done, 2 a mistake in the command or a folder that is no run"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; give the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    runs = _without_own_pages(options.runs)
    if options.watch and options.out is not None:
        parser.error("--watch writes no file: leave out --out, or make the page without --watch")
    if options.watch and (options.tensorboard or options.wandb):
        parser.error("--watch writes no file: make --tensorboard or --wandb without it")
    if not options.watch and (options.port is not None or options.every != EVERY_S):
        parser.error("--port and --every are for --watch")
    if len({run.resolve() for run in runs}) < len(runs):
        parser.error("a run is named twice")
    try:
        if options.watch:
            _watch(runs, options.port, options.every)
        else:
            if options.tensorboard:
                require_tensorboard()
            if options.wandb:
                require_wandb()
            _write(runs, options.out)
            for run in runs:
                if options.tensorboard:
                    print(write_tensorboard(run))
                if options.wandb:
                    print(write_wandb(run))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _without_own_pages(given: Sequence[Path]) -> list[Path]:
    """The runs that `runs/*` names, where an earlier comparison stands among them."""
    own = (COMPARISON_NAME, figures_folder(Path(COMPARISON_NAME)).name)
    runs = [path for path in given if path.name not in own] if len(given) > 1 else []
    return runs or list(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jaxrefine.report",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run directory, such as runs/car_racing-refine-0-..."
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the page to this file; without PDFs if it is one run's"
    )
    parser.add_argument(
        "--watch", action="store_true", help="serve the page on localhost until Ctrl-C; it follows a run that is going"
    )
    parser.add_argument(
        "--port", type=_port, metavar="N", help="with --watch: the port, 0 for any free one (default: 8321 if free)"
    )
    parser.add_argument(
        "--every",
        type=_seconds,
        default=EVERY_S,
        metavar="S",
        help=f"with --watch: seconds between two looks (default: {EVERY_S:g}; more if the page takes long to make)",
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="write the same numbers as event files too: RUN/tensorboard"
    )
    parser.add_argument(
        "--wandb", action="store_true", help="write an offline run of Weights & Biases too: RUN/wandb; sends nothing"
    )
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1.0 <= value <= 86_400.0:
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds, from 1 to 86400")
    return value


def _write(runs: Sequence[Path], out: Path | None) -> None:
    start = time.perf_counter()
    if len(runs) > 1:
        _say(f"comparing {len(runs)} runs ...")
        target = write_comparison(runs, out)
    else:
        _say(f"reading {runs[0]} ...")
        target = write_report(runs[0]) if out is None else _write_page(out, render(read_run(runs[0])))
    print(target)
    _say(f"{target.stat().st_size / 1e6:.1f} MB in {time.perf_counter() - start:.1f} s")


def _write_page(target: Path, page: str) -> Path:
    if target.is_dir():
        raise UserError(f"{target} is a folder: give --out the name of a file, such as {target / FILE_NAME}.")
    write_whole(target, page.encode())
    return target


def _watch(runs: Sequence[Path], port: int | None, every: float) -> None:
    def page() -> str:
        return render(read_run(runs[0])) if len(runs) == 1 else render_comparison(runs)

    with serving(Watch(runs, page, every), port) as address:
        print(address, flush=True)
        for run in runs:
            if not run.is_dir():
                _say(f"there is no {run} yet: the page says so until there is")
        _say(f"{address}?still does not refresh itself. Ctrl-C ends.")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            _say("")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m jaxrefine.report RUN`: write RUN/report.html."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxrefine.errors import UserError
from jaxrefine.report import write_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report of the run named on the command line; give the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxrefine.report",
        description="Write RUN/report.html, one self-contained page, from a run directory alone. "
        "Works for runs that failed, were killed or are still going too.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run directory, such as runs/car_racing/...")
    try:
        print(write_report(parser.parse_args(arguments).run))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Start another bench in every process of a launcher's job, so that its seeds are cut over all their devices.

    srun python -m bench.joined bench.gspo_scale RUN --seeds 4096 --alone
    python -m bench.joined --coordinator HOST:PORT --processes 2 --process 0 bench.gspo_scale RUN --seeds 64 --alone

Slurm, Open MPI and Kubernetes say by themselves who belongs together. Processes have to join before anything is
computed, and importing gymnax computes: hence a module of its own, which imports the bench afterwards.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence

from jaxrefine.learn.mesh import join_processes


def main(arguments: Sequence[str] | None = None) -> None:
    """Join, and hand over."""
    parser = argparse.ArgumentParser(prog="python -m bench.joined", description=__doc__.splitlines()[0])
    parser.add_argument("--coordinator", help="host:port of process 0, where no launcher says it")
    parser.add_argument("--processes", type=int, help="how many there are")
    parser.add_argument("--process", type=int, help="which one this is")
    parser.add_argument("bench", help="the module, such as bench.gspo_scale")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    chosen = parser.parse_args(arguments)
    try:
        join_processes(chosen.coordinator, chosen.processes, chosen.process)
    except (ValueError, RuntimeError) as error:
        parser.exit(2, f"{parser.prog}: the processes cannot be joined: {error}\n")
    sys.argv[1:] = chosen.arguments
    runpy.run_module(chosen.bench, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""The paper's comparison table, from runs of the command itself, with independent runs and the paper's figures beside.

    python -m bench.paper_table task=car_racing [task.condition=slick] [--chains 0 1 2] [--quick]
    python -m bench.paper_table task=door

Rows: perceptron, zero-shot, best-of-N and refined, each after imitation and after both budgets of windowed GSPO. Every
run is an ordinary run directory under ``--out``; started again, the bench goes on from what is finished.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from jaxrefine.config import Config, register
from jaxrefine.errors import UserError
from jaxrefine.main import execute
from jaxrefine.report.paper import MEANS
from jaxrefine.report.stages import Row, rows, stages, to_json

METHODS = ["MLP", "zero-shot", "best-of-N", "refined"]
QUICK = ("seeds=2", "fit.updates=40", "rl.seeds=2", "rl.resets=[8]", "rl.episodes=4", "rl.looks=1", "method.n=2")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the runs that are missing, and the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.paper_table", description=__doc__.splitlines()[0])
    parser.add_argument("options", nargs="*", help="options of the command, for every run: task=door rl.seeds=32")
    parser.add_argument("--chains", nargs="+", help="recorded conversations; by default the condition's own")
    parser.add_argument("--rows", nargs="+", choices=METHODS, default=METHODS, help="methods")
    parser.add_argument("--mlp-learning-rate", type=float, help="one more row, a perceptron trained with this rate")
    parser.add_argument("--out", type=Path, help="where the runs are, runs/paper_table by default")
    parser.add_argument("--json", type=Path, help="where the table is written as JSON")
    parser.add_argument("--quick", action="store_true", help="tiny budgets and one conversation: a smoke test")
    chosen = parser.parse_args(arguments)
    register()
    try:
        return _table(chosen, sys.argv[1:] if arguments is None else arguments)
    except UserError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def _table(chosen: argparse.Namespace, arguments: Sequence[str]) -> int:
    base = _config([])
    probe = _config(chosen.options)
    task, condition = probe.task.name, probe.task.condition
    chains = chosen.chains or _chains(task, condition)
    if chosen.quick:
        chains = chains[:1]
    common = [*(("seeds=10", "rl=both") if not chosen.quick else QUICK), *chosen.options]
    out = chosen.out or Path(base.out) / "paper_table" / f"{task}-{condition}{'-quick' if chosen.quick else ''}"
    plan: dict[str, list[tuple[str, list[str]]]] = {
        "MLP": [("mlp", ["method=mlp"])],
        "zero-shot": [(f"zero_shot-{c}", ["method=zero_shot", f"llm.chain={c}"]) for c in chains],
        "best-of-N": [("best_of_n", ["method=best_of_n", "llm.chain=best-of-n"])],
        "refined": [(f"refine-{c}", ["method=refine", f"llm.chain={c}"]) for c in chains],
    }
    plan = {name: runs for name, runs in plan.items() if name in chosen.rows}
    if not (_transcripts(task) / "best-of-n.jsonl").exists() and plan.pop("best-of-N", None):
        print(f"no first programs were recorded for best-of-N on {task}: the table has no such row")
    if chosen.mlp_learning_rate is not None:
        rate = chosen.mlp_learning_rate
        plan[f"MLP, rate {rate:g}"] = [(f"mlp-{rate:g}", ["method=mlp", f"rl.learning_rate={rate}"])]
    began = time.perf_counter()
    found = []
    for name, runs in plan.items():
        folders = []
        for folder, options in runs:
            config = _config([*common, *options, f"run={out / folder}"])
            folders.append(out / folder)
            _make(config, out / folder)
        found += stages(name, folders)
    table = rows(found)
    _print(table, task, condition, time.perf_counter() - began)
    if chosen.json:
        summary = json.loads((folders[0] / "summary.json").read_text())
        written = {
            "command": " ".join(["python -m bench.paper_table", *arguments]),
            "task": task,
            "condition": condition,
            "chains": chains,
            "machine": f"{platform.processor() or platform.machine()}, {summary['provenance']['device']}",
            "demonstration": summary["demonstration"],
            "paper": MEANS.get((task, condition), {}),
            "rows": [to_json(row) for row in table],
            "wall_s": {folder: _wall_s(out / folder) for runs in plan.values() for folder, _ in runs},
        }
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0


def _make(config: Config, folder: Path) -> None:
    """Carry a run out unless it is there.

    Raises:
        UserError: it failed, or the one that is there was made with other options.
    """
    if (folder / "summary.json").exists():
        made, asked = (folder / "config.yaml").read_text(), OmegaConf.to_yaml(OmegaConf.structured(config))
        if made != asked:
            raise UserError(f"the run in {folder} was made with other options; choose another --out")
    elif reason := execute(config):
        raise UserError(f"the run in {folder} failed: {reason}")
    if json.loads((folder / "summary.json").read_text())["best_round"] is None:
        raise UserError(f"the run in {folder} has no round that could be evaluated")


def _transcripts(task: str) -> Path:
    return Path(str(files("jaxrefine").joinpath("transcripts", task)))


def _config(overrides: Sequence[str]) -> Config:
    with initialize_config_dir(str(files("jaxrefine").joinpath("conf")), version_base="1.3"):
        config = OmegaConf.to_object(compose("config", list(overrides)))
    assert isinstance(config, Config)
    return config


def _chains(task: str, condition: str) -> list[str]:
    """The recorded conversations of a condition that were shown analyses; those of stock where it has none."""
    folder = _transcripts(task)
    mine: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            header: dict[str, Any] = json.loads(lines.readline())
        if header.get("feedback") == "analysis" and header.get("text") == "accurate" and header.get("revisions"):
            mine.setdefault(header["condition"], []).append(path.stem)
    return mine.get(condition) or mine["stock"]


def _wall_s(folder: Path) -> float | None:
    summary = folder / "summary.json"
    return json.loads(summary.read_text())["resources"]["wall_s"] if summary.exists() else None


def _print(table: Sequence[Row], task: str, condition: str, seconds: float) -> None:
    console = Console()
    paper = MEANS.get((task, condition), {})
    shown = Table(title=f"{task}, {condition}", caption=f"{seconds:.0f} s for the runs that were not there yet")
    for column in ("method", "stage", "calls", "resets", "mean [95 %]", "IQM", "deviation over runs / episodes"):
        shown.add_column(column, justify="left" if column in ("method", "stage") else "right")
    for column in ("runs (conversations) x episodes", "chosen run", "p against refined", "paper"):
        shown.add_column(column, justify="right")
    for row in table:
        known = paper.get(row.method, {}).get(row.stage)
        digits = 1 if abs(row.mean or 0.0) >= 10 else 3
        between = f" [{row.interval.low:.{digits}f}, {row.interval.high:.{digits}f}]" if row.interval else ""
        shown.add_row(
            row.method,
            row.stage,
            _shown(row.calls, ".1f"),
            _shown(row.resets, ",.0f"),
            f"{_shown(row.mean, f'.{digits}f')}{between}",
            _shown(row.iqm, f".{digits}f"),
            f"{_shown(row.std_runs, f'.{digits}f')} / {_shown(row.std_episodes, f'.{digits}f')}",
            f"{row.runs} ({row.conversations}) x {row.episodes}" + (f", {row.failed} failed" if row.failed else ""),
            _shown(row.chosen_mean, f".{digits}f"),
            _shown(row.p_value, ".2g"),
            "-" if known is None else f"{known:g}",
        )
    console.print(shown)


def _shown(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


if __name__ == "__main__":
    raise SystemExit(main())

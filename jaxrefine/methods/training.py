"""Past the demonstration: reinforcement learning of the best round's program, for every budget that was asked for."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from typing import Any

from jaxrefine.config import RLConfig
from jaxrefine.methods.rounds import Round, Rounds
from jaxrefine.worker import ProgramError


def train(rounds: Rounds, best: Round) -> tuple[list[dict[str, Any]], str | None]:
    """Train and evaluate each budget; both are durable steps.

    Returns:
        One entry of ``summary.json``'s ``rl`` for each budget, and why a budget could not be trained, if one could not.
    """
    done: list[dict[str, Any]] = []
    for resets in rounds.config.rl.resets:
        try:
            done.append(_one(rounds, best, resets))
        except ProgramError as error:  # the program's process ended: its rounds stand all the same
            return done, f"training for {resets:,} resets could not go on: {error}"
    return done, None


def _one(rounds: Rounds, best: Round, resets: int) -> dict[str, Any]:
    run, options = rounds.run, rounds.config.rl
    name = f"rl/{resets}"
    folder = run.file(name)

    def training() -> dict[str, Any]:
        folder.mkdir(parents=True, exist_ok=True)
        # whole, so that a kill leaves no half of it
        with run.whole_file(f"{name}/start.npz") as temporary:
            shutil.copyfile(run.round_path(best.number) / "fits.npz", temporary)
        found = rounds.worker.train(best.source, folder, _starts(best, options.start), resets, _plain(options))
        ends = found["looks"][-1]["means"]
        beside = "" if found["at_once"] == found["seeds"] else f"; {found['at_once']} seeds at a time, for memory"
        stopped = f"; {found['stopped']} gradient steps left out" if found["stopped"] else ""
        return found | {
            "line": f"{found['env_steps']:,} steps, test means {_span(ends)} over {found['seeds']} seeds"
            f"{beside}{stopped}"
        }

    def evaluation() -> dict[str, Any]:
        found = rounds.worker.evaluate(best.source, folder)
        return found | {"line": f"{rounds.task.metric.name} {_mean(found['fits'])} over {found['fits']['n']} seeds"}

    run.emit("training_started", resets=resets)
    trained = run.step(f"{name}/train", training, label=f"train for {resets:,} resets")
    tested = run.step(f"{name}/evaluate", evaluation, label="evaluate")
    # of a step that an earlier version finished, what it did not count yet
    trained = {"kept_at": [], "choice_resets": 0, "look_steps": 0} | trained
    return {
        "budget": str(resets),
        "round": best.number,
        "metric": tested["metric"],
        "further_metrics": tested["further"],
        "per_episode": tested["per_episode"],
        "seeds": {"means": tested["means"], "chosen": tested["chosen"], **tested["fits"]},
        "validation": tested["validation"],
        "looks": trained["looks"],
        "kept_at": trained["kept_at"],
        "updates": trained["updates"],
        "stopped_steps": trained["stopped"],
        "resets": trained["resets"],
        "choice_resets": trained["choice_resets"] + tested["episodes"] - tested["test_episodes"],
        "env_steps": trained["env_steps"] + trained["look_steps"] + tested["env_steps"],
    }


def _starts(best: Round, start: str) -> list[int]:
    """Which fits training begins with: the round's policy, or every one that drives at all."""
    if start == "best":
        return [best.evaluation["chosen"]]
    return [i for i, mean in enumerate(best.evaluation["means"]) if mean is not None]


def _plain(options: RLConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if name != "resets"}


def _mean(sample: dict[str, Any]) -> str:
    if sample["mean"] is None:
        return "not finite for some seed"
    return f"{sample['mean']:.4g} ± {sample['std_sample'] or 0.0:.3g}"


def _span(values: list[float | None]) -> str:
    finite = [value for value in values if value is not None]
    return f"{min(finite):.4g} ... {max(finite):.4g}" if finite else "not finite"

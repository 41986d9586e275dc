"""One run from its options to its summary, whichever the method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jaxrefine.config import Config
from jaxrefine.errors import UserError
from jaxrefine.llm import Client, Recorder
from jaxrefine.methods import prompting
from jaxrefine.methods.best_of_n import best_of_n
from jaxrefine.methods.clients import make_budget
from jaxrefine.methods.conversation import Conversation
from jaxrefine.methods.evidence import FEEDBACK
from jaxrefine.methods.mlp import mlp
from jaxrefine.methods.refine import refine
from jaxrefine.methods.rounds import Round, RoundFailedError, Rounds
from jaxrefine.methods.training import train
from jaxrefine.methods.zero_shot import zero_shot
from jaxrefine.run import RunDirectory
from jaxrefine.sandbox import Backend, choose
from jaxrefine.stats import describe
from jaxrefine.task import Metric, Task
from jaxrefine.worker import ProcessWorker, Worker

Method = Callable[[Rounds], tuple[list[Round], str | None]]
METHODS: dict[str, Method] = {"refine": refine, "zero_shot": zero_shot, "best_of_n": best_of_n, "mlp": mlp}
_PACKAGES = ("jaxrefine", "jax", "jaxlib", "flax", "optax", "gymnax", "numpy", "pandas")


def check_options(config: Config) -> None:
    """Look for mistakes that no type tells.

    Raises:
        UserError: no such method, or a number out of its range.
    """
    if config.method.name not in METHODS:
        raise UserError(f"no method is called {config.method.name!r}; there are: {', '.join(METHODS)}")
    for name, value, low, high in (
        ("seeds", config.seeds, 1, 1_000_000),
        ("seed", config.seed, 0, 2**32 - 1),
        ("refine.rounds", config.refine.rounds, 0, 1000),
        ("refine.regenerations", config.refine.regenerations, 0, 1000),
        ("refine.more_analyses", config.refine.more_analyses, 0, 1000),
        ("refine.rollouts", config.refine.rollouts, 1, 1_000_000),
        ("refine.ablated", config.refine.ablated, 1, 1_000_000),
        ("refine.table_kb", config.refine.table_kb, 1, 100_000),
        ("fit.learning_rate", config.fit.learning_rate, 1e-8, 10.0),
        ("fit.batch_size", config.fit.batch_size, 1, 1_000_000_000),
        ("fit.updates", config.fit.updates, 1, 1_000_000_000),
        ("fit.validation_fraction", config.fit.validation_fraction, 0.001, 0.9),
        ("fit.patience", config.fit.patience, 1, 1_000_000_000),
        *((f"rl.resets[{i}]", resets, 1, 1_000_000_000) for i, resets in enumerate(config.rl.resets)),
        ("rl.seeds", config.rl.seeds, 1, 1_000_000),
        ("rl.looks", config.rl.looks, 1, 1_000_000),
        ("rl.learning_rate", config.rl.learning_rate, 0.0, 10.0),
        ("rl.clip", config.rl.clip, 0.0, 1e6),
        ("rl.window", config.rl.window, 1, 1_000_000_000),
        ("rl.entropy", config.rl.entropy, 0.0, 1e6),
        ("rl.discount", config.rl.discount, 0.0, 1.0),
        ("rl.groups", config.rl.groups, 1, 1_000_000),
        ("rl.episodes", config.rl.episodes, 2, 1_000_000),
        ("rl.epochs", config.rl.epochs, 1, 1_000_000),
        ("rl.anchors", config.rl.anchors, 1, 1_000_000),
        ("rl.log_ratio_limit", config.rl.log_ratio_limit, 0.0, math.inf),
        ("rl.kl_stop", config.rl.kl_stop, 0.0, math.inf),
        ("rl.clip_stop", config.rl.clip_stop, 0.0, math.inf),
        ("rl.survivors", config.rl.survivors, 1, 1_000_000),
        ("method.n", config.method.n, 1, 1000),
        *((f"method.hidden[{i}]", size, 1, 10_000) for i, size in enumerate(config.method.hidden)),
        ("analysis.wall_s", config.analysis.wall_s, 1.0, 86_400.0),
        ("analysis.memory_mb", config.analysis.memory_mb, 1024, 1_000_000_000),
        ("analysis.output_kb", config.analysis.output_kb, 1, 100_000),
        ("worker.memory_mb", config.worker.memory_mb, 1024, 1_000_000_000),
        ("worker.check_s", config.worker.check_s, 1.0, math.inf),
        ("worker.call_s", config.worker.call_s, 1.0, math.inf),
        ("llm.max_retries", config.llm.max_retries, 0, 1000),
        ("llm.timeout", config.llm.timeout, 1e-3, math.inf),
        ("llm.max_calls", config.llm.max_calls, 0, math.inf),
        ("llm.max_tokens", config.llm.max_tokens, 0, math.inf),
        ("llm.max_cost", config.llm.max_cost, 0.0, math.inf),
    ):
        if value is not None and not low <= value <= high:  # NaN fails too
            raise UserError(f"{name} is {value}; it must lie between {low:g} and {high:g}")
    for name, chosen, known in (
        ("refine.feedback", config.refine.feedback, FEEDBACK),
        ("refine.accept", config.refine.accept, ("validate", "always")),
        ("sandbox", config.sandbox, ("auto", "strong", "limits")),
        ("rl.start", config.rl.start, ("best", "own")),
        ("rl.keep", config.rl.keep, ("last", "best")),
        ("rl.ratio", config.rl.ratio, ("product", "length_normalised")),
        ("rl.grouping", config.rl.grouping, ("start", "state")),
    ):
        if chosen not in known:
            raise UserError(f"{name} is {chosen!r}; it must be one of: {', '.join(known)}")
    if config.refine.feedback == "none" and config.refine.accept != "always":
        raise UserError(
            "refine.feedback=none shows the model no result, and which revisions were kept is one: add "
            "refine.accept=always"
        )
    batch = config.rl.groups * config.rl.episodes
    for resets in config.rl.resets:
        if resets % batch:
            raise UserError(
                f"rl.resets holds {resets}, no multiple of the {batch} episodes of one update (rl.groups times "
                "rl.episodes)"
            )
    if len(set(config.rl.resets)) != len(config.rl.resets):
        raise UserError(f"rl.resets holds a budget twice: {config.rl.resets}")
    if config.method.name == "mlp" and not config.method.hidden:
        raise UserError("method.hidden is empty; give at least one hidden layer, such as method.hidden=[64,64]")
    for name, text in (("run", config.run), ("out", config.out), ("task.demonstration", config.task.demonstration)):
        if text is not None and "\0" in text:
            raise UserError(f"{name} holds a NUL character, which no path may")


def run_experiment(
    config: Config,
    task: Task,
    run: RunDirectory,
    client: Client,
    worker: Worker | ProcessWorker | None = None,
    backend: Backend | None = None,
) -> dict[str, Any]:
    """Carry a method out, or go on with it where an earlier process stopped.

    Args:
        config: all options.
        task: the task they name.
        run: the run directory.
        client: who answers what the run's own transcript does not.
        worker: who holds the programs; by default this process itself, which is for programs that are trusted.
        backend: what holds the analyses' jail; by default the strongest there is.

    Returns:
        The contents of ``summary.json``, which is written last.

    Raises:
        UserError: something that a person can mend stopped the run.
    """
    config = _settle_recording(config, client, run)
    worker = worker or Worker.from_options(task, config.seed, asdict(config.fit), run.progress)
    backend = backend or choose()
    recorder = Recorder(
        client,
        run.path / "transcript.jsonl",
        _header(config, task, client),
        make_budget(config.llm),
        run.notice,
    )
    demonstration = task.demonstration
    run.emit("run_started", task=task.name, condition=task.condition, method=config.method.name, seed=config.seed)
    rounds = Rounds(
        run,
        task,
        config,
        worker,
        Conversation(run, recorder, task, config.llm.chain, prompting.numbers(config)),
        backend,
    )
    try:
        done, reason = METHODS[config.method.name](rounds)
        status = "finished" if reason is None else "stopped"
    except RoundFailedError as failure:
        done, status, reason = [], "failed", str(failure)
    best = _best(done, task)
    trained: list[dict[str, Any]] = []
    if best is not None:
        trained, problem = train(rounds, next(entry for entry in done if entry.number == best))
        if problem is not None:
            status, reason = "stopped", problem if reason is None else f"{reason}; {problem}"
    spent = recorder.totals
    device = _device(run, worker)
    summary = {
        "task": task.name,
        "condition": task.condition,
        "method": config.method.name,
        "status": status,
        "reason": reason,
        "best_round": best,
        "metric": _metric(task.metric),
        "further_metrics": [_metric(metric) for metric in task.further_metrics],
        "demonstration": {
            "name": demonstration.name,
            "source": demonstration.source,
            "metric": _demonstrated(task),
            "steps": demonstration.steps,
            "test": _demonstrator(task),
        },
        "rounds": [_round(entry) for entry in done],
        "rl": trained,
        "resources": {
            "llm_calls": spent.calls,
            "input_tokens": spent.input_tokens,
            "output_tokens": spent.output_tokens,
            "reasoning_tokens": spent.reasoning_tokens,
            "cost": spent.cost,
            "refinement_resets": sum(entry.resets for entry in done),
            "training_resets": sum(entry["resets"] + entry["choice_resets"] for entry in trained),
            "env_steps": sum(entry.env_steps for entry in done) + sum(entry["env_steps"] for entry in trained),
            "wall_s": round(run.wall_s, 3),
        },
        "provenance": {
            "versions": {name: _version(name) for name in _PACKAGES},
            "device": device,
            "seeds": {
                "root": config.seed,
                "fit": config.seeds,
                **{key: list(value) for key, value in asdict(task.protocol).items() if key.endswith("_seeds")},
            },
            "transcript": recorder.header if config.method.name != "mlp" else None,
            "sandbox": {
                "analyses": backend.name,
                "programs": worker.backend if isinstance(worker, ProcessWorker) else "none: in the command's process",
                "earlier": earlier_sandboxes(run, backend),
            },
            "prompt_version": prompting.version(),
            "task_text": config.task.text,
        },
    }
    run.write_json("summary.json", summary)
    run.emit("run_finished", status=status, best_round=best, device=device)
    return summary


def earlier_sandboxes(run: RunDirectory, backend: Backend) -> list[str]:
    """Which others than ``backend`` held code of which this run keeps results."""
    found: list[str] = []
    holding: str | None = None
    for event in run.events:
        if event["event"] == "sandbox_chosen":
            holding = event["name"]
        elif event["event"] == "step_finished" and holding is not None and holding not in (backend.name, *found):
            found.append(holding)
    return found


def _device(run: RunDirectory, worker: Worker | ProcessWorker) -> str:
    """What did the work; where nothing was done since the run last ended, no worker is started to be asked."""
    known: str | None = None
    for event in run.events:
        if event["event"] == "run_finished":
            known = event.get("device")
        elif event["event"] == "step_finished":
            known = None
    return known or worker.device()


def _header(config: Config, task: Task, client: Client) -> dict[str, Any]:
    """Provenance of a new transcript; of a replayed one, its own with a note that this is a replay."""
    played = getattr(client, "transcript", None)
    if played is not None:
        return {**played.header, "replayed": True}
    return {
        "task": task.name,
        "condition": task.condition,
        "chain": config.llm.chain,
        "date": datetime.now(UTC).date().isoformat(),
        "model": getattr(client, "model", None) or config.llm.model or client.name,
        "provider": f"recorded through the {client.name} provider",
        "prompt_version": prompting.version(),
        "revisions": config.refine.rounds,
        **_way(config),
        "note": "",
    }


def _way(config: Config) -> dict[str, Any]:
    """The options that decide what a prompt shows."""
    return {
        "text": config.task.text,
        "feedback": config.refine.feedback,
        "accept": config.refine.accept,
        "battery": config.refine.battery,
    }


def _settle_recording(config: Config, client: Client, run: RunDirectory) -> Config:
    """The options with no more revisions than a played conversation was recorded with; tells of what else differs."""
    played = getattr(client, "transcript", None)
    header = {} if played is None else played.header
    mine = {"condition": config.task.condition, **_way(config)}
    other = [f"{key}={header[key]} (here {value})" for key, value in mine.items() if header.get(key, value) != value]
    refines = config.method.name == "refine" and config.refine.rounds > 0
    if refines and header.get("feedback", config.refine.feedback) != config.refine.feedback:
        raise UserError(
            f"this conversation was recorded with refine.feedback={header['feedback']} and has no answers to "
            f"prompts of refine.feedback={config.refine.feedback}: choose that, another one, or llm=openai"
        )
    if other:
        run.notice(f"this conversation was recorded with {', '.join(other)}: it answers other prompts than this run's")
    recorded = header.get("revisions")
    if config.method.name != "refine" or not isinstance(recorded, int) or recorded >= config.refine.rounds:
        return config
    run.notice(f"this conversation was recorded with refine.rounds={recorded}; so this run makes {recorded} revisions")
    return replace(config, refine=replace(config.refine, rounds=recorded))


def _best(done: list[Round], task: Task) -> int | None:
    """The round that does best on validation episodes; the earlier one of equals."""
    values = [entry.evaluation["validation"]["mean"] for entry in done]
    sign = 1 if task.metric.better == "higher" else -1
    ranked = [-math.inf if value is None else sign * value for value in values]
    if not ranked or max(ranked) == -math.inf:
        return None
    return done[ranked.index(max(ranked))].number


def _metric(metric: Metric) -> dict[str, Any]:
    return {"name": metric.name, "key": metric.key, "better": metric.better, "unit": metric.unit}


def _round(entry: Round) -> dict[str, Any]:
    found, chosen = entry.evaluation, entry.evaluation["chosen"]
    return {
        "round": entry.number,
        "metric": found["metric"],
        "further_metrics": found["further"],
        "per_episode": found["per_episode"],
        "fit_seeds": {"means": found["means"], "nll": entry.fit["validation_nll"], "chosen": chosen, **found["fits"]},
        "validation": found["validation"],
        "nll": {"train": entry.fit["train_nll"][chosen], "validation": entry.fit["validation_nll"][chosen]},
        "updates": entry.fit["updates"][chosen],
        "skipped_updates": entry.fit["skipped"][chosen],
        "decision": entry.decision,
        "accepted": entry.accepted,
        "against_best": entry.against_best,
        "changes": entry.changes,
        "parameters": entry.check["parameters"],
        "regenerations": entry.regenerations,
        "analyses": entry.analyses,
    }


def _demonstrated(task: Task) -> float | None:
    """The metric of the demonstrated episode itself, where the file holds what it needs."""
    rewards = task.demonstration.rewards
    if task.metric.of == "reward" and rewards is not None:
        over = {"sum": rewards.sum(), "min": rewards.min(), "max": rewards.max(), "last": rewards[-1]}
        return float(over[task.metric.reduce])
    value = task.demonstration.provenance.get(task.metric.key)
    return float(value) if isinstance(value, int | float) else None


def _demonstrator(task: Task) -> dict[str, Any] | None:
    """The demonstrator's own results on the test episodes, where the demonstration's provenance holds them."""
    own = task.demonstration.provenance.get("own_results")
    if own is None:
        return None
    values = {entry["seed"]: float(entry["value"]) for entry in own["per_episode"]}
    return asdict(describe([values[seed] for seed in task.protocol.test_seeds if seed in values])) | {
        "over": "episodes"
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"

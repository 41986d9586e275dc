"""What does a perceptron trained by PPO, brax's own, come to in these environments, after how many episodes?

    python -m bench.ppo --env car_racing --condition stock --steps 2_000_000 --seeds 3
    python -m bench.ppo --quick

A control from outside: nothing of the algorithm is ours. Every seed trains a policy of its own on the task's training
episodes; on the way and at the end the policy's mean action is scored on the test episodes as every other method's
is. Nothing is chosen by those scores: the result is the last policy's. It needs ``jaxrefine[brax]``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from brax.envs.base import Env, State, Wrapper
from brax.envs.wrappers.training import wrap
from brax.training.acme import running_statistics
from brax.training.agents.ppo import networks
from brax.training.agents.ppo import train as ppo
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental import io_callback
from rich.console import Console
from rich.table import Table

from bench.brax_shim import device_put_replicated
from envs.adapters import BraxEnv
from envs.adapters.flat import flatten
from envs.base import Schema
from jaxrefine import stats
from jaxrefine import task as tasks
from jaxrefine.errors import UserError
from jaxrefine.learn.evaluate import Measure, evaluate
from jaxrefine.learn.rollout import key_per_episode
from jaxrefine.learn.types import Info, Observation, Params, Policy
from jaxrefine.task import Task


@dataclass(frozen=True)
class Settings:
    """Of brax's PPO, most by its own names.

    Attributes:
        num_envs: environments stepped at once.
        unroll_length: steps of each of them that an estimate of advantages sees.
        batch_size: unrolls in a minibatch.
        num_minibatches: in an update; a multiple of ``num_envs`` unrolls in all.
        num_updates_per_batch: times that an update goes through its minibatches.
        learning_rate: of Adam.
        discounting: of rewards, a step.
        gae_lambda: of the advantage estimate, 0 (one step) to 1 (whole unrolls).
        entropy_cost: weight of the policy's entropy in what is maximised.
        clipping_epsilon: how far the ratio of likelihoods may leave 1.
        reward_scaling: factor on rewards.
        hidden: sizes of the hidden layers of the policy and of the value function, which share none.
        scaled: whether the policy's range, [-1, 1], is mapped to the bounds of an action or clipped to them.
    """

    num_envs: int = 64
    unroll_length: int = 32
    batch_size: int = 16
    num_minibatches: int = 8
    num_updates_per_batch: int = 4
    learning_rate: float = 3e-4
    discounting: float = 0.99
    gae_lambda: float = 0.95
    entropy_cost: float = 1e-2
    clipping_epsilon: float = 0.2
    reward_scaling: float = 0.1
    hidden: tuple[int, ...] = (64, 64)
    scaled: bool = True

    def options(self) -> dict[str, Any]:
        """The arguments of brax's ``train``."""
        return {name: value for name, value in asdict(self).items() if name not in ("hidden", "scaled")}


SETTINGS = {
    # Chosen on the validation episodes among eight, by one to three seeds of 1 or 2 million steps each. Standing still
    # is a trap: with actions mapped to their bounds, whose middle is half gas and half brake, the one training that was
    # tried ended in it, and with 256 environments in place of 64 five of nine did.
    "car_racing": Settings(scaled=False),
    # not tuned; rewards are up to 10 a step
    "door": Settings(reward_scaling=0.01),
}
QUICK = {"num_envs": 8, "unroll_length": 16, "batch_size": 4, "num_minibatches": 2, "hidden": (8,)}


@dataclass(frozen=True)
class Look:
    """At a policy in training.

    Attributes:
        env_steps: that it was trained on.
        resets: episodes begun for it.
        values: the task's metric of each test episode under the mean action.
        further: the same of each further metric, by its key.
    """

    env_steps: int
    resets: int
    values: tuple[float, ...]
    further: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Trained:
    """One seed's training: looks from the untrained policy to the last one, and the seconds that all of it took."""

    seed: int
    looks: tuple[Look, ...]
    seconds: float

    @property
    def result(self) -> Look:
        """The last policy's."""
        return self.looks[-1]


class CountEpisodes(Wrapper):
    """Counts the episodes that end in a batch of environments, in each of whose places another begins."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._ended = 0

    def step(self, state: State, action: jax.Array) -> State:
        """One step of all."""
        state = self.env.step(state, action)
        io_callback(self._add, None, jnp.sum(state.done))
        return state

    @property
    def ended(self) -> int:
        """How many have ended so far."""
        jax.effects_barrier()
        return self._ended

    def _add(self, count: np.ndarray) -> None:
        self._ended += int(count)


def policy_of(schema: Schema, settings: Settings) -> Policy:
    """The mean action of brax's policy as this repository's pure function of parameters and one observation."""
    network = networks.make_ppo_networks(
        len(schema.observation),
        schema.action_size,
        preprocess_observations_fn=running_statistics.normalize,
        policy_hidden_layer_sizes=settings.hidden,
    )
    make = networks.make_inference_fn(network)
    low, high = (np.array([getattr(c, bound) for c in schema.action]) for bound in ("low", "high"))

    def apply(params: Params, observation: Observation) -> tuple[jax.Array, jax.Array, Info]:
        tree = unflatten_dict(params, sep="/")
        seen = running_statistics.NestedMeanStd(**tree["seen"])
        action, _ = make((seen, tree["policy"]), deterministic=True)(flatten(schema, dict(observation)), None)
        if settings.scaled:  # as the adapter does
            action = (high + low) / 2 + (high - low) / 2 * action
        return action, jnp.zeros((schema.action_size, schema.action_size)), {}

    return apply


def params_of(trained: Sequence[Any]) -> Params:
    """The parameters of that function from what brax trains: statistics of observations, policy, value function."""
    seen, policy = trained[:2]
    return flatten_dict({"seen": {"mean": seen.mean, "std": seen.std}, "policy": policy}, sep="/")


def train(
    task: Task,
    settings: Settings,
    steps: int,
    seed: int,
    looks: int,
    score: Callable[[Params], tuple[tuple[float, ...], dict[str, tuple[float, ...]]]],
) -> Trained:
    """Train one policy.

    Args:
        task: on whose training episodes. brax begins each of a batch's environments with the same one ever again, so
            a batch has as many different ones as were drawn at the start, here some 57 of 256.
        settings: of PPO.
        steps: of the environment; brax rounds them up to whole updates between looks.
        seed: of everything random.
        looks: how often to look at the policy after the start, at equal distances.
        score: of the task's metric and of its further ones, on the test episodes.
    """
    env = BraxEnv(task.env, task.env.params_for_seeds(task.protocol.training_seeds), scaled=settings.scaled)
    counters: list[CountEpisodes] = []

    def wrapped(env: Env, **options: Any) -> Wrapper:
        counters.append(CountEpisodes(wrap(env, **options)))
        return counters[-1]

    seen: list[Look] = []

    def look(env_steps: int, _: Any, trained: Any) -> None:
        # brax wraps the training environment first; what it would evaluate in is never stepped
        resets = settings.num_envs + counters[0].ended
        seen.append(Look(int(env_steps), resets, *score(params_of(trained))))

    start = time.perf_counter()
    with device_put_replicated():
        ppo.train(
            environment=env,
            num_timesteps=steps,
            episode_length=task.protocol.steps,
            wrap_env_fn=wrapped,
            normalize_observations=True,
            network_factory=partial(
                networks.make_ppo_networks,
                policy_hidden_layer_sizes=settings.hidden,
                value_hidden_layer_sizes=settings.hidden,
            ),
            seed=seed,
            max_devices_per_host=1,
            num_evals=looks + 1,
            num_eval_envs=1,
            run_evals=False,
            policy_params_fn=look,
            **settings.options(),
        )
    return Trained(seed, tuple(seen), time.perf_counter() - start)


def score_on(
    task: Task, policy: Policy, seeds: Sequence[int]
) -> Callable[[Params], tuple[tuple[float, ...], dict[str, tuple[float, ...]]]]:
    """Scores parameters of a policy on the episodes of ``seeds``: the metric's values, and those of further metrics."""
    env_params = task.env.params_for_seeds(seeds)
    metrics = (task.metric, *task.further_metrics)

    def score(params: Params) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]]]:
        found = evaluate(
            task.env,
            policy,
            env_params,
            jax.tree.map(lambda leaf: leaf[None], params),
            jnp.arange(len(seeds)),
            key_per_episode(jax.random.key(0), len(seeds)),
            measures=tuple(Measure(metric.of, metric.reduce) for metric in metrics),
            steps=task.protocol.steps,
            sampled=False,
        )
        value, *further = (tuple(np.asarray(values[0]).tolist()) for values in found.values)
        return value, dict(zip((metric.key for metric in task.further_metrics), further, strict=True))

    return score


def summarise(task: Task, trained: Sequence[Trained]) -> dict[str, Any]:
    """Of the last policies; seeds are independent of each other, the episodes of one policy are not."""
    values = np.array([one.result.values for one in trained])
    by_seed = values.mean(axis=1)
    summary: dict[str, Any] = {
        "per_seed": by_seed.tolist(),
        "over_seeds": asdict(stats.describe(by_seed)),
        "interquartile_mean": stats.interquartile_mean(values),
        # of whole seeds: a policy that is bad on one episode is likely to be so on others
        "bootstrap": asdict(stats.bootstrap_interval(by_seed)) if len(trained) > 1 else None,
        "further": {
            metric.key: float(np.mean([one.result.further[metric.key] for one in trained]))
            for metric in task.further_metrics
        },
    }
    for name in ("env_steps", "resets"):
        summary[name] = float(np.mean([getattr(one.result, name) for one in trained]))
    return summary


def show(task: Task, trained: Sequence[Trained], summary: dict[str, Any], console: Console) -> None:
    """Print what came of it, a row a look."""
    unit = f", {task.metric.unit}" if task.metric.unit else ""
    title = f"PPO on {task.name}, {task.condition}: {task.metric.name}{unit}, mean action, mean of the test episodes"
    table = Table("env steps", "resets", *(f"seed {one.seed}" for one in trained), "mean of seeds", title=title)
    for looks in zip(*(one.looks for one in trained), strict=True):
        means = [float(np.mean(look.values)) for look in looks]
        resets = np.mean([look.resets for look in looks])
        table.add_row(f"{looks[0].env_steps:,}", f"{resets:,.0f}", *(f"{x:.3f}" for x in (*means, np.mean(means))))
    console.print(table)
    for name, value in summary["further"].items():
        console.print(f"{name}: {value:.3f}")
    if interval := summary["bootstrap"]:
        console.print(f"95% interval of the mean of seeds: {interval['low']:.3f} to {interval['high']:.3f}")
    console.print(f"seconds a seed: {', '.join(f'{one.seconds:.0f}' for one in trained)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print and perhaps write; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.ppo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", choices=SETTINGS, default="car_racing", help="what is trained in")
    parser.add_argument("--condition", default="stock", help="of the environment")
    parser.add_argument("--steps", type=_positive, help="of the environment, for each seed (2,000,000)")
    parser.add_argument("--seeds", type=_positive, default=1, help="how many policies are trained, from 0 on")
    parser.add_argument("--looks", type=_positive, help="scores on the way, the last policy's among them (10)")
    parser.add_argument("--quick", action="store_true", help="a small network and few steps, to see that it works")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args(arguments)
    console = Console()
    settings, steps, looks = SETTINGS[options.env], options.steps or 2_000_000, options.looks or 10
    if options.quick:
        settings, steps, looks = replace(settings, **QUICK), options.steps or 512, options.looks or 1
    try:
        task = tasks.get(options.env, condition=options.condition)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    score = score_on(task, policy_of(task.schema, settings), task.protocol.test_seeds)
    trained = []
    for seed in range(options.seeds):
        with console.status(f"seed {seed + 1} of {options.seeds}"):
            trained.append(train(task, settings, steps, seed, looks, score))
    summary = summarise(task, trained)
    show(task, trained, summary, console)
    if options.json:
        record = {
            "command": f"python -m bench.ppo {' '.join(sys.argv[1:] if arguments is None else arguments)}",
            "environment": task.name,
            "condition": task.condition,
            "metric": asdict(task.metric),
            "date": time.strftime("%Y-%m-%d"),
            "device": f"{jax.devices()[0].device_kind} ({platform.processor() or platform.machine()})",
            "versions": {"brax": version("brax"), "jax": jax.__version__, "python": platform.python_version()},
            "settings": asdict(settings),
            "test_seeds": task.protocol.test_seeds,
            "training_episodes": len(task.protocol.training_seeds),
            "summary": summary,
            "results": [asdict(one) for one in trained],
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return number


if __name__ == "__main__":
    sys.exit(main())

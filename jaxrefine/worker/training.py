"""Reinforcement learning of one program from several independent seeds, with a look at the test episodes on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxrefine.learn.evaluate import Measure, evaluate
from jaxrefine.learn.gspo import Batches, Curves, Hyperparameters, Training, start
from jaxrefine.learn.gspo import train as train_seeds
from jaxrefine.learn.mesh import seed_mesh, seeds_at_once
from jaxrefine.learn.rollout import key_per_episode
from jaxrefine.policy.program import Program
from jaxrefine.tables import write_parquet
from jaxrefine.task import Task
from jaxrefine.worker.arrays import save_arrays
from jaxrefine.worker.runtime import device_memory

# what one number of a batch costs in gradients and copies, in numbers; measured with programs of 20 to 30 parameters
_COPIES = 8
_SHARE = 0.6


def train(
    task: Task,
    program: Program,
    starts: Mapping[str, np.ndarray],
    env_params: Any,
    initial_conditions: int,
    look_params: Any,
    key: jax.Array,
    folder: Path,
    resets: int,
    options: Mapping[str, Any],
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Carry out ``resets`` episodes of training for every seed.

    Writes ``fits.npz`` (the parameters that are kept, stacked over seeds), ``curves.parquet`` (one row per seed and
    update) and ``checkpoints.parquet`` (one row per seed, look and test episode; nothing is chosen by it) into
    ``folder``. With ``keep`` "last" a seed's last parameters are kept, as in the paper; with "best" those of the look,
    the one before training among them, at which it did best on the validation episodes.

    Args:
        task: whose environment is driven.
        program: whose parameters are tuned.
        starts: stacked sets of parameters; seed i begins with the one of number i, in turn.
        env_params: holds the initial conditions.
        initial_conditions: how many.
        look_params: holds the test episodes, and the validation episodes after them where the best is kept.
        key: root of all randomness.
        folder: written to.
        resets: episodes of each seed.
        options: named as the fields of ``jaxrefine.config.RLConfig``.
        progress: called with (updates done, total).

    Returns:
        ``{"seeds": int, "at_once": int, "updates": int, "resets": int, "env_steps": int, "look_steps": int, "stopped":
        int, "looks": [{"resets": int, "means": [test mean of each seed]}], "kept_at": [resets of each seed],
        "choice_resets": int}``; ``resets`` and ``env_steps`` of training over all seeds, ``look_steps`` the environment
        steps of the looks, ``choice_resets`` the validation episodes of the looks, ``stopped`` the gradient steps that
        were left out because of a stop or because they were not finite.
    """
    seeds = options["seeds"]
    batches = _batches(task, options)
    updates = resets // (batches.groups * batches.episodes)
    every = _every(updates, options["looks"])
    hyper = _hyperparameters(options, updates)
    test = task.protocol.test_seeds
    episodes = len(test) + (len(task.protocol.validation_seeds) if options["keep"] == "best" else 0)
    first = {name: jnp.asarray(value[0]) for name, value in starts.items()}
    restore = jax.vmap(ravel_pytree(first)[1])

    def look(training: Training) -> tuple[np.ndarray, np.ndarray]:
        found = evaluate(
            task.env,
            program.apply,
            look_params,
            restore(training.params),
            jnp.arange(episodes),
            key_per_episode(jax.random.fold_in(key, 1), episodes),
            measures=(Measure(task.metric.of, task.metric.reduce),),
            steps=task.protocol.steps,
            sampled=task.protocol.sampled,
        )
        return np.asarray(found.values[0]), np.asarray(found.steps)

    mesh = seed_mesh() if jax.device_count() > 1 else None
    size = seeds_at_once(seeds, _bytes_per_seed(task, batches), int(device_memory() * _SHARE), jax.device_count())
    paths: list[np.ndarray] = []
    curves: list[dict[str, np.ndarray]] = []
    looks: list[np.ndarray] = []
    look_steps = 0
    for begin in range(0, seeds, size):
        # the last chunk is filled up with repetitions, so that it has the compiled shape
        part = np.minimum(np.arange(begin, begin + size), seeds - 1)
        number = part % len(next(iter(starts.values())))
        training = jax.vmap(start)({name: jnp.asarray(value[number]) for name, value in starts.items()})
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, 0), jnp.asarray(part))
        seen, passed, path = [look(training)], [], [np.asarray(training.params)]
        for done in range(1, updates + 1):
            # one update a call: every budget, and every distance between looks, has the same compiled function
            training, found = train_seeds(
                task.env,
                program.apply,
                env_params,
                first,
                training,
                keys,
                jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), len(part)), hyper),  # noqa: B023
                starts=initial_conditions,
                batches=batches,
                updates=1,
                mesh=mesh,
            )
            passed.append({name: np.asarray(getattr(found, name)) for name in Curves.__dataclass_fields__})
            if done % every == 0:
                seen.append(look(training))
                path.append(np.asarray(training.params))
            progress(begin // size * updates + done, -(-seeds // size) * updates)
        kept = min(size, seeds - begin)
        paths.append(np.stack(path, 1)[:kept])
        curves.append({name: np.concatenate([p[name] for p in passed], 1)[:kept] for name in passed[0]})
        looks.append(np.stack([values for values, _ in seen], 1)[:kept])
        look_steps += sum(int(steps[:kept].sum()) for _, steps in seen)
    whole = {name: np.concatenate([part[name] for part in curves]) for name in curves[0]}
    looked = np.concatenate(looks)  # (seeds, looks, episodes)
    tested = looked[..., : len(test)]
    chosen = _choose(looked[..., len(test) :].mean(-1), task.metric.better) if episodes > len(test) else -1
    ends = np.concatenate(paths)[np.arange(seeds), chosen]
    save_arrays(folder / "fits.npz", {k: np.asarray(v) for k, v in restore(jnp.asarray(ends)).items()})
    at = np.arange(tested.shape[1]) * every * batches.groups * batches.episodes
    _write_curves(folder / "curves.parquet", whole, batches)
    _write_looks(folder / "checkpoints.parquet", tested, at, test)
    steps = whole["length"].astype(np.float64).sum() * batches.groups * batches.episodes
    return {
        "seeds": seeds,
        "at_once": size,
        "updates": updates,
        "resets": seeds * updates * batches.groups * batches.episodes,
        "env_steps": round(float(steps)),
        "look_steps": look_steps,
        "kept_at": np.broadcast_to(at[chosen], seeds).tolist(),
        "choice_resets": looked[..., len(test) :].size,
        "stopped": int(seeds * updates * batches.epochs - whole["epochs"].sum()),
        "looks": [{"resets": int(r), "means": tested[:, i].mean(1).astype(float).tolist()} for i, r in enumerate(at)],
    }


def _choose(means: np.ndarray, better: str) -> np.ndarray:
    """For each seed the look with the best mean, the earlier one of equals; means that are not finite are worst."""
    ranked = np.where(np.isfinite(means), means if better == "higher" else -means, -np.inf)
    return np.argmax(ranked, axis=1)


def _batches(task: Task, options: Mapping[str, Any]) -> Batches:
    return Batches(
        groups=options["groups"],
        episodes=options["episodes"],
        epochs=options["epochs"],
        steps=task.protocol.steps,
        length_normalised=options["ratio"] == "length_normalised",
        anchors=options["anchors"] if options["grouping"] == "state" else 0,
        one_by_one=jax.default_backend() == "cpu",
    )


def _hyperparameters(options: Mapping[str, Any], updates: int) -> Hyperparameters:
    def limit(name: str) -> float:
        return np.inf if options[name] is None else options[name]

    return Hyperparameters(
        learning_rate=options["learning_rate"],
        clip=options["clip"],
        window=options["window"],
        entropy=options["entropy"],
        discount=options["discount"],
        updates=updates,
        log_ratio_limit=limit("log_ratio_limit"),
        kl_stop=limit("kl_stop"),
        clip_stop=limit("clip_stop"),
        survivors=options["survivors"],
    )


def _every(updates: int, looks: int) -> int:
    """Updates from look to look: a divisor, so that the last look is at the end."""
    least = -(-updates // max(1, looks))
    return next(n for n in range(least, updates + 1) if updates % n == 0)


def _bytes_per_seed(task: Task, batches: Batches) -> int:
    numbers = sum(int(np.prod(shape)) for shape in task.schema.observation_shapes.values())
    numbers += 4 * task.schema.action_size + 8
    return numbers * batches.steps * batches.groups * batches.episodes * _COPIES * jnp.zeros(0).dtype.itemsize


def _write_curves(path: Path, curves: dict[str, np.ndarray], batches: Batches) -> None:
    seeds, updates = curves["kl"].shape
    seed, update = np.meshgrid(np.arange(seeds), np.arange(updates), indexing="ij")
    columns = {"seed": seed, "update": update, "resets": (update + 1) * batches.groups * batches.episodes}
    write_parquet(path, [{name: values.ravel() for name, values in (columns | curves).items()}])


def _write_looks(path: Path, values: np.ndarray, resets: np.ndarray, test: tuple[int, ...]) -> None:
    seed, at, episode = np.meshgrid(np.arange(len(values)), resets, np.array(test), indexing="ij")
    columns = {"seed": seed, "resets": at, "episode": episode, "value": values}
    write_parquet(path, [{name: column.ravel() for name, column in columns.items()}])

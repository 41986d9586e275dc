"""Check, fit, evaluate and roll out a policy program, given its source.

Every call takes text, numbers and paths and returns plain JSON values; arrays go to files. So the same calls
can be answered by another process, and nobody above this room ever holds a loaded program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrefine.learn.ablation import HeldPolicy, ablate
from jaxrefine.learn.evaluate import Measure, evaluate
from jaxrefine.learn.gspo import train as train_seeds
from jaxrefine.learn.imitation import FitSettings, fit_seeds
from jaxrefine.learn.rollout import key_per_episode, rollout
from jaxrefine.learn.stepwise import mean_action
from jaxrefine.policy.ablation import hold
from jaxrefine.policy.checks import check_program
from jaxrefine.policy.graph import semantic_graph
from jaxrefine.policy.graph_diff import diff
from jaxrefine.policy.mlp import mlp_of
from jaxrefine.policy.program import PolicySpec, Program, load_program
from jaxrefine.policy.source import ProgramError
from jaxrefine.tables import column_names, to_columns, write_parquet
from jaxrefine.task import Task
from jaxrefine.worker import battery, checks
from jaxrefine.worker.arrays import load_arrays, save_arrays
from jaxrefine.worker.excerpt import excerpt
from jaxrefine.worker.film import film
from jaxrefine.worker.samples import plain, ranged, sample
from jaxrefine.worker.training import train

Progress = Callable[[int, int], None]
# the parts of the root key, so that no two purposes share randomness
_FIT, _EVALUATE, _ROLLOUT, _ABLATE, _TRAIN = range(5)


def _silent(done: int, total: int) -> None:
    """No progress is wanted."""


@dataclass
class Worker:
    """Answers for one task on this process's devices.

    Attributes:
        task: whose environment, demonstration and protocol are used.
        seed: root of all randomness.
        fit_settings: of imitation learning.
        chunk: episodes that are rolled out, with everything logged, at once.
        evaluation_chunk: episodes that are evaluated at once, over all fits.
        progress: called with (done, total) during long calls.
    """

    task: Task
    seed: int = 0
    fit_settings: FitSettings = field(default_factory=FitSettings)
    chunk: int = 64
    evaluation_chunk: int = 8192
    progress: Progress = _silent

    @classmethod
    def from_options(cls, task: Task, seed: int, fit: Mapping[str, Any], progress: Progress = _silent) -> Worker:
        """A worker whose fits follow plain options, named as the fields of ``FitSettings``."""
        return cls(task, seed, FitSettings(**fit), progress=progress)

    @cached_property
    def _spec(self) -> PolicySpec:
        schema = self.task.schema
        return PolicySpec(self.task.class_name, tuple(schema.observation_shapes.items()), schema.action_size)

    @cached_property
    def _loaded(self) -> dict[str, Program]:
        return {}

    @cached_property
    def _episodes(self) -> dict[tuple[int, ...], Any]:
        return {}

    def _load(self, source: str) -> Program:
        """The program of this source; the same object each time, so that compiled functions are found again."""
        if source not in self._loaded:
            self._loaded.clear()
            # one program at a time: functions compiled for an earlier one would stay in memory for ever
            for compiled in (fit_seeds, evaluate, rollout, mean_action, train_seeds):
                compiled.clear_cache()  # type: ignore[attr-defined]  # jax.stages does not declare it
            self._loaded[source] = mlp_of(source, self._spec) or load_program(source, self._spec)
        return self._loaded[source]

    def _params_for(self, seeds: Sequence[int]) -> Any:
        key = tuple(seeds)
        if key not in self._episodes:
            self._episodes[key] = self.task.env.params_for_seeds(key)
        return self._episodes[key]

    def _key(self, purpose: int, *more: int) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(self.seed), purpose)
        for number in more:
            key = jax.random.fold_in(key, number)
        return key

    def check(self, source: str) -> dict[str, Any]:
        """Load a program and try everything that the contract asks of it.

        Returns:
            ``{"parameters": int, "columns": [...], "weights": [...], "latents": [...]}``: the number of scalar
            parameters, the header of the table that its rollouts will make, and what it reports.

        Raises:
            ProgramError: one paragraph for the program's author.
        """
        program = self._load(source)
        schema = self.task.schema
        if program.initialise is not None:  # one of our own
            return {"parameters": program.size, "columns": column_names(schema, ()), "weights": [], "latents": []}
        low, high = (
            schema.unflatten(np.array([getattr(c, bound) for c in schema.observation])) for bound in ("low", "high")
        )
        check_program(program, self._spec, self.task.demonstration.observations, low, high)
        return {
            "parameters": program.size,
            "columns": column_names(schema, program.info_keys),
            "weights": list(program.weights),
            "latents": list(program.latents),
        }

    def structure(self, source: str, before: str | None) -> dict[str, Any]:
        """The semantic graph of a program, and how it differs from an earlier one's; see ``graph_diff``.

        Returns:
            ``{"graph": {...}, "changes": {...} | None, "text": str}``, the latter two of the difference, in numbers and
            in words.
        """
        graph = semantic_graph(self._load(source), self.task.schema)
        if before is None:
            return {"graph": graph.to_json(), "changes": None, "text": ""}
        # not by _load, which would forget what was compiled for the program that goes on
        changes = diff(semantic_graph(load_program(before, self._spec), self.task.schema), graph)
        return {"graph": graph.to_json(), "changes": changes.to_json(), "text": changes.describe()}

    def fit(self, source: str, seeds: int, folder: Path) -> dict[str, Any]:
        """Fit a program to the demonstration from ``seeds`` independent seeds at once.

        Writes ``initial_weights.npz`` and ``fits.npz`` (every array stacked over seeds) into ``folder``.

        Returns:
            ``{"train_nll": [...], "validation_nll": [...], "updates": [...], "skipped": [...], "curves": {"steps":
            [...], "train": [[...]], "validation": [[...]]}}``, lists over seeds.

        Raises:
            ProgramError: the likelihood was never finite, for any seed.
        """
        program, demonstration = self._load(source), self.task.demonstration
        keys = jax.random.split(self._key(_FIT), seeds)
        observations = {k: jnp.asarray(v) for k, v in demonstration.observations.items()}
        actions = jnp.asarray(demonstration.actions)
        settings = replace(self.fit_settings, early_stopping=program.initialise is not None)
        initial = program.starts(keys)
        # NumPy waits for ever for an array that there was no memory for; JAX raises
        result = jax.block_until_ready(fit_seeds(program.apply, initial, observations, actions, keys, settings))
        if not (np.isfinite(result.best_train_nll) & (result.skipped < result.updates)).any():
            raise ProgramError(
                "Imitation learning failed: the likelihood of the demonstration's actions, or its gradient, was not "
                "finite at any update. Look for a variance that can shrink to nothing, a division by zero, or a "
                "parameter that runs off to infinity."
            )
        save_arrays(folder / "initial_weights.npz", program.initial)
        save_arrays(folder / "fits.npz", result.params)
        every = self.fit_settings.check_every
        looks = (1 + np.arange(result.train_nll.shape[1])) * every
        return {
            "train_nll": plain(result.best_train_nll),
            "validation_nll": plain(result.best_validation_nll),
            "updates": plain(result.updates),
            "skipped": plain(result.skipped),
            "curves": {
                "steps": looks.tolist(),
                "train": plain(result.train_nll),
                "validation": plain(result.validation_nll),
            },
        }

    def evaluate(self, source: str, folder: Path) -> dict[str, Any]:
        """Evaluate every fit of ``folder``/fits.npz on the test and validation episodes of the protocol.

        The fit that does best on the validation episodes is the round's: its parameters go to ``weights.npz``.
        Writes ``evaluation.parquet`` (test episodes) and ``validation.parquet``, one row per (fit seed, episode).

        Returns:
            ``{"chosen": int, "metric": sample, "further": {key of a further metric: sample}, "per_episode": [{"seed",
            "value", "steps", and each further metric}], "validation": sample, "validation_values": [...], "means":
            [test mean of each fit], "fits": sample of those means, "episodes": int, "test_episodes": int,
            "env_steps": int}``.
        """
        program, protocol, metric = self._load(source), self.task.protocol, self.task.metric
        test, validation = protocol.test_seeds, protocol.validation_seeds
        seeds = np.array(test + validation)
        env_params = self._params_for(tuple(seeds.tolist()))
        params = load_arrays(folder / "fits.npz")
        keys = key_per_episode(self._key(_EVALUATE), len(seeds))
        fits = len(next(iter(params.values())))
        size = min(fits, max(1, self.evaluation_chunk // len(seeds)))
        parts = []
        for start in range(0, fits, size):
            # the last chunk is filled up with repetitions, so that it has the compiled shape
            chosen_fits = np.minimum(np.arange(start, start + size), fits - 1)
            part = evaluate(
                self.task.env,
                program.apply,
                env_params,
                {name: jnp.asarray(value[chosen_fits]) for name, value in params.items()},
                jnp.arange(len(seeds)),
                keys,
                measures=tuple(Measure(m.of, m.reduce) for m in (metric, *self.task.further_metrics)),
                steps=protocol.steps,
                sampled=protocol.sampled,
            )
            jax.block_until_ready(part)
            kept = min(size, fits - start)
            parts.append([np.asarray(x[:kept]) for x in (part.steps, part.terminated, *part.values)])
            self.progress(min(start + size, fits), fits)
        steps, terminated, values, *others = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
        further = dict(zip((m.key for m in self.task.further_metrics), others, strict=True))
        is_test = np.arange(len(seeds)) < len(test)
        on_validation = values[:, ~is_test].mean(axis=1)
        # a fit that failed has NaN here and is never chosen while another exists
        worst = -np.inf if metric.better == "higher" else np.inf
        ranked = np.where(np.isfinite(on_validation), on_validation, worst)
        chosen = int(np.argmax(ranked) if metric.better == "higher" else np.argmin(ranked))
        for name, mask in (("evaluation", is_test), ("validation", ~is_test)):
            fit_seed, episode = np.meshgrid(np.arange(len(values)), seeds[mask], indexing="ij")
            columns = {"fit_seed": fit_seed, "seed": episode, "value": values[:, mask], "steps": steps[:, mask]}
            columns["terminated"] = terminated[:, mask]
            columns |= {key: value[:, mask] for key, value in further.items()}
            write_parquet(folder / f"{name}.parquet", [{k: v.ravel() for k, v in columns.items()}])
        save_arrays(folder / "weights.npz", {k: v[chosen] for k, v in params.items()})
        means = values[:, is_test].mean(axis=1)
        return {
            "chosen": chosen,
            "metric": sample(values[chosen, is_test], "episodes"),
            "further": {key: sample(value[chosen, is_test], "episodes") for key, value in further.items()},
            "per_episode": [
                {"seed": int(seeds[i]), "value": float(values[chosen, i]), "steps": int(steps[chosen, i])}
                | {key: float(value[chosen, i]) for key, value in further.items()}
                for i in np.flatnonzero(is_test)
            ],
            "validation": sample(values[chosen, ~is_test], "episodes"),
            "validation_values": plain(values[chosen, ~is_test]),
            "means": plain(means),
            "fits": sample(means, "fit seeds"),
            "episodes": int(values.size),
            "test_episodes": int(values[:, is_test].size),
            "env_steps": int(steps.sum()),
        }

    def rollout(self, source: str, folder: Path, episodes: int) -> dict[str, Any]:
        """Log ``episodes`` rollouts of the round's policy into ``rollouts.parquet``.

        The first half of them (rounded up) takes the mean action and the rest samples it, each half over the
        protocol's rollout seeds in order.

        Returns:
            ``{"episodes": int, "mean_action_episodes": int, "rows": int, "returns_by_mean": sample, "returns_sampled":
            sample}``, the samples with ``min`` and ``max``.
        """
        program, protocol = self._load(source), self.task.protocol
        env_params = self._params_for(protocol.rollout_seeds)
        params = {k: jnp.asarray(v) for k, v in load_arrays(folder / "weights.npz").items()}
        by_mean = (episodes + 1) // 2
        number = np.arange(episodes)
        sampled = number >= by_mean
        index = np.where(sampled, number - by_mean, number) % len(protocol.rollout_seeds)
        key = self._key(_ROLLOUT)

        returns = np.zeros(episodes)

        def chunks() -> Iterator[dict[str, np.ndarray]]:
            size = min(self.chunk, episodes)
            for start in range(0, episodes, size):
                # the last chunk is filled up with repetitions, so that it has the compiled shape
                part = np.minimum(np.arange(start, start + size), episodes - 1)
                logged = rollout(
                    self.task.env,
                    program.apply,
                    env_params,
                    params,
                    jnp.asarray(index[part]),
                    jnp.asarray(sampled[part]),
                    key_per_episode(key, size, start),
                    steps=protocol.steps,
                )
                jax.block_until_ready(logged)
                kept = min(size, episodes - start)
                columns = to_columns(self.task.schema, jax.tree.map(lambda x, n=kept: x[..., :n], logged), start)
                np.add.at(returns, columns["episode"], columns["reward"])
                yield columns
                self.progress(min(start + size, episodes), episodes)

        rows = write_parquet(folder / "rollouts.parquet", chunks())
        return {
            "episodes": episodes,
            "mean_action_episodes": int(by_mean),
            "rows": rows,
            "returns_by_mean": ranged(returns[~sampled]),
            "returns_sampled": ranged(returns[sampled]),
        }

    def excerpt(self, folder: Path, episodes: int, characters: int) -> dict[str, Any]:
        """One of the ``episodes`` rollouts of ``folder``/rollouts.parquet as text; see ``excerpt.excerpt``."""
        return excerpt(folder / "rollouts.parquet", (episodes + 1) // 2, characters)

    def film(self, source: str, folder: Path, episodes: int) -> dict[str, Any]:
        """Drive the first ``episodes`` rollout seeds by the mean action, for pictures of three; see ``film.film``."""
        env_params = self._params_for(self.task.protocol.rollout_seeds)
        params = {k: jnp.asarray(v) for k, v in load_arrays(folder / "weights.npz").items()}
        return film(self.task, self._load(source), env_params, params, self._key(_ROLLOUT), episodes, folder)

    def battery(self, source: str, folder: Path, episodes: int, chosen: int, ablated: int) -> dict[str, Any]:
        """The checks of a round's fit and rollouts that need no model; see ``checks``.

        Args:
            source: of the program.
            folder: holds the round's fits, weights and the ``episodes`` rollouts.
            episodes: that were rolled out.
            chosen: the fit that is the round's.
            ablated: the first so many rollout seeds are driven again by the mean action with each latent held.

        Returns:
            ``{"text": str, "numbers": {title: ...}, "latents": int, "episodes": int, "env_steps": int}``; the last
            three say what the ablation of every latent took.
        """
        program = self._load(source)
        graph = semantic_graph(program, self.task.schema)
        found = battery.of_table(self.task, graph, folder, (episodes + 1) // 2, chosen)
        held = [i for i, found in enumerate(graph.latents.values()) if found.used and found.observations]
        means = battery.means_of_latents(folder, graph)
        rows = np.array([-1, *held])
        values, steps = self._ablate(hold(program, graph), folder, rows, np.append(0.0, means[held]), ablated)
        metric = self.task.metric
        names = [list(graph.latents)[i] for i in held]
        found.append(checks.ablation(names, means[held], values, metric.better, metric.name))
        return battery.compose(found) | {"latents": len(held), "episodes": values.size, "env_steps": steps}

    def _ablate(
        self, held: HeldPolicy, folder: Path, rows: np.ndarray, at: np.ndarray, ablated: int
    ) -> tuple[np.ndarray, int]:
        """The metric with each of some latents held at a value, ``(rows, episodes)``, and the steps that it took."""
        protocol, metric = self.task.protocol, self.task.metric
        episodes = len(protocol.rollout_seeds[:ablated])
        params = {k: jnp.asarray(v) for k, v in load_arrays(folder / "weights.npz").items()}
        values, steps = [], 0
        size = min(len(rows), max(1, self.evaluation_chunk // episodes))
        for start in range(0, len(rows), size):
            # the last chunk is filled up with repetitions, so that it has the compiled shape
            part = np.minimum(np.arange(start, start + size), len(rows) - 1)
            kept = min(size, len(rows) - start)
            result = ablate(
                self.task.env,
                held,
                self._params_for(protocol.rollout_seeds),
                params,
                jnp.asarray(rows[part]),
                jnp.asarray(at[part], jnp.result_type(float)),
                jnp.arange(episodes),
                key_per_episode(self._key(_ABLATE), episodes),
                measures=(Measure(metric.of, metric.reduce),),
                steps=protocol.steps,
            )
            values.append(np.asarray(result.values[0])[:kept])
            steps += int(np.asarray(result.steps)[:kept].sum())
            self.progress(start + kept, len(rows))
        return np.concatenate(values), steps

    def train(
        self, source: str, folder: Path, fits: Sequence[int], resets: int, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Tune a program by windowed GSPO from these of its fits, in turn; see ``training.train``."""
        start = {name: value[np.array(fits)] for name, value in load_arrays(folder / "start.npz").items()}
        protocol, seeds = self.task.protocol, self.task.protocol.training_seeds
        looked = protocol.test_seeds + (protocol.validation_seeds if options["keep"] == "best" else ())
        drive, look = self._params_for(seeds), self._params_for(looked)
        key, program = self._key(_TRAIN, resets), self._load(source)
        return train(self.task, program, start, drive, len(seeds), look, key, folder, resets, options, self.progress)

    def device(self) -> str:
        """What does the work, in words."""
        devices = jax.devices()
        return f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})"

"""What a loaded program must also satisfy, tried on numbers before any fit or rollout pays for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrefine.learn.types import Params, Policy
from jaxrefine.policy.errors import ProgramError
from jaxrefine.policy.guard import complaints, deadline
from jaxrefine.policy.program import PolicySpec, Program

ObservationBatch = dict[str, Float[Array, "n ..."]]
Outputs = tuple[Array, Array, dict[str, Array]]
_EXTREMES = (0.0, 1.0, 10.0, 100.0)
# rows of every batch, so that each function is compiled once
_SAMPLES = 128
# both ways and far: a weight may be reported behind a rectifier or a clip
_NUDGES = (0.1, -0.1, 3.0, -3.0)
# numbers in one batch of nudged parameters
_NUDGED = 2**22


@partial(jax.jit, static_argnums=0)
def _forward(apply: Policy, params: Params, batch: ObservationBatch) -> Outputs:
    return jax.vmap(apply, (None, 0))(params, batch)


@partial(jax.jit, static_argnums=0)
def _surrogate_gradient(apply: Policy, params: Params, batch: ObservationBatch, a: Array, b: Array) -> Params:
    """Gradient of a random linear function of the outputs: zero only where nothing depends on a parameter."""

    def surrogate(params: Params) -> Array:
        mean, scale, _ = jax.vmap(apply, (None, 0))(params, batch)
        return jnp.sum(mean * a) + jnp.sum(scale * b)

    return jax.grad(surrogate)(params)


def check_program(
    program: Program,
    spec: PolicySpec,
    demonstrated: dict[str, np.ndarray],
    low: dict[str, np.ndarray],
    high: dict[str, np.ndarray],
    *,
    seconds: float = 180.0,
) -> None:
    """Try a program on ordinary, extreme and missing inputs, and follow its gradients.

    Args:
        program: the loaded program.
        spec: what the task asks of it.
        demonstrated: observations of the demonstration, ``(n, ...)`` an entry.
        low: smallest ordinary values, shaped as one observation.
        high: largest ordinary values, shaped as one observation.
        seconds: time allowed, compilation included.

    Raises:
        ProgramError: the first requirement that fails, as one paragraph.
    """
    with complaints("trying the program"), deadline(seconds, "while it was tried out"):
        rng = np.random.default_rng(0)
        dtype = jnp.result_type(float)
        chunks = list(_chunks(demonstrated))
        rows = np.linspace(0, len(next(iter(demonstrated.values()))) - 1, _SAMPLES).astype(int)
        sample = {k: np.asarray(v[rows], dtype) for k, v in demonstrated.items()}
        spread = {k: jnp.asarray(rng.uniform(low[k], high[k], (_SAMPLES, *low[k].shape)), dtype) for k in low}
        _check_outputs(program, spec, chunks, sample, spread)
        _check_reported(program, {k: v[0] for k, v in chunks[0].items()})
        _check_gradients(program, spec, chunks, spread)


def _chunks(demonstrated: dict[str, np.ndarray]) -> Iterator[ObservationBatch]:
    """All rows of the demonstration in batches of one shape; the last is filled up with repetitions."""
    total, dtype = len(next(iter(demonstrated.values()))), jnp.result_type(float)
    for start in range(0, total, _SAMPLES):
        rows = np.minimum(np.arange(start, start + _SAMPLES), total - 1)
        yield {k: jnp.asarray(v[rows], dtype) for k, v in demonstrated.items()}


def _check_outputs(
    program: Program,
    spec: PolicySpec,
    chunks: list[ObservationBatch],
    sample: dict[str, np.ndarray],
    spread: ObservationBatch,
) -> None:
    """Finite outputs and constant weights, on batches from the most to the least ordinary."""
    weights: dict[str, float] = {}

    def check(batch: ObservationBatch, what: str | list[str], *, info_too: bool = False) -> None:
        outputs = _forward(program.apply, program.initial, batch)
        _check_finite(outputs, what, info_too=info_too)
        _check_constant({name: np.asarray(outputs[2][name]) for name in program.weights}, weights, what)

    for chunk in chunks:
        check(chunk, "observations of the demonstration", info_too=True)
    for factor in _EXTREMES:
        scaled = {k: v * factor for k, v in spread.items()}
        check(scaled, f"random observations of {factor:g} times their ordinary range")
    for key in spec.arguments:
        missing = {k: np.full_like(v, np.nan) if k == key else v for k, v in sample.items()}
        check(_as_arrays(missing), f"observations whose `{key}` is NaN")
    check(_as_arrays({k: np.full_like(v, np.nan) for k, v in sample.items()}), "observations that are all NaN")
    columns = [(key, index) for key, value in sample.items() for index in np.ndindex(value.shape[1:])]
    for start in range(0, len(columns), _SAMPLES):
        one_missing = {k: v.copy() for k, v in sample.items()}
        which = [columns[(start + row) % len(columns)] for row in range(_SAMPLES)]
        for row, (key, index) in enumerate(which):
            one_missing[key][(row, *index)] = np.nan
        entries = [f"{key}[{', '.join(map(str, index))}]" for key, index in which]
        check(_as_arrays(one_missing), [f"observations whose `{entry}` alone is NaN" for entry in entries])


def _as_arrays(batch: dict[str, np.ndarray]) -> ObservationBatch:
    return {k: jnp.asarray(v) for k, v in batch.items()}


def _where(what: str | list[str], rows: np.ndarray) -> str:
    """What the first row that is False is, given what all rows are or each of them is."""
    return what if isinstance(what, str) else what[int(np.argmin(rows))]


def _check_finite(outputs: Outputs, what: str | list[str], *, info_too: bool) -> None:
    mean, scale, info = outputs
    for label, value in (("mean", mean), ("scale_tril", scale), *(info.items() if info_too else ())):
        rows = np.isfinite(np.asarray(value)).reshape(_SAMPLES, -1).all(axis=1)
        if not rows.all():
            raise ProgramError(
                f"`{label}` is not finite on {_where(what, rows)}. Replace NaN inputs with jnp.nan_to_num "
                "before anything else, and bound exponentials, divisions and square roots."
            )
    if bool(jnp.any(jnp.triu(scale, 1) != 0)):
        raise ProgramError("`scale_tril` has entries above its diagonal; it must be lower triangular.")
    rows = np.all(np.diagonal(np.asarray(scale), axis1=-2, axis2=-1) > 0, axis=-1)
    if not rows.all():
        raise ProgramError(
            f"`scale_tril` has a diagonal entry that is not positive on {_where(what, rows)}; use "
            "jax.nn.softplus plus a small constant."
        )


def _check_constant(reported: dict[str, np.ndarray], before: dict[str, float], what: str | list[str]) -> None:
    """Weights must be equal on all rows of all batches; ``before`` keeps the first."""
    for name, values in reported.items():
        same = values == before.setdefault(name, float(values[0]))
        if not same.all():
            raise ProgramError(
                f"`{name}` changes with the observation (on {_where(what, same)}). A weight_* entry is "
                "a parameter as it is; report what depends on the observation as latent_*."
            )


def _check_reported(program: Program, one: dict[str, Array]) -> None:
    """Every element of every parameter must move a weight; all of them are nudged at once."""

    def weights(params: Params) -> dict[str, Array]:
        info = program.apply(params, one)[2]
        return {key: info[key] for key in program.weights}

    report = jax.jit(jax.vmap(weights))  # XLA drops all that the weights do not need
    names, sizes = list(program.initial), [value.size for value in program.initial.values()]
    ends = np.cumsum(sizes)
    base = np.concatenate([np.asarray(value).ravel() for value in program.initial.values()])
    steps = np.outer(np.maximum(1, np.abs(base)), _NUDGES).ravel()
    size = min(len(steps), max(1, _NUDGED // len(base)))
    moved = np.zeros(len(steps), bool)
    for start in range(0, len(steps), size):
        which = np.minimum(np.arange(start, start + size), len(steps) - 1)
        rows = np.tile(base, (size + 1, 1))  # the last row stays as it is
        rows[np.arange(size), which // len(_NUDGES)] += steps[which]
        parts = zip(names, np.split(rows, ends[:-1], axis=1), strict=True)
        batch = {name: jnp.asarray(part.reshape(-1, *program.initial[name].shape)) for name, part in parts}
        after = report(batch)
        for value in map(np.asarray, after.values()):
            moved[which] |= value[:-1] != value[-1]
    reported = np.split(moved.reshape(-1, len(_NUDGES)).any(axis=1), ends[:-1])
    for name, elements in zip(names, reported, strict=True):
        missing = int((~elements).sum())
        if missing:
            what = f"{missing} of its {elements.size} elements are" if elements.size > 1 else "it is"
            raise ProgramError(
                f"The parameter `{name}` is not reported: {what} in no weight_* entry of info. Report every nnx.Param "
                "as weight_<name>, a vector element by element."
            )


def _check_gradients(
    program: Program, spec: PolicySpec, chunks: list[ObservationBatch], spread: ObservationBatch
) -> None:
    """Gradients are finite on every row of the demonstration, and each parameter is reached by one."""
    rng, a = np.random.default_rng(1), spec.action_size
    towards = [jnp.asarray(rng.normal(size=(_SAMPLES, *shape)), jnp.result_type(float)) for shape in ((a,), (a, a))]
    reached = dict.fromkeys(program.initial, False)
    for i, batch in enumerate((*chunks, spread)):
        gradient = _surrogate_gradient(program.apply, program.initial, batch, *towards)
        for name, value in gradient.items():
            if i < len(chunks) and not bool(jnp.isfinite(value).all()):
                raise ProgramError(
                    f"The gradient with respect to `{name}` is not finite on observations of the demonstration: look "
                    "for a square root, a norm, a logarithm or a division at zero."
                )
            reached[name] |= bool(jnp.any(value != 0))
    dead = [name for name, alive in reached.items() if not alive]
    if dead:
        raise ProgramError(
            f"No gradient reaches {', '.join(f'`{name}`' for name in dead)}: neither the mean nor the covariance "
            "depends on it at its initial value. Connect it, start it away from the flat part of its function, or "
            "remove it."
        )

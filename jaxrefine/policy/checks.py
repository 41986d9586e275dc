"""What a loaded program must also satisfy, tried on numbers before any fit or rollout pays for it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrefine.policy.program import Apply, Params, PolicySpec, Program
from jaxrefine.policy.source import ProgramError

ObservationBatch = dict[str, Float[Array, "n ..."]]
_EXTREMES = (0.0, 1.0, 10.0, 100.0)
_SAMPLES = 128
# both ways and far: a weight may be reported behind a rectifier or a clip
_NUDGES = (0.1, -0.1, 3.0, -3.0)


@partial(jax.jit, static_argnums=0)
def _forward(apply: Apply, params: Params, batch: ObservationBatch) -> tuple[Array, Array, dict[str, Array]]:
    return jax.vmap(apply, (None, 0))(params, batch)


@partial(jax.jit, static_argnums=0)
def _surrogate_gradient(apply: Apply, params: Params, batch: ObservationBatch, a: Array, b: Array) -> Params:
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
) -> None:
    """Try a program on ordinary, extreme and missing inputs, and follow its gradients.

    Args:
        program: the loaded program.
        spec: what the task asks of it.
        demonstrated: observations of the demonstration, ``(n, ...)`` an entry.
        low: smallest ordinary values, shaped as one observation.
        high: largest ordinary values, shaped as one observation.

    Raises:
        ProgramError: the first requirement that fails, as one paragraph.
    """
    rng = np.random.default_rng(0)
    dtype = jnp.result_type(float)
    rows = np.linspace(0, len(next(iter(demonstrated.values()))) - 1, _SAMPLES).astype(int)
    ordinary = {k: jnp.asarray(v[rows], dtype) for k, v in demonstrated.items()}
    spread = {k: jnp.asarray(rng.uniform(low[k], high[k], (_SAMPLES, *low[k].shape)), dtype) for k in low}
    _check_finite(program, ordinary, "observations of the demonstration", info_too=True)
    for factor in _EXTREMES:
        scaled = {k: v * factor for k, v in spread.items()}
        _check_finite(program, scaled, f"random observations of {factor:g} times their ordinary range", info_too=False)
    for key in spec.arguments:
        missing = {k: jnp.full_like(v, jnp.nan) if k == key else v for k, v in ordinary.items()}
        _check_finite(program, missing, f"observations whose `{key}` is NaN", info_too=False)
    _check_finite(
        program,
        {k: jnp.full_like(v, jnp.nan) for k, v in ordinary.items()},
        "observations that are all NaN",
        info_too=False,
    )
    _check_reported(program, ordinary)
    _check_gradients(program, spec, ordinary, spread)


def _check_finite(program: Program, batch: ObservationBatch, what: str, *, info_too: bool) -> None:
    mean, scale, info = _forward(program.apply, program.initial, batch)
    for label, value in (("mean", mean), ("scale_tril", scale), *(info.items() if info_too else ())):
        if not bool(jnp.isfinite(value).all()):
            raise ProgramError(
                f"`{label}` is not finite on {what}. Replace NaN inputs with jnp.nan_to_num before anything else, and "
                "bound exponentials, divisions and square roots."
            )
    if bool(jnp.any(jnp.triu(scale, 1) != 0)):
        raise ProgramError("`scale_tril` has entries above its diagonal; it must be lower triangular.")
    if not bool(jnp.all(jnp.diagonal(scale, axis1=-2, axis2=-1) > 0)):
        raise ProgramError(
            f"`scale_tril` has a diagonal entry that is not positive on {what}; use "
            "jax.nn.softplus plus a small constant."
        )


def _check_reported(program: Program, batch: ObservationBatch) -> None:
    one = {k: v[0] for k, v in batch.items()}

    def weights(params: Params) -> dict[str, Array]:
        info = program.apply(params, one)[2]
        return {key: info[key] for key in program.weights}

    report = jax.jit(weights)  # XLA drops all that the weights do not need
    before = report(program.initial)
    for name, value in program.initial.items():
        moved = np.zeros(value.size, bool)
        for i in range(value.size):
            for step in _NUDGES:
                nudged = value.ravel().at[i].add(step).reshape(value.shape)
                after = report({**program.initial, name: nudged})
                moved[i] |= any(bool(after[key] != before[key]) for key in before)
        missing = int((~moved).sum())
        if missing:
            what = f"{missing} of its {value.size} elements are" if value.size > 1 else "it is"
            raise ProgramError(
                f"The parameter `{name}` is not reported: {what} in no weight_* entry of info. Report every nnx.Param "
                "as weight_<name>, a vector element by element."
            )


def _check_gradients(program: Program, spec: PolicySpec, ordinary: ObservationBatch, spread: ObservationBatch) -> None:
    rng = np.random.default_rng(1)

    reached = dict.fromkeys(program.initial, False)
    for batch in (ordinary, spread):
        n, a = _SAMPLES, spec.action_size
        towards = (jnp.asarray(rng.normal(size=(n, *shape)), jnp.result_type(float)) for shape in ((a,), (a, a)))
        gradient = _surrogate_gradient(program.apply, program.initial, batch, *towards)
        for name, value in gradient.items():
            if batch is ordinary and not bool(jnp.isfinite(value).all()):
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

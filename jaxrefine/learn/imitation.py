"""Imitation learning: a program's parameters by maximum likelihood of one demonstration's actions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key

from jaxrefine.learn.gaussian import log_prob
from jaxrefine.learn.types import Observation, Params, Policy


@dataclass(frozen=True)
class FitSettings:
    """How a program is fitted.

    Attributes:
        learning_rate: Adam's step size.
        batch_size: examples per update, drawn without replacement.
        updates: the most updates, rounded up to whole looks.
        validation_fraction: share of the demonstration held out, in whole blocks of ``block`` steps, because
            neighbouring steps are nearly copies of each other.
        block: length of such a block, steps.
        check_every: updates between two looks at the losses.
        patience: updates without an improvement of ``tolerance`` after which a fit has converged.
        tolerance: the smallest improvement of training loss that counts, nats.
        early_stopping: keep the look with the smallest validation loss: for a policy of thousands of parameters.
    """

    learning_rate: float = 0.03
    batch_size: int = 512
    updates: int = 1000
    validation_fraction: float = 0.1
    block: int = 20
    check_every: int = 20
    patience: int = 300
    tolerance: float = 1e-3
    early_stopping: bool = False


@struct.dataclass
class Fit:
    """One fit. ``train_nll`` and ``validation_nll`` are NaN after it converged.

    The parameters are those of the look with the smallest training loss: Adam's last step is a noisy one, and a program
    of a few dozen parameters has no use for early stopping. The validation loss is only reported, unless the settings
    ask for it. ``best_train_nll`` and ``best_validation_nll`` are that look's.
    """

    params: Params
    train_nll: Float[Array, "*seeds looks"]
    validation_nll: Float[Array, "*seeds looks"]
    best_train_nll: Float[Array, "*seeds"]
    best_validation_nll: Float[Array, "*seeds"]
    updates: Int[Array, "*seeds"]
    skipped: Int[Array, "*seeds"]


@struct.dataclass
class _Carry:
    params: Float[Array, "p"]
    optimizer: optax.OptState
    best: Float[Array, "p"]
    best_train: Float[Array, ""]
    best_validation: Float[Array, ""]
    reference: Float[Array, ""]
    since: Int[Array, ""]
    look: Int[Array, ""]
    skipped: Int[Array, ""]
    train_curve: Float[Array, "looks"]
    validation_curve: Float[Array, "looks"]


def negative_log_likelihood(
    policy: Policy, params: Params, observations: Observation, actions: Float[Array, "n a"]
) -> Float[Array, "n"]:
    """Negative log-likelihood of each action, nats."""

    def one(observation: Observation, action: Array) -> Array:
        mean, scale_tril, _ = policy(params, observation)
        return -log_prob(action, mean, scale_tril)

    return jax.vmap(one)(observations, actions)


def split_blocks(
    key: Key[Array, ""], n: int, settings: FitSettings
) -> tuple[Int[Array, "train"], Int[Array, "held_out"]]:
    """Row indices of the training part and of the held-out blocks; their sizes depend on ``n`` alone."""
    block = settings.block if n >= 2 * settings.block else 1
    blocks = n // block  # an incomplete last block always trains, so that the sizes are static
    held_out = min(max(1, round(blocks * settings.validation_fraction)), blocks - 1)
    chosen = jnp.isin(jnp.arange(n) // block, jax.random.permutation(key, blocks)[:held_out])
    size = held_out * block
    ordered = jnp.argsort(chosen, stable=True)
    return ordered[: n - size], ordered[n - size :]


@partial(jax.jit, static_argnames=("policy", "settings"))
def fit(
    policy: Policy,
    initial: Params,
    observations: Observation,
    actions: Float[Array, "n a"],
    key: Key[Array, ""],
    settings: FitSettings = FitSettings(),
) -> Fit:
    """Fit one set of parameters, starting from ``initial``; ``vmap`` over keys for independent seeds.

    Args:
        policy: static; the pure function of a program.
        initial: where to start: the coefficients written in the program.
        observations: of the demonstration, ``(n, ...)`` an entry.
        actions: of the demonstration.
        key: decides the held-out blocks and the batches.
        settings: static.

    Returns:
        The fit. An update whose gradient is not finite is skipped and counted, never applied; if the loss is never
        finite, ``best_train_nll`` is infinite.
    """
    n = actions.shape[0]
    split_key, batch_key = jax.random.split(key)
    train, held_out = split_blocks(split_key, n, settings)
    optimizer = optax.adam(settings.learning_rate)
    looks = -(-settings.updates // settings.check_every)
    batch_size = min(settings.batch_size, train.shape[0])
    # one vector instead of a tree: dozens of scalar parameters would each get their own copy of Adam's arithmetic
    start, restore = ravel_pytree(initial)

    def rows(index: Array) -> tuple[Observation, Array]:
        return {k: v[index] for k, v in observations.items()}, actions[index]

    def loss(params: Array, index: Array) -> Array:
        return jnp.mean(negative_log_likelihood(policy, restore(params), *rows(index)))

    def update(
        state: tuple[Array, optax.OptState, Array], step: Array
    ) -> tuple[tuple[Array, optax.OptState, Array], None]:
        params, optimizer_state, skipped = state
        batch = jax.random.choice(jax.random.fold_in(batch_key, step), train, (batch_size,), replace=False)
        gradient = jax.grad(loss)(params, batch)
        finite = jnp.all(jnp.isfinite(gradient))
        changes, new_state = optimizer.update(gradient, optimizer_state, params)
        new = (optax.apply_updates(params, changes), new_state)
        kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, (params, optimizer_state))
        return (*kept, skipped + ~finite), None

    def look(carry: _Carry) -> _Carry:
        steps = carry.look * settings.check_every + jnp.arange(settings.check_every)
        (params, optimizer_state, skipped), _ = jax.lax.scan(
            update, (carry.params, carry.optimizer, carry.skipped), steps
        )
        nll = negative_log_likelihood(policy, restore(params), observations, actions)
        train_nll, validation_nll = jnp.mean(nll[train]), jnp.mean(nll[held_out])
        # false for NaN
        better = validation_nll < carry.best_validation if settings.early_stopping else train_nll < carry.best_train
        counts = train_nll < carry.reference - settings.tolerance
        return _Carry(
            params=params,
            optimizer=optimizer_state,
            best=jnp.where(better, params, carry.best),
            best_train=jnp.where(better, train_nll, carry.best_train),
            best_validation=jnp.where(better, validation_nll, carry.best_validation),
            reference=jnp.where(counts, train_nll, carry.reference),
            since=jnp.where(counts, 0, carry.since + settings.check_every),
            look=carry.look + 1,
            skipped=skipped,
            train_curve=carry.train_curve.at[carry.look].set(train_nll),
            validation_curve=carry.validation_curve.at[carry.look].set(validation_nll),
        )

    infinite = jnp.asarray(jnp.inf, actions.dtype)
    blank = jnp.full((looks,), jnp.nan, actions.dtype)
    zero = jnp.zeros((), jnp.int32)
    end = jax.lax.while_loop(
        lambda c: (c.look < looks) & (c.since < settings.patience),
        look,
        _Carry(start, optimizer.init(start), start, infinite, infinite, infinite, zero, zero, zero, blank, blank),
    )
    return Fit(
        params=restore(end.best),
        train_nll=end.train_curve,
        validation_nll=end.validation_curve,
        best_train_nll=end.best_train,
        best_validation_nll=end.best_validation,
        updates=end.look * settings.check_every,
        skipped=end.skipped,
    )


@partial(jax.jit, static_argnames=("policy", "settings"))
def fit_seeds(
    policy: Policy,
    initial: Params,
    observations: Observation,
    actions: Float[Array, "n a"],
    keys: Key[Array, "seeds"],
    settings: FitSettings = FitSettings(),
) -> Fit:
    """``fit`` for every key at once; ``initial`` holds each one's start, ``(seeds, ...)`` a leaf."""
    return jax.vmap(lambda initial, key: fit(policy, initial, observations, actions, key, settings))(initial, keys)

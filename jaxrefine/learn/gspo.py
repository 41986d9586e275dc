"""Windowed GSPO: a group-relative, clipped policy gradient whose likelihood ratios span a window of steps.

The equations are those of "Iterative Policy Refinement through Semantic Rollout Analysis" (2026), appendix C.2; the
sequence ratio comes from GSPO (Zheng et al. 2025). One seed's training is a ``scan`` over updates; ``vmap`` over seeds,
and over hyperparameters, which are traced, stands outside. In shapes, T steps and E = groups * episodes trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.custom_batching import sequential_vmap
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key

from jaxrefine.learn.advantage import by_similar_state, by_step, reward_to_go
from jaxrefine.learn.gaussian import log_prob
from jaxrefine.learn.mesh import map_seeds
from jaxrefine.learn.trajectories import Batch, sample
from jaxrefine.learn.types import Environment, Observation, Params, Policy


@struct.dataclass
class Hyperparameters:
    """Traced, so that a grid of them is one more ``vmap``. The defaults are the paper's.

    Attributes:
        learning_rate: Adam's step size.
        clip: how far from 1 a ratio still has a gradient.
        window: steps whose likelihoods one ratio multiplies; fewer where an episode ends sooner.
        entropy: coefficient of the entropy bonus at the first update; it falls linearly to zero after the last.
        discount: of the reward-to-go, per step.
        updates: how many there will be, over which the entropy bonus decays.
        log_ratio_limit: log-ratios are clamped to plus and minus this; infinite: not.
        kl_stop: mean KL divergence of a step, nats, above which an update's remaining epochs are left out.
        clip_stop: share of clipped ratios above which they are.
        survivors: fewest trajectories still running at a step for its advantages to count.
    """

    learning_rate: float | Array = 0.007
    clip: float | Array = 0.2
    window: int | Array = 150
    entropy: float | Array = 0.01
    discount: float | Array = 0.98
    updates: int | Array = 20
    log_ratio_limit: float | Array = jnp.inf
    kl_stop: float | Array = jnp.inf
    clip_stop: float | Array = jnp.inf
    survivors: int | Array = 1


@dataclass(frozen=True)
class Batches:
    """The static part: what an update is made of.

    Attributes:
        groups: initial conditions, each drawn anew for every update.
        episodes: trajectories from each of them, which are compared with each other.
        epochs: gradient steps on each batch, all of it at once.
        steps: the most steps of an episode, T.
        length_normalised: divide a window's log-ratio by its number of steps, as GSPO proper does.
        anchors: 0 compares trajectories at the same step; otherwise at similar states, in so many cells.
        one_by_one: take the seeds' gradient steps one seed after the other. On a CPU that keeps a seed's batch in the
            cache; their episodes are driven together in any case.
    """

    groups: int = 1
    episodes: int = 20
    epochs: int = 3
    steps: int = 1000
    length_normalised: bool = False
    anchors: int = 0
    one_by_one: bool = False


@struct.dataclass
class Training:
    """One seed's state between updates; ``params`` and Adam's moments are vectors of all p parameters."""

    params: Float[Array, "*seeds p"]
    optimizer: optax.OptState
    update: Int[Array, "*seeds"]


@struct.dataclass
class Curves:
    """What each update came to, ``(seeds, updates)``.

    Attributes:
        episode_return: mean of the batch's returns, actions sampled.
        length: mean number of steps of its episodes.
        kl: mean over steps of the KL divergence from the policy that sampled, as the last epoch began, nats.
        clip_fraction: share of windows whose ratio was clipped, as the last epoch began.
        entropy: mean of the policy's, nats.
        gradient_norm: of the last epoch.
        largest_log_ratio: over all windows, before any clamp.
        epochs: gradient steps that were taken; fewer where a stop or a gradient that was not finite ended them.
    """

    episode_return: Float[Array, "*updates"]
    length: Float[Array, "*updates"]
    kl: Float[Array, "*updates"]
    clip_fraction: Float[Array, "*updates"]
    entropy: Float[Array, "*updates"]
    gradient_norm: Float[Array, "*updates"]
    largest_log_ratio: Float[Array, "*updates"]
    epochs: Int[Array, "*updates"]


def start(params: Params) -> Training:
    """The state before the first update, of one seed."""
    vector, _ = ravel_pytree(params)
    return Training(vector, optax.scale_by_adam().init(vector), jnp.zeros((), jnp.int32))


@partial(jax.jit, static_argnames=("env", "policy", "batches", "updates", "mesh"), donate_argnames=("training",))
def train(
    env: Environment,
    policy: Policy,
    env_params: Any,
    like: Params,
    training: Training,
    keys: Key[Array, "seeds"],
    hyper: Hyperparameters,
    *,
    starts: int | Int[Array, ""],
    batches: Batches,
    updates: int,
    mesh: Mesh | None = None,
) -> tuple[Training, Curves]:
    """Carry some updates out, for every seed at once.

    Args:
        env: static.
        policy: static; the pure function of a program.
        env_params: the episodes' shared parameters, not batched.
        like: one set of parameters, which says how the vector is cut up.
        training: each seed's state; donated.
        keys: one a seed; the same for every call, an update's randomness follows from its number.
        hyper: every leaf ``(seeds,)``.
        starts: the initial conditions are the first so many episodes of ``env_params``.
        batches: static.
        updates: static; how many this call carries out.
        mesh: static; the devices that share the seeds.

    Returns:
        The states after them, and what each of them came to. A gradient that is not finite is never applied.
    """

    def one(shared: tuple[Any, Params, Any], own: tuple[Training, Array, Hyperparameters]) -> tuple[Training, Curves]:
        env_params, like, starts = shared
        training, key, hyper = own

        def step(training: Training, _: None) -> tuple[Training, Curves]:
            return update(env, policy, env_params, like, training, key, hyper, starts=starts, batches=batches)

        return jax.lax.scan(step, training, None, length=updates)

    return map_seeds(one, mesh)((env_params, like, starts), (training, keys, hyper))


def update(
    env: Environment,
    policy: Policy,
    env_params: Any,
    like: Params,
    training: Training,
    key: Key[Array, ""],
    hyper: Hyperparameters,
    *,
    starts: int | Int[Array, ""],
    batches: Batches,
) -> tuple[Training, Curves]:
    """Sample a batch with the policy as it is, then take ``epochs`` gradient steps on it; one seed."""
    params = ravel_pytree(like)[1](training.params)
    batch = sample(
        env, policy, env_params, params, jax.random.fold_in(key, training.update), starts,
        groups=batches.groups, episodes=batches.episodes, steps=batches.steps,
    )  # fmt: skip

    if not batches.one_by_one:
        return improve(policy, like, training, batch, hyper, batches)

    # in dictionaries: JAX builds these trees anew with a bool for every array, which our classes are not made for
    def steps(like: Params, *parts: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        training, curves = improve(
            policy, like, Training(**parts[0]), Batch(**parts[1]), Hyperparameters(**parts[2]), batches
        )
        return vars(training), vars(curves)

    after, curves = sequential_vmap(steps)(like, vars(training), vars(batch), vars(hyper))
    return Training(**after), Curves(**curves)


def improve(
    policy: Policy, like: Params, training: Training, batch: Batch, hyper: Hyperparameters, batches: Batches
) -> tuple[Training, Curves]:
    """Take ``epochs`` gradient steps on one batch; one seed."""
    restore = ravel_pytree(like)[1]
    returns = reward_to_go(batch.reward, batch.valid, hyper.discount)
    if batches.anchors:
        advantage, counts = by_similar_state(batch.observation, returns, batch.valid, batches.groups, batches.anchors)
    else:
        advantage, counts = by_step(returns, batch.valid, batches.groups)
    counts = batch.valid & (counts >= hyper.survivors)
    advantage = jnp.where(counts, advantage, 0.0)  # an unbounded ratio that does not count would still be 0 * inf
    before = log_likelihood(policy, restore(training.params), batch)[0]
    entropy_now = hyper.entropy * jnp.maximum(0.0, 1.0 - training.update / hyper.updates)

    def loss(vector: Array) -> tuple[Array, dict[str, Array]]:
        after, entropies = log_likelihood(policy, restore(vector), batch)
        unclamped = window_log_ratio(after - before, batch.valid, hyper.window, batches.length_normalised)
        log_ratio = jnp.clip(unclamped, -hyper.log_ratio_limit, hyper.log_ratio_limit)
        entropy = mean_over(entropies, batch.valid)
        found = {
            # the estimator (r - 1) - log r of each step's KL divergence, never negative (Schulman 2020)
            "kl": mean_over(jnp.expm1(after - before) - (after - before), batch.valid),
            "clip_fraction": mean_over(jnp.abs(jnp.expm1(unclamped)) > hyper.clip, counts),
            "entropy": entropy,
            "largest_log_ratio": jnp.max(jnp.where(batch.valid, jnp.abs(unclamped), 0.0)),
        }
        return -(objective(log_ratio, advantage, counts, hyper.clip) + entropy_now * entropy), found

    def epoch(carry: tuple[Array, Any, Array], _: None) -> tuple[tuple[Array, Any, Array], dict[str, Array]]:
        vector, optimizer, going = carry
        gradient, found = jax.grad(loss, has_aux=True)(vector)
        going &= jnp.all(jnp.isfinite(gradient))
        going &= (found["kl"] <= hyper.kl_stop) & (found["clip_fraction"] <= hyper.clip_stop)
        direction, moved = optax.scale_by_adam().update(gradient, optimizer)
        stepped = (vector - hyper.learning_rate * direction, moved)
        vector, optimizer = jax.tree.map(partial(jnp.where, going), stepped, (vector, optimizer))
        return (vector, optimizer, going), found | {"gradient_norm": jnp.linalg.norm(gradient), "epochs": going}

    begin = (training.params, training.optimizer, jnp.asarray(True))
    (vector, optimizer, _), found = jax.lax.scan(epoch, begin, None, length=batches.epochs)
    lengths = batch.valid.sum(0)
    curves = Curves(
        episode_return=jnp.sum(jnp.where(batch.valid, batch.reward, 0.0), 0).mean(),
        length=lengths.astype(returns.dtype).mean(),
        epochs=found.pop("epochs").sum(),
        **{name: values[-1] for name, values in found.items()},
    )
    return Training(vector, optimizer, training.update + 1), curves


def log_likelihood(policy: Policy, params: Params, batch: Batch) -> tuple[Float[Array, "T E"], Float[Array, "T E"]]:
    """Log density of every action, and the entropy of the distribution it was drawn from, nats."""

    def one(observation: Observation, action: Array) -> tuple[Array, Array]:
        mean, scale_tril, _ = policy(params, observation)
        spread = jnp.sum(jnp.log(jnp.diagonal(scale_tril)))
        return log_prob(action, mean, scale_tril), spread + 0.5 * len(action) * (1 + jnp.log(2 * jnp.pi))

    every_step = jax.vmap(one, (0, 0))
    return jax.vmap(every_step, (-1, -1), (-1, -1))(batch.observation, batch.action)


def window_log_ratio(
    difference: Float[Array, "T E"], valid: Bool[Array, "T E"], window: int | Int[Array, ""], normalised: bool
) -> Float[Array, "T E"]:
    """Sum, or mean, of log pi_new - log pi_old over the window's valid steps from each step on (equation 5)."""
    # sums from each step to the end: where a window reaches the end, nothing is subtracted from a large number
    to_go = jnp.cumsum(jnp.where(valid, difference, 0.0)[::-1], 0)[::-1]
    steps = jnp.arange(len(valid))
    beyond = jnp.minimum(steps + window, len(valid))
    padded = jnp.concatenate([to_go, jnp.zeros_like(to_go[:1])])
    total = to_go - padded[beyond]
    if not normalised:
        return total
    left = jnp.cumsum(valid[::-1], 0)[::-1]
    return total / jnp.clip(jnp.minimum(left, window), 1)


def objective(
    log_ratio: Float[Array, "T E"], advantage: Float[Array, "T E"], counts: Bool[Array, "T E"], clip: float | Array
) -> Float[Array, ""]:
    """Mean over the windows that count of min(rho A, clip(rho, 1 - clip, 1 + clip) A) (equation 6)."""
    # The minimum bounds the ratio from above where A is positive and from below where it is not. Bounded before the
    # exponential, a ratio that would overflow has the gradient 0 there; after it, 0 * inf.
    good = advantage >= 0
    low, high = jnp.log1p(-jnp.minimum(clip, 1.0)), jnp.log1p(clip)
    bounded = jnp.clip(log_ratio, jnp.where(good, -jnp.inf, low), jnp.where(good, high, jnp.inf))
    return mean_over(jnp.exp(bounded) * advantage, counts)


def mean_over(values: Array, mask: Bool[Array, "T E"]) -> Float[Array, ""]:
    """Mean of the values where the mask is true; 0 where it nowhere is."""
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.clip(jnp.sum(mask), 1)

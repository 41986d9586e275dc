"""Stable-Baselines3 trains on the adapters; it brings PyTorch, which the other tests do without."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from toy import STEPS, Block

import envs
from envs import adapters

sb3 = pytest.importorskip(
    "stable_baselines3", reason="stable_baselines3 is not installed: pip install 'jaxrefine[sb3]'"
)
pytestmark = pytest.mark.slow


class RandomStart(Block):
    """The toy, with episodes drawn from its parameters."""

    def reset_env(self, key, params):
        return self.reset_to(params, jax.random.randint(key, (), 0, params.starts.size))


def vectorised(env, count, **options):
    return adapters.StableBaselinesVecEnv(
        adapters.GymnasiumVectorEnv(env, count, flat=True, autoreset_mode=AutoresetMode.SAME_STEP, **options)
    )


def mean_return(model, vector, steps):
    """Mean return of the episodes that end within ``steps``."""
    observation, running, returns = vector.reset(), np.zeros(vector.num_envs), []
    for _ in range(steps):
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, done, _ = vector.step(action)
        running += reward
        returns += list(running[done])
        running[done] = 0
    return np.mean(returns)


def test_it_wants_resets_in_the_same_step():
    with pytest.raises(ValueError, match="SameStep"):
        adapters.StableBaselinesVecEnv(adapters.GymnasiumVectorEnv(Block(), 2, seeds=(0, 1)))


def test_the_end_of_an_episode_is_told_as_stable_baselines_wants_it():
    vector = vectorised(Block(), 2, seeds=(0, 1))
    vector.reset()
    for _ in range(STEPS):
        observation, _, done, infos = vector.step(np.zeros((2, 1), np.float32))
    assert done.all()
    starts = np.asarray(Block().params_for_seeds((0, 1)).starts)
    for i, info in enumerate(infos):
        assert info["TimeLimit.truncated"]
        # unpushed, the block stays where it is; the list goes round, so each block gets its old place again
        np.testing.assert_allclose(info["terminal_observation"], [starts[i], 0], atol=1e-6)
    np.testing.assert_allclose(observation[:, 0], starts, atol=1e-6)
    vector.close()


def test_ppo_learns_to_push_the_block():
    env = RandomStart()
    vector = vectorised(env, 16, params=env.params_for_seeds(range(100)))
    model = sb3.PPO("MlpPolicy", vector, n_steps=64, batch_size=256, learning_rate=3e-3, seed=0, device="cpu")
    before = mean_return(model, vector, 3 * STEPS)
    model.learn(8192)
    after = mean_return(model, vector, 3 * STEPS)
    # left alone, a block costs as much as a new policy does
    assert after > 0.6 * before


def test_ppo_trains_on_car_racing():
    env, params = envs.make("car_racing")
    vector = sb3.common.vec_env.VecMonitor(vectorised(env, 16, params=params.replace(max_steps_in_episode=100)))
    model = sb3.PPO("MlpPolicy", vector, n_steps=64, batch_size=256, seed=0, device="cpu")
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(4096)
    assert model.num_timesteps == 4096
    after = list(model.policy.parameters())
    assert all(parameter.isfinite().all() for parameter in after)
    assert any((a != b).any() for a, b in zip(before, after, strict=True))
    assert [episode["l"] for episode in model.ep_info_buffer] == [100] * len(model.ep_info_buffer)
    assert len(model.ep_info_buffer) >= 16

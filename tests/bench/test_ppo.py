from __future__ import annotations

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brax.training.acme import running_statistics, specs
from brax.training.agents.ppo import networks
from toy import SCHEMA, STEPS, Block, make_task

from bench import ppo
from bench.brax_shim import device_put_replicated
from envs.adapters import BraxEnv
from envs.base import Schema
from jaxrefine import task as tasks

ENVS, UNROLL = 16, 20
SETTINGS = replace(
    ppo.SETTINGS["car_racing"],
    num_envs=ENVS,
    unroll_length=UNROLL,
    batch_size=8,
    num_minibatches=4,
    learning_rate=1e-2,
    discounting=0.95,
    hidden=(16,),
)
UPDATE = 8 * 4 * UNROLL


class OneSided(Block):
    """The toy with a force that brax's range has to be mapped to, and with episodes drawn from its parameters."""

    schema = Schema(SCHEMA.observation, (replace(SCHEMA.action[0], low=-0.2, high=0.6),))

    def reset_env(self, key, params):
        return self.reset_to(params, jax.random.randint(key, (), 0, params.starts.size))


class Endless(OneSided):
    """No episode ends before its limit, so that their number is known."""

    schema = SCHEMA

    def step_env(self, key, state, action, params):
        observation, state, reward, terminated, info = super().step_env(key, state, action, params)
        return observation, state, reward, jnp.zeros_like(terminated), info


def block(folder, env):
    return replace(make_task(folder), make_env=lambda: (env, env.default_params))


def test_what_brax_calls_exists_while_it_trains_and_no_longer():
    assert not hasattr(jax, "device_put_replicated")
    with device_put_replicated():
        tree = jax.device_put_replicated({"a": jnp.arange(3.0), "b": 2}, jax.local_devices()[:1])
    assert not hasattr(jax, "device_put_replicated")
    assert jax.tree.map(jnp.shape, tree) == {"a": (1, 3), "b": (1,)}
    # pmap, which brax hands it to, takes the leading axis away again
    summed = jax.pmap(lambda tree: jax.lax.psum(tree["a"] + tree["b"], "i"), axis_name="i")(tree)
    np.testing.assert_array_equal(summed, [[2.0, 3.0, 4.0]])


@pytest.mark.parametrize("scaled", [False, True])
def test_the_policy_acts_in_the_environment_as_braxs_own_does_through_the_adapter(scaled):
    settings, env = replace(SETTINGS, scaled=scaled), OneSided()
    adapter = BraxEnv(env, scaled=scaled)
    network = networks.make_ppo_networks(
        2, 1, preprocess_observations_fn=running_statistics.normalize, policy_hidden_layer_sizes=settings.hidden
    )
    seen = running_statistics.init_state(specs.Array((2,), jnp.dtype("float32")))
    seen = running_statistics.update(seen, jnp.array([[0.0, 1.0], [3.0, -1.0], [1.0, 0.5]]))
    trained = (seen, network.policy_network.init(jax.random.key(3)), None)
    act = networks.make_inference_fn(network)(trained, deterministic=True)
    policy, params = ppo.policy_of(env.schema, settings), ppo.params_of(trained)

    state = adapter.reset(jax.random.PRNGKey(0))
    expected = adapter.step(state, act(state.obs, None)[0])
    mean, spread, _ = policy(params, env.reset_to(env.default_params, 0)[0] | {"block": state.obs})
    _, found, *_ = env.step_env(jax.random.key(0), state.pipeline_state, mean, env.default_params)
    assert float(mean[0]) != 0
    assert not spread.any()
    jax.tree.map(np.testing.assert_allclose, found, expected.pipeline_state)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two looks at one seed."""
    task = block(tmp_path_factory.mktemp("block"), Endless())
    score = ppo.score_on(task, ppo.policy_of(task.schema, SETTINGS), task.protocol.test_seeds)
    return ppo.train(task, SETTINGS, 30 * UPDATE - 1, 0, 2, score)


def test_ppo_learns_to_push_the_block(trained):
    untrained, _, last = (np.mean(look.values) for look in trained.looks)
    assert last > 0.5 * untrained  # a sum of costs


def test_episodes_and_steps_are_counted(trained):
    steps = [0, 15 * UPDATE, 30 * UPDATE]
    assert [look.env_steps for look in trained.looks] == steps
    assert [look.resets for look in trained.looks] == [ENVS + ENVS * (n // ENVS // STEPS) for n in steps]
    assert all(len(look.values) == 10 for look in trained.looks)


def test_an_episode_that_ends_before_its_limit_counts_too():
    class Batch:
        """Of three, of which one or two end at every step."""

        def step(self, state, action):
            return state.replace(done=jnp.array([1.0, action, 0.0]))

    counter = ppo.CountEpisodes(Batch())
    state = BraxEnv(OneSided()).reset(jax.random.key(0))
    for action in (1.0, 0.0, 1.0):
        jax.jit(counter.step)(state, action)
    assert counter.ended == 5


@pytest.fixture
def instant(monkeypatch):
    """Trainings that take no time, each a constant better than the one before."""

    def train(task, settings, steps, seed, looks, score):
        at = [steps * i // looks for i in range(looks + 1)]
        seen = [ppo.Look(n, 8 + n // 100, tuple(100.0 * seed + n + i for i in range(10)), {}) for n in at]
        return ppo.Trained(seed, tuple(seen), 1.5)

    monkeypatch.setattr(ppo, "train", train)
    monkeypatch.setattr(ppo, "score_on", lambda *_: None)


def test_the_command_prints_and_writes(instant, tmp_path, capsys):
    path = tmp_path / "ppo.json"
    assert (
        ppo.main(["--condition", "slick", "--steps", "1000", "--looks", "2", "--seeds", "3", "--json", str(path)]) == 0
    )
    written = json.loads(path.read_text())
    assert (written["environment"], written["condition"]) == ("car_racing", "slick")
    assert written["settings"]["num_envs"] == ppo.SETTINGS["car_racing"].num_envs
    assert written["test_seeds"] == list(range(1000, 1010))
    assert [one["looks"][-1]["env_steps"] for one in written["results"]] == [1000] * 3
    summary = written["summary"]
    assert summary["per_seed"] == [1004.5, 1104.5, 1204.5]
    assert (summary["over_seeds"]["mean"], summary["over_seeds"]["n"]) == (1104.5, 3)
    # whole seeds are resampled; three that differ leave nothing narrower than their range
    assert (summary["bootstrap"]["low"], summary["bootstrap"]["high"]) == (1004.5, 1204.5)
    assert (summary["resets"], summary["env_steps"]) == (18, 1000)
    printed = capsys.readouterr().out
    assert "slick" in printed
    assert "1104.500" in printed
    assert "95% interval" in printed


def test_one_seed_has_no_interval(instant, tmp_path, capsys):
    path = tmp_path / "ppo.json"
    ppo.main(["--quick", "--json", str(path)])
    written = json.loads(path.read_text())
    assert written["summary"]["bootstrap"] is None
    assert written["settings"]["num_envs"] == ppo.QUICK["num_envs"]
    assert "interval" not in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--seeds", "-1"], ["--env", "cartpole"]])
def test_what_cannot_be_trained_is_refused(instant, arguments, capsys):
    with pytest.raises(SystemExit) as refused:
        ppo.main(arguments)
    assert refused.value.code == 2
    assert arguments[1] in capsys.readouterr().err


def test_a_condition_that_does_not_exist_is_refused(instant, capsys):
    assert ppo.main(["--condition", "icy"]) == 2
    assert "slick" in capsys.readouterr().err


@pytest.mark.slow
def test_the_car_is_trained_in(tmp_path):
    # the door differs in its adapter alone, which has tests of its own, and takes a minute to compile
    env, path = "car_racing", tmp_path / "ppo.json"
    assert ppo.main(["--env", env, "--quick", "--json", str(path)]) == 0
    (one,) = json.loads(path.read_text())["results"]
    assert [look["env_steps"] for look in one["looks"]] == [0, 512]
    assert [look["resets"] for look in one["looks"]] == [8, 8]
    assert np.isfinite([look["values"] for look in one["looks"]]).all()
    assert set(one["looks"][0]["further"]) == {metric.key for metric in tasks.get(env).further_metrics}

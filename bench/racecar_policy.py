"""A policy program of twenty parameters, such as a language model writes; the throughput bench drives with it."""

import jax.numpy as jnp
from flax import nnx


class RacecarPolicy(nnx.Module):
    """Steers for points ahead and keeps the speed that the sharpest bend in sight allows."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.near = nnx.Param(jnp.array(1.5))
        self.far = nnx.Param(jnp.array(2.0))
        self.heading = nnx.Param(jnp.array(1.2))
        self.damping = nnx.Param(jnp.array(0.3))
        self.bend_early = nnx.Param(jnp.array(0.8))
        self.bend_late = nnx.Param(jnp.array(1.1))
        self.kerb = nnx.Param(jnp.array(0.1))
        self.speed_base = nnx.Param(jnp.array(0.75))
        self.speed_bend = nnx.Param(jnp.array(1.2))
        self.speed_offset = nnx.Param(jnp.array(0.3))
        self.gas_gain = nnx.Param(jnp.array(4.0))
        self.gas_bias = nnx.Param(jnp.array(0.05))
        self.gas_steer = nnx.Param(jnp.array(0.4))
        self.brake_gain = nnx.Param(jnp.array(2.5))
        self.brake_margin = nnx.Param(jnp.array(0.02))
        self.brake_bend = nnx.Param(jnp.array(0.3))
        self.slip = nnx.Param(jnp.array(0.5))
        self.std_steer = nnx.Param(jnp.array(-2.0))
        self.std_gas = nnx.Param(jnp.array(-2.0))
        self.std_brake = nnx.Param(jnp.array(-2.0))

    def __call__(self, tiles, indicators):
        """Mean and Cholesky factor of the action, and everything that has a name."""
        x, y, theta, border = tiles[:, 0], tiles[:, 1], tiles[:, 2], tiles[:, 3]
        speed, steering, yaw = indicators[0], indicators[1], indicators[2]
        aim_near = jnp.arctan2(x[2], jnp.abs(y[2]) + 0.02)
        aim_far = jnp.arctan2(x[5], jnp.abs(y[5]) + 0.02)
        bend = self.bend_early[...] * jnp.max(jnp.abs(theta[:6])) + self.bend_late[...] * jnp.max(jnp.abs(theta[6:]))
        bend = bend + self.kerb[...] * jnp.mean(border)
        steer_raw = self.near[...] * aim_near + self.far[...] * aim_far - self.heading[...] * theta[1]
        steer_raw = steer_raw + self.damping[...] * yaw + self.slip[...] * steering
        target = self.speed_base[...] - self.speed_bend[...] * bend - self.speed_offset[...] * jnp.abs(x[0])
        error = jnp.clip(target, 0.2, 1.0) - speed
        gas_raw = self.gas_gain[...] * error + self.gas_bias[...] - self.gas_steer[...] * jnp.abs(steer_raw)
        brake_raw = self.brake_gain[...] * (-error - self.brake_margin[...]) + self.brake_bend[...] * (bend - 0.5)
        mean = jnp.stack([jnp.tanh(steer_raw), jnp.clip(gas_raw, 0.0, 1.0), jnp.clip(brake_raw, 0.0, 0.8)])
        scale_tril = jnp.diag(jnp.exp(jnp.stack([self.std_steer[...], self.std_gas[...], self.std_brake[...]])))
        info = {"latent_aim_near": aim_near, "latent_aim_far": aim_far, "latent_bend": bend, "latent_target": target}
        info |= {"latent_speed_error": error, "latent_steer_raw": steer_raw, "latent_gas_raw": gas_raw}
        info |= {
            "weight_near": self.near[...], "weight_far": self.far[...], "weight_heading": self.heading[...],
            "weight_damping": self.damping[...], "weight_bend_early": self.bend_early[...],
            "weight_bend_late": self.bend_late[...], "weight_kerb": self.kerb[...],
            "weight_speed_base": self.speed_base[...], "weight_speed_bend": self.speed_bend[...],
            "weight_speed_offset": self.speed_offset[...], "weight_gas_gain": self.gas_gain[...],
            "weight_gas_bias": self.gas_bias[...], "weight_gas_steer": self.gas_steer[...],
            "weight_brake_gain": self.brake_gain[...], "weight_brake_margin": self.brake_margin[...],
            "weight_brake_bend": self.brake_bend[...], "weight_slip": self.slip[...],
            "weight_std_steer": self.std_steer[...], "weight_std_gas": self.std_gas[...],
            "weight_std_brake": self.std_brake[...],
        }  # fmt: skip
        return mean, scale_tril, info

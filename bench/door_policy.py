"""A policy program of twenty parameters, such as a language model writes; the throughput bench opens doors with it."""

import jax
import jax.numpy as jnp
from flax import nnx


class OpenDoorPolicy(nnx.Module):
    """Goes above the handle's bar, comes down behind it, and draws it to its target."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.gain_x = nnx.Param(jnp.array(10.0))
        self.gain_y = nnx.Param(jnp.array(10.0))
        self.gain_z = nnx.Param(jnp.array(10.0))
        self.damping = nnx.Param(jnp.array(1.0))
        self.hook_x = nnx.Param(jnp.array(0.01))
        self.hook_y = nnx.Param(jnp.array(0.02))
        self.hover = nnx.Param(jnp.array(0.2))
        self.near_radius = nnx.Param(jnp.array(0.1))
        self.near_sharpness = nnx.Param(jnp.array(100.0))
        self.low_height = nnx.Param(jnp.array(0.04))
        self.low_sharpness = nnx.Param(jnp.array(200.0))
        self.lead_x = nnx.Param(jnp.array(0.06))
        self.lead_y = nnx.Param(jnp.array(0.02))
        self.slow_distance = nnx.Param(jnp.array(0.1))
        self.grip_bias = nnx.Param(jnp.array(-1.0))
        self.grip_near = nnx.Param(jnp.array(2.0))
        self.std_x = nnx.Param(jnp.array(-2.0))
        self.std_y = nnx.Param(jnp.array(-2.0))
        self.std_z = nnx.Param(jnp.array(-2.0))
        self.std_grip = nnx.Param(jnp.array(-2.0))

    def __call__(self, features):
        """Mean and Cholesky factor of the action, and everything that has a name."""
        features = jnp.nan_to_num(features)
        hand, hand_before, handle, target = features[0:3], features[18:21], features[4:7], features[36:39]
        velocity = hand - hand_before
        hook_x, hook_y = handle[0] + self.hook_x[...], handle[1] + self.hook_y[...]
        off_x, off_y, height = hook_x - hand[0], hook_y - hand[1], hand[2] - handle[2]
        planar = jnp.sqrt(jnp.square(off_x) + jnp.square(off_y))
        near = jax.nn.sigmoid(self.near_sharpness[...] * (self.near_radius[...] - planar))
        low = jax.nn.sigmoid(self.low_sharpness[...] * (self.low_height[...] - jnp.abs(height)))
        hooked = near * low
        remaining = jnp.clip((handle[0] - target[0]) / self.slow_distance[...], -1.0, 1.0)
        pull = hooked * remaining
        error_x = off_x - pull * self.lead_x[...]
        error_y = off_y - pull * self.lead_y[...]
        error_z = (1.0 - near) * self.hover[...] - height
        raw_x = self.gain_x[...] * (error_x - self.damping[...] * velocity[0])
        raw_y = self.gain_y[...] * (error_y - self.damping[...] * velocity[1])
        raw_z = self.gain_z[...] * (error_z - self.damping[...] * velocity[2])
        grip = self.grip_bias[...] + self.grip_near[...] * hooked
        mean = jnp.clip(jnp.stack([raw_x, raw_y, raw_z, grip]), -1.0, 1.0)
        log_std = jnp.stack([self.std_x[...], self.std_y[...], self.std_z[...], self.std_grip[...]])
        info = {
            "latent_off_x": off_x, "latent_off_y": off_y, "latent_height": height, "latent_planar": planar,
            "latent_near": near, "latent_low": low, "latent_hooked": hooked, "latent_remaining": remaining,
            "latent_pull": pull, "latent_error_x": error_x, "latent_error_y": error_y, "latent_error_z": error_z,
            "latent_raw_x": raw_x, "latent_raw_y": raw_y, "latent_raw_z": raw_z, "latent_grip": grip,
            "weight_gain_x": self.gain_x[...], "weight_gain_y": self.gain_y[...], "weight_gain_z": self.gain_z[...],
            "weight_damping": self.damping[...], "weight_hook_x": self.hook_x[...],
            "weight_hook_y": self.hook_y[...], "weight_hover": self.hover[...],
            "weight_near_radius": self.near_radius[...], "weight_near_sharpness": self.near_sharpness[...],
            "weight_low_height": self.low_height[...], "weight_low_sharpness": self.low_sharpness[...],
            "weight_lead_x": self.lead_x[...], "weight_lead_y": self.lead_y[...],
            "weight_slow_distance": self.slow_distance[...], "weight_grip_bias": self.grip_bias[...],
            "weight_grip_near": self.grip_near[...], "weight_std_x": self.std_x[...],
            "weight_std_y": self.std_y[...], "weight_std_z": self.std_z[...],
            "weight_std_grip": self.std_grip[...],
        }  # fmt: skip
        return mean, jnp.diag(jnp.exp(log_std)), info

"""The car of Gymnasium's CarRacing-v3 in closed form.

The reference lets Box2D spend 180 velocity iterations on a hull, four wheels and four motor joints. Away from
the steering limit the joint motors never saturate, so the converged answer is known: hull and wheels move as one
rigid body in the plane whose wheels turn at commanded rates. What Box2D's discretisation adds is kept: lever arms
of the configuration in which the velocities were solved, the position correction of a finite rotation joint by
joint, the speed limit of every body, and the joint limit with its warm-started motor impulse.

Every function takes arrays whose trailing dimensions are the batch (none, or one) and whose leading dimension,
where there is one, counts wheels or bodies: that keeps the inner loops as wide as the batch.

Frames: "car" has its axes along the hull's right and forward directions. Units are SI with Box2D's masses.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Float

from envs.batching import Leaf
from envs.car_racing.trigonometry import sin_cos

# Gymnasium CarRacing-v3 (car_dynamics.py)
TIME_STEP = 1 / 50
ENGINE_POWER = 40_000.0
WHEEL_INERTIA = 1.6  # of a wheel's rolling, kg m^2
WHEEL_RADIUS = 0.54
WHEEL_HALF_WIDTH = 0.28
ROAD_FRICTION = 400.0
GRASS_FRICTION = 240.0
SLIP_STIFFNESS = 82.0
GAS_RAMP = 0.1
BRAKE_LOCK = 0.9
BRAKE_DECELERATION = 15.0  # rad/s per step at full brake
STEER_GAIN = 50.0
STEER_RATE = 3.0
STEER_LIMIT = 0.4
# wheel centres from the hull's position, rightward and forward: front left, front right, rear left, rear right
WHEEL_POSITIONS = np.array([(-1.1, 1.6), (1.1, 1.6), (-1.1, -1.64), (1.1, -1.64)])

# Box2D: what it makes of the polygons and densities, and its settings
HULL_MASS = 7.06
HULL_INERTIA = 18.212276  # about its own centre of mass
HULL_CENTRE = -0.0825309  # forward of the hull's position
WHEEL_MASS = 0.06048
WHEEL_YAW_INERTIA = 0.0074592
MAX_SPEED = 100.0  # b2_maxTranslation per step
ANGULAR_SLOP = np.deg2rad(2.0)
MAX_ANGULAR_CORRECTION = np.deg2rad(8.0)
LINEAR_SLOP = 0.005  # a joint's gap (m) that needs no second pass of corrections
ITERATIONS = 180
MAX_MOTOR_IMPULSE = 180 * 900 * 0.02**2 * TIME_STEP

# the composite body
MASS = HULL_MASS + 4 * WHEEL_MASS
CENTRE = (HULL_MASS * HULL_CENTRE + WHEEL_MASS * WHEEL_POSITIONS[:, 1].sum()) / MASS
BODY_MASSES = np.array([WHEEL_MASS] * 4 + [HULL_MASS])
# bodies from the composite centre of mass, in the car's frame: the four wheels, then the hull
ARMS = np.concatenate([WHEEL_POSITIONS, [(0.0, HULL_CENTRE)]]) - np.array([0.0, CENTRE])
ORBITAL_INERTIA = float(BODY_MASSES @ (ARMS**2).sum(axis=1))
SPIN_INERTIA = HULL_INERTIA + 4 * WHEEL_YAW_INERTIA
INERTIA = SPIN_INERTIA + ORBITAL_INERTIA
MOTOR_MASS = 1 / (1 / HULL_INERTIA + 1 / WHEEL_YAW_INERTIA)
# of the angle by which a wheel is beyond its limit, the part that turns the hull rather than the wheel
HULL_SHARE = MOTOR_MASS / HULL_INERTIA

# The car's sums over wheels and bodies, as matrices: XLA then computes each summand once, where it would inline
# sums of elements, their summands included, into everything that uses them.
# motion of the car (velocity of the centre of mass rightward and forward, yaw rate) to that of the bodies and itself
_RIGID = np.vstack([
    np.column_stack([np.ones(5), np.zeros(5), -ARMS[:, 1]]),
    np.column_stack([np.zeros(5), np.ones(5), ARMS[:, 0]]),
    np.eye(3),
])  # fmt: skip
# momenta of the bodies, rightward then forward, to the car's: rightward, forward, angular
_MOMENTA = np.vstack([
    np.concatenate([np.ones(5), np.zeros(5)]),
    np.concatenate([np.zeros(5), np.ones(5)]),
    np.concatenate([-ARMS[:, 1], ARMS[:, 0]]),
])  # fmt: skip
_OF_VELOCITIES = _MOMENTA * np.tile(BODY_MASSES, 2)
# forces on the wheels (car's frame, then along each wheel) and lost velocities of the bodies to a step's changes:
# the car's momentum, then the wheels' rolling
_OF_STEP = np.block([
    [TIME_STEP * _MOMENTA[:, [0, 1, 2, 3, 5, 6, 7, 8]], np.zeros((3, 4)), -_OF_VELOCITIES],
    [np.zeros((4, 8)), -TIME_STEP * WHEEL_RADIUS / WHEEL_INERTIA * np.eye(4), np.zeros((4, 10))],
])  # fmt: skip


def _pass(gaps: Float[np.ndarray, "4 2"]) -> tuple[Float[np.ndarray, " 4"], Float[np.ndarray, "4 2"]]:
    """By what Box2D's correction of each joint's gap, from the last joint to the first, turns the hull.

    Returns:
        the turns (rad), and the gaps that the later corrections leave at the joints of the earlier ones. Gaps are in
        the car's frame, m, from where the hull has the joint to where the wheel has it.
    """
    arms = WHEEL_POSITIONS - np.array([0.0, HULL_CENTRE])
    across = np.column_stack([-arms[:, 1], arms[:, 0]])
    turns, gaps = np.zeros(4), gaps.copy()
    for joint in (3, 2, 1, 0):
        mobility = 1 / HULL_MASS + 1 / WHEEL_MASS
        turns[joint] = across[joint] @ gaps[joint] / (HULL_INERTIA * mobility + arms[joint] @ arms[joint])
        shift = (gaps[joint] - turns[joint] * across[joint]) / (HULL_MASS * mobility)
        gaps -= shift + turns[joint] * across
        gaps[joint] = 0
    return turns, gaps


def _corrections() -> Float[np.ndarray, "8 3"]:
    """Turns of the hull in two passes over the joints, per stretch, lag and the last step's stretch (``_turned``)."""
    arms = WHEEL_POSITIONS - np.array([0.0, HULL_CENTRE])
    stretch, stretch_left = _pass(arms)
    lag, lag_left = _pass(np.column_stack([-arms[:, 1], arms[:, 0]]))
    left_over, _ = _pass(stretch_left)
    first = np.column_stack([stretch, lag, left_over])
    second = np.column_stack([left_over, _pass(lag_left)[0], np.zeros(4)])
    return np.concatenate([first, second])


_CORRECTIONS: list[list[float]] = _corrections().tolist()
# a wheel ends r w^2 / 2 too far out after a rotation by w
SECOND_PASS = float(np.sqrt(2 * LINEAR_SLOP / np.hypot(WHEEL_POSITIONS[0, 0], WHEEL_POSITIONS[0, 1] - HULL_CENTRE)))

Scalar = Float[jax.Array, "*batch"]
Wheels = Float[jax.Array, "4 *batch"]


class Car(struct.PyTreeNode):
    """The car's state.

    Velocities are those of the rigid body before the engine's speed limit is applied to each of its parts.
    """

    x: Leaf  # centre of mass of hull and wheels, m
    y: Leaf
    angle: Leaf  # of the hull, rad; 0 drives along +y, counter-clockwise positive
    turn: Leaf  # by which the last step rotated the hull, rad
    velocity_x: Leaf  # of the centre of mass, m/s
    velocity_y: Leaf
    yaw_rate: Leaf  # rad/s
    front_angle: Leaf  # of the front left wheel relative to the hull, rad
    front_spread: Leaf  # by which the front left wheel is turned more than the front right one, rad
    rear_angle: Leaf
    front_rate: Leaf  # of the front wheels' turning relative to the hull, rad/s
    rear_rate: Leaf
    front_rate_before: Leaf  # one step earlier
    motor_impulse: Leaf  # a front steering motor's, carried from step to step, N m s
    gas: Leaf  # throttle of the rear wheels after the ramp, 0..1
    wheel_speeds: Leaf  # (4,): rolling, rad/s: front left, front right, rear left, rear right


def hull_position(car: Car) -> tuple[Scalar, Scalar]:
    """World coordinates (m) of the hull's origin, from which the reference and the observation measure."""
    sin, cos = sin_cos(car.angle)
    return car.x + sin * CENTRE, car.y - cos * CENTRE


def hull_speed(car: Car) -> Scalar:
    """Speed (m/s) of the hull's own centre of mass."""
    arm = ARMS[4, 1]
    sin, cos = sin_cos(car.angle - car.turn)
    squared = (car.velocity_x - car.yaw_rate * arm * cos) ** 2 + (car.velocity_y - car.yaw_rate * arm * sin) ** 2
    return jnp.minimum(jnp.sqrt(jnp.maximum(squared, 1e-30)), MAX_SPEED)


def step(
    car: Car, steer: Scalar, gas: Scalar, brake: Scalar, friction: Wheels, engine_power: jax.Array | float = 1.0
) -> Car:
    """Advance the car by one step of 1/50 s.

    Args:
        car: the state.
        steer: angle (rad) that the front wheels are to take; the reference passes its command, negated.
        gas: 0..1.
        brake: 0..1; from 0.9 the wheels lock.
        friction: largest force (N) that each wheel can put on the ground.
        engine_power: factor on the reference's.
    """
    sin, cos = sin_cos(car.angle)
    sin_turn, cos_turn = sin_cos(car.turn)

    # velocities of the bodies in the car's frame: today's axes, but the lever arms of the previous configuration
    arm_x, arm_y = _column(ARMS[:, 0], car), _column(ARMS[:, 1], car)
    base_x = cos * car.velocity_x + sin * car.velocity_y
    base_y = cos * car.velocity_y - sin * car.velocity_x
    body_x = base_x - car.yaw_rate * (cos_turn * arm_y - sin_turn * arm_x)
    body_y = base_y + car.yaw_rate * (cos_turn * arm_x + sin_turn * arm_y)
    excess = _excess(body_x, body_y)
    lost_x, lost_y = excess * body_x, excess * body_y

    gas = car.gas + jnp.minimum(gas - car.gas, GAS_RAMP)
    front_right = car.front_angle - car.front_spread
    steering = jnp.stack([car.front_angle, front_right, car.rear_angle, car.rear_angle])
    force_x, force_y, force_along, rolling = _tyres(
        car.wheel_speeds, steering, (body_x - lost_x)[:4], (body_y - lost_y)[:4], gas * engine_power, brake, friction
    )
    gained_x, gained_y, turned, *rolled = _sums(_OF_STEP, [force_x, force_y, force_along, lost_x, lost_y])
    momentum = (
        (SPIN_INERTIA + ORBITAL_INERTIA * cos_turn) * car.yaw_rate
        + 2 * WHEEL_YAW_INERTIA * (car.front_rate + car.rear_rate)
        + turned
    )

    rear_rate = _motor_speed(-car.rear_angle)
    motor_speed = _motor_speed(steer - car.front_angle)
    front_rate, motor_impulse = _front_joint(car, motor_speed, rear_rate, momentum)
    free = jnp.abs(car.front_angle) < STEER_LIMIT
    right_rate = front_rate + jnp.where(free, _motor_speed(steer - front_right) - motor_speed, 0.0)
    yaw_rate = (momentum - 2 * WHEEL_YAW_INERTIA * (front_rate + rear_rate)) / INERTIA

    # integration: each body moves at its limited speed; the joints then pull the rigid shape together
    motion = _sums(_RIGID, [jnp.stack([base_x + gained_x / MASS, base_y + gained_y / MASS, yaw_rate])])
    body_x, body_y, yaw_rate = motion[:5], motion[5:10], motion[12]
    excess = _excess(body_x, body_y)
    lost_x, lost_y, orbital_loss = _sums(_OF_VELOCITIES, [excess * body_x, excess * body_y])
    moved_x, moved_y = motion[10] - lost_x / MASS, motion[11] - lost_y / MASS
    angle, left, right, rear = _turned(car, yaw_rate, front_rate, right_rate, rear_rate, orbital_loss)
    return Car(
        x=car.x + TIME_STEP * (cos * moved_x - sin * moved_y),
        y=car.y + TIME_STEP * (sin * moved_x + cos * moved_y),
        angle=angle,
        turn=angle - car.angle,
        velocity_x=car.velocity_x + (cos * gained_x - sin * gained_y) / MASS,
        velocity_y=car.velocity_y + (sin * gained_x + cos * gained_y) / MASS,
        yaw_rate=yaw_rate,
        front_angle=left - angle,
        front_spread=left - right,
        rear_angle=rear - angle,
        front_rate=front_rate,
        rear_rate=rear_rate,
        front_rate_before=car.front_rate,
        motor_impulse=motor_impulse.astype(car.x.dtype),
        gas=gas,
        wheel_speeds=rolling + jnp.stack(rolled),
    )


def _sums(weights: np.ndarray, terms: list[jax.Array]) -> Float[jax.Array, "sum *batch"]:
    """Weighted sums over the rows of all terms."""
    rows = jnp.concatenate(terms)
    return jnp.tensordot(jnp.asarray(weights, rows.dtype), rows, axes=1, precision="highest")


def _column(values: np.ndarray, car: Car) -> jax.Array:
    """Constants per wheel or body, shaped to broadcast against the batch."""
    return jnp.asarray(values.reshape(-1, *(1,) * car.x.ndim), car.x.dtype)


def _excess(velocity_x: jax.Array, velocity_y: jax.Array) -> jax.Array:
    """Share of a body's velocity that Box2D's speed limit takes away; exactly 0 below the limit."""
    squared = velocity_x**2 + velocity_y**2
    return jnp.where(squared > MAX_SPEED**2, 1 - MAX_SPEED * jax.lax.rsqrt(jnp.maximum(squared, 1.0)), 0.0)


def _tyres(
    speeds: Wheels,
    steering: Wheels,
    velocity_x: Wheels,
    velocity_y: Wheels,
    gas: Scalar,
    brake: Scalar,
    friction: Wheels,
) -> tuple[Wheels, Wheels, Wheels, Wheels]:
    """Forces of the ground on the wheels (N, rightward, forward and along the wheel), and the rolling speeds (rad/s).

    The speeds are those after engine and brakes, before the ground's reaction.
    """
    sin, cos = sin_cos(steering)
    along = cos * velocity_y - sin * velocity_x
    across = cos * velocity_x + sin * velocity_y

    driven = jnp.stack([jnp.zeros_like(gas), jnp.zeros_like(gas), gas, gas])
    speeds = speeds + TIME_STEP * ENGINE_POWER / WHEEL_INERTIA * driven / (jnp.abs(speeds) + 5.0)
    braked = jnp.sign(speeds) * jnp.maximum(jnp.abs(speeds) - BRAKE_DECELERATION * brake, 0.0)
    speeds = jnp.where(brake >= _at_least(BRAKE_LOCK, brake.dtype), 0.0, braked)

    force_along = SLIP_STIFFNESS * (speeds * WHEEL_RADIUS - along)
    force_across = -SLIP_STIFFNESS * across
    squared = force_along**2 + force_across**2
    scale = jnp.where(squared > friction**2, friction * jax.lax.rsqrt(jnp.maximum(squared, 1.0)), 1.0)
    force_along, force_across = scale * force_along, scale * force_across
    return cos * force_across - sin * force_along, sin * force_across + cos * force_along, force_along, speeds


def _at_least(value: float, dtype: np.dtype) -> float:
    """The smallest number of this precision that is not below ``value``: 0.9 in float32 does not lock."""
    rounded = np.asarray(value, dtype)
    return float(rounded if float(rounded) >= value else np.nextafter(rounded, np.asarray(np.inf, dtype)))


def _motor_speed(error: Scalar) -> Scalar:
    return jnp.clip(STEER_GAIN * error, -STEER_RATE, STEER_RATE)


def _front_joint(car: Car, motor_speed: Scalar, rear_rate: Scalar, momentum: Scalar) -> tuple[Scalar, Scalar]:
    """Rate of the front joints (rad/s) and their motor impulse (N m s), at Box2D's limit or free of it.

    At the limit, motor and limit push against each other over 180 iterations while the motor's impulse runs up
    to its bound; the joint is held for as long as that impulse exceeds what holding it takes.
    """
    side = jnp.where(car.front_angle >= STEER_LIMIT, 1.0, jnp.where(car.front_angle <= -STEER_LIMIT, -1.0, 0.0))
    side = side.astype(car.x.dtype)
    spin = car.yaw_rate + car.front_rate
    needed = WHEEL_YAW_INERTIA * ((momentum - 2 * WHEEL_YAW_INERTIA * rear_rate) / INERTIA - spin)
    first = car.motor_impulse + MOTOR_MASS * (motor_speed - 2 * car.front_rate + car.front_rate_before)
    first = jnp.clip(first, -MAX_MOTOR_IMPULSE, MAX_MOTOR_IMPULSE)
    run_up = first + (ITERATIONS - 1) * MOTOR_MASS * motor_speed
    run_up = jnp.clip(run_up, -MAX_MOTOR_IMPULSE, MAX_MOTOR_IMPULSE)
    surplus = side * (run_up - needed)
    leaving = side * jnp.maximum(side * motor_speed, surplus / MOTOR_MASS)
    held = (side != 0) & (surplus >= 0)
    rate = jnp.where(side == 0, motor_speed, jnp.where(held, 0.0, leaving))
    yaw_rate = (momentum - 2 * WHEEL_YAW_INERTIA * (rate + rear_rate)) / INERTIA
    return rate, jnp.where(held, run_up, WHEEL_YAW_INERTIA * (yaw_rate + rate - spin))


def _turned(
    car: Car, yaw_rate: Scalar, left_rate: Scalar, right_rate: Scalar, rear_rate: Scalar, orbital_loss: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Angles after the step: of the hull, and of the front left, the front right and the rear wheels (rad, world).

    Box2D first moves and turns every body at its rate, then goes over the joints. A wheel has moved along the tangent
    while the hull turned, so it ends too far out (by its arm times ``stretch``) and behind (by its arm times ``lag``);
    bringing it back turns the hull, and a front wheel beyond its limit is turned back against the hull. What one pass
    leaves open, a second pass closes, or else the next step's first.

    Every addition to an angle is one of Box2D's, in its order: its angles are in float32, and what is too small to
    change them is lost there in one step after the other. Here it must be lost as well.
    """
    rotation = TIME_STEP * yaw_rate
    lag = -(rotation**3) * (1 / 3 - rotation**2 / 30) - TIME_STEP * orbital_loss / ORBITAL_INERTIA
    left_open = jnp.where(jnp.abs(car.turn) < SECOND_PASS, _stretch(car.turn), 0.0)
    stretch = _stretch(rotation)
    first = [radial * stretch + tangential * lag + again * left_open for radial, tangential, again in _CORRECTIONS[:4]]

    left = (car.angle + car.front_angle) + TIME_STEP * (yaw_rate + left_rate)
    right = (car.angle + (car.front_angle - car.front_spread)) + TIME_STEP * (yaw_rate + right_rate)
    rear = (car.angle + car.rear_angle) + TIME_STEP * (yaw_rate + rear_rate)
    angle = car.angle + rotation
    angle = (angle + first[3]) + first[2]
    beyond = _limit_excess(car.front_angle, right - angle)
    right = right - (1 - HULL_SHARE) * beyond
    angle = (angle + HULL_SHARE * beyond) + first[1]
    beyond = _limit_excess(car.front_angle, left - angle)
    left = left - (1 - HULL_SHARE) * beyond
    angle = (angle + HULL_SHARE * beyond) + first[0]

    limited = beyond != 0
    repeated = limited | (jnp.abs(rotation) > SECOND_PASS)
    second = [
        jnp.where(repeated, radial * stretch + tangential * lag, 0.0) for radial, tangential, _ in _CORRECTIONS[4:]
    ]
    angle = (angle + second[3]) + second[2]
    right = right - jnp.where(limited, _limit_excess(car.front_angle, right - angle), 0.0)
    angle = angle + second[1]
    left = left - jnp.where(limited, _limit_excess(car.front_angle, left - angle), 0.0)
    return angle + second[0], left, right, rear


def _stretch(rotation: Scalar) -> Scalar:
    """By how much of its arm a wheel ends too far out: w sin(w) + cos(w) - 1."""
    return rotation**2 * (1 / 2 - rotation**2 / 8)


def _limit_excess(before: Scalar, after: Scalar) -> Scalar:
    """By how much (rad, signed) Box2D's position correction turns a front joint back towards its limit."""
    active = jnp.abs(before) >= STEER_LIMIT
    over = jnp.clip(jnp.abs(after) - STEER_LIMIT - ANGULAR_SLOP, 0.0, MAX_ANGULAR_CORRECTION)
    return jnp.where(active, jnp.sign(before) * over, 0.0)

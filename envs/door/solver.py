"""MuJoCo's constraint forces: Newton's method on the accelerations, with an exact search along each direction.

The cost is that of the chapter "Computation" of MuJoCo's documentation, with elliptic friction cones. Every array may
carry trailing batch dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from envs.door.constraints import DOF, LIMITED, Limits, Touches, Weld
from envs.door.vectors import dot, keep, total

ITERATIONS = 3
SEARCH_STEPS = 8  # with 4, one solve in some millions overshot and flung the arm about
TINY = 1e-12  # below what any slip of a contact can be, m/s^2


class Problem(NamedTuple):
    """Minimise 1/2 a'Ma - a'f plus the constraints' cost over the joints' accelerations a.

    Attributes:
        mass: M, (10, 10).
        force: f, all forces but the constraints', (10,).
        weld: of the hand.
        limits: of the joints.
        touches: contacts.
    """

    mass: Array
    force: Array
    weld: Weld
    limits: Limits
    touches: Touches


def solve(
    problem: Problem, start: Float[Array, "10 *batch"]
) -> tuple[Float[Array, "10 *batch"], Float[Array, "10 *batch"]]:
    """Accelerations that minimise the cost, beginning at ``start``, and the constraints' force on the joints."""
    limits, touches = problem.limits, problem.touches
    # the weld always acts, so its cost is quadratic and joins the kinetic one
    rows, weights = problem.weld.jacobian, problem.weld.stiffness
    mass = problem.mass + dot((rows * weights[:, None])[:, :, None], rows[:, None])
    force = problem.force + dot(rows, (weights * problem.weld.reference)[:, None])
    mass, force = keep((mass, force), start)

    def newton(acceleration: Array, _: None) -> tuple[Array, None]:
        limit, touch = keep(_violations(problem, acceleration), start)
        pull, hessian = keep(_touch_derivatives(touches, touch), start)
        weight = jnp.where(limit < 0, limits.stiffness, 0.0)
        slope = _times(mass, acceleration) - force
        gradient = slope + _back(touches, pull) + _to_joints(limits.sign * weight * limit)
        touching = _touch_columns(touches, hessian)
        diagonal = _to_joints(weight)
        columns = [mass[j:, j] + touching[j] for j in range(DOF)]
        columns = [jnp.concatenate([c[:1] + diagonal[j], c[1:]]) for j, c in enumerate(columns)]
        slope, gradient = keep((slope, gradient), start)
        direction = -cholesky_solve(columns, gradient)
        limit_rate = limits.sign * _of_joints(direction)
        touch_rate = dot(jnp.swapaxes(touches.jacobian, 0, 1), direction[:, None, None])
        quadratic = dot(direction, slope), dot(direction, _times(mass, direction))
        limit_rate, touch_rate, quadratic = keep((limit_rate, touch_rate, quadratic), start)
        length = _search(problem, (limit, limit_rate), (touch, touch_rate), quadratic)
        return acceleration + length * direction, None

    acceleration, _ = jax.lax.scan(newton, start, None, length=ITERATIONS)
    return acceleration, constraint_force(problem, acceleration)


def constraint_force(problem: Problem, acceleration: Float[Array, "10 *batch"]) -> Float[Array, "10 *batch"]:
    """Force of all constraints on the joints at these accelerations."""
    weld, limits, touches = problem.weld, problem.limits, problem.touches
    stretch = dot(jnp.swapaxes(weld.jacobian, 0, 1), acceleration[:, None]) - weld.reference
    stretch, (limit, touch) = keep((stretch, _violations(problem, acceleration)), acceleration)
    pull = keep(_touch_derivatives(touches, touch)[0], acceleration)
    push = _to_joints(limits.sign * limits.stiffness * jnp.minimum(limit, 0.0))
    return -dot(weld.jacobian, (weld.stiffness * stretch)[:, None]) - push - _back(touches, pull)


def cholesky_solve(matrix: list[Array], right: Float[Array, "n *batch"]) -> Float[Array, "n *batch"]:
    """Solve a positive definite system.

    Args:
        matrix: its columns from the diagonal down: shapes (n,), (n - 1,), ..., (1,).
        right: the right side.
    """
    columns: list[Array] = []
    # the right side is one more row of the matrix: its part of the factor is the forward substitution's result
    for j, column in enumerate(matrix):
        column = jnp.concatenate([column, right[None, j]])
        for k in range(j):
            column = column - columns[k][j - k :] * columns[k][j - k]
        column = keep(column, right)
        columns.append(column / jnp.sqrt(column[0]))
    solution: list[Array] = []
    for j in reversed(range(len(matrix))):
        rest = columns[j][-1]
        for i, known in enumerate(solution):
            rest = rest - columns[j][len(matrix) - 1 - i - j] * known
        solution.append(keep(rest / columns[j][0], right))
    return jnp.stack(solution[::-1])


def _violations(problem: Problem, acceleration: Array) -> tuple[Array, Array]:
    """Accelerations of limits (7,) and contacts (3, contacts) less what they strive for; negative ones act."""
    limits, touches = problem.limits, problem.touches
    touch = dot(jnp.swapaxes(touches.jacobian, 0, 1), acceleration[:, None, None])
    return limits.sign * _of_joints(acceleration) - limits.reference, touch - touches.reference


def _cone(touches: Touches, normal: Array, tangent: Array) -> tuple[Array, Array]:
    """Where contacts stick, and where they slide; elsewhere they let go."""
    sticks = touches.friction * normal + tangent <= 0
    return sticks, ~sticks & (normal < touches.friction * tangent)


def _touch_derivatives(touches: Touches, touch: Array) -> tuple[Array, Array]:
    """Gradient (3, contacts) and Hessian (3, 3, contacts) of the contacts' cost."""
    n, mu = touches.normal, touches.friction
    normal = dot(n, touch)
    slip = touch - n * normal
    tangent = jnp.sqrt(dot(slip, slip))
    sticks, slides = _cone(touches, normal, tangent)
    stiff = jnp.where(sticks, touches.stiffness, 0.0)
    weak = jnp.where(slides, touches.stiffness / (1 + mu**2), 0.0)
    along = slip / jnp.maximum(tangent, TINY)
    excess = normal - mu * tangent
    edge = n - mu * along
    bend = -weak * excess * mu / jnp.maximum(tangent, TINY)
    along, edge, bend, stiff, weak = keep((along, edge, bend, stiff, weak), touch)
    across = -n[:, None] * n - along[:, None] * along
    hessian = weak * edge[:, None] * edge + bend * across
    eye = jnp.eye(3, dtype=touch.dtype).reshape(3, 3, *(1,) * (touch.ndim - 1))
    return stiff * touch + weak * excess * edge, hessian + eye * (bend + stiff)


def _search(
    problem: Problem, limit: tuple[Array, Array], touch: tuple[Array, Array], quadratic: tuple[Array, Array]
) -> Array:
    """Length of the step along a direction that minimises the cost, by bracketed Newton steps.

    Args:
        problem: what to minimise.
        limit: violations of the limits and their rates along the direction.
        touch: those of the contacts.
        quadratic: first and second derivative of the rest of the cost at the beginning.
    """
    touches, stiffness = problem.touches, problem.touches.stiffness
    n, mu = touches.normal, touches.friction
    normal, normal_rate = dot(n, touch[0]), dot(n, touch[1])
    square = jnp.maximum(dot(touch[0], touch[0]) - normal**2, 0.0)
    mixed = dot(touch[0], touch[1]) - normal * normal_rate
    rates = jnp.maximum(dot(touch[1], touch[1]) - normal_rate**2, 0.0)
    normal, normal_rate, square, mixed, rates = keep((normal, normal_rate, square, mixed, rates), touch[0])

    def derivatives(length: Array) -> tuple[Array, Array]:
        violation = limit[0] + length * limit[1]
        weight = jnp.where(violation < 0, problem.limits.stiffness, 0.0)
        now = normal + length * normal_rate
        tangent = jnp.sqrt(jnp.maximum(square + length * (2 * mixed + length * rates), 0.0))
        sticks, slides = _cone(touches, now, tangent)
        growth = mixed + length * rates
        tangent_rate = growth / jnp.maximum(tangent, TINY)
        bend = (rates - tangent_rate**2) / jnp.maximum(tangent, TINY)
        excess, excess_rate = now - mu * tangent, normal_rate - mu * tangent_rate
        weak = jnp.where(slides, stiffness / (1 + mu**2), 0.0)
        stiff = jnp.where(sticks, stiffness, 0.0)
        first = stiff * (now * normal_rate + growth) + weak * excess * excess_rate
        second = stiff * (normal_rate**2 + rates) + weak * (excess_rate**2 - mu * excess * bend)
        first, second = keep((first, second), touch[0])
        return (
            quadratic[0] + length * quadratic[1] + total(weight * violation * limit[1]) + total(first),
            quadratic[1] + total(weight * limit[1] ** 2) + total(second),
        )

    def narrow(bracket: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        length, low, high = bracket
        first, second = derivatives(length)
        low, high = jnp.where(first < 0, length, low), jnp.where(first < 0, high, length)
        length = length - first / second
        middle = jnp.where(jnp.isinf(high), 2.0 * low, 0.5 * (low + high))
        return (jnp.where((length > low) & (length < high), length, middle), low, high), None

    one = jnp.ones_like(quadratic[0])
    (length, _, _), _ = jax.lax.scan(narrow, (one, 0 * one, jnp.inf * one), None, length=SEARCH_STEPS)
    return length


def _touch_columns(touches: Touches, hessian: Array) -> list[Array]:
    """Sum over contacts of J'HJ, as its columns from the diagonal down."""
    jacobian = touches.jacobian
    weighted = jnp.stack([dot(hessian[i][:, None], jacobian) for i in range(3)])
    weighted = keep(weighted, hessian)
    columns = [total(jnp.swapaxes(dot(jacobian[:, j:], weighted[:, None, j]), 0, 1)) for j in range(DOF)]
    return keep(columns, hessian)


def _back(touches: Touches, pull: Array) -> Array:
    """Forces on the joints of forces (3, contacts)."""
    return total(jnp.swapaxes(dot(touches.jacobian, pull[:, None]), 0, 1))


def _times(matrix: Array, vector: Array) -> Array:
    """Product with a symmetric matrix."""
    return dot(matrix, vector[:, None])


def _of_joints(values: Array) -> Array:
    return jnp.stack([values[dof] for dof in LIMITED])


def _to_joints(rows: Array) -> Array:
    joints = [jnp.zeros_like(rows[0])] * DOF
    for row, dof in enumerate(LIMITED):
        joints[dof] = joints[dof] + rows[row]
    return jnp.stack(joints)

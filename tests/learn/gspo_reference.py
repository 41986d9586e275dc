"""Windowed GSPO once more, in plain loops and float64: slow, and written from the equations.

Arrays are ``(T, E)``: step t of trajectory i stands at ``[t, i]``. A trajectory's first steps are valid, up to its end.
A group's trajectories stand side by side.
"""

from __future__ import annotations

import math

import numpy as np


def episode_lengths(valid: np.ndarray) -> list[int]:
    return [int(column.sum()) for column in valid.T]


def group_members(groups: int, total: int) -> list[range]:
    size = total // groups
    return [range(g * size, (g + 1) * size) for g in range(groups)]


def reward_to_go(reward: np.ndarray, valid: np.ndarray, discount: float) -> np.ndarray:
    """R_t = sum over u >= t of discount^(u - t) r_u, up to the trajectory's end."""
    result = np.zeros(reward.shape)
    for i, length in enumerate(episode_lengths(valid)):
        for t in range(length):
            result[t, i] = sum(discount ** (u - t) * reward[u, i] for u in range(t, length))
    return result


def standardise(values: list[float]) -> list[float]:
    """(x - mu) / (sigma + 1e-8), with the population's mean and deviation."""
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / len(values))
    return [(x - mean) / (deviation + 1e-8) for x in values]


def advantages(returns: np.ndarray, sets: list[list[tuple[int, int]]]) -> tuple[np.ndarray, np.ndarray]:
    """Every set of (t, i) standardised by itself, and the size of the set that a step belongs to."""
    result, size = np.zeros(returns.shape), np.zeros(returns.shape, int)
    for members in sets:
        for place, value in zip(members, standardise([returns[m] for m in members]), strict=True):
            result[place], size[place] = value, len(members)
    return result, size


def advantages_by_step(returns: np.ndarray, valid: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """A step is compared with the same step of the group's trajectories that are still running."""
    steps, total = returns.shape
    sets = [[(t, i) for i in group if valid[t, i]] for t in range(steps) for group in group_members(groups, total)]
    return advantages(returns, [members for members in sets if members])


def advantages_by_similar_state(
    features: np.ndarray, returns: np.ndarray, valid: np.ndarray, groups: int, anchors: int
) -> tuple[np.ndarray, np.ndarray]:
    """A step is compared with the steps that are nearest to the same anchor; features are ``(T, F, E)``."""
    total, lengths = returns.shape[1], episode_lengths(valid)
    sets = []
    for group in group_members(groups, total):
        places = [(t, i) for i in group for t in range(lengths[i])]
        deviation = np.std([features[t, :, i] for t, i in places], axis=0) + 1e-8
        longest = max(group, key=lambda i: lengths[i])  # the first of the longest
        at = [k * lengths[longest] // anchors for k in range(anchors)]
        cells: list[list[tuple[int, int]]] = [[] for _ in at]
        for t, i in places:
            distances = [np.linalg.norm((features[t, :, i] - features[a, :, longest]) / deviation) for a in at]
            cells[int(np.argmin(distances))].append((t, i))
        sets += [members for members in cells if members]
    return advantages(returns, sets)


def window_log_ratio(difference: np.ndarray, valid: np.ndarray, window: int, normalised: bool) -> np.ndarray:
    """Sum of log pi_new - log pi_old over t, ..., t + window - 1, as far as the trajectory goes; or its mean."""
    result = np.zeros(difference.shape)
    for i, length in enumerate(episode_lengths(valid)):
        for t in range(length):
            inside = [difference[u, i] for u in range(t, min(t + window, length))]
            result[t, i] = math.fsum(inside) / (len(inside) if normalised else 1)
    return result


def objective(log_ratio: np.ndarray, advantage: np.ndarray, counts: np.ndarray, clip: float) -> float:
    """E[min(rho A, clip(rho, 1 - clip, 1 + clip) A)] over the windows that count."""
    values = []
    for place in zip(*np.nonzero(counts), strict=True):
        ratio, a = math.exp(log_ratio[place]), advantage[place]
        values.append(min(ratio * a, min(max(ratio, 1 - clip), 1 + clip) * a))
    return math.fsum(values) / len(values) if values else 0.0


def log_density(action: np.ndarray, mean: np.ndarray, factor: np.ndarray) -> float:
    """Of N(mean, factor factor^T)."""
    covariance, apart = factor @ factor.T, action - mean
    _, log_determinant = np.linalg.slogdet(2 * math.pi * covariance)
    return float(-0.5 * apart @ np.linalg.solve(covariance, apart) - 0.5 * log_determinant)


def gaussian_entropy(factor: np.ndarray) -> float:
    """1/2 log det(2 pi e Sigma), nats."""
    return float(0.5 * np.linalg.slogdet(2 * math.pi * math.e * factor @ factor.T)[1])

"""Checks of a fitted program's rollouts that need no model: what its numbers show whatever it is.

Each takes a table of rollouts, or parameters, and returns a few lines of text and the numbers behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from envs.base import Schema
from jaxrefine.policy.graph import SemanticGraph
from jaxrefine.policy.graph_text import families

SHOWN = 8  # of a ranking
DEAD = 1e-3  # a latent's deviation relative to its size, below which it hardly varies
AT_BOUND = 1e-3  # of the action's range


@dataclass
class Check:
    """One check: its heading, its lines, and its numbers for a file."""

    title: str
    lines: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Heading and lines."""
        return "\n".join([f"## {self.title}", *(f"- {line}" for line in self.lines or ["nothing to report"])])


def structure(graph: SemanticGraph) -> Check:
    """What the program's own text connects and what it does not."""
    check = Check("Structure")
    for what, names in (
        ("latents that no action depends on", graph.unused_latents),
        ("weights that no action depends on", graph.unused_weights),
        ("observations that no action depends on", graph.unused_columns),
        ("latents that merely copy another value", [n for n, f in graph.latents.items() if f.role == "copy"]),
        ("latents that are the same at every step", [n for n, f in graph.latents.items() if not f.observations]),
    ):
        if names:
            check.lines.append(f"{what}: {families(names)}")
        check.numbers[what] = list(names)
    for name, found in graph.actions.items():
        check.lines.append(f"{name} is computed from {families(found.inputs)}")
    return check


def weights(initial: Mapping[str, np.ndarray], fits: Mapping[str, np.ndarray], chosen: int) -> Check:
    """Fitted values beside their initial ones.

    Args:
        initial: parameters as the program starts them.
        fits: fitted parameters, ``(seeds, ...)``.
        chosen: the fit that the rollouts used.
    """
    check = Check("Weights: initial -> fitted (mean +- deviation over independent fits)")
    for name, start in initial.items():
        for index in np.ndindex(start.shape):
            label = name if not index else f"{name}[{', '.join(map(str, index))}]"
            values = fits[name][(slice(None), *index)]
            before, after = float(start[index]), float(values[chosen])
            flipped = before * after < 0
            note = "  SIGN CHANGED" if flipped else "  not moved" if before == after else ""
            check.lines.append(
                f"{label}: {before:.4g} -> {after:.4g} ({values.mean():.3g} +- {values.std():.2g}){note}"
            )
            check.numbers[label] = {"initial": before, "fitted": after, "fits": values.tolist(), "flipped": flipped}
    return check


def latents(table: pd.DataFrame) -> Check:
    """How much each latent varies, and which hardly do."""
    check = Check("Latents over all steps: mean +- deviation [1 %, 99 %]")
    for name in _columns(table, "latent_"):
        values = table[name].to_numpy(float)
        mean, std = values.mean(), values.std()
        low, high = np.quantile(values, [0.01, 0.99])
        dead = bool(std <= DEAD * max(abs(mean), 1e-6))
        check.lines.append(
            f"{name.removeprefix('latent_')}: {mean:.3g} +- {std:.2g} [{low:.3g}, {high:.3g}]"
            + ("  HARDLY VARIES" if dead else "")
        )
        check.numbers[name] = {"mean": mean, "std": std, "q01": low, "q99": high, "dead": dead}
    return check


def actions(table: pd.DataFrame, schema: Schema, demonstrated: Float[np.ndarray, "n a"], by_mean: int) -> Check:
    """Saturation and jerk of the mean-action rollouts, beside the demonstration's."""
    check = Check("Actions by the mean, beside the demonstration: share at a bound; mean absolute second difference")
    mine = table[table["episode"] < by_mean]
    for i, column in enumerate(schema.action):
        edge = AT_BOUND * (column.high - column.low)
        values = mine[f"action_{column.name}"]
        found = {}
        for who, series, episodes in (
            ("rollouts", values.to_numpy(float), mine["episode"].to_numpy()),
            ("demonstration", demonstrated[:, i].astype(float), np.zeros(len(demonstrated))),
        ):
            within = (episodes[2:] == episodes[:-2]) if len(series) > 2 else np.zeros(0, bool)
            jerk = np.abs(np.diff(series, 2))[within]
            found[who] = {
                "low": float(np.mean(series <= column.low + edge)),
                "high": float(np.mean(series >= column.high - edge)),
                "jerk": float(jerk.mean()) if jerk.size else 0.0,
            }
        a, b = found["rollouts"], found["demonstration"]
        check.lines.append(
            f"{column.name}: at {column.low:g} {a['low']:.1%} ({b['low']:.1%}), at {column.high:g} {a['high']:.1%} "
            f"({b['high']:.1%}); {a['jerk']:.3g} ({b['jerk']:.3g})"
        )
        check.numbers[column.name] = found
    return check


def shift(table: pd.DataFrame, schema: Schema, demonstrated: Float[np.ndarray, "n columns"]) -> Check:
    """Which observations leave the demonstration's range, and how far."""
    check = Check("Observations outside the demonstration's range: share of steps, and of episodes that ever are")
    ranked = []
    for i, column in enumerate(schema.observation):
        low, high = float(demonstrated[:, i].min()), float(demonstrated[:, i].max())
        values = table[f"obs_{column.name}"].to_numpy(float)
        slack = 0.05 * max(high - low, 1e-6)
        below, above = values < low - slack, values > high + slack
        outside = below | above
        if outside.any():
            episodes = table["episode"].to_numpy()
            touched = len(np.unique(episodes[outside])) / len(np.unique(episodes))
            numbers = {
                "low": low, "high": high, "below": float(below.mean()), "above": float(above.mean()),
                "episodes": touched, "least": float(values.min()), "most": float(values.max()),
            }  # fmt: skip
            ranked.append((float(outside.mean()), column.name, numbers))
    for share, name, n in sorted(ranked, key=lambda entry: (-entry[0], entry[1]))[:SHOWN]:
        check.lines.append(
            f"{name}: {share:.1%} of steps, {n['episodes']:.0%} of episodes; demonstrated {n['low']:.3g} to "
            f"{n['high']:.3g}, met {n['least']:.3g} to {n['most']:.3g}"
        )
    check.numbers = {name: n for _, name, n in ranked}
    if len(ranked) > SHOWN:
        check.lines.append(f"and {len(ranked) - SHOWN} more")
    return check


def worst_states(table: pd.DataFrame, by_mean: int) -> Check:
    """What distinguishes the steps of least reward, in mean-action rollouts."""
    check = Check(
        "The 5 % of steps with the least reward against all, mean-action rollouts: mean, in deviations of all"
    )
    mine = table[table["episode"] < by_mean]
    worst = mine.nsmallest(max(1, len(mine) // 20), "reward")
    columns = _columns(mine, "obs_", "latent_", "action_mean_")
    everything = mine[columns].astype(float)
    deviation = everything.std(ddof=0)
    moved = ((worst[columns].astype(float).mean() - everything.mean()) / deviation.where(deviation > 1e-9)).dropna()
    check.lines.append(
        f"their mean reward is {worst['reward'].mean():.4g}, of all {mine['reward'].mean():.4g}; they lie in "
        f"{worst['episode'].nunique()} of {mine['episode'].nunique()} episodes, at steps "
        f"{worst['t'].quantile(0.1):.0f} to {worst['t'].quantile(0.9):.0f} (10 % to 90 %)"
    )
    for name in map(str, moved.abs().sort_values(ascending=False, kind="stable").index[:SHOWN]):
        check.lines.append(f"{name}: {worst[name].mean():.3g} against {mine[name].mean():.3g} ({moved[name]:+.2f})")
    check.numbers = {str(name): float(value) for name, value in moved.items()}
    return check


def _columns(table: pd.DataFrame, *prefixes: str) -> list[str]:
    return [name for name in map(str, table.columns) if name.startswith(prefixes)]


def reconstruction(table: pd.DataFrame, inputs: Mapping[str, Sequence[str]]) -> Check:
    """How far each latent is a linear function of what it is computed from.

    Args:
        table: of rollouts.
        inputs: for each latent's column, the columns of what it is directly computed from that vary.
    """
    check = Check("Latents that their direct inputs explain least by a linear formula: R2")
    explained = []
    sample = table.iloc[:: max(1, len(table) // 20_000)]
    for name, columns in inputs.items():
        y = sample[name].to_numpy(float)
        spread = ((y - y.mean()) ** 2).sum()
        if spread < 1e-12 or not columns:
            continue
        x = np.column_stack([np.ones(len(sample)), *(sample[c].to_numpy(float) for c in columns)])
        left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
        r2 = float(1 - (left**2).sum() / spread)
        check.numbers[name] = {"r2": r2, "inputs": list(columns)}
        explained.append((r2, f"{name.removeprefix('latent_')} from {', '.join(columns)}: {r2:.2f}"))
    check.lines = [line for r2, line in sorted(explained)[:SHOWN] if r2 < 0.99]
    return check


def ablation(
    names: Sequence[str],
    means: Float[np.ndarray, " latents"],
    values: Float[np.ndarray, "held episodes"],
    better: str,
    metric: str,
) -> Check:
    """What holding each latent at its mean does to the metric.

    Args:
        names: of the latents.
        means: at which each was held.
        values: of the metric; the first row with none held, then one a latent.
        better: "higher" or "lower".
        metric: its name.
    """
    n = values.shape[1]
    check = Check(
        f"Each latent held at its mean, {n} mean-action episodes: {metric} ({better} is better) and its paired change"
    )
    base = values[0]
    check.lines.append(f"none held: {base.mean():.4g} +- {base.std():.2g}")
    change = values[1:] - base
    sign = 1 if better == "higher" else -1
    order = np.argsort(sign * np.nan_to_num(change.mean(1), nan=-sign * np.inf), kind="stable")
    for i in order:
        error = change[i].std(ddof=1) / np.sqrt(n) if n > 1 else float("nan")
        verdict = "" if (change[i] != 0).any() else "  NO EFFECT"
        if sign * change[i].mean() > 2 * error and not verdict:
            verdict = "  BETTER WITHOUT"
        check.lines.append(
            f"{names[i].removeprefix('latent_')} held at {means[i]:.3g}: {values[i + 1].mean():.4g}, change "
            f"{change[i].mean():+.3g} +- {error:.2g}{verdict}"
        )
        check.numbers[names[i]] = {"held": float(means[i]), "values": values[i + 1].tolist()}
    check.numbers["none"] = {"values": base.tolist()}
    return check

"""What holding each latent at its mean does to the metric, as a bar chart."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxrefine.report.record import Metric
from jaxrefine.report.rounds import Round
from jaxrefine.report.svg import BLUE, GREEN, INK, MUTED, ORANGE, plain, style, to_markup

SHOWN = 15


def ablation(entry: Round, metric: Metric) -> Markup | None:
    """The latents whose loss is the largest, a bar each from the unheld score; None where none was held."""
    found, unheld = entry.findings.ablated, entry.findings.unheld
    if not found or unheld is None:
        return None
    sign = 1 if metric.higher_is_better else -1
    shown = sorted(found, key=lambda latent: sign * latent.change)[:SHOWN]
    name = f"ablation{entry.index}"
    with mpl.rc_context(style(name)):  # type: ignore[arg-type]
        figure = Figure(figsize=(5.6, 0.27 * len(shown) + 1.1), layout="constrained")
        axes = figure.add_subplot()
        places = np.arange(len(shown))
        colours = [ORANGE if sign * latent.change < 0 else GREEN for latent in shown]
        axes.barh(places, [latent.change for latent in shown], left=unheld, height=0.62, color=colours)
        for place, latent in zip(places, shown, strict=True):
            if latent.error is not None:
                axes.errorbar(latent.score, place, xerr=latent.error, color=INK, linewidth=1, capsize=2)
        axes.plot([latent.score for latent in shown], places, "o", color=BLUE, ms=4)
        axes.axvline(unheld, color=INK, linewidth=1.2)
        axes.set_yticks(places, [plain(latent.name) for latent in shown])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.margins(x=0.06)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        unit = f" ({plain(metric.unit)})" if metric.unit else ""
        axes.set_xlabel(f"{plain(metric.name)}{unit} with the latent held at its mean")
        axes.set_title(f"line: none held, {unheld:,.4g}", loc="left", color=MUTED)
        said = ", ".join(f"{latent.name}: {latent.score:.4g}" for latent in shown)
        return to_markup(figure, name, f"{metric.name} of round {entry.index} with each latent held; {said}")

"""What is made from a run directory alone: the report, one HTML file, and its numbers for other viewers."""

from __future__ import annotations

from jaxrefine.report.comparison import comparison_target, render_comparison, write_comparison
from jaxrefine.report.page import write_report
from jaxrefine.report.tensorboard import require_tensorboard, write_tensorboard
from jaxrefine.report.wandb import require_wandb, write_wandb

__all__ = [
    "comparison_target",
    "render_comparison",
    "require_tensorboard",
    "require_wandb",
    "write_comparison",
    "write_report",
    "write_tensorboard",
    "write_wandb",
]

"""What is made from a run directory alone: the report, one HTML file, and its numbers for other viewers."""

from __future__ import annotations

from jaxrefine.report.page import write_report
from jaxrefine.report.tensorboard import require_tensorboard, write_tensorboard
from jaxrefine.report.wandb import require_wandb, write_wandb

__all__ = ["require_tensorboard", "require_wandb", "write_report", "write_tensorboard", "write_wandb"]

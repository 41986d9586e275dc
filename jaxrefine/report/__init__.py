"""What is made from a run directory alone: the report, one HTML file, and learning curves for TensorBoard."""

from __future__ import annotations

from jaxrefine.report.page import write_report
from jaxrefine.report.tensorboard import require_tensorboard, write_tensorboard

__all__ = ["require_tensorboard", "write_report", "write_tensorboard"]

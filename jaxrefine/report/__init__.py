"""The report of a run: one HTML file made from the run directory alone."""

from __future__ import annotations

from jaxrefine.report.page import write_report

__all__ = ["write_report"]

"""Model-written analyses: code and a table go in, text comes out."""

from jaxrefine.analysis.check import check_analysis
from jaxrefine.analysis.sandbox import AnalysisResult, Limits, run_analysis
from jaxrefine.sandbox import choose

__all__ = ["AnalysisResult", "Limits", "check_analysis", "run_analysis"]


def __getattr__(name: str) -> str:
    # For callers that do not choose a backend yet.
    if name == "BACKEND":
        return choose().name
    raise AttributeError(name)

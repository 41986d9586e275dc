"""Model-written analyses: code and a table go in, text comes out."""

from jaxrefine.analysis.check import check_analysis
from jaxrefine.analysis.sandbox import AnalysisResult, Limits, run_analysis

__all__ = ["AnalysisResult", "Limits", "check_analysis", "run_analysis"]

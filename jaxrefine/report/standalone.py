"""A figure of the report as a file of its own, which still follows a viewer's light or dark colours."""

from __future__ import annotations

from importlib import resources

from markupsafe import Markup


def standalone_svg(figure: Markup) -> str:
    """An SVG document of a figure made by `jaxrefine.report.svg.to_markup`.

    Args:
        figure: The inline element, whose colours are variables of the page's style sheet.

    Returns:
        The document, which brings the values of these variables with it, for both colour schemes, and a background.
    """
    sheet = resources.files("jaxrefine.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    # the variables stand first in the sheet, those of the dark scheme after them, before any rule
    variables = sheet[: sheet.index("* {")]
    style = f"<style>{variables}svg {{ background: var(--paper); font-family: sans-serif; }}</style>"
    opening, rest = str(figure).replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1).split(">", 1)
    return f"{opening}>{style}{rest}\n"

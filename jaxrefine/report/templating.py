"""The one way in which templates are read: whatever they are given is escaped, and a missing name is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jinja2


def environment(filters: Mapping[str, Callable[..., Any]]) -> jinja2.Environment:
    """The package's templates, with these filters beside Jinja's own."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxrefine.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= filters
    return made

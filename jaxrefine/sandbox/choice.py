"""Which means hold the jails of this process."""

from __future__ import annotations

from typing import Literal

from jaxrefine.errors import UserError
from jaxrefine.sandbox.backends import Backend

Mode = Literal["auto", "strong", "limits"]


def choose(mode: Mode = "auto") -> Backend:
    """The strongest backend that holds here.

    Args:
        mode: "auto"; "strong": nothing less than a strong one; "limits": limits alone.

    Raises:
        UserError: A strong one is asked for, and none holds.
    """
    if mode == "strong":
        raise UserError("no strong sandbox holds on this machine.")
    return Backend()

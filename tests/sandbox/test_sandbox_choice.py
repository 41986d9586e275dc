from __future__ import annotations

import subprocess

import pytest

from jaxrefine.errors import UserError
from jaxrefine.sandbox import Backend, Jail, choice, choose
from jaxrefine.sandbox.backends import Bubblewrap, Landlock


class Leaky(Backend):
    name = "leaky"
    strong = True


class Broken(Backend):
    name = "broken"
    strong = True

    def _held_inside(self, jail: Jail) -> dict[str, object]:
        return {"seccomp": {}, "landlock": [("/nowhere", "read")]}


def test_a_jail_that_leaks_is_found_out() -> None:
    why = choice.weakness(Leaky())
    assert why is not None
    for escape in ("read a file", "write a file", "read an environment", "open a socket", "start a process"):
        assert escape in why


def test_a_jail_that_does_not_start_is_found_out() -> None:
    why = choice.weakness(Broken())
    assert why is not None
    assert why.startswith("it does not start (")
    assert "/nowhere" in why or "Landlock" in why


def test_the_strongest_that_holds_is_chosen(strong: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "STRONG", (Leaky(), strong))
    assert choose() is strong
    assert choose("strong") is strong
    assert choose("limits").name == "limits"


def test_where_none_holds_limits_are_left_unless_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "STRONG", (Leaky(),))
    assert (choose().name, choose().strong) == ("limits", False)
    with pytest.raises(UserError, match=r"no strong sandbox holds.*leaky: it let a process read a file"):
        choose("strong")


def test_without_its_program_bubblewrap_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert choice.weakness(Bubblewrap()) == "bubblewrap (the program bwrap) is not installed"


def test_it_is_tried_out_once_in_a_process(strong: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "STRONG", (strong,))
    monkeypatch.delattr(subprocess, "run")
    assert choose() is strong


def test_on_another_system_there_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "supported", lambda: False)
    assert choice.weakness(Landlock()) == "it needs Linux on x86_64 or aarch64"

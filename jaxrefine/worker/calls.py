"""What the host may ask of the process that holds model-written programs, and what it accepts as an answer.

A program could write to the channel of the answers, so whatever comes from there is checked as a stranger's words are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Form = Any
"""What a value must look like: a type; a tuple, any of its members; ``[form]``, a list of it; ``{"key": form}``, an
object with these keys, where the key ``str`` stands for every further one; None for null."""

MOST_BYTES = 64 << 20
"""Of one line in either direction."""

_MAYBE = (float, int, None)
_RANGED = {"mean": _MAYBE, "std": _MAYBE, "min": _MAYBE, "max": _MAYBE, "n": int, str: (float, int, str, None)}
_SAMPLE = {"mean": _MAYBE, "std": _MAYBE, "std_sample": _MAYBE, "n": int, "over": str}


@dataclass(frozen=True)
class Call:
    """One method of ``Worker``.

    Attributes:
        result: the form of what it returns.
        reads: files of its folder that it needs.
        writes: files that it leaves there.
        may_write: files that it may leave there, or not.
        quick: whether a program that keeps it waiting has gone wrong.
    """

    result: Form
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    may_write: tuple[str, ...] = ()
    quick: bool = False


CALLS: Mapping[str, Call] = {
    "check": Call({"parameters": int, "columns": [str], "weights": [str], "latents": [str]}, quick=True),
    "structure": Call({"graph": dict, "changes": (dict, None), "text": str}, quick=True),
    "fit": Call(
        {
            "train_nll": [_MAYBE],
            "validation_nll": [_MAYBE],
            "updates": [int],
            "skipped": [int],
            "curves": {"steps": [int], "train": [[_MAYBE]], "validation": [[_MAYBE]]},
        },
        writes=("initial_weights.npz", "fits.npz"),
    ),
    "evaluate": Call(
        {
            "chosen": int,
            "metric": _SAMPLE,
            "further": {str: _SAMPLE},
            "per_episode": [{"seed": int, "value": _MAYBE, "steps": int, str: _MAYBE}],
            "validation": _SAMPLE,
            "validation_values": [_MAYBE],
            "means": [_MAYBE],
            "fits": _SAMPLE,
            "episodes": int,
            "test_episodes": int,
            "env_steps": int,
        },
        reads=("fits.npz",),
        writes=("evaluation.parquet", "validation.parquet", "weights.npz"),
    ),
    "rollout": Call(
        {
            "episodes": int,
            "mean_action_episodes": int,
            "rows": int,
            "returns_by_mean": _RANGED,
            "returns_sampled": _RANGED,
        },
        reads=("weights.npz",),
        writes=("rollouts.parquet",),
    ),
    "film": Call(
        {"driven": int, "chosen": [int], "values": [_MAYBE], "frames": int, "env_steps": int},
        reads=("weights.npz",),
        may_write=("scene.parquet", "scene.npz", "film.webp"),
    ),
    "battery": Call(
        {"text": str, "numbers": {str: dict}, "latents": int, "episodes": int, "env_steps": int},
        reads=("initial_weights.npz", "fits.npz", "weights.npz", "rollouts.parquet"),
    ),
    "excerpt": Call(
        {"csv": str, "episode": int, "rows": int, "every": int, "weights": {str: _MAYBE}},
        reads=("rollouts.parquet",),
    ),
    "train": Call(
        {
            "seeds": int,
            "at_once": int,
            "updates": int,
            "resets": int,
            "env_steps": int,
            "look_steps": int,
            "kept_at": [int],
            "choice_resets": int,
            "stopped": int,
            "looks": [{"resets": int, "means": [_MAYBE]}],
        },
        reads=("start.npz",),
        writes=("fits.npz", "curves.parquet", "checkpoints.parquet"),
    ),
    "device": Call(str),
}
"""Every call by its name; the process answers no other."""


class NoReplyError(Exception):
    """A line that is not one of the three replies, or whose result has not its call's form."""


@dataclass(frozen=True)
class Reply:
    """One line from the process.

    Attributes:
        kind: ``result``, the last word of a call; ``progress``; or whose fault an exception was: ``program``, the
            program's; ``user``, a mistake that a person can mend; ``defect``, ours.
        value: the result, ``[done, total]``, or the message.
    """

    kind: Literal["result", "progress", "program", "user", "defect"]
    value: Any


_REPLIES: Mapping[str, Form] = {"progress": [int], "program": str, "user": str, "defect": str}


def read_reply(line: bytes, number: int, result: Form) -> Reply:
    """Take one line for what it claims to be, or for nothing.

    Args:
        line: without its end.
        number: of the call that is being answered.
        result: the form of that call's result.

    Raises:
        NoReplyError: it is not such a line.
    """
    try:
        message = json.loads(line, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise NoReplyError(f"a line that is no JSON: {error}") from error
    if not (isinstance(message, dict) and len(message) == 2 and message.get("call") == number):
        raise NoReplyError("a line that answers no call")
    kind, value = next((kind, value) for kind, value in message.items() if kind != "call")
    form = result if kind == "result" else _REPLIES.get(kind, ())
    if not _has_form(value, form) or (kind == "progress" and len(value) != 2):
        raise NoReplyError("a reply of the wrong form")
    return Reply(kind, value)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits} is no finite number")
    return value


def _has_form(value: Any, form: Form) -> bool:
    if isinstance(form, tuple):
        return any(_has_form(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_has_form(item, form[0]) for item in value)
    if isinstance(form, dict):
        named = form.keys() - {str}
        return (
            isinstance(value, dict)
            and named <= value.keys()
            and all(_has_form(item, form.get(key, form.get(str, ()))) for key, item in value.items())
        )
    # a bool is an int to isinstance, and no number here
    return value is None if form is None else type(value) is form


def plain(text: str, most: int = 20_000) -> str:
    """A message that can be shown and sent on: its middle cut out if it is long, and nothing that moves a cursor."""
    if len(text) > most:
        text = f"{text[: most // 2]}\n...\n{text[-most // 2 :]}"
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)

"""Limits on what a run may ask of a language model: calls, tokens and money."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from jaxrefine.llm.client import LLMError, Usage

TOKENS_PER_PRICE = 1_000_000

# A provider answers for "gpt-5-mini" under the name of the snapshot, "gpt-5-mini-2025-08-07".
_SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}$")


class BudgetError(LLMError):
    """A call was not made because it could go beyond what the user allowed."""


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens."""

    input: float
    output: float


@dataclass(frozen=True)
class PriceTable:
    """What models cost.

    Attributes:
        as_of: When the prices were looked up.
        models: Price by model name.
        source: Where the table was read from.
    """

    as_of: str
    models: dict[str, Price]
    source: str

    def price(self, model: str) -> Price | None:
        """The model's price, a dated snapshot's being its family's; None if the table has none."""
        return self.models.get(model) or self.models.get(_SNAPSHOT.sub("", model))

    def cost(self, usage: Usage, model: str) -> float | None:
        """Cost of a call in US dollars; None if the model's price is unknown."""
        price = self.price(model)
        if price is None:
            return None
        return (usage.input_tokens * price.input + usage.output_tokens * price.output) / TOKENS_PER_PRICE


def read_prices(path: Path | None = None) -> PriceTable:
    """Reads a price table (TOML); the one that comes with the package where no path is given.

    Raises:
        LLMError: The file cannot be read or is not a price table.
    """
    source = "the price table of the package" if path is None else str(path)
    try:
        text = (
            resources.files("jaxrefine.llm").joinpath("prices.toml").read_text("utf-8")
            if path is None
            else path.read_text("utf-8")
        )
        table = tomllib.loads(text)
    except OSError as error:
        raise LLMError(
            f"the price table {source} cannot be read ({error.strerror}); give the path of a TOML file"
        ) from error
    except ValueError as error:
        raise LLMError(f"the price table {source} is not TOML: {error}") from error
    models = table.get("models")
    if not isinstance(models, dict):
        raise LLMError(
            f"the price table {source} has no table [models]; each of its lines reads "
            '"model name" = { input = dollars, output = dollars } per million tokens'
        )
    return PriceTable(
        as_of=str(table.get("as_of", "unknown")),
        models={name: _price(name, entry, source) for name, entry in models.items()},
        source=source,
    )


def _price(name: str, entry: Any, source: str) -> Price:
    sides = [entry.get(side) for side in ("input", "output")] if isinstance(entry, dict) else [None]
    numbers = [float(side) for side in sides if isinstance(side, int | float) and 0 <= side < float("inf")]
    if len(numbers) != 2:
        raise LLMError(
            f"the price table {source} has no usable price for {name!r}; write "
            f'"{name}" = {{ input = 0.25, output = 2.00 }}, in dollars per million tokens'
        )
    return Price(*numbers)


@dataclass(frozen=True)
class Totals:
    """What has been asked of models so far.

    Attributes:
        calls: Calls that were answered.
        input_tokens: Tokens of all prompts.
        output_tokens: Tokens of all replies, reasoning included.
        reasoning_tokens: The part of `output_tokens` spent on reasoning.
        cost: US dollars; None once a model without a known price has answered.
        estimated: True if any of the token counts is an estimate.
        unpriced: Models that answered and have no known price.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = 0.0
    estimated: bool = False
    unpriced: frozenset[str] = frozenset()

    @property
    def tokens(self) -> int:
        """Tokens in and out."""
        return self.input_tokens + self.output_tokens


@dataclass
class Budget:
    """Counts what a run spends and stops it at the first limit reached.

    A limit is checked before a call, when the call's size is not known yet: a run can go over it by one call.

    Attributes:
        max_calls: Calls allowed; None for no limit.
        max_tokens: Tokens allowed, in and out; None for no limit.
        max_cost: US dollars allowed; None for no limit.
        prices: What models cost.
        state: What has been spent; a resumed run's recorded answers are counted in again.
    """

    max_calls: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    prices: PriceTable = field(default_factory=read_prices)
    state: Totals = field(default_factory=Totals)

    def spend(self, usage: Usage, model: str) -> None:
        """Counts one answered call; never raises, since an answer that was paid for must not be lost."""
        cost = self.prices.cost(usage, model)
        before = self.state
        self.state = Totals(
            calls=before.calls + 1,
            input_tokens=before.input_tokens + usage.input_tokens,
            output_tokens=before.output_tokens + usage.output_tokens,
            reasoning_tokens=before.reasoning_tokens + usage.reasoning_tokens,
            cost=None if before.cost is None or cost is None else before.cost + cost,
            estimated=before.estimated or usage.estimated,
            unpriced=before.unpriced if cost is not None else before.unpriced | {model},
        )

    def check(self, model: str | None = None) -> None:
        """Stops a run that has used up its budget.

        Args:
            model: The model about to be asked, where it is known before it answers.

        Raises:
            BudgetError: A limit is reached, or money is limited and a model's price is unknown.
        """
        state = self.state
        if self.max_calls is not None and state.calls >= self.max_calls:
            raise BudgetError(_reached("llm.max_calls", f"{self.max_calls} calls", f"{state.calls} calls"))
        if self.max_tokens is not None and state.tokens >= self.max_tokens:
            raise BudgetError(_reached("llm.max_tokens", f"{self.max_tokens} tokens", f"{state.tokens} tokens"))
        if self.max_cost is None:
            return
        unpriced = sorted(state.unpriced)
        if not unpriced and model is not None and self.prices.price(model) is None:
            unpriced = [model]
        if unpriced or state.cost is None:
            raise BudgetError(
                f"llm.max_cost is set to ${self.max_cost:g}, but {self.prices.source} (as of {self.prices.as_of}) "
                f"has no price for {', '.join(map(repr, unpriced))}; add it to a copy of the table and name that in "
                "llm.prices, or limit llm.max_calls or llm.max_tokens instead"
            )
        if state.cost >= self.max_cost:
            raise BudgetError(_reached("llm.max_cost", f"${self.max_cost:g}", f"${state.cost:.4f}"))


def _reached(option: str, limit: str, spent: str) -> str:
    return (
        f"the budget {option} of {limit} is used up ({spent} so far); nothing more was asked. "
        f"Raise {option} and resume the run with run=PATH; what is recorded is not paid for again"
    )

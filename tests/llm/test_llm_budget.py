from __future__ import annotations

from pathlib import Path

import pytest

from jaxrefine.llm import Budget, BudgetError, LLMError, Usage, read_prices


def test_the_packages_prices_are_dated_and_know_the_default_models() -> None:
    prices = read_prices()
    assert prices.as_of >= "2026"
    # Three million in and one out.
    assert prices.cost(Usage(3_000_000, 1_000_000, 400_000), "gpt-5-mini") == pytest.approx(3 * 0.25 + 2.00)


def test_a_snapshot_costs_what_its_family_does_and_nothing_is_guessed() -> None:
    prices = read_prices()
    assert prices.price("gpt-5-mini-2025-08-07") == prices.price("gpt-5-mini") != prices.price("gpt-5")
    assert prices.price("gpt-5-mega") is None
    assert prices.cost(Usage(1, 1), "gpt-5-mega") is None


def test_a_users_table(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('as_of = "2026-02"\n[models]\nhouse = { input = 1, output = 2.5 }\n')
    budget = Budget(max_cost=0.01, prices=read_prices(path))
    budget.spend(Usage(1_000, 2_000), "house")
    assert budget.state.cost == pytest.approx(0.006)
    budget.check("house")
    budget.spend(Usage(1_000, 2_000), "house")
    with pytest.raises(BudgetError, match=r"llm\.max_cost of \$0\.01 is used up \(\$0\.0120 so far\).*run=PATH"):
        budget.check("house")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models = [", "is not TOML"),
        ("as_of = '2026'", "no table \\[models\\]"),
        ("[models]\nm = 3", "no usable price for 'm'"),
        ("[models]\nm = { input = 1 }", "no usable price for 'm'"),
        ("[models]\nm = { input = 1, output = -2 }", "no usable price for 'm'"),
        ("[models]\nm = { input = nan, output = 2 }", "no usable price for 'm'"),
    ],
)
def test_a_wrong_table_is_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(text)
    with pytest.raises(LLMError, match=said) as caught:
        read_prices(path)
    assert str(path) in str(caught.value)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LLMError, match=r"none\.toml cannot be read"):
        read_prices(tmp_path / "none.toml")


def test_tokens_count_in_and_out() -> None:
    budget = Budget(max_tokens=100)
    budget.spend(Usage(60, 39, 30), "anything")
    budget.check()
    budget.spend(Usage(1, 0), "anything")
    with pytest.raises(BudgetError, match=r"llm\.max_tokens of 100 tokens is used up \(100 tokens so far\)"):
        budget.check()


def test_no_limits_never_stop() -> None:
    budget = Budget()
    for _ in range(100):
        budget.check("unheard-of")
        budget.spend(Usage(10**6, 10**6), "unheard-of")
    assert budget.state.cost is None
    assert budget.state.unpriced == {"unheard-of"}


def test_zero_allows_nothing() -> None:
    for budget in (Budget(max_calls=0), Budget(max_tokens=0), Budget(max_cost=0.0)):
        with pytest.raises(BudgetError):
            budget.check("gpt-5")


def test_money_limited_and_a_model_without_price_answered() -> None:
    budget = Budget(max_cost=5.0)
    budget.spend(Usage(1, 1), "gpt-5")
    budget.spend(Usage(1, 1, estimated=True), "mystery")
    assert budget.state.estimated
    with pytest.raises(BudgetError, match=r"no price for 'mystery'.*llm\.prices"):
        budget.check("gpt-5")

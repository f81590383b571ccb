"""Whether an order costs money is told of its own seller, whatever the installation's other sellers are."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from api.bootstrap import build_product, open_orders_warning, spending_caps
from api.money_words import market_words, mode_words, order_words, sellers_words
from broker.domain.market.seller_mode import Modes, SellerMode
from broker.domain.spend.spending_caps import SpendingCap
from broker.settings import Settings

SANDBOX, REAL = SellerMode.SANDBOX, SellerMode.REAL
ALL_SANDBOX: Modes = {"lambda": SANDBOX, "vast": SANDBOX}
MIXED: Modes = {"lambda": REAL, "vast": SANDBOX}
ALL_REAL: Modes = {"lambda": REAL, "vast": REAL}


@pytest.mark.parametrize(
    ("modes", "providers", "said"),
    [
        (ALL_SANDBOX, ["lambda", "vast"], "This is the sandbox market: no money moves."),
        (MIXED, ["vast"], "This is the sandbox market: no money moves."),
        (MIXED, ["lambda"], "This order costs money: Lambda is a real seller."),
        (
            MIXED,
            ["vast", "lambda", "vast"],
            "This order costs money: Lambda is a real seller, and the others belong to the sandbox market.",
        ),
        (MIXED, ["runpod"], "This order costs money: Runpod is a real seller."),
        (ALL_REAL, ["lambda", "vast"], ""),
    ],
)
def test_an_order_says_whether_its_own_seller_is_real(modes: Modes, providers: list[str], said: str) -> None:
    assert order_words(modes, providers, str.title) == said


def test_a_mixed_installation_never_says_that_no_money_moves_at_all() -> None:
    assert mode_words(ALL_SANDBOX, str) == "Sandbox"
    assert market_words(ALL_SANDBOX, str).endswith("no money moves.")
    assert mode_words(MIXED, str) == "Sandbox, real: lambda"
    assert market_words(MIXED, str).startswith("Orders at lambda cost money.")
    assert (mode_words(ALL_REAL, str), market_words(ALL_REAL, str)) == ("", "")


@pytest.mark.parametrize(
    ("sellers", "said"),
    [
        ([("vast", SANDBOX), ("vast", SANDBOX)], "The sellers are the sandbox's: no money moves."),
        ([("lambda", REAL), ("skypilot", None)], "The sellers are real: orders cost money."),
        (
            [("lambda", REAL), ("vast", SANDBOX)],
            "Orders at lambda cost money. The other sellers are the sandbox's.",
        ),
        ([("skypilot", None)], ""),
    ],
)
def test_offers_say_which_of_their_sellers_are_real(
    sellers: list[tuple[str, SellerMode | None]], said: str
) -> None:
    assert sellers_words(sellers) == said


@pytest.mark.parametrize(
    ("settings", "modes", "is_told"),
    [
        ({"orders": "on"}, MIXED, True),
        ({"orders": "on", "team_caps": {"a": {"usd_per_hour": 5}}}, MIXED, True),
        ({"orders": "on", "max_usd_per_hour": 5}, MIXED, False),
        ({"orders": "on", "max_usd_per_day": 5}, MIXED, False),
        ({"orders": "on"}, ALL_SANDBOX, False),
        ({"orders": "sandbox"}, MIXED, False),
        ({"orders": "off"}, ALL_REAL, False),
        ({}, ALL_REAL, False),
    ],
)
def test_orders_without_a_cap_over_all_teams_are_warned_of(
    settings: dict[str, Any], modes: Modes, is_told: bool
) -> None:
    told = open_orders_warning(Settings(**settings), modes)
    assert bool(told) is is_told
    assert ("lambda" in told and "BROKER_MAX_USD_PER_DAY" in told) is is_told


async def test_credentials_make_a_seller_real_beside_a_sandbox(tmp_path: Path) -> None:
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'b.db'}", solver_executor="thread")
    product = build_product(settings, {"BROKER_LAMBDA_API_KEY": "k"}, sandbox_url="http://127.0.0.1:9")
    try:
        assert product.modes["lambda"] is REAL
        assert {mode for name, mode in product.modes.items() if name != "lambda"} == {SANDBOX}
    finally:
        await product.close()


def test_caps_are_the_amounts_that_were_given() -> None:
    given = Settings.model_validate({"max_usd_per_hour": "12.1", "team_caps": {"a": {"usd_per_day": 0.3}}})
    caps = spending_caps(given)
    assert caps.all_teams == SpendingCap(Decimal("12.1"))
    assert caps.teams == {"a": SpendingCap(None, Decimal("0.3"))}
    assert given.team_caps["a"].model_dump(exclude_none=True) == {"usd_per_day": 0.3}, "as JSON has it"

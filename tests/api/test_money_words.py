"""Whether an order costs money is told of its own seller, whatever the installation's other sellers are."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.bootstrap import build_product
from api.money_words import market_words, mode_words, order_words
from broker.domain.market.seller_mode import Modes, SellerMode
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


async def test_credentials_make_a_seller_real_beside_a_sandbox(tmp_path: Path) -> None:
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'b.db'}", solver_executor="thread")
    product = build_product(settings, {"BROKER_LAMBDA_API_KEY": "k"}, sandbox_url="http://127.0.0.1:9")
    try:
        assert product.modes["lambda"] is REAL
        assert {mode for name, mode in product.modes.items() if name != "lambda"} == {SANDBOX}
    finally:
        await product.close()

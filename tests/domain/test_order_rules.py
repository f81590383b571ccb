"""From which sellers is ordered, and what a refusal says."""

from __future__ import annotations

import pytest

from broker.domain.basics.errors import OrdersBarred
from broker.domain.holding.order_rules import OrderRules, Orders
from broker.domain.market.seller_mode import Modes, SellerMode

MODES: Modes = {"lambda": SellerMode.REAL, "aws": SellerMode.REAL, "vast": SellerMode.SANDBOX}


@pytest.mark.parametrize(
    ("orders", "sellers", "said"),
    [
        (Orders.ON, ["lambda", "vast", "not-configured"], ""),
        (Orders.SANDBOX, ["vast"], ""),
        (
            Orders.SANDBOX,
            ["vast", "lambda"],
            "nothing is ordered from lambda while BROKER_ORDERS is sandbox, and lambda is a real seller: "
            "set BROKER_ORDERS to on, and orders there cost money",
        ),
        (
            Orders.SANDBOX,
            ["lambda", "aws"],
            "nothing is ordered from aws and lambda while BROKER_ORDERS is sandbox, and aws and lambda are "
            "real sellers: set BROKER_ORDERS to on, and orders there cost money",
        ),
        (
            Orders.OFF,
            ["vast"],
            "nothing is ordered from vast while BROKER_ORDERS is off: set BROKER_ORDERS to sandbox or on",
        ),
        (
            Orders.OFF,
            ["vast", "lambda"],
            "nothing is ordered from lambda and vast while BROKER_ORDERS is off, and lambda is a real "
            "seller: set BROKER_ORDERS to on, and orders there cost money",
        ),
    ],
)
def test_a_refusal_says_which_seller_is_real_and_what_to_set(
    orders: Orders, sellers: list[str], said: str
) -> None:
    rules = OrderRules(orders, MODES)
    assert rules.barred(*sellers) == said
    if said:
        with pytest.raises(OrdersBarred) as raised:
            rules.require_allowed(sellers)
        (problem,) = raised.value.problems
        assert (problem.pointer, problem.found) == ("BROKER_ORDERS", str(orders))


def test_a_seller_without_a_mode_is_real() -> None:
    assert not OrderRules(Orders.SANDBOX, MODES).allows("not-configured")


@pytest.mark.parametrize(("sellers", "mixes"), [(["vast"], False), (["lambda", "aws"], False), ([], False)])
def test_a_plan_of_one_kind_of_seller_is_not_mixed(sellers: list[str], mixes: bool) -> None:
    OrderRules(Orders.ON, MODES).require_unmixed(sellers, mix_sandbox=mixes)


def test_a_mixed_plan_needs_the_word_of_its_policy() -> None:
    rules = OrderRules(Orders.ON, MODES)
    with pytest.raises(
        OrdersBarred, match=r"lambda is a real seller, and .* the sandbox too \(vast\): .*mix_sandbox"
    ):
        rules.require_unmixed(["vast", "lambda"], mix_sandbox=False)
    rules.require_unmixed(["vast", "lambda"], mix_sandbox=True)

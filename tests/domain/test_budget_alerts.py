"""What a budget tells, at its edges to the cent."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from broker.domain.spend.budgets import Budget, BudgetPeriod, alerts, budget_status
from broker.domain.spend.spend import ChargeBasis
from tests.fakes.clock import NOON

BUDGET = Budget("research", BudgetPeriod.MONTH, Decimal("100.00"), (50, 100), None, "k", NOON)


@pytest.mark.parametrize(
    ("owed", "planned", "told"),
    [
        ("49.99", "0.00", []),
        ("50.00", "0.00", [(50, ChargeBasis.ACTUAL)]),
        ("50.00", "50.00", [(50, ChargeBasis.ACTUAL)]),
        ("50.00", "50.01", [(50, ChargeBasis.ACTUAL), (100, ChargeBasis.PROJECTED)]),
        ("100.00", "0.00", [(50, ChargeBasis.ACTUAL), (100, ChargeBasis.ACTUAL)]),
    ],
)
def test_owed_money_reaches_a_threshold_and_expected_money_passes_the_limit(
    owed: str, planned: str, told: list[tuple[int, ChargeBasis]]
) -> None:
    found = replace(budget_status(BUDGET, (), NOON), owed_usd=Decimal(owed), planned_usd=Decimal(planned))
    assert [(one.percent, one.basis) for one in alerts(found)] == told

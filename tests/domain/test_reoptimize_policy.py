"""Of two policies the more cautious word counts, field by field."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from broker.domain.workloads.reoptimize_policy import MoveRules, ReoptimizeMode, ReoptimizePolicy, rules_of

M = ReoptimizeMode
TEAM = ReoptimizePolicy(M.AUTO, Decimal(5), Decimal("0.10"), cooldown_hours=6.0, lapse_hours=48.0)
WORKLOAD = ReoptimizePolicy(M.PROPOSE, Decimal(9), Decimal("0.05"), cooldown_hours=12.0, lapse_hours=8.0)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize("policies", [(TEAM, WORKLOAD), (WORKLOAD, TEAM)])
def test_two_policies_that_disagree(policies: tuple[ReoptimizePolicy, ...]) -> None:
    found = rules_of(policies, MoveRules())
    assert found == MoveRules(M.PROPOSE, Decimal(9), Decimal("0.10"), 12 * HOUR, 8 * HOUR)


@pytest.mark.parametrize("one", list(M))
@pytest.mark.parametrize("other", list(M))
def test_who_says_never_is_heard_and_auto_needs_both(one: M, other: M) -> None:
    order = [M.NEVER, M.PROPOSE, M.AUTO]
    found = rules_of((ReoptimizePolicy(one), ReoptimizePolicy(other)), MoveRules()).mode
    assert found is order[min(order.index(one), order.index(other))]


def test_what_nobody_says_is_the_installations() -> None:
    otherwise = MoveRules(M.AUTO, Decimal(1), Decimal("0.3"), 3 * HOUR, 5 * HOUR)
    assert rules_of((), otherwise) == rules_of((ReoptimizePolicy(),) * 2, otherwise) == otherwise
    looser = ReoptimizePolicy(lapse_hours=99.0, min_saving_usd=Decimal("0.5"))
    assert rules_of((looser,), otherwise).lapse == 99 * HOUR
    assert rules_of((looser,), otherwise).min_saving_usd == Decimal("0.5")

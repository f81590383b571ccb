"""Beside processes that want every core a price that tripled leads to a proposal, as on an idle machine."""

from __future__ import annotations

import pytest

from api.planning.workers import PlannerProcesses
from broker.domain.moving.reoptimization import ProposalState
from broker.domain.moving.reoptimization_result import GuardRules
from broker.services.moving.reoptimize import ReoptimizeRules
from broker.store import Store
from tests.faults.busy import looks_after_a_tripled_price

pytestmark = pytest.mark.timeout(600)


async def test_a_tripled_price_leads_to_a_proposal_beside_busy_processes(store: Store) -> None:
    """The limit is a hundredth of a second of work: what is found is the guaranteed first repair."""
    rules = ReoptimizeRules(time_limit_s=0.01, guard=GuardRules(first_s=500.0))
    with PlannerProcesses() as executor:
        looks = await looks_after_a_tripled_price(store, executor, seed=3, rules=rules, beside=2)
    (look,) = looks
    assert look.state is ProposalState.PROPOSED, look.reason
    assert look.saving_usd is None or look.saving_usd > 0

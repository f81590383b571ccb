"""The Overview counts a workload once and the nodes that run at once; an empty Spend page says what to do."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from api.pages.parts.cards import overview_cards
from api.pages.plans.plan_pages import is_past
from api.pages.plans.proposal_pages import is_of_reserved
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.holding.reservation import ReservationState, UnitState
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.domain.planning.workload import WorkloadKind
from broker.ports.planning import BusinessStatus, PlanRecord
from tests.api.house import Home
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_record, a_segment, an_offer
from tests.pages.test_missing_capacity import a_row, home, signed_in, store, text_of

__all__ = ["home"]
HOUR = timedelta(hours=1)


def a_chat(plan_id: str, hours: float = 8, workload: str = "chat") -> PlanRecord:
    """An intended plan of a service: a node at $10 an hour."""
    placement = a_placement(an_offer(), [a_segment(0, hours)], workload, WorkloadKind.SERVING)
    return a_record(a_plan(placement, plan_id=plan_id))


def test_a_duplicate_of_what_is_held_is_not_planned_spend() -> None:
    held, twin, other = a_chat("plan-1"), a_chat("plan-2"), a_chat("plan-3", 4, "translate")
    statuses = {
        "plan-1": BusinessStatus.RESERVED,
        "plan-2": BusinessStatus.DRAFT,
        "plan-3": BusinessStatus.DRAFT,
    }
    row = a_row("rsv-1", ReservationState.ACTIVE, UnitState.HELD)
    reserved = replace(held, reserved_at=NOON)
    card = overview_cards((), (twin, other, reserved), statuses, (row,), NOON)[0]
    assert (card.figure, card.note) == (
        "$120.00",
        "$80.00 reserved, $40.00 planned; not counted: 1 draft of $80.00",
    )


def test_a_draft_that_nobody_intends_is_named_beside_the_sum_that_is_without_it() -> None:
    draft = replace(a_chat("plan-1"), intended_by=None)
    card = overview_cards((), (draft,), {"plan-1": BusinessStatus.DRAFT}, (), NOON)[0]
    assert (card.label, card.figure) == ("Plans, reserved and planned", "$0.00")
    assert card.note == "$0.00 reserved, $0.00 planned; not counted: 1 draft of $80.00"


def test_orders_without_a_plan_are_named_beside_the_sum_that_is_without_them() -> None:
    row = replace(a_row("rsv-1", ReservationState.ACTIVE, UnitState.HELD), plan_id=None)
    card = overview_cards((), (), {}, (row,), NOON)[0]
    assert card.note == "$0.00 reserved, $0.00 planned; not counted: 1 order without a plan"


def test_a_plan_is_past_once_its_last_hour_is() -> None:
    plan = a_chat("plan-1").plan
    assert plan is not None
    last = max(segment.end for placed in plan.placements for segment in placed.segments)
    assert not is_past(plan, last - HOUR)
    assert is_past(plan, last)


def test_a_draft_whose_time_is_over_is_not_planned_spend() -> None:
    card = overview_cards((), (a_chat("plan-1"),), {"plan-1": BusinessStatus.DRAFT}, (), NOON + 9 * HOUR)[0]
    assert (card.figure, card.note) == ("$0.00", "$0.00 reserved, $0.00 planned")


def test_nodes_that_follow_each_other_are_not_added_up() -> None:
    slot = a_row("rsv", ReservationState.SCHEDULED, UnitState.PLANNED)
    slots = [
        replace(slot, reservation_id=f"rsv-{n}", start=NOON + n * HOUR, end=NOON + (n + 1) * HOUR)
        for n in range(6)
    ]
    cards = {card.label: card for card in overview_cards((), (), {}, slots, NOON)}
    assert cards["Reservations open"].note == "2 nodes at most at once"


async def test_a_first_look_at_spend_names_the_drafts_that_do_not_count(home: Home) -> None:
    client = await signed_in(home)
    assert "Make a plan" in await text_of(client, "/spend")
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        document = '{"workloads": [{"name": "chat"}]}'
        await uow.plans.add(replace(a_chat("plan-1"), intended_by=None, document=document))
        await uow.commit()
    page = await text_of(client, "/spend")
    assert "These drafts do not count yet" in page
    assert "chat, $80.00" in page


async def test_a_held_plan_leaves_spend_nothing_to_explain(home: Home) -> None:
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.plans.add(a_record(a_plan()))
        await uow.commit()
    await store(home, a_row("rsv-held", ReservationState.ACTIVE, UnitState.HELD))
    assert "do not count yet" not in await text_of(await signed_in(home), "/spend")


def test_of_a_draft_nothing_moves() -> None:
    look = Reoptimization("r", "research", "plan-1", "a test", NOON, ProposalState.PROPOSED)
    draft = a_chat("plan-1")
    assert not is_of_reserved(look, {"plan-1": draft})
    assert is_of_reserved(look, {"plan-1": replace(draft, reserved_at=NOON)})
    assert is_of_reserved(look, {}), "a plan that is gone"

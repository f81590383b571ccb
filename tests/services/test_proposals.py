"""From a price that moved to capacity that moved: proposals, words on them, and their moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import (
    ApprovalRequired,
    Conflict,
    NotFound,
    NotPermitted,
    OrdersBarred,
    OverCap,
    PlanRejected,
)
from broker.domain.holding.order_rules import OrderRules, Orders
from broker.domain.holding.refusals import HOURLY_HOLDS
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.seller_mode import SellerMode
from broker.domain.moving.reoptimization import MoveState, ProposalState, Reoptimization
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.domain.spend.approvals import Decision, Verdict
from broker.domain.spend.spending_caps import SpendingCap, SpendingCaps
from broker.domain.workloads.reoptimize_policy import MoveRules, ReoptimizeMode, ReoptimizePolicy
from broker.ports.planning import BudgetWatch, PlanOptions, PlanRecord, PlanState
from broker.services.holding.order_gate import OrderGate
from broker.services.moving.proposals import ProposalsService
from broker.services.moving.reoptimize import ReoptimizeRules, ReoptimizeService
from broker.services.planning.plan_queue import PlanQueue
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE, BOB, READER, a_request, an_offer, anew, plan_on_cheapest
from tests.fakes.notifier import InlineExecutor
from tests.fakes.provider import Crash, Fault
from tests.services.conftest import House

S, P = ReservationState, ProposalState


class Desk:
    """A house with a service on ``old`` for two hours, and the services of re-optimization.

    ``beside``: the mode of a second service.
    """

    def __init__(
        self,
        mode: ReoptimizeMode | None = None,
        limit: str | None = None,
        beside: ReoptimizeMode | None = None,
    ) -> None:
        self.house = House()
        services = [replace(a_request().workloads[1], policy=_policy(mode))]
        if beside is not None:
            services.append(replace(services[0], name="other", policy=_policy(beside)))
        self.request: PlanRequest = replace(a_request(), workloads=tuple(services))
        self.limit = None if limit is None else Decimal(limit)
        self.restart()

    def restart(self) -> None:
        house = self.house
        house.restart()
        parts: dict[str, Any] = {"read_request": lambda document: self.request}
        self.look = ReoptimizeService(
            house.tables.unit_of_work,
            anew(plan_on_cheapest),
            PlanQueue(InlineExecutor()),
            house.clock,
            house.notifier,
            rules=ReoptimizeRules(
                approval_limit_usd=self.limit, moves=MoveRules(cooldown=timedelta(hours=24))
            ),
            **parts,
        )
        self.proposals = ProposalsService(
            house.tables.unit_of_work, house.moves, house.clock, house.notifier, **parts
        )

    async def hold(self, old: str = "10", new: str = "12") -> Desk:
        self.house.sell(an_offer("old", old), an_offer("new", new))
        offers = tuple(self.house.tables.offers.values())
        plan = plan_on_cheapest(self.request, offers, NOON, PlanOptions())
        self.house.store_plan(replace(plan, plan_id="plan-1"))
        await self.house.reservations.reserve_plan(ALICE, "plan-1")
        await self.later(hours=2)
        return self

    async def later(self, **by: float) -> None:
        """Time goes by; everything on sale is seen again, and the reconciler passes."""
        self.house.clock.advance(**by)
        for offer in list(self.house.tables.offers.values()):
            self.house.set_time(offer, self.house.clock.now())
        await self.house.reconcile.run_once()

    def price(self, offer_id: str, usd: str) -> None:
        self.house.sell(an_offer(offer_id, usd, observed_at=self.house.clock.now()))

    async def once(self) -> Reoptimization:
        (look,) = await self.look.run("a test")
        return look

    async def passes(self, count: int = 4) -> Reoptimization:
        """Passes of both, a minute between them; the newest proposal that is not unchanged."""
        for _ in range(count):
            await self.proposals.act()
            await self.later(minutes=1)
        await self.proposals.act()
        return self.newest()

    def newest(self) -> Reoptimization:
        looks = self.house.tables.reoptimizations
        return next(look for look in looks if look.state is not P.UNCHANGED)

    def open_skus(self) -> list[str]:
        return sorted(i.sku for i in self.house.provider.open_instances())


def _policy(mode: ReoptimizeMode | None) -> Any:
    policy = a_request().workloads[1].policy
    return replace(policy, reoptimize=ReoptimizePolicy(mode, lapse_hours=6))


async def test_one_look_begins_what_is_automatic_and_proposes_the_rest() -> None:
    desk = await Desk(ReoptimizeMode.AUTO, beside=ReoptimizeMode.PROPOSE).hold()
    desk.price("new", "5")
    by_itself, asked = await desk.look.run("a test")
    assert [(look.state, look.mode) for look in (by_itself, asked)] == [
        (P.PROPOSED, ReoptimizeMode.AUTO),
        (P.PROPOSED, ReoptimizeMode.PROPOSE),
    ]
    assert [[m.workload for m in look.moves] for look in (by_itself, asked)] == [["chat"], ["other"]]
    assert asked.plan_id == by_itself.new_plan_id
    assert (by_itself.before_usd, by_itself.after_usd) == (Decimal(920), Decimal(690))
    assert (asked.before_usd, asked.after_usd) == (Decimal(690), Decimal(460))
    await desk.proposals.act()
    with pytest.raises(Conflict, match="in progress"):
        await desk.proposals.accept(ALICE, asked.reoptimization_id)
    await desk.passes()
    assert desk.open_skus() == ["sku-new", "sku-old"], "one followed the price, one waits"
    await desk.proposals.accept(ALICE, asked.reoptimization_id)
    await desk.passes()
    assert desk.open_skus() == ["sku-new", "sku-new"]
    (now,) = await desk.house.tables.unit_of_work(EVERY_TEAM).plans.find_current()
    assert (now.plan_id, now.supersedes) == (asked.new_plan_id, by_itself.new_plan_id)


async def test_what_may_not_begin_holds_nothing_else_up() -> None:
    desk = await Desk(ReoptimizeMode.AUTO, limit="100", beside=ReoptimizeMode.PROPOSE).hold()
    desk.price("new", "5")
    (look,) = await desk.look.run("a test")
    assert [move.workload for move in look.moves] == ["chat"], "the rest would start from a plan that waits"


async def test_nothing_is_planned_where_nothing_may_move() -> None:
    desk = await Desk(ReoptimizeMode.NEVER).hold()
    desk.price("new", "5")
    look = await desk.once()
    assert (look.state, look.reason) == (P.UNCHANGED, "its policies allow no moves")


async def test_a_proposal_says_its_money_and_waits() -> None:
    desk = await Desk().hold()
    desk.price("new", "5")
    look = await desk.once()
    assert (look.state, look.mode) == (P.PROPOSED, ReoptimizeMode.PROPOSE)
    assert (look.before_usd, look.after_usd) == (Decimal(460), Decimal(230))
    assert (look.saving_usd, look.cost_usd, look.net_usd) == (Decimal(230), Decimal(10), Decimal(220))
    assert look.reason == "saves $230.00 of $460.00, moving costs $10.00"
    assert look.lapses_at == desk.house.clock.now() + timedelta(hours=6)
    await desk.passes()
    assert desk.open_skus() == ["sku-old"]
    renewed = await desk.once()
    assert renewed.reoptimization_id == look.reoptimization_id
    assert renewed.before_usd is not None
    assert look.before_usd is not None
    assert renewed.before_usd <= look.before_usd, "the rest of the time is shorter"
    assert len(desk.house.tables.plans) == 2


async def test_an_accepted_proposal_moves_and_its_plan_is_in_force() -> None:
    desk = await Desk().hold()
    desk.house.provider.provision_s = 90
    desk.price("new", "5")
    look = await desk.once()
    accepted = await desk.proposals.accept(ALICE, look.reoptimization_id)
    assert (accepted.state, accepted.moves[0].state) == (P.ACCEPTED, MoveState.MOVING)
    assert await desk.proposals.accept(ALICE, look.reoptimization_id) == accepted, "twice is no error"
    assert await desk.look.run("meanwhile") == (), "one move at a time"
    await desk.proposals.act()
    assert desk.open_skus() == ["sku-new", "sku-old"], "made before the old is broken"
    ended = await desk.passes()
    assert desk.open_skus() == ["sku-new"]
    assert (ended.state, ended.moves[0].state) == (P.APPLIED, MoveState.DONE)
    (now,) = await desk.house.tables.unit_of_work(EVERY_TEAM).plans.find_current()
    assert (now.plan_id, now.supersedes) == (look.new_plan_id, "plan-1")
    events = [event for event in desk.house.notifier.events() if event.startswith(("plan", "reopt"))]
    assert events[-3:] == ["plan.proposed", "reoptimization.accepted", "reoptimization.applied"]
    assert (await desk.once()).state is P.UNCHANGED
    desk.house.assert_agreement()


async def test_auto_moves_by_itself_and_a_price_that_returns_moves_nothing_back() -> None:
    desk = await Desk(ReoptimizeMode.AUTO).hold()
    desk.price("new", "6")
    assert (await desk.once()).mode is ReoptimizeMode.AUTO
    assert (await desk.passes()).state is P.APPLIED
    assert desk.open_skus() == ["sku-new"]
    desk.price("new", "12")
    for _ in range(3):
        assert (await desk.once()).state is P.UNCHANGED, "what is held costs what was ordered"
        await desk.passes()
    assert desk.open_skus() == ["sku-new"]


async def test_within_the_cooldown_nothing_moves_it_again() -> None:
    desk = await Desk(ReoptimizeMode.AUTO).hold()
    desk.price("new", "6")
    await desk.once()
    await desk.passes()
    desk.price("old", "5.5")
    back = await desk.once()
    assert back.state is P.REJECTED
    assert "chat: it moved at 23 Nov 1" in back.reason
    assert "the cooldown ends at 24 Nov 1" in back.reason
    desk.price("old", "0.1")
    assert (await desk.once()).state is P.REJECTED
    await desk.later(hours=23)
    assert (await desk.once()).state is P.REJECTED
    await desk.later(hours=1)
    assert (await desk.once()).state is P.PROPOSED


async def test_never_is_never() -> None:
    desk = await Desk(ReoptimizeMode.NEVER).hold()
    desk.price("new", "0.1")
    look = await desk.once()
    assert (look.state, look.moves) == (P.UNCHANGED, ())
    assert await desk.proposals.act() == ()
    assert desk.open_skus() == ["sku-old"]


@pytest.mark.parametrize(("seconds", "stands"), [(-1, True), (0, False), (1, False)])
async def test_a_proposal_is_over_when_its_time_is_and_not_a_second_later(seconds: int, stands: bool) -> None:
    desk = await Desk().hold()
    desk.price("new", "5")
    look = await desk.once()
    assert look.lapses_at is not None
    desk.house.clock.advance(seconds=(look.lapses_at - desk.house.clock.now()).total_seconds() + seconds)
    if stands:
        assert (await desk.proposals.reject(ALICE, look.reoptimization_id)).state is P.REJECTED
        return
    with pytest.raises(Conflict, match="is lapsed"):
        await desk.proposals.reject(ALICE, look.reoptimization_id)
    (lapsed,) = await desk.proposals.act()
    assert lapsed.state is P.LAPSED


async def test_rejected_and_lapsed_proposals_are_over() -> None:
    desk = await Desk().hold()
    desk.price("new", "5")
    look = await desk.once()
    said = await desk.proposals.reject(ALICE, look.reoptimization_id)
    assert (said.state, said.decided_by) == (P.REJECTED, "key-alice")
    assert (await desk.proposals.reject(ALICE, look.reoptimization_id)).state is P.REJECTED
    with pytest.raises(Conflict, match="is rejected; only an open proposal can be decided"):
        await desk.proposals.accept(ALICE, look.reoptimization_id)
    again = await desk.once()
    assert again.reoptimization_id != look.reoptimization_id
    await desk.later(hours=7)
    with pytest.raises(Conflict, match="is lapsed"):
        await desk.proposals.accept(ALICE, again.reoptimization_id)
    (lapsed,) = await desk.proposals.act()
    assert (lapsed.state, lapsed.reason.endswith("it expired")) == (P.LAPSED, True)
    moved_on = await desk.once()
    desk.price("new", "12")
    await desk.once()
    stored = next(
        o for o in desk.house.tables.reoptimizations if o.reoptimization_id == moved_on.reoptimization_id
    )
    assert stored.state is P.LAPSED
    assert "the market changed" in stored.reason


async def test_a_refused_move_leaves_the_old_in_force() -> None:
    desk = await Desk(ReoptimizeMode.AUTO).hold()
    desk.price("new", "5")
    await desk.once()
    desk.house.provider.fail("reserve", Fault.NO_CAPACITY)
    ended = await desk.passes()
    assert (ended.state, ended.moves[0].state) == (P.FAILED, MoveState.FAILED)
    assert "no stock" in ended.reason
    assert desk.open_skus() == ["sku-old"]
    (now,) = await desk.house.tables.unit_of_work(EVERY_TEAM).plans.find_current()
    assert now.plan_id == "plan-1"
    assert (await desk.once()).state is P.UNCHANGED, "what was refused stays out for ten minutes"
    await desk.later(seconds=HOURLY_HOLDS.total_seconds())
    assert (await desk.once()).state is P.PROPOSED, "and then it may be tried again"


async def test_capacity_that_fails_after_the_order_leaves_the_old_in_force() -> None:
    desk = await Desk(ReoptimizeMode.AUTO).hold()
    desk.price("new", "5")
    await desk.once()
    desk.house.provider.provision_s = 600
    desk.house.provider.fail("reserve", Fault.NO_CAPACITY_LATER)
    ended = await desk.passes(8)
    assert ended.state is P.FAILED
    assert desk.open_skus() == ["sku-old"]
    (now,) = await desk.house.tables.unit_of_work(EVERY_TEAM).plans.find_current()
    assert now.plan_id == "plan-1"


def dies_at(point: str) -> Callable[[str], None]:
    """Ends the process at its first passing of ``point``."""

    def watch(name: str) -> None:
        if name == point:
            raise Crash

    return watch


@pytest.mark.parametrize(
    "point",
    ["proposal.accept.before", "proposal.accept.after", "move.intend.before", "move.intend.after",
     "proposal.conclude.before", "proposal.conclude.after"],
)  # fmt: skip
async def test_a_crash_at_any_point_ends_in_one_of_both(point: str) -> None:
    desk = await Desk(ReoptimizeMode.AUTO).hold()
    desk.price("new", "5")
    await desk.once()
    crash_points.watchers.append(dies_at(point))
    try:
        with pytest.raises(Crash):
            await desk.passes()
    finally:
        crash_points.watchers.pop()
    desk.restart()
    ended = await desk.passes(8)
    assert ended.state is P.APPLIED
    assert desk.open_skus() == ["sku-new"]
    assert len(desk.house.provider.ledger) == 2, "bought once"
    desk.house.assert_agreement()


async def test_a_move_over_the_limit_waits_for_finance() -> None:
    desk = await Desk(ReoptimizeMode.AUTO, limit="100").hold()
    desk.price("new", "5")
    look = await desk.once()
    await desk.passes()
    assert desk.open_skus() == ["sku-old"]
    with pytest.raises(ApprovalRequired, match=r"costs \$230\.00, which is over the limit"):
        await desk.proposals.accept(ALICE, look.reoptimization_id)
    assert look.new_plan_id is not None
    record = desk.house.tables.plans[look.new_plan_id]
    desk.house.tables.plans[look.new_plan_id] = replace(record, approved_by="key-finance")
    await desk.passes()
    assert desk.open_skus() == ["sku-new"]


async def test_what_finance_rejects_is_not_moved_to() -> None:
    desk = await Desk(ReoptimizeMode.AUTO, limit="100").hold()
    desk.price("new", "5")
    look = await desk.once()
    assert look.new_plan_id is not None
    record = desk.house.tables.plans[look.new_plan_id]
    no = Decision(Verdict.REJECTED, "key-finance", NOON, "too dear")
    desk.house.tables.plans[look.new_plan_id] = record.decided(no)
    with pytest.raises(PlanRejected, match="too dear"):
        await desk.proposals.accept(ALICE, look.reoptimization_id)
    ended = await desk.passes()
    assert ended.state is P.REJECTED
    assert desk.open_skus() == ["sku-old"]


async def test_what_is_only_planned_changes_with_the_word_alone() -> None:
    desk = Desk()
    desk.house.sell(an_offer("old", "10"), an_offer("new", "12"))
    plan = plan_on_cheapest(desk.request, tuple(desk.house.tables.offers.values()), NOON, PlanOptions())
    desk.house.store_plan(replace(plan, plan_id="plan-1"))
    desk.price("new", "5")
    look = await desk.once()
    assert look.moves[0].leaves == ()
    done = await desk.proposals.accept(ALICE, look.reoptimization_id)
    assert done.state is P.APPLIED
    assert look.new_plan_id is not None
    assert desk.house.tables.plans[look.new_plan_id].state is PlanState.DONE
    assert desk.house.provider.ledger == []


async def test_teams_and_scopes_of_proposals() -> None:
    desk = await Desk().hold()
    desk.price("new", "5")
    look = await desk.once()
    for word in (desk.proposals.accept, desk.proposals.reject):
        with pytest.raises(NotPermitted):
            await word(READER, look.reoptimization_id)
        with pytest.raises(NotFound):
            await word(BOB, look.reoptimization_id)
    with pytest.raises(NotFound):
        await desk.look.find_one(BOB, look.reoptimization_id)
    assert await desk.look.find_one(ALICE, look.reoptimization_id) == look


class Overruns:
    """A budget watch that always says the same of moves, and nothing of plans."""

    def __init__(self, *words: str) -> None:
        self.words = words

    async def find_overruns(self, record: PlanRecord, plan: Plan) -> tuple[str, ...]:
        return ()

    async def find_overruns_of_order(self, order: Reservation) -> tuple[str, ...]:
        return ()

    async def find_overruns_of_extension(self, row: Reservation, end: datetime) -> tuple[str, ...]:
        return ()

    async def find_overruns_of_hold(self, record: PlanRecord, plan: Plan, held: Plan) -> tuple[str, ...]:
        return ()

    async def find_overruns_of_exchange(
        self, leaving: Sequence[Reservation], wanted: Sequence[Reservation], adds: str
    ) -> tuple[str, ...]:
        return ()

    async def find_overruns_of_moves(self, look: Reoptimization, new: Plan) -> tuple[str, ...]:
        return self.words


def watched(desk: Desk, budgets: BudgetWatch) -> ProposalsService:
    house = desk.house
    return ProposalsService(
        house.tables.unit_of_work,
        house.moves,
        house.clock,
        house.notifier,
        read_request=lambda document: desk.request,
        budgets=budgets,
    )


REAL = {"fake": SellerMode.REAL}


@pytest.mark.parametrize(
    ("gate", "error", "says"),
    [
        (OrderGate(OrderRules(Orders.SANDBOX, REAL)), OrdersBarred, "BROKER_ORDERS is sandbox"),
        (
            OrderGate(caps=SpendingCaps(SpendingCap(usd_per_hour=Decimal(22)))),
            OverCap,
            r"\$20.00 held and ordered \+ \$10\.\d+ .* > \$22.00",
        ),
    ],
)
async def test_a_proposal_whose_new_capacity_may_not_be_ordered_is_refused_when_it_is_accepted(
    gate: OrderGate, error: type[Conflict], says: str
) -> None:
    desk = await Desk(beside=ReoptimizeMode.PROPOSE).hold()
    desk.price("new", "5")
    looks = await desk.look.run("a test")
    stored = list(desk.house.tables.reservations.values())
    desk.house.orders = gate
    desk.restart()
    for look in looks:
        with pytest.raises(error, match=says):
            await desk.proposals.accept(ALICE, look.reoptimization_id)
    assert {look.state for look in desk.house.tables.reoptimizations} == {P.PROPOSED}
    assert list(desk.house.tables.reservations.values()) == stored, "a refusal stores no reservation"
    desk.house.orders = OrderGate(caps=SpendingCaps(SpendingCap(usd_per_hour=Decimal(31))))
    desk.restart()
    await desk.proposals.accept(ALICE, looks[0].reoptimization_id)
    await desk.passes()
    assert "sku-new" in desk.open_skus(), "what is within the cap moves"


async def test_moves_that_would_pass_a_budget_wait_for_finance_from_then_on() -> None:
    desk = await Desk().hold()
    desk.price("new", "5")
    look = await desk.once()
    assert look.new_plan_id is not None
    with pytest.raises(ApprovalRequired, match="over the budget of May; and of June"):
        await watched(desk, Overruns("over the budget of May", "and of June")).accept(
            ALICE, look.reoptimization_id
        )
    assert desk.house.tables.plans[look.new_plan_id].needs_approval
    assert desk.newest().state is P.PROPOSED
    again = await Desk().hold()
    again.price("new", "5")
    ample = await again.once()
    accepted = await watched(again, Overruns()).accept(ALICE, ample.reoptimization_id)
    assert accepted.state is P.ACCEPTED


async def test_a_change_that_frees_something_goes_on_though_a_part_of_it_frees_nothing() -> None:
    """What was only planned changes with the word; what is held moves."""
    desk = await Desk().hold()
    desk.price("new", "5")
    look = await desk.once()
    mixed = replace(look, moves=(*look.moves, replace(look.moves[0], workload="other", leaves=())))
    tables = desk.house.tables
    tables.reoptimizations[tables.reoptimizations.index(look)] = mixed
    accepted = await desk.proposals.accept(ALICE, look.reoptimization_id)
    assert accepted.state is P.ACCEPTED
    assert [move.state for move in accepted.moves] == [MoveState.MOVING, MoveState.DONE]
    assert (await desk.passes()).state is P.APPLIED
    assert desk.open_skus() == ["sku-new"]


async def test_a_move_that_is_refused_stays_and_the_others_come_to_be() -> None:
    desk = await Desk(ReoptimizeMode.AUTO, beside=ReoptimizeMode.AUTO).hold()
    desk.price("new", "5")
    look = await desk.once()
    assert [move.workload for move in look.moves] == ["chat", "other"]
    desk.house.provider.provision_s = 90
    desk.house.provider.fail("reserve", Fault.NO_CAPACITY)
    await desk.proposals.act()
    under_way = desk.newest()
    assert under_way.state is P.ACCEPTED
    assert sorted(move.state for move in under_way.moves) == [MoveState.FAILED, MoveState.MOVING]
    version = under_way.version
    await desk.proposals.act()
    assert desk.newest().version == version, "nothing is stored where nothing changed"
    ended = await desk.passes(6)
    assert ended.state is P.PARTLY
    assert "chat stays: " in ended.reason
    assert desk.open_skus() == ["sku-new", "sku-old"]
    (now,) = await desk.house.tables.unit_of_work(EVERY_TEAM).plans.find_current()
    assert now.plan is not None
    assert {p.workload: p.offer_id for p in now.plan.placements} == {"chat": "old", "other": "new"}


async def test_what_is_told_of_a_proposal_says_its_money() -> None:
    desk = await Desk().hold()
    desk.price("new", "5")
    look = await desk.once()
    await desk.proposals.reject(ALICE, look.reoptimization_id)
    event, team, body = desk.house.notifier.sent[-1]
    assert (event, team) == ("reoptimization.rejected", "research")
    assert look.net_usd == 220
    assert (body["net_usd"], body["plan_id"]) == ("220.00", "plan-1")
    unknown = await desk.once()
    tables = desk.house.tables
    at = tables.reoptimizations.index(unknown)
    tables.reoptimizations[at] = replace(unknown, before_usd=None, after_usd=None)
    assert tables.reoptimizations[at].net_usd is None
    await desk.proposals.reject(ALICE, unknown.reoptimization_id)
    assert desk.house.notifier.sent[-1][2]["net_usd"] is None

"""The same use cases over the real store: what the fake one promises, SQL keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from broker.domain.basics.account import Scope
from broker.domain.holding.reservation import Idempotency, ReservationState
from broker.domain.moving.reoptimization import ProposalState
from broker.ports.planning import PlanOptions, PlanState
from broker.services.accounts.accounts import AccountsService, Answer
from broker.services.accounts.keys import KeysService
from broker.services.holding.reconcile import ReconcileRules, ReconcileService
from broker.services.holding.reservations import ReservationsService
from broker.services.market.offers import OffersService
from broker.services.moving.reoptimize import ReoptimizeService
from broker.services.planning.plan_queue import PlanQueue
from broker.services.planning.planning import PlanningService
from broker.services.spend.spend import SpendService
from broker.store.engine import Store, create_store
from tests.fakes.buying import a_buyer
from tests.fakes.clock import FakeClock
from tests.fakes.examples import ALICE, BOB, a_request, an_offer, anew, plan_on_cheapest
from tests.fakes.notifier import InlineExecutor, RecordingEvents, RecordingNotifier
from tests.fakes.provider import Crash, FakeProvider, Fault


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = create_store(f"sqlite+aiosqlite:///{tmp_path / 'broker.db'}")
    await store.migrate()
    yield store
    await store.close()


@pytest.mark.parametrize("idempotency", [Idempotency.TAG, Idempotency.TOKEN])
async def test_from_poll_to_release(store: Store, idempotency: Idempotency) -> None:
    clock, notifier = FakeClock(), RecordingNotifier()
    provider = FakeProvider(clock, idempotency=idempotency, offers=(an_offer("a", "10"), an_offer("b", "12")))
    uow, reservers = store.unit_of_work, {"fake": provider}
    offers = OffersService(uow, {"fake": provider}, clock)
    planner = (plan_on_cheapest, PlanQueue(InlineExecutor()), clock, notifier)
    planning = PlanningService(
        uow,
        *planner,
        RecordingEvents(),
        read_request=lambda document: a_request(),
        replan_call=anew(plan_on_cheapest),
    )
    buying = a_buyer(uow, reservers, clock)
    reservations = ReservationsService(uow, buying, clock, notifier)
    reconcile = ReconcileService(uow, buying, clock, notifier, rules=ReconcileRules())
    reoptimize = ReoptimizeService(
        uow, anew(plan_on_cheapest), *planner[1:], read_request=lambda document: a_request()
    )
    spend = SpendService(uow, clock)

    await offers.refresh()
    record = await planning.request_plan(ALICE, "{}", a_request(), PlanOptions(), intended=True)
    record = await planning.run(record.plan_id)
    assert record.plan is not None
    assert (await spend.projection(ALICE)).total_usd == record.plan.cost_usd

    clock.advance(minutes=1)
    provider.offers = (an_offer("a", "10"), an_offer("b", "5"))
    (round_,) = await offers.refresh()
    (look,) = await reoptimize.run_if_touched(round_.changes)
    assert (look.state, look.saving_usd) == (ProposalState.PROPOSED, Decimal(290))
    assert look.new_plan_id is not None
    assert (await planning.find_plan(ALICE, look.new_plan_id)).state is PlanState.PROPOSED
    assert [current.plan_id for current in await planning.find_current_plans(ALICE)] == [record.plan_id]

    provider.fail("reserve", Fault.NONE, Fault.CRASH)
    with pytest.raises(Crash):
        await reservations.reserve_plan(ALICE, look.new_plan_id)
    for _ in range(3):
        clock.advance(minutes=3)
        await reconcile.run_once()
    rows = (await reservations.find_reservations(ALICE, plan_id=look.new_plan_id)).items
    assert {row.state for row in rows} == {ReservationState.ACTIVE}
    assert len(provider.open_instances()) == len(provider.ledger) == 2
    current = await planning.find_current_plans(ALICE)
    assert [plan.plan_id for plan in current] == [look.new_plan_id]
    proposal = (await planning.find_plan(ALICE, look.new_plan_id)).plan
    assert proposal is not None
    assert (await spend.projection(ALICE)).total_usd == proposal.cost_usd

    for row in rows:
        await reservations.release(ALICE, row.reservation_id)
    assert provider.open_instances() == []
    view = await spend.projection(ALICE)
    assert view.total_usd == view.actual_usd == Decimal(10)
    assert (await spend.projection(BOB)).rows == ()


async def test_accounts_over_sql(store: Store) -> None:
    accounts = AccountsService(store.unit_of_work, FakeClock())
    keys = KeysService(store.unit_of_work, FakeClock())
    await keys.ensure_admin_key("mine-and-of-many-characters")
    await keys.ensure_admin_key("mine-and-of-many-characters")
    admin = await keys.verify("mine-and-of-many-characters")
    _, secret = await keys.create_key("ci", "research", frozenset({Scope.PLANS_READ}), admin)
    assert (await keys.verify(secret)).team == "research"

    async def act() -> Answer:
        return Answer(202, "{}")

    first = await accounts.once(admin, "k", "POST /x", b"1", act)
    again = await accounts.once(admin, "k", "POST /x", b"1", act)
    assert replace(again, replayed=False) == first
    assert len((await accounts.find_audit(admin)).items) == 2

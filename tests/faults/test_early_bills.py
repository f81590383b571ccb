"""What is held early at sellers of the sandbox market costs to the cent what its ledger says."""

from __future__ import annotations

import shutil
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.money import to_cents
from broker.domain.holding.early_holding import Hold
from broker.domain.planning.workload import WorkloadKind
from broker.services.holding.early_holding import EarlyHoldingService
from providers.sandbox import SandboxHandle
from tests.fakes.buying import a_buyer
from tests.fakes.examples import ALICE, a_placement, a_plan, a_record, a_segment
from tests.fakes.notifier import RecordingNotifier
from tests.faults.broker_life import Place, compared, opened, usual_offer

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("provider", ["lambda", "vultr", "latitude"])
async def test_the_ledger_is_what_was_quoted_and_what_is_charged(
    market: SandboxHandle, migrated_sqlite: Path, tmp_path: Path, provider: str
) -> None:
    """A reservation that is held three hours early, and a plan of a run and of a fleet, held from now on."""
    file = tmp_path / "broker.db"
    shutil.copy(migrated_sqlite, file)
    place = Place(market.url, provider, f"sqlite:///{file}")
    async with opened(place, await usual_offer(place)) as broker:
        await broker.sell()
        units, now = broker.store.unit_of_work, broker.clock.now()
        buying = a_buyer(units, {provider: broker.adapter}, broker.clock)
        early = EarlyHoldingService(units, buying, broker.clock, RecordingNotifier())
        run = a_placement(broker.offer, [a_segment(3, 5, origin=now)], "run")
        steps = [a_segment(0, 1, origin=now), a_segment(4, 6, origin=now)]
        fleet = a_placement(broker.offer, steps, "chat", WorkloadKind.SERVING)
        plan = a_plan(run, fleet, as_of=now)
        async with units(EVERY_TEAM) as uow:
            await uow.plans.add(a_record(plan))
            await uow.commit()
        quote = await broker.reservations.quote_plan(ALICE, plan.plan_id)
        rows = await broker.reservations.reserve_plan(ALICE, plan.plan_id, Hold.NOW)
        assert [row.start for row in rows] == [now, now]
        later = await broker.reservations.reserve_offer(
            ALICE, broker.offer.offer_id, 1, now + 3 * HOUR, now + 5 * HOUR
        )
        alone = await early.quote(ALICE, later.reservation_id)
        assert (await early.hold(ALICE, later.reservation_id)).nodes_held == 1
        await broker.passes(16, 1500)
        await broker.settle()
        assert not any(row.is_open for row in await broker.rows())
        found = await compared(broker)
    assert (found["money"], found["assumed"], found["orphans"], found["doubles"]) == ([], [], [], [])
    assert quote.hold_usd is not None
    hourly = broker.offer.price_usd_per_node_hour
    assert quote.hold_usd == to_cents(6 * hourly)
    assert alone.usd == to_cents(3 * hourly)
    assert Decimal(found["total_usd"][0]) >= to_cents((5 + 6 + 5) * hourly)

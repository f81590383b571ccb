"""What a pass of the reconciler asks a real database, in statements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import event

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.holding.reservation import Order, ReservationState, UnitState
from broker.services.holding.reconcile import ReconcileService
from broker.store import Store
from tests.fakes.buying import a_buyer
from tests.fakes.clock import FakeClock
from tests.fakes.notifier import RecordingNotifier
from tests.fakes.provider import FakeProvider
from tests.store.examples import HOUR, NOON, reservation

FEW, MANY = 2, 87
PROVIDER = reservation("any").offer.provider


@contextmanager
def statements_of(store: Store) -> Iterator[list[str]]:
    """The statements that are sent to the database meanwhile."""
    engine, sent = store._engine.sync_engine, list[str]()

    def hear(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", hear)
    yield sent
    event.remove(engine, "before_cursor_execute", hear)


async def buy_hours(store: Store, market: FakeProvider, slots: int, plan_id: str | None) -> None:
    """``slots`` hours one after the other: the node of the first runs, the rest is bought in its time."""
    for number in range(slots):
        start = NOON + number * HOUR
        row = reservation(f"{plan_id}-{number:02}", start=start, end=start + HOUR, plan_id=plan_id)
        (unit,) = row.units
        if number == 0:
            lease = await market.reserve(Order(unit.tag, row.offer, 1))
            row = row.with_unit(replace(unit, reference=lease.reference))
        else:
            planned = replace(unit, state=UnitState.PLANNED, reference=None, ordered_at=None)
            row = replace(row, state=ReservationState.SCHEDULED, units=(planned,))
        async with store.unit_of_work(EVERY_TEAM) as uow:
            await uow.reservations.add(row)
            await uow.commit()


async def test_a_pass_reads_what_is_open_once_however_much_it_is(store: Store) -> None:
    clock = FakeClock(NOON)
    market = FakeProvider(clock, provider=PROVIDER, tells_price=False)
    units = store.unit_of_work
    service = ReconcileService(units, a_buyer(units, {PROVIDER: market}, clock), clock, RecordingNotifier())
    counts = []
    for plan_id, slots in (("plan-1", FEW), ("plan-2", MANY)):
        await buy_hours(store, market, slots, plan_id)
        with statements_of(store) as sent:
            report = await service.run_once()
        assert (report.actions, report.errors) == ((), ())
        counts.append(len(sent))
    print(f"statements of a pass over {FEW} and {FEW + MANY} reservations: {counts}")
    assert counts[1] == counts[0]

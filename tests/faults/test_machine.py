"""A broker's life drawn at random, over both databases: reservations, faults, deaths, time, prices, stock.

At least 2,000 steps with every run of the suite, 20,000 with ``TEST_PROFILE=nightly``. The judge is the
provider's ledger, which the broker cannot edit.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import BrokerError
from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.window import Segment
from broker.domain.holding.reservation import (
    Idempotency,
    Reservation,
    ReservationState,
    Unit,
    UnitState,
)
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Stock, StockLevel
from broker.services.holding.early_holding import EarlyHoldingService
from broker.services.holding.reconcile import ReconcileReport, ReconcileRules, ReconcileService
from broker.services.holding.reservations import ReservationsService
from broker.services.market.offers import OffersService
from broker.services.spend.spend import SpendService
from tests.fakes.buying import a_buyer
from tests.fakes.clock import FakeClock
from tests.fakes.examples import ADMIN, ALICE, a_placement, a_plan, a_record, a_segment, an_offer
from tests.fakes.notifier import RecordingNotifier
from tests.fakes.provider import Crash, Fault, Instance
from tests.faults.ground import STOCK, Ground, Seller
from tests.faults.profile import NIGHTLY
from tests.postgres import PostgresServer

pytestmark = pytest.mark.timeout(7200)

STEPS = 50
EXAMPLES = 220 if NIGHTLY else 20
LEAST_STEPS = 10_000 if NIGHTLY else 900
IN_DOUBT = {ReservationState.PENDING, ReservationState.UNKNOWN, ReservationState.RELEASING}
FAULTS = [("reserve", fault) for fault in Fault] + [
    ("release", Fault.LOST_BEFORE),
    ("release", Fault.LOST_AFTER),
    ("release", Fault.CRASH_BEFORE),
    ("release", Fault.CRASH),
    ("list", Fault.DOWN),
    ("find", Fault.DOWN),
]


class Life(RuleBasedStateMachine):
    """One broker from its first day to its last, on ``ground``."""

    ground: Ground
    steps = 0
    bought = 0

    def __init__(self) -> None:
        super().__init__()
        self.ground.clear()
        self._runner, self._store = self.ground.runner, self.ground.store
        self._taken_away: set[str] = set()
        self._clock = FakeClock()
        self._seller = Seller(self._clock)
        self._price = Decimal(10)
        self._plans = 0
        self._increment_s = 3600
        self._restart()

    def _restart(self) -> None:
        """New services on the same store, as after a death."""
        units, notifier, sellers = self._store.unit_of_work, RecordingNotifier(), {"fake": self._seller}
        buying = a_buyer(units, sellers, self._clock)
        self._reservations = ReservationsService(units, buying, self._clock, notifier)
        self._offers = OffersService(units, sellers, self._clock)
        self._early = EarlyHoldingService(units, buying, self._clock, notifier)
        self._spend = SpendService(units, self._clock)
        rules = ReconcileRules(max_orphans=50)
        self._reconcile = ReconcileService(units, buying, self._clock, notifier, rules=rules)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """``work`` to its end, its error, or the broker's death."""
        type(self).steps += 1
        try:
            return self._runner.run(work)
        except Crash:
            self._restart()
        except BrokerError:
            return None

    async def _poll(self) -> None:
        left = max(0, self._seller.stock - self._seller.open_nodes())
        now, price = self._clock.now(), str(self._price)
        offer = an_offer("node", price, observed_at=now, increment_s=self._increment_s)
        level = StockLevel.HIGH if left else StockLevel.NONE
        self._seller.offers = (replace(offer, stock=Stock(level, left)),)
        await self._offers.refresh()

    async def _rows(self) -> tuple[Reservation, ...]:
        async with self._store.unit_of_work(EVERY_TEAM) as uow:
            return (await uow.reservations.find_page(200, None)).items

    async def _open(self) -> tuple[Reservation, ...]:
        async with self._store.unit_of_work(EVERY_TEAM) as uow:
            return await uow.reservations.find_open()

    @initialize(
        idempotency=st.sampled_from(Idempotency),
        provision_s=st.sampled_from([0, 300]),
        increment_s=st.sampled_from([1, 60, 3600]),
        tells_times=st.booleans(),
    )
    def begin(self, idempotency: Idempotency, provision_s: int, increment_s: int, tells_times: bool) -> None:
        """What kind of provider it is."""
        self._seller.idempotency, self._seller.provision_s = idempotency, provision_s
        self._seller.tells_times, self._increment_s = tells_times, increment_s

    @rule(nodes=st.integers(1, 3))
    def reserve(self, nodes: int) -> None:
        """An offer, from now until released."""

        async def work() -> None:
            await self._poll()
            await self._reservations.reserve_offer(ALICE, "node", nodes)

        self._run(work())

    @rule(minutes=st.integers(5, 90))
    def reserve_later(self, minutes: int) -> None:
        """An offer for an hour that begins later."""

        async def work() -> None:
            await self._poll()
            start = self._clock.now() + timedelta(minutes=minutes)
            await self._reservations.reserve_offer(ALICE, "node", 1, start, start + timedelta(hours=1))

        self._run(work())

    @rule(nodes=st.integers(1, 2))
    def reserve_plan(self, nodes: int) -> None:
        """A plan, all or nothing."""

        async def work() -> None:
            await self._poll()
            now = self._clock.now()
            (offer,) = self._seller.offers
            self._plans += 1
            plan = a_plan(
                a_placement(offer, [a_segment(0, 2, nodes, now)], "train"),
                a_placement(offer, [a_segment(0, 1, 1, now)], "tune"),
                plan_id=f"plan-{self._plans}",
                as_of=now,
            )
            async with self._store.unit_of_work(EVERY_TEAM) as uow:
                await uow.plans.add(a_record(plan))
                await uow.commit()
            await self._reservations.reserve_plan(ALICE, plan.plan_id)

        self._run(work())

    @rule(number=st.integers(0, 9))
    def release(self, number: int) -> None:
        """One of the reservations."""

        async def work() -> None:
            rows = await self._open()
            if rows:
                await self._reservations.release(ALICE, rows[number % len(rows)].reservation_id)

        self._run(work())

    @rule(number=st.integers(0, 9), minutes=st.integers(1, 180))
    def extend(self, number: int, minutes: int) -> None:
        """One of those that have an end lasts longer."""

        async def work() -> None:
            rows = [row for row in await self._open() if row.end is not None]
            if rows:
                row = rows[number % len(rows)]
                assert row.end is not None
                later = row.end + timedelta(minutes=minutes)
                await self._reservations.extend(ALICE, row.reservation_id, later)

        self._run(work())

    @rule(number=st.integers(0, 9))
    def hold(self, number: int) -> None:
        """One of those that are ordered at their start is held now."""

        async def work() -> None:
            rows = [row for row in await self._open() if row.state is ReservationState.SCHEDULED]
            if rows:
                await self._poll()
                await self._early.hold(ALICE, rows[number % len(rows)].reservation_id)

        self._run(work())

    @rule(minutes=st.integers(1, 120))
    def clock(self, minutes: int) -> None:
        """Time passes, and the reconciler comes again."""
        self._clock.advance(minutes=minutes)
        self._run(self._reconcile.run_once())

    @rule(fault=st.sampled_from(FAULTS))
    def fault(self, fault: tuple[str, Fault]) -> None:
        """The next call of a kind goes wrong, or is the last of this process."""
        self._seller.fail(*fault)
        type(self).steps += 1

    @rule()
    def crash(self) -> None:
        """The process ends between two steps."""
        self._restart()
        self._run(self._reconcile.run_once())

    @rule(price=st.integers(1, 40))
    def price(self, price: int) -> None:
        """What is bought from now on costs more or less."""
        self._price = Decimal(price)
        self._run(self._poll())

    @rule(stock=st.integers(1, 2 * STOCK))
    def stock(self, stock: int) -> None:
        """The provider has more or less; what is held stays."""
        self._seller.stock = max(stock, self._seller.open_nodes())
        self._run(self._poll())

    @rule(number=st.integers(0, 9))
    def preempt(self, number: int) -> None:
        """The provider takes something back."""
        live = self._seller.open_instances()
        if live:
            taken = live[number % len(live)].reference
            self._taken_away.add(taken)
            self._seller.preempt(taken)
        self._run(self._reconcile.run_once())

    @invariant()
    def nothing_is_held_twice(self) -> None:
        rows = self._runner.run(self._open())
        held = Counter(u.reference for r in rows for u in r.units if u.state is UnitState.HELD)
        assert all(count == 1 for count in held.values()), held

    @invariant()
    def no_more_is_held_than_there_is(self) -> None:
        assert self._seller.open_nodes() <= self._seller.stock

    def teardown(self) -> None:
        """Once faults stop, everything agrees, ends, and adds up."""
        try:
            self._seller.faults.clear()
            self._runner.run(self._settle())
            self._agrees()
            for row in self._runner.run(self._rows()):
                self._run(self._reservations.release(ALICE, row.reservation_id))
            self._runner.run(self._settle())
            self._agrees()
            assert self._seller.open_instances() == []
            self._adds_up()
            writes = self._seller.writes()
            self._runner.run(self._reconcile.run_once())
            assert self._seller.writes() == writes, "a reconciler at rest writes nothing"
        finally:
            type(self).bought += len(self._seller.ledger)

    async def _settle(self) -> ReconcileReport:
        """Passes until two in a row do nothing: what is gone must be missed twice before it is written."""
        quiet = 0
        for _ in range(40):
            self._clock.advance(minutes=3)
            report = await self._reconcile.run_once()
            quiet = 0 if report.actions or report.orphans else quiet + 1
            if quiet == 2:
                break
        return report

    def _agrees(self) -> None:
        rows = self._runner.run(self._rows())
        held = sorted(str(u.reference) for r in rows for u in r.units if u.state is UnitState.HELD)
        assert sorted(i.reference for i in self._seller.open_instances()) == held
        assert not IN_DOUBT & {row.state for row in rows}, [(row.state, row.reason) for row in rows]

    def _adds_up(self) -> None:
        """Booked is billed, to the cent, for all that was ever bought, strays among it.

        Of a silent seller nobody knows when it took something away, or when it began an order that was sent
        twice: the former is left out, the latter booked at no less.
        """
        booked: defaultdict[str, Decimal] = defaultdict(lambda: ZERO)
        for charge in self._runner.run(self._spend.charges(ADMIN)):
            booked[str(charge.reservation_id)] += charge.usd
        ledger = {instance.reference: instance for instance in self._seller.ledger}
        groups: defaultdict[str, list[Reservation]] = defaultdict(list)
        for row in self._runner.run(self._rows()):
            groups[f"{row.plan_id} {row.workload}" if row.plan_id else row.reservation_id].append(row)
        for rows in groups.values():
            units = [unit for row in rows for unit in row.units if unit.reference is not None]
            found = [ledger.pop(str(unit.reference)) for unit in units]
            total = sum((booked[row.reservation_id] for row in rows), ZERO)
            billed = to_cents(sum(map(self._billed_usd, found), ZERO))
            told = self._seller.tells_times
            if told or not any(i.reference in self._taken_away for i in found):
                assert total >= billed, rows
            if told or all(self._is_plain(i, u) for i, u in zip(found, units, strict=True)):
                assert total == billed, rows
        unbooked = {key for key, i in ledger.items() if not i.failed} - self._taken_away
        assert unbooked == set(), "every instance is in some reservation"

    def _billed_usd(self, instance: Instance) -> Decimal:
        if instance.failed:
            return ZERO
        assert instance.released_at is not None
        end = max(instance.released_at, instance.created_at + timedelta(seconds=1))
        segment = Segment(instance.created_at, end, instance.nodes)
        return holding_cost_usd(self._seller.bought[instance.reference], (segment,))

    def _is_plain(self, instance: Instance, unit: Unit) -> bool:
        """Whether all of its life is known although its seller says nothing of it."""
        if instance.failed:
            return unit.leaving_at is None
        return instance.reference not in self._taken_away and instance.created_at == unit.ordered_at


def _lived(url: str) -> tuple[int, int]:
    """Steps of all lives on one database, and what they bought."""
    lives = type("Lives", (Life,), {"ground": Ground(url), "steps": 0, "bought": 0})
    phases = [Phase.generate, Phase.shrink] if NIGHTLY else [Phase.generate]  # shrinking takes minutes
    rules = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, derandomize=True, phases=phases
    )
    try:
        run_state_machine_as_test(lives, settings=rules)
    finally:
        lives.ground.close()  # type: ignore[attr-defined]
    return int(lives.steps), int(lives.bought)  # type: ignore[attr-defined]


def test_every_life_ends_in_agreement_on_sqlite(migrated_sqlite: Path, tmp_path: Path) -> None:
    shutil.copy(migrated_sqlite, tmp_path / "lives.db")
    steps, bought = _lived(f"sqlite:///{tmp_path / 'lives.db'}")
    print(f"stateful test on SQLite: {steps} steps, {bought} bought, booked = billed")
    assert steps >= LEAST_STEPS


@pytest.mark.slow
def test_every_life_ends_in_agreement_on_postgresql(
    postgres_server: PostgresServer, migrated_postgres: str
) -> None:
    url = postgres_server.create_database(migrated_postgres)
    steps, bought = _lived(url)
    postgres_server.drop_database(url)
    print(f"stateful test on PostgreSQL: {steps} steps, {bought} bought, booked = billed")
    assert steps >= LEAST_STEPS

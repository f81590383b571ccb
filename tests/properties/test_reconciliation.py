"""One bill in every view: random plans and lives, rolled up and closed at random moments."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import BrokerError
from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.window import Segment, Window
from broker.domain.focus.columns import FocusRow
from broker.domain.focus.corrections import costs_of
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.month_close import month_window
from broker.domain.spend.spend import GROUPS, ChargeBasis, CostView, Interval
from broker.services.spend.ledger import find_charges
from broker.services.spend.spend import SpendService
from broker.services.spend.summaries import Summaries
from tests.depth import examples
from tests.fakes.clock import NOON
from tests.fakes.examples import ADMIN, ALICE, a_placement, a_plan, a_segment, an_offer, listed_terms
from tests.services.conftest import House

prices = st.decimals("0.01", "99", places=6)
STEP = st.one_of(
    st.tuples(st.just("plan"), st.lists(st.tuples(prices, st.integers(1, 90)), min_size=1, max_size=3)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("advance"), st.integers(1, 24 * 20)),
    st.tuples(st.sampled_from(["roll_up", "close", "credit"]), st.none()),
)


@dataclass
class Books:
    """A house with its finance, what its plans cost, and what closed months said."""

    house: House = field(default_factory=House)
    offers: dict[str, Offer] = field(default_factory=dict)
    closed: dict[date, tuple[object, list[FocusRow]]] = field(default_factory=dict)
    credits: Decimal = ZERO

    def __post_init__(self) -> None:
        units, clock = self.house.tables.unit_of_work, self.house.clock
        self.spend = SpendService(units, clock)
        self.beside = Summaries(units, clock)

    async def step(self, name: str, value: Any) -> None:
        match name:
            case "plan":
                await self.plan(value)
            case "release":
                rows = self.house.rows()
                if rows:
                    await self.house.reservations.release(ALICE, rows[value % len(rows)].reservation_id)
                    await self.house.reconcile.run_once()
            case "advance":
                self.house.clock.advance(hours=value)
                await self.house.reconcile.run_once()
            case "roll_up":
                await self.spend.roll_up()
            case "close":
                await self.close()
            case _:
                await self.credit()

    async def plan(self, wishes: Sequence[tuple[Decimal, int]]) -> None:
        """A run, a fleet that breathes and a window, of drawn prices and lengths."""
        now, number = self.house.clock.now(), len(self.house.tables.plans)
        placements = []
        for index, (price, hours) in enumerate(wishes):
            name = f"o-{number}-{index}"
            if index == 2:
                terms = listed_terms(now + timedelta(hours=2), hours)
                offer = an_offer(name, str(price), window=terms, upfront=str(7 * price), observed_at=now)
                segments = [a_segment(2, 2 + hours, 2, now)]
            else:
                offer = an_offer(name, str(price), increment_s=(1, 3600)[index], observed_at=now)
                offer = replace(offer, tier=(Tier.SPOT, Tier.ON_DEMAND)[index], region=f"us-{index}")
                segments = [a_segment(0, hours, 1, now), a_segment(hours, 2 * hours, 1 + index, now)]
            self.house.sell(offer)
            self.offers[offer.sku.name] = offer
            kind = (WorkloadKind.TRAINING, WorkloadKind.SERVING, WorkloadKind.BATCH)[index]
            placements.append(a_placement(offer, segments, f"w-{number}-{index}", kind))
        plan = a_plan(*placements, plan_id=f"plan-{number}", as_of=now)
        self.house.store_plan(plan)
        await self.agree()
        await self.house.reservations.reserve_plan(ALICE, plan.plan_id)
        held = [c for c in await self.charges() if c.plan_id == plan.plan_id]
        assert sum((c.usd for c in held), ZERO) == plan.cost_usd, "held as planned costs what it said"

    async def close(self) -> None:
        """Closes the first month that is open and over, and keeps what was reported of it."""
        month = max(self.closed) if self.closed else NOON.date().replace(day=1)
        if self.closed:
            month = month_window(month).end.date()
        if month_window(month).end <= self.house.clock.now():
            done = await self.spend.close(ADMIN, month)
            self.closed[month] = await self.reported(month)
            assert len(self.closed[month][1]) == done.closed.rows

    async def credit(self) -> None:
        """A seller gives something back for a unit of before, whatever month that was in."""
        for row in self.house.rows():
            unit = row.units[0]
            if unit.gone_at is not None and unit.reference and unit.credit_usd is None:
                changed = row.with_unit(_with_credit(unit, Decimal("3.21")))
                async with self.house.tables.unit_of_work(EVERY_TEAM) as uow:
                    await uow.reservations.update(changed)
                    await uow.commit()
                self.credits += Decimal("3.21")
                return

    async def charges(self) -> Sequence[Any]:
        async with self.house.tables.unit_of_work(EVERY_TEAM) as uow:
            return await find_charges(uow, self.house.clock.now())

    async def reported(self, month: date) -> tuple[object, list[FocusRow]]:
        window = month_window(month)
        view = await self.spend.projection(ADMIN, window, Interval.DAY, "workload")
        rows = [row async for row in self.spend.focus(ADMIN, window).rows]
        return view.rows, rows

    async def another_process_agrees(self) -> None:
        """What another reader has kept from before is what one finds that has kept nothing."""
        units, clock = self.house.tables.unit_of_work, self.house.clock
        both = [
            await SpendService(units, clock, kept).projection(ADMIN, None, Interval.DAY, "workload")
            for kept in (self.beside, Summaries(units, clock))
        ]
        assert both[0].by_key == both[1].by_key
        days = await self.beside.find_days(EVERY_TEAM)
        assert sum((c.usd for c in days if c.basis is ChargeBasis.ACTUAL), ZERO) == both[0].actual_usd
        if not self.closed:
            assert sum((c.usd for c in days), ZERO) == both[0].total_usd

    async def agree(self) -> None:
        """Every view and export sums to the charges, and closed months say what they said."""
        await self.another_process_agrees()
        charges = await self.charges()
        total = sum((c.usd for c in charges), ZERO)
        owed = sum((c.usd for c in charges if c.basis is ChargeBasis.ACTUAL), ZERO)
        for group, interval, view in (
            *((group, Interval.DAY, CostView.AMORTIZED) for group in GROUPS),
            *(("team", interval, view) for interval in Interval for view in CostView),
        ):
            found = await self.spend.projection(ADMIN, None, interval, group, None, view)
            if not self.closed:
                assert (found.total_usd, found.actual_usd) == (total, owed), (group, interval, view)
            assert found.actual_usd == owed, (group, interval, view)
            assert sum((row.usd for row in found.rows), ZERO) == found.total_usd
            assert found.committed_usd + found.flexible_usd == found.total_usd
        rows = [row async for row in self.spend.focus(ADMIN).rows]
        assert sum((costs_of(row)[0] for row in rows), ZERO) == owed
        await self.rows_are_the_sums(rows)
        for month, said in self.closed.items():
            assert await self.reported(month) == said, f"{month:%Y-%m} changed after it was closed"

    async def rows_are_the_sums(self, rows: Sequence[FocusRow]) -> None:
        """Of each month, workload and seller: what is billed in it, and once it is over what is amortized."""
        this_month = self.house.clock.now().date().replace(day=1)
        for group, column in (("workload", "x_PlacementId"), ("provider", "ServiceProviderName")):
            for place, view in enumerate((CostView.CASH, CostView.AMORTIZED)):
                sums: defaultdict[tuple[date, str], Decimal] = defaultdict(Decimal)
                found = await self.spend.projection(ADMIN, None, Interval.MONTH, group, None, view)
                for key, usd in found.by_key.items():
                    if key.basis is ChargeBasis.ACTUAL:
                        sums[key.period.date(), key.group] += usd
                for row in rows:
                    month = row["BillingPeriodStart"]
                    assert isinstance(month, datetime)
                    name = str(row[column]).partition("@")[0]
                    sums[month.date(), name] -= costs_of(row)[place]
                wrong = {cut: usd for cut, usd in sums.items() if usd}
                if view is CostView.AMORTIZED:
                    wrong = {cut: usd for cut, usd in wrong.items() if cut[0] < this_month}
                assert not wrong, (group, view)

    def ledger_usd(self) -> Decimal:
        """The bill, from what the provider has in its ledger: rounded once a placement."""
        tags = {unit.tag: row for row in self.house.rows() for unit in row.units}
        exact: defaultdict[tuple[object, ...], Decimal] = defaultdict(lambda: ZERO)
        for one in self.house.provider.ledger:
            row, offer = tags[one.tag], self.offers[one.sku]
            window = one.window or Window(one.created_at, _later(one.created_at, one.released_at))
            segment = Segment(window.start, window.end, one.nodes)
            exact[row.plan_id, row.offer.offer_id, row.workload] += holding_cost_usd(offer, (segment,))
        return sum((to_cents(usd) for usd in exact.values()), ZERO) - self.credits


def _later(start: datetime, end: datetime | None) -> datetime:
    assert end is not None, "everything was released"
    return max(end, start + timedelta(seconds=1))


def _with_credit(unit: Any, usd: Decimal) -> Any:
    return type(unit)(**{name: getattr(unit, name) for name in unit.__slots__} | {"credit_usd": usd})


async def live(steps: Sequence[tuple[str, Any]]) -> None:
    books = Books()
    for name, value in steps:
        try:
            await books.step(name, value)
        except BrokerError:
            continue
        await books.agree()
    for row in books.house.rows():
        await books.house.reservations.release(ALICE, row.reservation_id)
    await books.house.reconcile.run_once()
    for hours in (0, 24 * 50):
        books.house.clock.advance(hours=hours)
        await books.house.settle(4)
        await books.spend.roll_up()
        await books.agree()
    owed = sum((c.usd for c in await books.charges() if c.basis is ChargeBasis.ACTUAL), ZERO)
    assert owed == books.ledger_usd()
    await books.close()
    await books.agree()


@settings(max_examples=examples(12), deadline=None)
@given(st.lists(STEP, min_size=3, max_size=12))
def test_one_bill_in_every_view_and_export(steps: list[tuple[str, Any]]) -> None:
    asyncio.run(live(steps))

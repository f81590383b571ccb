"""Several sellers over a month's end: on every day what is actual is what the market has billed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx

from broker.catalogue import load_exchange_rates, use_exchange_rates
from broker.domain.basics.window import Window
from broker.domain.focus.check import check_focus
from broker.domain.focus.columns import FocusVersion, focus_columns
from broker.domain.market.offer import Offer, StockLevel, Tier
from broker.domain.spend.spend import ChargeBasis, CostView, Interval
from broker.services.holding.reconcile import ReconcileRules, ReconcileService
from broker.services.holding.reservations import ReservationsService
from broker.services.market.offers import OffersService
from broker.services.spend.spend import SpendService
from broker.store.engine import Store, create_store
from providers.http import ProviderHttp
from providers.registry import build_adapters, configured, sellers
from providers.sandbox import SandboxHandle
from providers.spec import ProviderAdapter
from tests.fakes.buying import a_buyer
from tests.fakes.examples import ADMIN, ALICE
from tests.fakes.notifier import RecordingNotifier
from tests.faults import haste
from tests.faults.broker_life import START, Shelf, StandingClock
from tests.focus.examples import written

CENT = Decimal("0.01")
SELLERS = (
    "digitalocean",
    "hotaisle",
    "latitude",
    "mithril",
    "prime_intellect",
    "runpod",
    "scaleway",
    "vultr",
)
DECEMBER = datetime(2026, 12, 1, tzinfo=START.tzinfo)
PASS, HOUR = timedelta(hours=2), timedelta(hours=1)


@dataclass
class Desk:
    """A broker that buys from several sellers of one market."""

    store: Store
    adapters: Mapping[str, ProviderAdapter]
    clock: StandingClock
    control: httpx.Client

    def __post_init__(self) -> None:
        units, notifier = self.store.unit_of_work, RecordingNotifier()
        self.spend = SpendService(units, self.clock)
        buying = a_buyer(units, self.adapters, self.clock)
        self.reservations = ReservationsService(units, buying, self.clock, notifier)
        self.reconcile = ReconcileService(
            units, buying, self.clock, notifier, rules=ReconcileRules(), rates=load_exchange_rates
        )

    async def reserve(
        self,
        provider: str,
        *,
        tier: Tier = Tier.ON_DEMAND,
        least_hours: float = 0.0,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> Offer:
        """One node of the first offer that can be ordered."""
        found = (await self.adapters[provider].list_offers(self.clock.now())).offers
        chosen = next(
            one
            for one in found
            if one.tier is tier and one.min_hours >= least_hours and one.stock.level is not StockLevel.NONE
        )
        shelf = {provider: Shelf(provider, (chosen,))}
        await OffersService(self.store.unit_of_work, shelf, self.clock).refresh()
        await self.reservations.reserve_offer(ALICE, chosen.offer_id, 1, start, end, "story")
        return chosen

    async def live_until(self, instant: datetime) -> None:
        """Time passes, and the reconciler looks every two hours."""
        while self.clock.now() < instant:
            step = min(instant - self.clock.now(), PASS).total_seconds()
            self.control.post("/_sandbox/clock", json={"advance_s": step}).raise_for_status()
            await self.clock.refresh()
            await self.reconcile.run_once()

    def billed(self) -> tuple[dict[str, Decimal], Counter[str]]:
        """What the market has billed so far, and how many leases it has sold, by seller."""
        rows: list[dict[str, Any]] = self.control.get("/_sandbox/ledger").json()["instances"]
        usd: defaultdict[str, Decimal] = defaultdict(Decimal)
        for row in rows:
            usd[row["provider"]] += Decimal(row["billed_usd"])
        return dict(usd), Counter(row["provider"] for row in rows)

    async def actual(self, view: CostView, window: Window | None = None) -> dict[str, Decimal]:
        """What is owed by seller."""
        found = await self.spend.projection(ADMIN, window, Interval.MONTH, "provider", None, view)
        usd: defaultdict[str, Decimal] = defaultdict(Decimal)
        for key, amount in found.by_key.items():
            if key.basis is ChargeBasis.ACTUAL:
                usd[key.group] += amount
        return dict(usd)

    async def focus(self, column: str, window: Window | None = None) -> dict[str, Decimal]:
        """A column of the FOCUS rows by seller."""
        usd: defaultdict[str, Decimal] = defaultdict(Decimal)
        async for row in self.spend.focus(ADMIN, window).rows:
            usd[str(row["ServiceProviderName"])] += Decimal(str(row[column]))
        return {provider: amount for provider, amount in usd.items() if amount}

    async def agree(self) -> None:
        """Spend and FOCUS against the market's ledger, whose bills are rounded by under a cent a lease."""
        billed, leases = self.billed()
        paid = await self.actual(CostView.CASH)
        assert set(paid) == {provider for provider, usd in billed.items() if usd >= CENT}
        for provider, usd in billed.items():
            assert abs(usd - paid.get(provider, Decimal(0))) < CENT * leases[provider], provider
        assert await self.actual(CostView.AMORTIZED) == paid == await self.focus("BilledCost")
        november, after = Window(START, DECEMBER), Window(DECEMBER, DECEMBER + timedelta(days=31))
        for month in (november, after):
            assert await self.focus("BilledCost", month) == await self.actual(CostView.CASH, month)


@asynccontextmanager
async def opened(market: SandboxHandle, database: Path) -> AsyncIterator[Desk]:
    every = configured({}, market.url)
    adapters = sellers(build_adapters({name: every[name] for name in SELLERS}))
    clock = StandingClock(market.url, ProviderHttp)
    store = create_store(f"sqlite+aiosqlite:///{database}")
    await store.migrate()
    try:
        with httpx.Client(base_url=market.url, trust_env=False, timeout=20) as control:
            await clock.refresh()
            yield Desk(store, dict(adapters), clock, control)
    finally:
        await store.close()
        for adapter in adapters.values():
            await adapter.aclose()
        await clock.aclose()


def test_what_is_actual_is_what_is_billed_on_every_day(market: SandboxHandle, tmp_path: Path) -> None:
    async def live() -> None:
        async with opened(market, tmp_path / "broker.db") as desk:
            await desk.live_until(DECEMBER - timedelta(days=3, hours=7, minutes=20))
            now = desk.clock.now()
            await desk.reserve("vultr")
            await desk.reserve("runpod")
            await desk.reserve("digitalocean", end=now + timedelta(hours=30, minutes=10))
            term = await desk.reserve("hotaisle", least_hours=24, end=now + timedelta(hours=30))
            await desk.reserve("prime_intellect", least_hours=2)
            begin = now.replace(minute=0) + timedelta(hours=20)
            await desk.reserve("mithril", tier=Tier.WINDOW, start=begin, end=begin + timedelta(hours=72))
            refusal = {"provider": "vultr", "operation": "create", "kind": "out_of_capacity", "count": 10_000}
            desk.control.post("/_sandbox/faults", json=refusal).raise_for_status()
            await desk.reserve("vultr", start=now + timedelta(hours=5), end=now + timedelta(hours=60))
            term_usd = term.price_usd_per_node_hour * Decimal(term.min_hours)
            assert (await desk.actual(CostView.CASH))["hotaisle"] == term_usd.quantize(CENT)
            for day in range(7):
                await desk.live_until(now + timedelta(days=day, minutes=47 * day + 1))
                await desk.agree()
                assert desk.billed()[1]["vultr"] == 1, "what was refused was never sold"

    haste.run(live())


def rates_of(days: Mapping[date, Decimal]) -> str:
    lines = (f"EUR,{usd},{day},a test" for day, usd in days.items())
    return "\n".join(["currency,usd_per_unit,on,source", *lines]) + "\n"


def test_euros_are_billed_in_euros_and_booked_at_the_rate_of_each_day(
    market: SandboxHandle, tmp_path: Path
) -> None:
    """The seller's ledger is in euros. The rate falls by a cent a day, and each day's file knows it."""
    file, known = tmp_path / "rates.csv", {START.date(): Decimal("1.20")}

    def publish(day: date) -> None:
        known[day] = Decimal("1.20") - (day - START.date()).days * CENT
        file.write_text(rates_of(known))

    async def live() -> None:
        async with opened(market, tmp_path / "broker.db") as desk:
            await desk.live_until(DECEMBER - timedelta(days=2))
            publish(desk.clock.now().date())
            use_exchange_rates(file)
            offer = await desk.reserve("scaleway")
            exchange = offer.native.exchange
            assert exchange is not None
            assert exchange.rates[0].usd_per_unit == known[desk.clock.now().date()]
            assert exchange.billed_per_node_hour is not None
            for _ in range(4):
                today = desk.clock.now().date() + timedelta(days=1)
                await desk.live_until(datetime.combine(today, time(), START.tzinfo))
                publish(today)
                await desk.reconcile.run_once()
                rows: list[dict[str, Any]] = desk.control.get("/_sandbox/ledger").json()["instances"]
                (bill,) = [row["billed"] for row in rows if row["provider"] == "scaleway"]
                euros = (await desk.focus("BilledCost"))["scaleway"]
                assert bill["currency"] == "EUR"
                assert abs(euros - Decimal(bill["amount"])) < CENT
                usd = (await desk.actual(CostView.CASH))["scaleway"]
                assert usd == (await desk.focus("x_BilledCostUsd"))["scaleway"]
                by_hand = Decimal(0)
                first = datetime.combine(DECEMBER.date() - timedelta(days=2), time(), START.tzinfo)
                for day, rate in known.items():
                    begin = datetime.combine(day, time(), START.tzinfo)
                    hours = (min(begin + timedelta(days=1), desk.clock.now()) - max(begin, first)) / HOUR
                    if hours > 0:
                        by_hand += Decimal(hours) * exchange.billed_per_node_hour * rate
                assert abs(usd - by_hand) < CENT
            exported = [row async for row in desk.spend.focus(ADMIN).rows]
            assert {(row["BillingCurrency"], row["PricingCurrency"]) for row in exported} == {("EUR", "EUR")}
            assert {row["ListUnitPrice"] for row in exported} == {
                exchange.billed_per_node_hour / offer.sku.gpus_per_node
            }
            assert {row["x_ExchangeRate"] for row in exported} == set(list(known.values())[:-1][-4:])
            columns = focus_columns(FocusVersion.V1_2)
            assert list(map(str, check_focus(columns, written(exported, columns)))) == []

    try:
        haste.run(live())
    finally:
        use_exchange_rates(None)


def test_a_month_that_is_left_in_its_first_days_costs_one_month(
    market: SandboxHandle, tmp_path: Path
) -> None:
    """Bought for fifty days and released on the second: the second month is not expected for a moment."""

    async def live() -> None:
        async with opened(market, tmp_path / "broker.db") as desk:
            now = desk.clock.now()
            end = now + timedelta(days=50)
            offer = await desk.reserve("latitude", tier=Tier.COMMITTED, least_hours=700, end=end)
            month_usd = (offer.price_usd_per_node_hour * Decimal(offer.min_hours)).quantize(CENT)
            (row,) = await desk.reservations.find_every(ALICE)
            await desk.live_until(now + timedelta(days=1))

            async def expected() -> set[Decimal]:
                found = [
                    await desk.spend.projection(ADMIN, None, Interval.MONTH, "provider", None, view)
                    for view in CostView
                ]
                return {one.total_usd for one in found}

            assert await expected() == {2 * month_usd}
            await desk.reservations.release(ALICE, row.reservation_id)
            assert await expected() == {month_usd}
            await desk.live_until(now + timedelta(days=2))
            assert await expected() == {month_usd}
            jump = timedelta(days=29).total_seconds()
            desk.control.post("/_sandbox/clock", json={"advance_s": jump}).raise_for_status()
            await desk.clock.refresh()
            assert await expected() == {month_usd}, "before anybody has looked at the seller again"
            await desk.live_until(now + timedelta(days=31, hours=4))
            assert await expected() == {month_usd}
            assert abs(desk.billed()[0]["latitude"] - month_usd) < CENT

    haste.run(live())

"""A broker on one seller of a sandbox market, and the comparison of the market's ledger with its tables."""

from __future__ import annotations

import functools
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from sqlalchemy.orm import configure_mappers

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import ConcurrentChange, ProviderError
from broker.domain.holding.reservation import Idempotency, Reservation, ReservationState, UnitState
from broker.domain.market.offer import Offer, OfferBatch, StockLevel, Tier
from broker.domain.reconciling.orphaned_leases import UNATTRIBUTED
from broker.services.holding.reconcile import ReconcileReport, ReconcileRules, ReconcileService
from broker.services.holding.reservations import ReservationsService
from broker.services.market.offers import OffersService
from broker.services.spend.spend import SpendService
from broker.store.engine import Store, create_store
from providers.http import ProviderHttp
from providers.market_clock import MarketClock
from providers.registry import SPECS, build_adapters, configured, sellers
from providers.sandbox import Durations, SandboxHandle, create_sandbox
from providers.sandbox.server import serve_in_background
from providers.spec import ProviderAdapter
from tests.fakes.buying import a_buyer
from tests.fakes.examples import ADMIN, ALICE
from tests.fakes.notifier import RecordingNotifier
from tests.faults.bills import compared_bills, names

# What every process would do again at its start is done once, before they are forked. The market speaks
# plain HTTP, so that one TLS context, never used, serves them all.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]
httpx.create_ssl_context()
configure_mappers()

PASS_S = 180.0
PATIENT_S = 20.0
GRACE = timedelta(minutes=10)
QUIET_PASSES = 2
MOST_PASSES = 30
TIERS = (Tier.ON_DEMAND, Tier.SPOT, Tier.WINDOW)
IN_DOUBT = {ReservationState.PENDING, ReservationState.UNKNOWN, ReservationState.RELEASING}


@dataclass(frozen=True)
class Place:
    """Where a broker lives: the market, the seller it buys from, and its database."""

    market_url: str
    provider: str
    database_url: str
    timeout_s: float = PATIENT_S
    case: int = 0


START = datetime(2026, 11, 23, tzinfo=UTC)


def standing_market(seed: int) -> SandboxHandle:
    """A market whose time passes only when it is told to: both sides of a bill mean the same second.

    Orders are decided at once, as no time passes for who waits for them.
    """
    at_once = Durations(fill_s=0.0)
    return serve_in_background(create_sandbox(seed=seed, wall=lambda: START, durations=at_once), 0)


class StandingClock(MarketClock):
    """A market's time, as last asked for: it passes only where a story says so."""

    _seen = datetime.fromtimestamp(0, UTC)

    def now(self) -> datetime:
        """The time last seen."""
        return self._seen

    async def refresh(self) -> None:
        """Asks the market for its time."""
        await super().refresh()
        self._seen = (super().now() + timedelta(seconds=0.5)).replace(microsecond=0)


class Shelf:
    """A feed of the few offers that a story is about."""

    def __init__(self, provider: str, offers: Iterable[Offer]) -> None:
        self.provider = provider
        self._offers = tuple(offers)

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """The offers, seen now."""
        return OfferBatch(tuple(replace(offer, observed_at=observed_at) for offer in self._offers))


@dataclass
class Broker:
    """The use cases of one process on ``place``, as the wiring joins them."""

    place: Place
    store: Store
    adapter: ProviderAdapter
    clock: MarketClock
    control: httpx.Client
    offer: Offer

    def __post_init__(self) -> None:
        notifier, reservers = RecordingNotifier(), {self.place.provider: self.adapter}
        units = self.store.unit_of_work
        buying = a_buyer(units, reservers, self.clock)
        self.reservations = ReservationsService(units, buying, self.clock, notifier)
        self.spend = SpendService(units, self.clock)
        self.reconcile = ReconcileService(
            units,
            buying,
            self.clock,
            notifier,
            rules=ReconcileRules(orphan_grace=GRACE, max_orphans=50),
        )

    async def sell(self, *others: Offer) -> None:
        """Puts the offer on sale, seen now, and ``others`` beside it."""
        feed = Shelf(self.place.provider, (self.offer, *others))
        await OffersService(self.store.unit_of_work, {self.place.provider: feed}, self.clock).refresh()

    def arm(self, operation: str, kind: str, **more: Any) -> None:
        """Orders a fault of the market."""
        body = {"provider": self.place.provider, "operation": operation, "kind": kind, **more}
        self.control.post("/_sandbox/faults", json=body).raise_for_status()

    def calm(self) -> None:
        """No fault is armed any more."""
        self.control.delete("/_sandbox/faults").raise_for_status()

    async def advance(self, seconds: float) -> None:
        """Time passes at the market, and so here."""
        self.control.post("/_sandbox/clock", json={"advance_s": seconds}).raise_for_status()
        await self.clock.refresh()

    async def passes(self, count: int, seconds: float = PASS_S) -> ReconcileReport:
        """Passes of the reconciler with time before each; the last report."""
        for _ in range(count):
            await self.advance(seconds)
            report = await self.reconcile.run_once()
        return report

    async def settle(self, seconds: float = PASS_S) -> ReconcileReport:
        """Passes until several in a row find nothing to do."""
        quiet = 0
        for _ in range(MOST_PASSES):
            report = await self.passes(1, seconds)
            quiet = 0 if report.actions or report.orphans or report.errors else quiet + 1
            if quiet == QUIET_PASSES:
                break
        return report

    async def rows(self) -> tuple[Reservation, ...]:
        """Every reservation."""
        found: list[Reservation] = []
        cursor: str | None = None
        async with self.store.unit_of_work(EVERY_TEAM) as uow:
            while True:
                page = await uow.reservations.find_page(200, cursor)
                found.extend(page.items)
                cursor = page.next_cursor
                if cursor is None:
                    return tuple(found)

    def ledger(self) -> list[dict[str, Any]]:
        """The market's own truth about this seller."""
        rows = self.control.get("/_sandbox/ledger").json()["instances"]
        return [row for row in rows if row["provider"] == self.place.provider]

    def open_instances(self) -> list[dict[str, Any]]:
        """What the market holds for us, or will."""
        return [row for row in self.ledger() if row["released_at"] is None and not row["failed"]]

    async def reserve(self, nodes: int = 1, delay: timedelta = timedelta(0)) -> None:
        """Reserves the offer; a provider's refusal or a lost answer is part of the story.

        What is sold by windows is bought from the second full hour on, for another length in each case, as
        equal blocks cannot be told apart; the rest without an end, or ``delay`` from now for two hours.
        """
        await self.sell()
        start = self.clock.now() + delay if delay else None
        if self.offer.window is not None:
            start = (self.clock.now() + delay + timedelta(hours=2)).replace(minute=0, second=0, microsecond=0)
        hours = 2 if self.offer.window is None else 2 + self.place.case % 40
        end = None if start is None else start + timedelta(hours=hours)
        try:
            await self.reservations.reserve_offer(ALICE, self.offer.offer_id, nodes, start, end, "story")
        except ProviderError:
            return

    async def release_all(self) -> None:
        """Asks for the end of every reservation."""
        for row in await self.rows():
            try:
                caller = ADMIN if row.team == UNATTRIBUTED else ALICE
                await self.reservations.release(caller, row.reservation_id)
            except ConcurrentChange:
                continue


@asynccontextmanager
async def opened(place: Place, offer: Offer | None) -> AsyncIterator[Broker]:
    """A broker of ``place``; without an ``offer`` it takes the first that can be ordered now."""
    environ = {f"BROKER_{name.upper()}_TIMEOUT_S": str(place.timeout_s) for name in SPECS}
    settings = configured(environ, place.market_url)[place.provider]
    adapter = sellers(build_adapters({place.provider: settings}))[place.provider]
    clock = StandingClock(place.market_url, ProviderHttp)
    store = create_store(place.database_url)
    try:
        with httpx.Client(base_url=place.market_url, trust_env=False, timeout=20) as control:
            await clock.refresh()
            chosen = offer or await first_offer(adapter, clock.now())
            yield Broker(place, store, adapter, clock, control, chosen)
    finally:
        await store.close()
        await adapter.aclose()
        await clock.aclose()


async def usual_offer(place: Place) -> Offer:
    """What a broker of ``place`` takes when nobody names an offer; it is patient with the list."""
    async with opened(replace(place, timeout_s=PATIENT_S), None) as broker:
        return broker.offer


async def first_offer(adapter: ProviderAdapter, now: datetime) -> Offer:
    """Something that can be bought now, of the simplest tier that is sold."""
    offers = (await adapter.list_offers(now)).offers
    return min(
        (offer for offer in offers if offer.stock.level is not StockLevel.NONE and offer.tier in TIERS),
        key=lambda offer: (TIERS.index(offer.tier), -(offer.stock.nodes or 0)),
    )


async def compared(broker: Broker) -> dict[str, Any]:
    """Ledger against tables: what is open and held by nobody, held twice, held and not there, or in doubt.

    ``nameless``: open, and bought from a seller that lets an order carry no name, so that nobody can say for
    whom. A person has to end these; here it is done so that they disturb no other case.
    """
    rows = await broker.rows()
    held = [u.reference for row in rows for u in row.units if u.state is UnitState.HELD and row.is_open]
    live = {row["instance_id"]: row for row in broker.open_instances()}
    known = {name for row in live.values() for name in names(row)}
    lone = [row for row in live.values() if not names(row) & set(held)]
    namable = broker.adapter.idempotency is not Idempotency.NEITHER
    nameless = [] if namable else [row["instance_id"] for row in lone if not row["tag"]]
    stems = Counter(row["tag"].rsplit("-", 1)[0] for row in live.values() if row["tag"])
    for lease in await broker.adapter.list_leases():
        if lease.reference in nameless:
            await broker.adapter.release(lease)
    return {
        **await compared_bills(broker.store.unit_of_work, broker.spend, rows, broker.ledger()),
        "orphans": [
            f"{row['instance_id']} {row['tag']}" for row in lone if row["instance_id"] not in nameless
        ],
        "doubles": [stem for stem, count in stems.items() if count > 1]
        + [ref for ref, count in Counter(held).items() if count > 1],
        "ghosts": [ref for ref in held if ref not in known],
        "in_doubt": [f"{row.state}: {row.reason}" for row in rows if row.state in IN_DOUBT],
        "nameless": nameless,
        "reasons": [row.reason for row in rows],
        "held": len(held),
        "open": len(live),
    }

"""The purchases of a replayed history, and their bill. Pure.

On-demand and committed capacity and windows keep the price of their order, as reservations do. Spot capacity
is billed at the price in force at each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.window import Window
from broker.domain.holding.cost_of_keeping import HeldCapacity, kept_usd, left_usd
from broker.domain.holding.holding_orders import Intent, bought_later
from broker.domain.market.billing import SECONDS_PER_HOUR, billed_seconds
from broker.domain.market.offer import Offer, Tier

SECOND = timedelta(seconds=1)


@dataclass
class Purchase:
    """Bought nodes. ``prices`` has (time, price) for each price change of spot capacity.

    ``left_at`` is None if the capacity was not released.
    """

    held: HeldCapacity
    prices: list[tuple[datetime, Decimal]]
    left_at: datetime | None = None

    @property
    def end(self) -> datetime:
        """The end of the holding: its release or its ordered end."""
        return self.held.end if self.left_at is None else min(self.left_at, self.held.end)

    @property
    def floats(self) -> bool:
        """Whether it is spot capacity, billed at the price in force."""
        return self.held.offer.tier is Tier.SPOT

    def is_held(self, now: datetime) -> bool:
        """Whether it is held or still to come after ``now``, and was not released."""
        return self.left_at is None and self.held.end > now

    def bill_usd(self) -> Decimal:
        """The exact bill in USD."""
        if self.floats:
            return self._floating_usd()
        return kept_usd(self.held) if self.left_at is None else left_usd(self.held, self.left_at)

    def _floating_usd(self) -> Decimal:
        if self.end <= self.held.start:
            return ZERO
        total = ZERO
        changes = [(max(at, self.held.start), usd) for at, usd in self.prices if at < self.end]
        for (at, usd), until in zip(changes, [*(at for at, _ in changes[1:]), self.end], strict=True):
            total += usd * ((until - at) // SECOND)
        held = Window(self.held.start, self.end)
        rounded_up = billed_seconds(self.held.offer, held) - held.duration // SECOND
        return self.held.nodes * (total + changes[-1][1] * rounded_up) / SECONDS_PER_HOUR


@dataclass
class Ledger:
    """All purchases, and intents that are to be bought later, by number."""

    purchases: dict[str, Purchase] = field(default_factory=dict)
    pending: dict[str, Intent] = field(default_factory=dict)
    numbered: int = 0

    def take(self, intents: Iterable[Intent], now: datetime) -> None:
        """Buys intents that are due, and keeps the others until their time."""
        for intent in intents:
            if bought_later(intent.offer, intent.start, now):
                self.pending[self._number("p")] = intent
            else:
                self.buy(intent, intent.offer, now)

    def buy(self, intent: Intent, offer: Offer, now: datetime) -> None:
        """Buys an intent from ``offer`` at its current price."""
        assert intent.end is not None
        assert intent.workload is not None
        start = intent.start if offer.window is not None else max(intent.start, now)
        number = self._number("b")
        held = HeldCapacity(
            workload=intent.workload,
            offer=offer,
            nodes=intent.nodes,
            start=start,
            end=max(intent.end, start + SECOND),
            active_since=start,
            reservation_id=number,
        )
        self.purchases[number] = Purchase(held, [(start, offer.price_usd_per_node_hour)])

    def due(self, until: datetime) -> list[tuple[str, Intent]]:
        """Intents that are to be bought before ``until``, earliest first."""
        rows = [(key, intent) for key, intent in self.pending.items() if intent.start < until]
        return sorted(rows, key=lambda row: (row[1].start, row[0]))

    def float_to(self, market: Mapping[str, Offer], now: datetime) -> dict[str, HeldCapacity]:
        """Updates spot prices; returns by number the spot capacity that is interrupted now."""
        lost = {}
        for number, purchase in self.purchases.items():
            if not (purchase.floats and purchase.is_held(now)):
                continue
            offer = market.get(purchase.held.offer.offer_id)
            if offer is None:
                lost[number] = purchase.held
            else:
                price = offer.in_size_of(purchase.held.offer).price_usd_per_node_hour
                if price != purchase.prices[-1][1]:
                    purchase.prices.append((now, price))
        return lost

    def nodes_of(self, offer_id: str, at: datetime) -> int:
        """Number of nodes of an offer that are held at an instant."""
        return sum(
            p.held.nodes
            for p in self.purchases.values()
            if p.held.offer.offer_id == offer_id and p.held.start <= at < p.end
        )

    def held(self, now: datetime, market: Mapping[str, Offer]) -> tuple[HeldCapacity, ...]:
        """Current and future holdings; spot capacity at its current price."""
        bought = [
            replace(purchase.held, offer=_now(purchase.held.offer, market))
            if purchase.floats
            else purchase.held
            for purchase in self.purchases.values()
            if purchase.is_held(now)
        ]
        usable = [replace(h, active_since=h.start if h.start <= now else None) for h in bought]
        waiting = [
            HeldCapacity(i.workload or "", i.offer, i.nodes, i.start, i.end, False, None, key)
            for key, i in self.pending.items()
            if i.end is not None
        ]
        return (*usable, *waiting)

    def leave(self, number: str, at: datetime) -> None:
        """Releases a purchase ``at`` an instant, or drops an intent that was not bought yet."""
        if self.pending.pop(number, None) is None:
            self.purchases[number].left_at = at

    def total_usd(self) -> Decimal:
        """The total bill in USD, in whole cents."""
        return to_cents(sum((purchase.bill_usd() for purchase in self.purchases.values()), ZERO))

    def _number(self, kind: str) -> str:
        self.numbered += 1
        return f"{kind}{self.numbered}"


def _now(offer: Offer, market: Mapping[str, Offer]) -> Offer:
    """An offer as it is on sale now, in its size; unchanged if it is gone."""
    return market.get(offer.offer_id, offer).in_size_of(offer)

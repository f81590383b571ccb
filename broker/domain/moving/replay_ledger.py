"""What was bought while a history was replayed, and its bill. Pure.

What is on demand, committed or a window keeps the price at which it was ordered, as reservations do. Spot
floats: each stretch of a holding is billed at the price in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.window import Window
from broker.domain.holding.holding_orders import Intent, bought_later
from broker.domain.holding.staying import HeldCapacity, kept_usd, left_usd
from broker.domain.market.billing import SECONDS_PER_HOUR, billed_seconds
from broker.domain.market.offer import Offer, Tier

SECOND = timedelta(seconds=1)


@dataclass
class Purchase:
    """Nodes that were bought. ``prices``: of spot, from when on it cost what; ``left_at`` None: not left."""

    held: HeldCapacity
    prices: list[tuple[datetime, Decimal]]
    left_at: datetime | None = None

    @property
    def end(self) -> datetime:
        """When it is not held any more."""
        return self.held.end if self.left_at is None else min(self.left_at, self.held.end)

    @property
    def floats(self) -> bool:
        """Whether it is billed at the price of the hour."""
        return self.held.offer.tier is Tier.SPOT

    def is_held(self, now: datetime) -> bool:
        """Whether it stays beyond ``now``, or waits for its time, and nobody let it go."""
        return self.left_at is None and self.held.end > now

    def bill_usd(self) -> Decimal:
        """What it costs, exact."""
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
    """Everything bought and everything that is to be bought later, by a number of its own."""

    purchases: dict[str, Purchase] = field(default_factory=dict)
    pending: dict[str, Intent] = field(default_factory=dict)
    numbered: int = 0

    def take(self, intents: Iterable[Intent], now: datetime) -> None:
        """Buys what is bought at once, and remembers the rest for its time."""
        for intent in intents:
            if bought_later(intent.offer, intent.start, now):
                self.pending[self._number("p")] = intent
            else:
                self.buy(intent, intent.offer, now)

    def buy(self, intent: Intent, offer: Offer, now: datetime) -> None:
        """Buys an intent of ``offer`` at its price of ``now``."""
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
        """What is to be bought before ``until``, the first first."""
        rows = [(key, intent) for key, intent in self.pending.items() if intent.start < until]
        return sorted(rows, key=lambda row: (row[1].start, row[0]))

    def float_to(self, market: Mapping[str, Offer], now: datetime) -> dict[str, HeldCapacity]:
        """Follows the prices of what floats; by number, spot capacity that is taken away now."""
        lost = {}
        for number, purchase in self.purchases.items():
            if not (purchase.floats and purchase.is_held(now)):
                continue
            offer = market.get(purchase.held.offer.offer_id)
            if offer is None:
                lost[number] = purchase.held
            elif offer.price_usd_per_node_hour != purchase.prices[-1][1]:
                purchase.prices.append((now, offer.price_usd_per_node_hour))
        return lost

    def nodes_of(self, offer_id: str, at: datetime) -> int:
        """How many nodes of an offer are held at an instant."""
        return sum(
            p.held.nodes
            for p in self.purchases.values()
            if p.held.offer.offer_id == offer_id and p.held.start <= at < p.end
        )

    def held(self, now: datetime, market: Mapping[str, Offer]) -> tuple[HeldCapacity, ...]:
        """What is held or waits for its time; what floats at the price of ``now``."""
        bought = [
            replace(purchase.held, offer=market.get(purchase.held.offer.offer_id, purchase.held.offer))
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
        """Lets something go ``at`` an instant; what was not bought yet never is."""
        if self.pending.pop(number, None) is None:
            self.purchases[number].left_at = at

    def total_usd(self) -> Decimal:
        """The whole bill, in cents."""
        return to_cents(sum((purchase.bill_usd() for purchase in self.purchases.values()), ZERO))

    def _number(self, kind: str) -> str:
        self.numbered += 1
        return f"{kind}{self.numbered}"

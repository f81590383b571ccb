"""A provider with a ledger of its own, three ways of being safe to repeat, and faults on demand."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from broker.domain.basics.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    PriceAboveLimit,
    ProviderUnavailable,
    RateLimited,
    ReleaseRefused,
)
from broker.domain.basics.machines import PublicKey
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch
from broker.ports.holding import FindKept
from broker.ports.unit_of_work import Clock
from tests.fakes.store import open_units


def _waits(order: Order) -> bool:
    return order.offer.window is not None and order.offer.window.waits


class Fault(StrEnum):
    """What goes wrong with one call."""

    NONE = "none"  # this call goes well, the next may not
    LOST_BEFORE = "lost_before"  # never arrived
    LOST_AFTER = "lost_after"  # took effect, the answer was lost
    NO_CAPACITY = "no_capacity"
    NO_CAPACITY_LATER = "no_capacity_later"  # accepted, then failed
    REJECTED = "rejected"
    TOO_DEAR = "too_dear"  # it asks more than the order allows
    RATE_LIMITED = "rate_limited"
    DOWN = "down"
    CRASH_BEFORE = "crash_before"  # our own process dies before the call arrives
    CRASH = "crash"  # our own process dies while the call is made, after its effect


class Crash(BaseException):
    """The process died here."""


@dataclass(frozen=True)
class Instance:
    """A line of the ledger, which the broker cannot edit."""

    reference: str
    tag: str
    nodes: int
    sku: str
    region: str
    created_at: datetime
    visible_at: datetime
    usd_per_node_hour: Decimal
    window: Window | None = None
    waits: bool = False
    lapses_at: datetime | None = None
    failed: bool = False
    released_at: datetime | None = None


@dataclass
class FakeProvider:
    """Fulfils ``OfferSource`` and ``Reserver``.

    ``per_order`` nodes a call. A lease is usable ``provision_s`` after its purchase, and may be ended
    no sooner; lists show it ``visible_after_s`` after. ``appears_after_s``: when capacity appears for windows
    that begin then; an order that does not wait so long fails at the end of its wait. ``billed_usd``: the
    bill of each window; ``credit_usd``: what leaving one gives back, shown by its id. ``tells_times``: each
    lease says since when and until when it counts, and what has ended is still shown by its id.
    ``price_factor``: what new leases are charged, over what their order's offer says; ``dear``: of some
    offers. ``tells_price``: leases by the hour say it; ``tells_price_at_once``: so does the order's answer.
    ``quoted_usd``: what it quotes a node-hour at, whatever it charges.
    """

    clock: Clock
    provider: str = "fake"
    idempotency: Idempotency = Idempotency.TAG
    per_order: int | None = 1
    provision_s: float = 0.0
    visible_after_s: float = 0.0
    appears_after_s: float = 0.0
    billed_usd: Decimal | None = None
    credit_usd: Decimal | None = None
    tells_times: bool = False
    price_factor: Decimal = Decimal(1)
    dear: dict[str, Decimal] = field(default_factory=dict)
    tells_price: bool = True
    longest_tag: int = 63
    barred_because: str = ""
    needs_keys: bool = False
    ssh_port: int = 22
    kept_keys: list[frozenset[str]] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    tells_price_at_once: bool = True
    quoted_usd: Decimal | None = None
    offers: tuple[Offer, ...] = ()
    ledger: list[Instance] = field(default_factory=list)
    faults: defaultdict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    calls: list[str] = field(default_factory=list)
    slow: threading.Event = field(default_factory=threading.Event)

    def fail(self, operation: str, *faults: Fault) -> None:
        """Lets the next calls of ``list_offers``, ``reserve``, ``list``, ``find`` or ``release`` go wrong."""
        self.faults[operation].extend(faults)

    def open_instances(self) -> list[Instance]:
        """What costs money now."""
        return [i for i in self.ledger if i.released_at is None and not self._has_ended(i)]

    def writes(self) -> int:
        """Calls that may change something."""
        return sum(call in ("reserve", "release") for call in self.calls)

    def _enter(self, operation: str) -> Fault | None:
        assert open_units.get() == 0, f"{operation} was called inside an open unit of work"
        self.calls.append(operation)
        fault = self.faults[operation].pop(0) if self.faults[operation] else Fault.NONE
        return None if fault is Fault.NONE else fault

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Everything on sale."""
        if self._enter("list_offers") is not None:
            raise ProviderUnavailable(self.provider, "down")
        return OfferBatch(tuple(replace(offer, observed_at=observed_at) for offer in self.offers))

    def holds_limit(self, offer: Offer) -> bool:
        """Whether orders carry their limit: no."""
        return False

    def barred(self, offer: Offer) -> str:
        """Why nothing is ordered."""
        return self.barred_because

    def locked_out(self, offer: Offer, keys: Sequence[PublicKey]) -> str:
        """Why nobody could enter a machine."""
        return "" if keys or not self.needs_keys else "no public SSH key goes with the order"

    def runs_script(self, offer: Offer) -> bool:
        """Whether orders carry a script: yes."""
        return True

    async def drop_keys(self, find_kept: FindKept) -> None:
        """Removes registered keys."""
        self._enter("drop_keys")
        self.kept_keys.append(frozenset(await find_kept()))

    def nodes_per_order(self, offer: Offer) -> int | None:
        """Nodes of one call."""
        return self.per_order

    async def reserve(self, order: Order) -> Lease:
        """Buys."""
        fault = self._enter("reserve")
        self.orders.append(order)
        if fault is Fault.LOST_BEFORE or fault is Fault.DOWN:
            raise OutcomeUnknown(self.provider, "the answer was lost")
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        if fault is Fault.NO_CAPACITY:
            raise InsufficientCapacity(self.provider, "no stock")
        if fault is Fault.TOO_DEAR:
            raise PriceAboveLimit(self.provider, "asks $14.87", asks_usd_per_node_hour=Decimal("14.87"))
        if fault is Fault.REJECTED:
            raise OrderRejected(self.provider, "not like this")
        if fault is Fault.RATE_LIMITED:
            raise RateLimited(self.provider, "too many calls")
        instance = self._same_token(order) or self._create(order, failed=fault is Fault.NO_CAPACITY_LATER)
        if fault is Fault.CRASH:
            raise Crash
        if fault is Fault.LOST_AFTER:
            raise OutcomeUnknown(self.provider, "the answer was lost")
        lease = self._lease(instance)
        if not self.tells_price_at_once:
            lease = replace(lease, price_usd_per_node_hour=None)
        return replace(lease, state=LeaseState.PROVISIONING) if instance.failed else lease

    def _same_token(self, order: Order) -> Instance | None:
        if self.idempotency is not Idempotency.TOKEN:
            return None
        return next((i for i in self.ledger if i.tag == order.tag), None)

    def _create(self, order: Order, *, failed: bool) -> Instance:
        now = self.clock.now()
        instance = Instance(
            reference=f"i-{len(self.ledger):04}",
            tag=order.tag,
            nodes=order.nodes,
            sku=order.offer.sku.name,
            region=order.offer.region,
            usd_per_node_hour=order.offer.price_usd_per_node_hour
            * self.dear.get(order.offer.offer_id, self.price_factor),
            created_at=now,
            visible_at=now + timedelta(seconds=self.visible_after_s),
            **self._given(order, now),
            failed=failed,
            released_at=now if failed else None,
        )
        self.ledger.append(instance)
        return instance

    def _given(self, order: Order, now: datetime) -> dict[str, Any]:
        if order.window is None or not _waits(order):
            return {"window": order.window}
        if self.appears_after_s > order.wait_s:
            return {"waits": True, "lapses_at": now + timedelta(seconds=order.wait_s)}
        begin = now + timedelta(seconds=self.appears_after_s)
        return {"waits": True, "window": Window(begin, begin + order.window.duration)}

    def _has_ended(self, instance: Instance) -> bool:
        if instance.lapses_at is not None and instance.lapses_at <= self.clock.now():
            return True
        return instance.window is not None and instance.window.end <= self.clock.now()

    def _lease(self, instance: Instance) -> Lease:
        return Lease(
            provider=self.provider,
            reference=instance.reference,
            state=self._state(instance),
            tag=instance.tag,
            nodes=instance.nodes,
            sku=instance.sku,
            region=instance.region,
            window=None
            if instance.waits and self._state(instance) is LeaseState.PROVISIONING
            else instance.window,
            billed_usd=None if instance.window is None else self.billed_usd,
            credit_usd=None if instance.released_at is None else self.credit_usd,
            began_at=instance.created_at if self.tells_times else None,
            ended_at=instance.released_at if self.tells_times else None,
            price_usd_per_node_hour=self._told_price(instance),
        )

    def _told_price(self, instance: Instance) -> Decimal | None:
        tells = self.tells_price and instance.window is None and not instance.waits
        return instance.usd_per_node_hour if tells else None

    async def quote(self, offer: Offer, asked_at: datetime) -> Offer | None:
        """``offer`` at what a new lease is charged; without ``offers``, everything is on sale as it was."""
        batch = await self.list_offers(asked_at)
        known = batch.offers if self.offers else (offer.at_list_price(),)
        found = next((o for o in known if o.offer_id == offer.offer_id), None)
        if found is None:
            return None
        usd = found.price_usd_per_node_hour * self.dear.get(offer.offer_id, self.price_factor)
        return replace(found, price_usd_per_node_hour=usd if self.quoted_usd is None else self.quoted_usd)

    def _state(self, instance: Instance) -> LeaseState:
        now = self.clock.now()
        if instance.failed:
            return LeaseState.FAILED
        if instance.released_at is not None or self._has_ended(instance):
            return LeaseState.ENDED
        if instance.lapses_at is not None:
            return LeaseState.PROVISIONING
        if instance.window is not None and now < instance.window.start:
            return LeaseState.PROVISIONING if instance.waits else LeaseState.SCHEDULED
        if now < instance.created_at + timedelta(seconds=self.provision_s):
            return LeaseState.PROVISIONING
        return LeaseState.ACTIVE

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One lease."""
        if self._enter("find") is not None:
            raise ProviderUnavailable(self.provider, "down")
        for instance in self.ledger:
            is_shown = instance.released_at is None or self.tells_times or bool(self.credit_usd)
            if instance.reference == reference and is_shown:
                return self._lease(instance)
        raise LeaseNotFound(self.provider, f"no lease {reference}")

    async def list_leases(self) -> Sequence[Lease]:
        """What is open and visible."""
        if self._enter("list") is not None:
            raise ProviderUnavailable(self.provider, "down")
        now = self.clock.now()
        return [self._lease(i) for i in self.open_instances() if i.visible_at <= now]

    async def release(self, lease: Lease) -> None:
        """Ends one, once ``slow`` is cleared."""
        while self.slow.is_set():
            await asyncio.sleep(0.01)
        fault = self._enter("release")
        if fault is Fault.LOST_BEFORE or fault is Fault.DOWN:
            raise ProviderUnavailable(self.provider, "down")
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        for index, instance in enumerate(self.ledger):
            if instance.reference == lease.reference and instance.released_at is None:
                if self._state(instance) is LeaseState.PROVISIONING and not instance.waits:
                    raise ReleaseRefused(self.provider, "still provisioning", forever=False)
                self.ledger[index] = replace(instance, released_at=self.clock.now())
        if fault is Fault.LOST_AFTER:
            raise ProviderUnavailable(self.provider, "the answer was lost")
        if fault is Fault.CRASH:
            raise Crash

    def preempt(self, reference: str) -> None:
        """The provider takes one back."""
        for index, instance in enumerate(self.ledger):
            if instance.reference == reference:
                self.ledger[index] = replace(instance, released_at=self.clock.now())


def keeping(*lines: str) -> FindKept:
    """What ``drop_keys`` asks for the lines that are needed: these."""

    async def find() -> frozenset[str]:
        return frozenset(lines)

    return find

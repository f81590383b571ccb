"""What happens to a broker in the crash matrix: stories, the process that plays one, and the one after it."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import BrokerError, InsufficientCapacity
from broker.domain.basics.identity import ENTROPY_BYTES, make_id, make_tag
from broker.domain.holding.reservation import Lease, Order, Reservation
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, WorkloadKind
from broker.ports.holding import Reserver
from broker.services.holding.early_holding import EarlyHoldingService
from broker.services.holding.fallback_offer import FallbackOffers
from broker.services.holding.reservations import ReservationsService
from broker.services.moving.moves import MovesService
from broker.services.planning.plan_queue import PlanQueue
from tests.fakes.buying import a_buyer
from tests.fakes.examples import ALICE, a_placement, a_plan, a_record, a_request, a_segment
from tests.fakes.notifier import InlineExecutor, RecordingNotifier
from tests.faults import haste
from tests.faults.broker_life import Broker, Place, compared, opened


class After:
    """``reserver``, but something happens right after its first order."""

    def __init__(self, reserver: Reserver, then: Callable[[], None]) -> None:
        self._reserver = reserver
        self._then = then
        self._ordered = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reserver, name)

    async def reserve(self, order: Order) -> Lease:
        """Orders."""
        lease = await self._reserver.reserve(order)
        if not self._ordered:
            self._ordered = True
            self._then()
        return lease


async def held_and_released(broker: Broker) -> None:
    """Bought, usable, given back."""
    await broker.reserve()
    await broker.passes(3)
    await broker.release_all()
    await broker.passes(3)


async def _reserved_by_plan(broker: Broker, *others: Offer) -> tuple[Reservation, ...]:
    await broker.sell(*others)
    plan = _plan_on(broker, broker.offer, "plan-1")
    await _store(broker, plan)
    return await broker.reservations.reserve_plan(ALICE, plan.plan_id)


async def _store(broker: Broker, plan: Plan) -> None:
    async with broker.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.plans.add(a_record(plan))
        await uow.commit()


def _plan_on(broker: Broker, offer: Offer, plan_id: str) -> Plan:
    """One node of ``offer`` for the service of ``a_request``, for a day from now."""
    now = broker.clock.now()
    placement = a_placement(offer, [a_segment(0, 24, 1, now)], "chat", WorkloadKind.SERVING)
    return a_plan(placement, plan_id=plan_id, as_of=now)


def _other(broker: Broker) -> Offer:
    """The same under another name."""
    return replace(broker.offer, offer_id=f"{broker.offer.offer_id}-other")


async def planned(broker: Broker) -> None:
    """The same through a plan."""
    await _reserved_by_plan(broker)
    await broker.passes(2)


async def plan_refused(broker: Broker) -> None:
    """A plan is refused and given back."""
    broker.arm("create", "out_of_capacity", count=1)
    await _reserved_by_plan(broker)


async def exchanged(broker: Broker) -> None:
    """A plan is refused, and the next best is bought in its place."""

    def plan_call(request: PlanRequest, offers: tuple[Offer, ...], *_: object) -> Plan:
        return _plan_on(broker, offers[0], "plan-again")

    units, reservers = broker.store.unit_of_work, {broker.place.provider: broker.adapter}
    fallback_offers = FallbackOffers(
        units, plan_call, PlanQueue(InlineExecutor()), broker.clock, read_request=lambda document: a_request()
    )
    broker.reservations = ReservationsService(
        units,
        a_buyer(units, reservers, broker.clock, fallback_offers),
        broker.clock,
        RecordingNotifier(),
    )
    broker.arm("create", "out_of_capacity", count=1)
    await _reserved_by_plan(broker, _other(broker))
    await broker.passes(3)


async def moved(broker: Broker) -> None:
    """What a plan holds moves to another offer; the old goes once the new is usable."""
    rows = await _reserved_by_plan(broker, _other(broker))
    await broker.passes(3)
    units, reservers = broker.store.unit_of_work, {broker.place.provider: broker.adapter}
    buying = a_buyer(units, reservers, broker.clock)
    moves = MovesService(units, buying, broker.clock, RecordingNotifier())
    await broker.sell(_other(broker))
    plan = _plan_on(broker, _other(broker), "plan-2")
    await _store(broker, plan)
    await moves.move("reoptimizer", plan, [row.reservation_id for row in rows])
    await broker.passes(6)


async def extended(broker: Broker) -> None:
    """What is held for a while is held for longer."""
    await broker.sell()
    end = broker.clock.now() + timedelta(hours=3)
    row = await broker.reservations.reserve_offer(ALICE, broker.offer.offer_id, 1, None, end, "story")
    await broker.reservations.extend(ALICE, row.reservation_id, end + timedelta(hours=1))
    await broker.passes(2)


async def held_early(broker: Broker) -> None:
    """What starts later is held now, is refused, and is held at the second try."""
    await broker.sell()
    start = broker.clock.now() + timedelta(hours=1)
    end = start + timedelta(hours=2)
    row = await broker.reservations.reserve_offer(ALICE, broker.offer.offer_id, 1, start, end, "story")
    units, reservers = broker.store.unit_of_work, {broker.place.provider: broker.adapter}
    early = EarlyHoldingService(
        units, a_buyer(units, reservers, broker.clock), broker.clock, RecordingNotifier()
    )
    broker.arm("create", "out_of_capacity", count=1)
    with suppress(InsufficientCapacity):
        await early.hold(ALICE, row.reservation_id)
    await early.hold(ALICE, row.reservation_id)
    await broker.passes(2)
    await broker.advance(3 * 3600)
    await broker.passes(3)


async def lost_with_effect(broker: Broker) -> None:
    """The order took effect, its answer is lost."""
    broker.arm("create", "connection_reset", count=1, when="after")
    await broker.reserve()
    await broker.passes(5)


async def lost_without_effect(broker: Broker) -> None:
    """The order never arrived."""
    broker.arm("create", "connection_reset", count=2)
    await broker.reserve()
    await broker.passes(5)


async def refused_halfway(broker: Broker) -> None:
    """The second node is refused, and the first is given back."""
    adapter = After(broker.adapter, lambda: broker.arm("create", "out_of_capacity", count=1))
    reservers: dict[str, Any] = {broker.place.provider: adapter}
    units = broker.store.unit_of_work
    buying = a_buyer(units, reservers, broker.clock)
    broker.reservations = ReservationsService(units, buying, broker.clock, RecordingNotifier())
    if broker.adapter.nodes_per_order(broker.offer) is None:
        broker.arm("create", "out_of_capacity", count=1)
    await broker.reserve(nodes=2)
    await broker.passes(3)


async def later(broker: Broker) -> None:
    """Bought when its time comes, at the second try, and ended with its time."""
    await broker.reserve(delay=timedelta(hours=1))
    broker.arm("create", "out_of_capacity", count=1)
    await broker.advance(3600)
    await broker.passes(4)
    await broker.advance(2 * 3600)
    await broker.passes(3)


async def stray(broker: Broker) -> None:
    """A lease with our tag that no row knows."""
    await broker.sell()
    async with broker.store.unit_of_work(EVERY_TEAM) as uow:
        forgotten = make_id("rsv", broker.clock.now(), secrets.token_bytes(ENTROPY_BYTES))
        tag = make_tag(await uow.accounts.install_id(), forgotten, 0)
    await broker.adapter.reserve(Order(tag, broker.offer, 1))
    await broker.passes(8)


async def not_released(broker: Broker) -> None:
    """Its end is asked for while the provider is down."""
    await broker.reserve()
    await broker.passes(1)
    broker.arm("delete", "http_500", count=9)
    await broker.release_all()
    broker.calm()
    await broker.passes(3)


async def released_too_early(broker: Broker) -> None:
    """Its end is asked for while it still comes up."""
    await broker.reserve()
    await broker.release_all()
    await broker.passes(1, 0.0)
    await broker.passes(3)


async def taken_back(broker: Broker) -> None:
    """The provider ends it, as with a preempted spot machine."""
    await broker.reserve()
    await broker.passes(2)
    for lease in await broker.adapter.list_leases():
        await broker.adapter.release(lease)
    await broker.passes(3)


Story = Callable[[Broker], Awaitable[None]]
STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        held_and_released,
        planned,
        plan_refused,
        exchanged,
        moved,
        extended,
        held_early,
        lost_with_effect,
        lost_without_effect,
        refused_halfway,
        later,
        stray,
        not_released,
        released_too_early,
        taken_back,
    )
}


def live(place: Place, story: str, offer: Offer | None, point: str | None, record: Path | None) -> None:
    """Plays ``story``, dying at ``point``; without one, the points that it passes go to ``record``."""
    passed: list[str] = []
    if point is not None:
        os.environ[crash_points.VARIABLE] = point
    elif record is not None:
        crash_points.watchers.append(passed.append)

    async def play() -> None:
        async with opened(place, offer) as broker:
            try:
                await STORIES[story](broker)
            except BrokerError as error:
                passed.append(f"error {error}")

    haste.run(play())
    if record is not None:
        record.write_text(json.dumps(list(dict.fromkeys(passed))))


def recover(place: Place, offer: Offer | None, report: Path) -> None:
    """The next process; writes what it found to ``report``."""

    async def heal() -> dict[str, Any]:
        async with opened(place, offer) as broker:
            broker.calm()
            await broker.settle()
            found = {"at rest": await compared(broker)}
            if found["at rest"]["open"]:
                await broker.release_all()
                await broker.settle(seconds=1800.0)
            found["given back"] = await compared(broker)
            return found

    report.write_text(json.dumps(haste.run(heal())))

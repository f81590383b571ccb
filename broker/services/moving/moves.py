"""Moves: the new capacity is bought and usable before the old is released."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import Conflict, ProviderError, StalePlan
from broker.domain.holding.cost_of_keeping import waits_after_refusal, without_refused
from broker.domain.holding.holding_orders import Intent, find_drifts, intents_of, unplaced_order
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState
from broker.domain.market.offer import Offer
from broker.domain.moving.kept_parts import parts_held
from broker.domain.moving.moving import Change, find_change, successors_of
from broker.domain.planning.plan import Plan
from broker.ports.unit_of_work import Clock, Notifier, UnitOfWork, UnitOfWorkFactory
from broker.services.holding.buyer import Buyer


@dataclass(frozen=True, slots=True)
class MoveRules:
    """Tolerances between planning and purchase, as in ``ReservingRules``."""

    price_tolerance: float = 0.02
    start_patience: timedelta = timedelta(hours=1)


class MovesService:
    """Use cases of moves."""

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        buying: Buyer,
        clock: Clock,
        notifier: Notifier,
        *,
        rules: MoveRules | None = None,
    ) -> None:
        self._uow_factory = uow_factory
        self._buying = buying
        self._creator = buying.creator
        self._clock = clock
        self._notifier = notifier
        self._rules = rules or MoveRules()

    async def move(self, actor: str, plan: Plan, leaving: Sequence[str]) -> tuple[Reservation, ...]:
        """Replaces the reservations ``leaving`` by what ``plan`` places for their workloads.

        What is held as planned stays, without its nodes that were refused. The new capacity is bought all or
        nothing. The reconciler releases the old once the new is usable, so there is an overlap and never a
        gap; after a crash one of both remains.
        The caller updates the stored plan. Raises StalePlan, Conflict and OverQuota (both count while they
        are held) before anything is bought, and the provider's error, with the cost of giving back, after the
        new was given back; the old then stays.
        """
        async with self._creator.turn, self._uow_factory(EVERY_TEAM) as uow:
            rows = await self._leaving(uow, leaving)
            held = tuple(without_refused(row) for row in rows)
            part, kept = parts_held(_part_of(plan, {row.workload for row in held}), held)
            offers = await _offers_of(uow, part)
            self._check_prices(part, offers)
            change = find_change((row for row in held if row not in kept), self._intents(part, offers))
            if not change.wanted:
                return ()
            cut = [row for row, now in zip(rows, held, strict=True) if now not in change.leaving]
            cut = [row for row in cut if waits_after_refusal(row)]
            for row in cut:
                await uow.reservations.update(without_refused(row))
            drafts = await self._creator.draft(
                uow,
                change.wanted,
                held[0].team,
                actor,
                plan.plan_id,
                _why(change.leaving, held),
                replaces=tuple(row.reservation_id for row in change.leaving),
                setups={row.workload: row.setup for row in held},
            )
            crash_points.here("move.intend.before")
            await uow.commit()
            crash_points.here("move.intend.after")
        try:
            bought = await self._buying.buy_in_order(drafts, actor)
        except ProviderError:
            await self._try_again(cut)
            await self._tell("reservation.move_failed", drafts)
            raise
        await self._tell("reservation.moving", bought)
        return bought

    async def require_orderable(self, plan: Plan, leaving: Collection[str]) -> None:
        """Raises OrdersBarred or OverCap if the new capacity may not be ordered. Stores nothing.

        Unlike ``move`` it looks at all workloads together, and not at stock, prices and starts: what is gone
        meanwhile is the move's to refuse.
        """
        orders = self._creator.orders
        async with self._uow_factory(EVERY_TEAM) as uow:
            open_rows = [row for row in await uow.reservations.find_open() if row.reservation_id in leaving]
            held = tuple(without_refused(row) for row in open_rows)
            part, kept = parts_held(_part_of(plan, {row.workload for row in held}), held)
            offers = await _offers_of(uow, part)
            part = replace(part, placements=tuple(one for one in part.placements if one.offer_id in offers))
            with suppress(StalePlan):
                change = find_change((row for row in held if row not in kept), self._intents(part, offers))
                if rows := self._unstored(change, held):
                    await orders.require_allowed(uow, {row.offer.provider for row in rows}, plan.plan_id)
                    await orders.require_within_caps(uow, rows, self._clock.now())

    def _unstored(self, change: Change[Reservation], held: Sequence[Reservation]) -> list[Reservation]:
        """The reservations that a move would store, each with those of its workload that it replaces."""
        replaced: defaultdict[str | None, list[str]] = defaultdict(list)
        for row in change.leaving:
            replaced[row.workload].append(row.reservation_id)
        return [
            replace(
                unplaced_order(intent, held[0].team, self._clock.now()),
                reservation_id=f"order-{number}",
                limit_usd_per_node_hour=intent.limit_usd_per_node_hour,
                replaces=tuple(replaced[intent.workload]),
            )
            for number, intent in enumerate(change.wanted)
        ]

    def _intents(self, part: Plan, offers: Mapping[str, Offer]) -> Sequence[Intent]:
        rules = self._rules
        return intents_of(part, offers, self._clock.now(), rules.start_patience, rules.price_tolerance)

    async def _try_again(self, cut: Sequence[Reservation]) -> None:
        """Waits again for the refused nodes of ``cut``, since nothing was bought in their place."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            for row in cut:
                now = await uow.reservations.find(row.reservation_id)
                if now.is_open and now.state is not ReservationState.RELEASING:
                    waiting = (unit for unit in row.units if unit.state is UnitState.PLANNED)
                    again = replace(now, nodes=row.nodes, tries=row.tries, tried_at=row.tried_at)
                    for unit in waiting:
                        again = again.with_unit(unit)
                    await uow.reservations.update(again)
            crash_points.here("move.retry.before")
            await uow.commit()
            crash_points.here("move.retry.after")

    async def _leaving(self, uow: UnitOfWork, ids: Sequence[str]) -> tuple[Reservation, ...]:
        """The reservations to replace. Raises Conflict if one has ended or is already being moved."""
        rows = [await uow.reservations.find(key) for key in ids]
        known = await uow.reservations.find_open()
        for row in rows:
            if not row.is_open or row.state is ReservationState.RELEASING:
                raise Conflict(f"reservation {row.reservation_id} is {row.state}, so it cannot be moved")
            others = successors_of(row, known)
            if others:
                raise Conflict(
                    f"reservation {row.reservation_id} is already being moved to {others[0].reservation_id}"
                )
        if not rows:
            raise Conflict("no reservation is given, so there is nothing to move")
        return tuple(rows)

    def _check_prices(self, plan: Plan, offers: Mapping[str, Offer]) -> None:
        drifts = find_drifts(plan, offers, self._rules.price_tolerance)
        if drifts:
            raise StalePlan(f"plan {plan.plan_id}: {'; '.join(str(drift) for drift in drifts)}; plan again")

    async def _tell(self, event: str, rows: Iterable[Reservation]) -> None:
        for row in rows:
            body: dict[str, object] = {
                "reservation_id": row.reservation_id,
                "replaces": list(row.replaces),
                "plan_id": row.plan_id,
            }
            await self._notifier.notify(event, row.team, body)


def _why(leaving: Sequence[Reservation], held: Sequence[Reservation]) -> str:
    if leaving:
        return f"moved from {', '.join(row.reservation_id for row in leaving)}"
    return f"bought beside {', '.join(row.reservation_id for row in held)}"


def _part_of(plan: Plan, workloads: Iterable[str | None]) -> Plan:
    names = set(workloads)
    return replace(plan, placements=tuple(p for p in plan.placements if p.workload in names))


async def _offers_of(uow: UnitOfWork, plan: Plan) -> dict[str, Offer]:
    found = await uow.offers.find_many({placement.offer_id for placement in plan.placements})
    return {offer.offer_id: offer for offer in found}

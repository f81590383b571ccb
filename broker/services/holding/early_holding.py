"""Holding a reservation now that is ordered at its start, so that nobody else takes its capacity."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from broker import crash_points
from broker.domain.basics.access import require_scope, scope_of
from broker.domain.basics.account import AuditEntry, Caller, Scope
from broker.domain.basics.errors import ConcurrentChange, Conflict, FieldProblem, OverBudget
from broker.domain.basics.money import usd_words
from broker.domain.basics.window import INSTANT, instant_words
from broker.domain.holding.early_holding import why_not_held
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.spend.order_quote import HoldQuote, quote_of_hold
from broker.ports.planning import BudgetWatch
from broker.ports.unit_of_work import Clock, Notifier, UnitOfWork, UnitOfWorkFactory
from broker.services.holding.buyer import Buyer

ORDERED = frozenset(
    {
        ReservationState.PENDING,
        ReservationState.UNKNOWN,
        ReservationState.HELD,
        ReservationState.ACTIVE,
    }
)


class EarlyHoldingService:
    """Use cases of reservations that are held before their start. ``budgets`` None: there are none."""

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        buying: Buyer,
        clock: Clock,
        notifier: Notifier,
        budgets: BudgetWatch | None = None,
    ) -> None:
        self._uow_factory = uow_factory
        self._lease_service = buying.lease_service
        self._creator = buying.creator
        self._clock = clock
        self._notifier = notifier
        self._budgets = budgets

    async def quote(self, caller: Caller, reservation_id: str) -> HoldQuote:
        """What it adds to hold a reservation from now on. It orders nothing.

        Raises NotFound, and Conflict for what is not ordered at its start, or cannot be held before it.
        """
        async with self._uow_factory(scope_of(caller)) as uow:
            row = await uow.reservations.find(reservation_id)
        _require_waiting(row)
        return quote_of_hold(row, self._clock.now())

    async def hold(self, caller: Caller, reservation_id: str) -> Reservation:
        """Orders a reservation now that is ordered at its start else. Holding it twice is no error.

        Raises NotFound, Conflict for what cannot be held early or where stock is short, OrdersBarred,
        OverCap, OverQuota, OverBudget for a budget or the limit of what needs an approval, and the provider's
        error; then it is ordered at its start as before. If the answer is lost, the reconciler finds out.
        """
        require_scope(caller, Scope.RESERVATIONS_WRITE)
        async with self._creator.turn, self._uow_factory(scope_of(caller)) as uow:
            await uow.reservations.take_turn()
            row = await uow.reservations.find(reservation_id)
            if row.state in ORDERED or (row.state is ReservationState.SCHEDULED and row.is_held_early):
                return row
            _require_waiting(row)
            intended = await self._intend(uow, caller, row)
        try:
            outcome = await self._lease_service.buy(intended, caller.key_id)
        except ConcurrentChange:  # the reconciler was first
            return await self._lease_service.reload(intended)
        held, error = outcome.reservation, outcome.error
        await self._notifier.notify("reservation.changed", held.team, held.news)
        if error is not None and held.state is not ReservationState.UNKNOWN and not held.nodes_held:
            said = str(error).removeprefix(f"{error.provider}: ")
            raise error.saying(f"{said}. {_left_words(held)}", error.facts)
        return held

    async def _intend(self, uow: UnitOfWork, caller: Caller, row: Reservation) -> Reservation:
        """Stores that ``row`` is to be held from now on."""
        now = self._clock.now()
        wanted = replace(row, start=max(now, row.created_at + INSTANT), requested=row.wish)
        if wanted.start >= row.start:
            raise Conflict(f"reservation {row.reservation_id} starts now, and is being ordered")
        await self._require_within_budgets(row, wanted)
        await self._creator.require_earlier(uow, row, now)
        await self._creator.orders.require_within_caps(uow, (wanted,), now)
        intended = await uow.reservations.update(wanted)
        await uow.accounts.add_audit(self._entry(intended, caller))
        crash_points.here("reservation.hold.before")
        await uow.commit()
        crash_points.here("reservation.hold.after")
        return intended

    async def _require_within_budgets(self, row: Reservation, wanted: Reservation) -> None:
        if self._budgets is None:
            return
        why = await self._budgets.find_overruns_of_exchange((row,), (wanted,), "holding it now")
        if why:
            way = "leave it to be ordered at its start, or ask for a plan that starts now (POST /v1/plans)"
            raise OverBudget(f"{'; '.join(why)}: {way}").naming(
                FieldProblem(
                    "/start", instant_words(wanted.start), "its start, or a plan that finance approves"
                )
            )

    def _entry(self, row: Reservation, caller: Caller) -> AuditEntry:
        quote = quote_of_hold(replace(row, start=row.wish.start), row.start)
        needed = f"{row.wish.start:%d %b %Y %H:%M} UTC"
        return AuditEntry(
            at=self._clock.now(),
            actor=caller.key_id,
            action="reservation.hold",
            object_kind="reservation",
            object_id=row.reservation_id,
            team=row.team,
            detail=f"{row.state}: held from now on, needed from {needed}; that adds {usd_words(quote.usd)}",
        )


def _require_waiting(row: Reservation) -> None:
    """Raises Conflict if ``row`` does not wait for its start, or holding it earlier promises nothing."""
    name = f"reservation {row.reservation_id}"
    why = why_not_held(row.offer)
    if row.state is not ReservationState.SCHEDULED or row.provider_references:
        raise Conflict(f"{name} is {row.state}; only what is ordered at its start can be held now")
    if why:
        raise Conflict(f"{name} cannot be held before its start: {why}")


def _left_words(row: Reservation) -> str:
    if row.state is ReservationState.SCHEDULED:
        return f"Nothing is held; it is ordered at its start, {_moment(row.start)}, as before"
    return "It was given back"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"

"""Stores the steps of reservations: a row, the launch attempts that it ends, and the audit entry of both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.errors import ConcurrentChange, ProviderError
from broker.domain.holding.launches import LaunchAttempt, attempts_between
from broker.domain.holding.reservation import Reservation, Unit, UnitState
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory

TRIES = 4

Change = Callable[[Reservation], Reservation]
Beside = Callable[[UnitOfWork], Awaitable[object]]


class ReservationSteps:
    """Stores what was done or answered, each step in a transaction of its own."""

    def __init__(self, uow_factory: UnitOfWorkFactory, clock: Clock) -> None:
        self._uow_factory = uow_factory
        self._clock = clock

    async def reload(self, reservation: Reservation) -> Reservation:
        """The current row from the database."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.reservations.find(reservation.reservation_id)

    async def store_answer(
        self,
        reservation: Reservation,
        unit: Unit,
        change: Change,
        action: str,
        actor: str,
        error: ProviderError | None = None,
        detail: str = "",
        *,
        is_news: bool = True,
    ) -> Reservation:
        """Applies the answer to the order of ``unit``, unless another process stored one meanwhile."""
        request_id = None if error is None else error.request_id
        for _ in range(TRIES):
            now = reservation.units[unit.ordinal]
            if now.tag != unit.tag or now.state is not UnitState.ORDERING:
                return reservation
            row = change(reservation)
            attempts = attempts_between(reservation, row, error)
            try:
                return await self.store(
                    row, action, actor, detail or str(error), request_id, attempts, is_news=is_news
                )
            except ConcurrentChange:
                reservation = await self.reload(reservation)
        raise ConcurrentChange(
            f"reservation {reservation.reservation_id} changed during each of {TRIES} tries; try again"
        )

    async def store(
        self,
        row: Reservation,
        action: str,
        actor: str,
        detail: str,
        request_id: str | None = None,
        attempts: Sequence[LaunchAttempt] = (),
        beside: Beside | None = None,
        *,
        is_news: bool = True,
    ) -> Reservation:
        """Stores a step, the launch attempts that it ends, and the writes of ``beside``.

        ``is_news`` False: it equals the previous try, so there is no audit entry.
        """
        async with self._uow_factory(EVERY_TEAM) as uow:
            if beside is not None:  # it may order: the turn comes before the row, as in every order
                await uow.reservations.take_turn()
            written = await uow.reservations.update(row)
            if beside is not None:
                await beside(uow)
            await uow.launches.add(attempts)
            if is_news:
                await uow.accounts.add_audit(self.entry(row, action, actor, detail, request_id))
            crash_points.here(f"{action}.before")
            await uow.commit()
            crash_points.here(f"{action}.after")
        return written

    def entry(
        self, row: Reservation, action: str, actor: str, detail: str, request_id: str | None = None
    ) -> AuditEntry:
        """The audit entry of a step that leaves ``row``; ``request_id``: the provider's, of its answer."""
        return AuditEntry(
            at=self._clock.now(),
            actor=actor,
            action=action,
            object_kind="reservation",
            object_id=row.reservation_id,
            team=row.team,
            detail=f"{row.state}: {detail}" if detail else str(row.state),
            provider_request_id=request_id,
        )

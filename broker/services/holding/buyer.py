"""Buying stored reservations in order, all or nothing, with fallback offers for refused ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import PriceAboveLimit
from broker.domain.holding.holding_orders import Outcome, rank_of
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.reconciling.releases import release_bill
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory
from broker.services.holding.fallback_offer import FallbackOffers
from broker.services.holding.lease_service import LeaseService
from broker.services.holding.reservation_creator import ReservationCreator

PENDING = ReservationState.PENDING
GIVEN_UP = frozenset({ReservationState.FAILED, ReservationState.RELEASED, ReservationState.RELEASING})


class Buyer:
    """Buys stored reservations. ``fallback_offers`` None: after one refusal all are given back.

    There is one for all use cases, because its lease service remembers refusals and its creator takes turns.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        lease_service: LeaseService,
        creator: ReservationCreator,
        clock: Clock,
        fallback_offers: FallbackOffers | None = None,
    ) -> None:
        self._uow_factory = uow_factory
        self.lease_service = lease_service
        self.creator = creator
        self._clock = clock
        self.fallback_offers = fallback_offers

    async def buy_in_order(self, drafts: Sequence[Reservation], actor: str) -> tuple[Reservation, ...]:
        """Buys the pending ones, with fallback offers for refused ones; returns the reservations in force.

        It stops if an answer is lost; the reconciler continues from there. Raises the provider's error, with
        the cost of giving back, after everything was given back.
        """
        wanted = {row.reservation_id: row for row in drafts}
        dropped: list[Reservation] = []
        while queue := sorted((row for row in wanted.values() if row.state is PENDING), key=rank_of):
            outcome = await self.lease_service.buy(queue[0], actor)
            wanted[outcome.reservation.reservation_id] = outcome.reservation
            if outcome.refused:
                others = await self._take_next_best(outcome, actor)
                if not others:
                    await self._give_back(outcome, actor, await self._reload(dropped))
                rows = (*await self._reload(wanted.values()), *others)
                dropped += [row for row in rows if row.state in GIVEN_UP]
                wanted = {row.reservation_id: row for row in rows if row.state not in GIVEN_UP}
            elif outcome.error is not None or not outcome.reservation.is_open:
                break
        return await self._reload(wanted.values())

    async def buy_one(self, draft: Reservation, actor: str) -> Reservation:
        """Buys one without a fallback offer. Raises the provider's refusal after it was given back."""
        outcome = await self.lease_service.buy(draft, actor)
        if outcome.refused:
            await self._give_back(outcome, actor, ())
        return outcome.reservation

    async def _take_next_best(self, outcome: Outcome, actor: str) -> tuple[Reservation, ...]:
        if self.fallback_offers is None or outcome.error is None:
            return ()
        refused = outcome.reservation
        return await self.fallback_offers.take(
            refused, outcome.error, actor, self.lease_service, self.creator
        )

    async def _give_back(self, outcome: Outcome, actor: str, dropped: Sequence[Reservation]) -> None:
        """Gives everything back, and raises the provider's error with the total cost."""
        error = outcome.error
        assert error is not None
        left = await self.lease_service.abandon(
            outcome.reservation, str(error), actor, whole_plan=True, besides=dropped
        )
        bill = release_bill((*left, *dropped), self._clock.now())
        said = str(error).removeprefix(f"{error.provider}: ")
        way_out = (
            " Plan again; the planner knows the new price." if isinstance(error, PriceAboveLimit) else ""
        )
        raise error.saying(f"{said}. {bill}.{way_out}", bill.facts()) from error

    async def _reload(self, reservations: Iterable[Reservation]) -> tuple[Reservation, ...]:
        async with self._uow_factory(EVERY_TEAM) as uow:
            return tuple([await uow.reservations.find(row.reservation_id) for row in reservations])

"""Acting on one reservation at its provider: the only module that buys, adopts and releases.

The intent of an order is stored with its tag before the provider is called, and the outcome right after
(``reservation_steps``). No provider is called while a unit of work is open. If the process dies between two
writes, the reconciler finishes the step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.errors import (
    ConcurrentChange,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    PriceAboveLimit,
    ProviderError,
    ReleaseRefused,
)
from broker.domain.basics.window import Window, instant_words
from broker.domain.holding.back_off import after_refusal, tried, untried
from broker.domain.holding.holding_orders import REFUSALS, Outcome, bought_later, ends_by_itself
from broker.domain.holding.launches import attempts_between, too_dear
from broker.domain.holding.lease_money import (
    above_limit,
    dearer,
    money_in_words,
    quoted,
    quoted_usd,
    with_money,
)
from broker.domain.holding.order_rules import OrderRules
from broker.domain.holding.reservation import (
    Idempotency,
    Lease,
    LeaseState,
    Reservation,
    ReservationState,
    Unit,
    UnitState,
)
from broker.domain.holding.seller_network import network_of_region
from broker.domain.holding.startup_run import StartupRun, StartupState
from broker.domain.market.exchange import ExchangeRate, age_words, rate_on
from broker.domain.market.offer import Offer
from broker.domain.moving.moving import is_beside
from broker.domain.reconciling.ending import end_times
from broker.domain.reconciling.lease_steps import in_state, lease_for, order_of, progressed, without
from broker.domain.reconciling.reconciling import DEAD, WITH_THE_REST, granted_window, let_go, replanned
from broker.domain.reconciling.releases import TAKEN, because, release_bill, release_refused
from broker.domain.workloads.startup import StartupSecrets
from broker.ports.holding import Reserver
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory
from broker.services.holding.orphaned_leases import OrphanedLeases
from broker.services.holding.releaser import Releaser
from broker.services.holding.reservation_steps import TRIES, Beside, ReservationSteps

log = logging.getLogger(__name__)

RATED = frozenset(
    {
        ReservationState.SCHEDULED,
        ReservationState.HELD,
        ReservationState.ACTIVE,
        ReservationState.RELEASING,
    }
)
"""States in which no order is under way, so that a new exchange rate can be stored."""


class LeaseService:
    """Takes single steps of reservations. ``reservers`` by provider key.

    ``secrets`` are for the scripts that machines start with. ``orders``: from which sellers is ordered.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        reservers: Mapping[str, Reserver],
        clock: Clock,
        secrets: StartupSecrets | None = None,
        orders: OrderRules | None = None,
    ) -> None:
        self._uow_factory = uow_factory
        self._orders = orders or OrderRules()
        self._secrets = secrets or StartupSecrets()
        self.reservers = reservers
        self._clock = clock
        self._steps = ReservationSteps(uow_factory, clock)
        self._not_before_end: set[tuple[str, str]] = set()
        self._releaser = Releaser(self.reserver, clock)
        self._orphans = OrphanedLeases(uow_factory, clock)

    def reserver(self, provider: str) -> Reserver:
        """The reserver of ``provider``. Raises OrderRejected if nothing can be bought there."""
        if provider not in self.reservers:
            raise OrderRejected(provider, "no account that can place orders is configured for this provider")
        return self.reservers[provider]

    async def buy(self, reservation: Reservation, actor: str) -> Outcome:
        """Orders each planned unit in turn, and stops at the first that is not held.

        A provider that accepts no orders as configured is not called. The first order is preceded by a
        quote, unless the provider's order keeps the limit.
        """
        leases: list[Lease] = []
        try:
            rate = await self._quote(reservation)
        except ProviderError as error:
            return await self._not_ordered(reservation, error, actor)
        for ordinal in [unit.ordinal for unit in reservation.units if unit.state is UnitState.PLANNED]:
            reservation = await self._claim(reservation, ordinal, actor, rate)
            outcome = await self.ask(reservation, ordinal, actor, leases)
            if outcome.reservation.state is ReservationState.UNKNOWN and self._is_safe_again(reservation):
                outcome = await self.ask(outcome.reservation, ordinal, actor, leases)
            reservation = outcome.reservation
            if outcome.error is not None or reservation.state is not ReservationState.PENDING:
                return outcome
        return Outcome(reservation)

    def _is_safe_again(self, reservation: Reservation) -> bool:
        return self.reserver(reservation.offer.provider).idempotency is Idempotency.TOKEN

    async def _quote(self, reservation: Reservation) -> Decimal | None:
        """The provider's current price in USD per node-hour; None if no quote is needed.

        An order at a contract price needs none, nor one that the provider itself holds against the limit.
        Raises OrderRejected if nothing can be ordered, PriceAboveLimit, InsufficientCapacity if the offer is
        no longer on sale, and the provider's error.
        """
        offer = reservation.offer
        reserver = self.reserver(offer.provider)
        if barred := self._orders.barred(offer.provider) or reserver.barred(offer):
            raise OrderRejected(offer.provider, barred)
        is_limited = reservation.limit_usd_per_node_hour is not None
        if offer.contract is not None or (is_limited and reserver.holds_limit(offer)):
            return None
        crash_points.here("call.quote.before")
        found = await reserver.quote(offer, self._clock.now())
        crash_points.here("call.quote.after")
        if found is None:
            raise InsufficientCapacity(offer.provider, f"{offer.offer_id} is no longer on sale")
        error = dearer(reservation, found.price_usd_per_node_hour)
        if error is not None:
            raise error
        return quoted_usd(reservation.offer, found)

    async def _not_ordered(self, reservation: Reservation, error: ProviderError, actor: str) -> Outcome:
        """Stores that nothing is ordered because the quote failed."""
        is_news = not reservation.tries or reservation.reason != str(error)
        row = after_refusal(replace(reservation, reason=str(error)), self._clock.now())
        attempts = (too_dear(row, self._clock.now(), error),) if isinstance(error, PriceAboveLimit) else ()
        row = await self._steps.store(
            row, "reservation.refused", actor, str(error), attempts=attempts, is_news=is_news
        )
        return Outcome(row, error, is_news=is_news)

    async def _claim(
        self, reservation: Reservation, ordinal: int, actor: str, rate: Decimal | None
    ) -> Reservation:
        unit = quoted(reservation.units[ordinal], rate)
        claimed = replace(unit, state=UnitState.ORDERING, ordered_at=self._clock.now())
        wanted = reservation.moved_to(ReservationState.PENDING).with_unit(claimed)
        is_news = not reservation.tries
        return await self._steps.store(wanted, "reservation.order", actor, f"tag {unit.tag}", is_news=is_news)

    async def ask(
        self, reservation: Reservation, ordinal: int, actor: str, leases: list[Lease] | None = None
    ) -> Outcome:
        """Sends the stored order of one unit and stores the answer.

        ``leases`` collects the leases of the same pass, from which the final state follows.
        """
        unit = reservation.units[ordinal]
        try:
            order = order_of(reservation, unit, self._clock.now(), self._secrets)
            order = replace(order, network=await self._network_ids(reservation.offer))
            crash_points.here("call.order.before")
            lease = await self.reserver(reservation.offer.provider).reserve(order)
            crash_points.here("call.order.after")
            if lease.state in DEAD:
                raise InsufficientCapacity(lease.provider, lease.detail or "the lease failed at once")
        except REFUSALS as error:
            return await self._refused(reservation, unit, error, actor)
        except ProviderError as error:
            return await self._unknown(reservation, unit, error, actor)
        bought = leases if leases is not None else []
        lease = await self._with_price(reservation, lease)
        bought.append(lease)
        return await self.within_limit(await self.adopt(reservation, ordinal, lease, bought, actor), actor)

    async def _network_ids(self, offer: Offer) -> Mapping[str, str]:
        """The seller's ids of the network that was made for machines of ``offer``; none without one."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            made = network_of_region(await uow.networks.find(offer.provider), offer.region)
        return {} if made is None else made.resource_ids

    async def resend(
        self, reservation: Reservation, ordinal: int, actor: str, leases: list[Lease]
    ) -> Outcome:
        """Repeats the order of one unit whose answer was lost, as ``ask`` does.

        Where nothing is ordered from the seller any more, the order counts as not carried out. A lease that
        it bought after all is found by its tag, as an orphaned lease.
        """
        if self._orders.allows(reservation.offer.provider):
            return await self.ask(reservation, ordinal, actor, leases)
        return Outcome(await self.retry(reservation, ordinal, actor), is_news=False)

    async def _with_price(self, reservation: Reservation, lease: Lease) -> Lease:
        """``lease`` with its price, which is looked up if the answer to the order lacks it.

        If that fails, the reconciler finds the price in the provider's list.
        """
        told = lease.price_usd_per_node_hour is not None or reservation.offer.window is not None
        if told or not self.reserver(lease.provider).tells_price:
            return lease
        try:
            crash_points.here("call.price.before")
            found = await self.reserver(lease.provider).find_lease(lease.reference, lease.region)
            crash_points.here("call.price.after")
        except ProviderError as error:
            log.info("the price of %s %s is not known yet: %s", lease.provider, lease.reference, error)
            return lease
        return replace(
            lease,
            price_usd_per_node_hour=found.price_usd_per_node_hour,
            began_at=lease.began_at or found.began_at,
        )

    async def within_limit(self, reservation: Reservation, actor: str) -> Outcome:
        """``reservation``, which is given back at once if its provider charges more than its limit."""
        error = above_limit(reservation)
        if error is None or not reservation.is_open or reservation.state is ReservationState.RELEASING:
            return Outcome(reservation)
        now = self._clock.now()
        asked = [unit.ordered_at for unit in reservation.units if unit.ordered_at is not None]
        attempt = too_dear(reservation, min(asked, default=now), error)
        leaving = let_go(reservation, str(error), now, wanted=False)
        row = await self._steps.store(leaving, "reservation.too_dear", actor, str(error), attempts=(attempt,))
        return Outcome(await self.release_held(row, actor), error)

    async def _refused(
        self, reservation: Reservation, unit: Unit, error: ProviderError, actor: str
    ) -> Outcome:
        """Stores a refusal; a reservation that is bought later waits for its next try."""

        def change(row: Reservation) -> Reservation:
            refused = replace(row, reason=str(error)).with_unit(replanned(unit))
            if row.state is ReservationState.RELEASING:
                return refused
            held = any(other.state is UnitState.HELD for other in refused.units)
            if bought_later(row.offer, row.start, row.created_at) and not held:
                refused = refused.moved_to(ReservationState.SCHEDULED)
            return after_refusal(refused, self._clock.now())

        is_news = not reservation.tries or reservation.reason != str(error)
        row = await self._steps.store_answer(
            reservation, unit, change, "reservation.refused", actor, error, is_news=is_news
        )
        return Outcome(row, error, is_news=is_news)

    async def _unknown(
        self, reservation: Reservation, unit: Unit, error: ProviderError, actor: str
    ) -> Outcome:
        def change(row: Reservation) -> Reservation:
            if row.state is ReservationState.RELEASING:
                return row
            return tried(row.moved_to(ReservationState.UNKNOWN, str(error)), self._clock.now())

        is_news = not reservation.tries or reservation.reason != str(error)
        detail = f"{error}; tag {unit.tag}"
        row = await self._steps.store_answer(
            reservation, unit, change, "reservation.unknown", actor, error, detail, is_news=is_news
        )
        return Outcome(row, error, is_news=is_news)

    async def adopt(
        self, reservation: Reservation, ordinal: int, lease: Lease, leases: Sequence[Lease], actor: str
    ) -> Reservation:
        """Stores ``lease`` as the result of the unit's order.

        If another process stored a different lease meanwhile, that one stays and ``lease`` is released.
        """
        unit = reservation.units[ordinal]

        def change(row: Reservation) -> Reservation:
            taken = row.with_unit(replace(unit, state=UnitState.HELD, reference=lease.reference))
            taken = with_money(taken, (lease,))
            if row.state is not ReservationState.RELEASING:
                taken = untried(taken)
            granted = granted_window(taken, leases) or taken.granted
            return progressed(replace(taken, granted=granted), leases, self._clock.now())

        row = await self._steps.store_answer(
            reservation, unit, change, "reservation.held", actor, detail=f"lease {lease.reference}"
        )
        if lease.reference not in row.provider_references:
            await self.adopt_orphan(lease, reservation.units[ordinal].ordered_at or self._clock.now(), actor)
        return row

    async def adopt_orphan(
        self, lease: Lease, seen_at: datetime, actor: str, *, keep: bool = False
    ) -> Reservation | None:
        """Stores an orphaned lease as a reservation and releases it; None if its price is unknown.

        ``keep``: it is not released, and without a price nothing is stored.
        """
        row = await self._orphans.adopt_orphan(lease, seen_at, actor, keep=keep)
        if keep:
            return row
        if row is None:
            await self._releaser.end(lease)
            return None
        return await self.release_held(row, actor)

    async def book_orphans(
        self, leases: Sequence[Lease], first_seen: Mapping[tuple[str, str], datetime], actor: str
    ) -> tuple[Reservation, ...]:
        """Books untagged leases that probably come from orders whose answer was lost; releases none."""
        found = await self._orphans.find_orphans(leases, first_seen)
        return tuple([await self._orphans.book_orphan(one, actor) for one in found])

    async def retry(self, reservation: Reservation, ordinal: int, actor: str) -> Reservation:
        """Stores another attempt at a unit whose order had no effect."""
        unit = replanned(reservation.units[ordinal])
        row = reservation.with_unit(unit)
        ended = attempts_between(reservation, row)
        return await self._steps.store(row, "reservation.retry", actor, f"tag {unit.tag}", attempts=ended)

    async def lose(
        self,
        reservation: Reservation,
        ordinals: Sequence[int],
        reason: str,
        actor: str,
        *,
        at: Mapping[int, datetime] | None = None,
        leases: Sequence[Lease] = (),
        beside: Beside | None = None,
    ) -> Reservation:
        """Stores that units are no longer held; ``at`` has their ends by ordinal where they are not now.

        ``leases`` are as last listed, with their refunds. ``beside`` writes the replacement in the same
        transaction.
        """
        row = without(with_money(reservation, leases), ordinals, reason, self._clock.now(), at, leases)
        gone, attempts = sum(row.units[one].nodes for one in ordinals), attempts_between(reservation, row)
        detail = f"{gone} of {row.nodes} nodes gone" + (f": {reason}" if reason else "")
        return await self._steps.store(
            row, "reservation.gone", actor, detail, attempts=attempts, beside=beside
        )

    async def move(
        self, reservation: Reservation, state: ReservationState, actor: str, leases: Iterable[Lease] = ()
    ) -> Reservation:
        """Stores a state that the provider reports, and the amounts in ``leases``."""
        row = in_state(with_money(reservation, leases), state, self._clock.now())
        attempts = attempts_between(reservation, row)
        return await self._steps.store(row, f"reservation.{state}", actor, "", attempts=attempts)

    async def book(self, reservation: Reservation, leases: Iterable[Lease], actor: str) -> Outcome:
        """Stores billed amounts and prices that the provider reports; gives back what is above its limit."""
        row = with_money(reservation, leases)
        row = await self._steps.store(row, "reservation.billed", actor, money_in_words(row))
        return await self.within_limit(row, actor)

    async def take_rates(
        self, rows: Iterable[Reservation], rates: Iterable[ExchangeRate], actor: str
    ) -> None:
        """Stores newer exchange rates, from today on, of what is billed in another currency."""
        known, today = tuple(rates), self._clock.now().date()
        for row in rows:
            offer, exchange = row.offer, row.offer.native.exchange
            if row.state not in RATED or exchange is None or exchange.billed_per_node_hour is None:
                continue
            rate = rate_on(known, offer.native.currency, today)
            newer = exchange if rate is None else exchange.with_rate(rate, today)
            if newer != exchange:
                native = replace(offer.native, exchange=newer)
                words = age_words(native.currency, newer.rates[-1], today)
                rated = replace(row, offer=replace(offer, native=native))
                with suppress(ConcurrentChange):
                    await self._steps.store(rated, "reservation.exchange_rate", actor, words)

    async def grant(self, reservation: Reservation, window: Window, actor: str) -> Reservation:
        """Stores the window that the provider grants."""
        row = replace(reservation, granted=window)
        span = f"{instant_words(window.start)} to {instant_words(window.end)}"
        return await self._steps.store(row, "reservation.granted", actor, span)

    async def note_start(
        self, reservation: Reservation, ordinal: int, run: StartupRun, actor: str
    ) -> Reservation:
        """Stores how the start of a unit's machines stands, with an audit entry once it is over."""
        row = reservation.with_unit(replace(reservation.units[ordinal], startup=run))
        code = "" if run.exit_code is None else f", exit code {run.exit_code}"
        said = f"unit {ordinal}{code}" + (f": {run.error}" if run.error else "")
        failed = run.state is StartupState.FAILED
        action = "reservation.start_failed" if failed else "reservation.start_done"
        return await self._steps.store(row, action, actor, said, is_news=run.is_over)

    async def extend(self, reservation: Reservation, end: datetime, actor: str) -> Reservation:
        """Stores a later end as the requested one."""
        wish = None if reservation.requested is None else replace(reservation.requested, end=end)
        row = replace(reservation, end=end, requested=wish)
        return await self._steps.store(row, "reservation.extend", actor, f"until {end:%d %b %Y %H:%M} UTC")

    async def abandon(
        self,
        reservation: Reservation,
        reason: str,
        actor: str,
        *,
        whole_plan: bool,
        besides: Sequence[Reservation] = (),
    ) -> tuple[Reservation, ...]:
        """Gives a reservation up in one transaction, then releases it.

        ``whole_plan``: the other reservations of its plan, or of its move, too. ``besides`` were given up
        before; they count in the cost that the plan's audit entry states.
        """
        for attempt in range(TRIES):
            try:
                rows = await self._give_up(reservation.reservation_id, reason, actor, whole_plan=whole_plan)
                break
            except ConcurrentChange:
                if attempt == TRIES - 1:
                    raise
        left = tuple([await self.release_held(row, actor) for row in rows])
        if whole_plan and left[0].plan_id is not None:
            await self._tell_cost(left[0].plan_id, (*left, *besides), actor)
        return left

    async def _tell_cost(self, plan_id: str, left: Sequence[Reservation], actor: str) -> None:
        """Adds an audit entry to the plan with the cost of giving it back."""
        now, team = self._clock.now(), left[0].team
        bill = str(release_bill(left, now))
        entry = AuditEntry(now, actor, "plan.given_back", "plan", plan_id, team, bill)
        async with self._uow_factory(EVERY_TEAM) as uow:
            await uow.accounts.add_audit(entry)
            crash_points.here("plan.given_back.before")
            await uow.commit()
            crash_points.here("plan.given_back.after")

    async def _give_up(
        self, reservation_id: str, reason: str, actor: str, *, whole_plan: bool
    ) -> tuple[Reservation, ...]:
        async with self._uow_factory(EVERY_TEAM) as uow:
            first = await uow.reservations.find(reservation_id)
            rows = [first]
            if whole_plan and first.plan_id is not None:
                rows.extend(other for other in await uow.reservations.find_open() if is_beside(other, first))
            left = await self.give_up_rows(uow, rows[:1], reason, actor)
            others = f"{WITH_THE_REST}: {first.offer.provider} refused {first.workload or 'a part of it'}"
            left += await self.give_up_rows(uow, rows[1:], others, actor)
            if whole_plan and first.plan_id is not None and not first.replaces:
                plan = await uow.plans.find(first.plan_id)
                await uow.plans.update(replace(plan, reserved_at=None))
            crash_points.here("reservation.abandon.before")
            await uow.commit()
            crash_points.here("reservation.abandon.after")
        return left

    async def give_up_rows(
        self, uow: UnitOfWork, rows: Iterable[Reservation], reason: str, actor: str
    ) -> tuple[Reservation, ...]:
        """Stores ``rows`` as ending in ``uow``. The caller commits it, and then releases them."""
        left = []
        for row in rows:
            if row.is_open and row.state is not ReservationState.RELEASING:
                gone = let_go(row, reason, self._clock.now(), wanted=False)
                left.append(await uow.reservations.update(gone))
                await uow.accounts.add_audit(self._steps.entry(gone, "reservation.abandon", actor, reason))
            else:
                left.append(row)
        return tuple(left)

    async def begin_release(self, reservation: Reservation, reason: str, actor: str) -> Reservation:
        """Stores that the reservation is to end; if nothing was bought, it ends at once."""
        row = let_go(reservation, reason, self._clock.now(), wanted=True)
        return await self._steps.store(row, "reservation.release", actor, reason)

    async def release_held(self, reservation: Reservation, actor: str) -> Reservation:
        """Asks the provider to end every held unit, and stores those that ended."""
        if reservation.state is not ReservationState.RELEASING:
            return reservation
        early = reservation.ends_at is not None and self._clock.now() < reservation.ends_at
        if early and ends_by_itself(reservation.offer):
            return reservation
        gone, shown = [], []
        for unit in reservation.units:
            if unit.state is UnitState.HELD:
                last = await self._releaser.end(lease_for(reservation, unit))
                if last is not None:
                    gone.append(unit.ordinal)
                    shown.append(last)
        if not gone:
            return reservation
        try:
            at = end_times(reservation, gone, shown, {})
            return await self.lose(reservation, gone, "", actor, at=at, leases=shown)
        except ConcurrentChange:
            return await self._steps.reload(reservation)

    async def end_failed(self, row: Reservation, ordinals: Sequence[int], leases: Iterable[Lease]) -> bool:
        """Asks the provider to end those of the units' leases that it shows as failed; False: ask again."""
        references = {row.units[one].reference for one in ordinals}
        failed = (one for one in leases if one.state is LeaseState.FAILED and one.reference in references)
        return await self._releaser.end_failed(failed)

    async def ask_release(self, reservation: Reservation, leases: Sequence[Lease], actor: str) -> Reservation:
        """Asks the provider to end ``leases``; if it refuses, its error becomes the reservation's reason.

        There is an audit entry only if the error changed. A permanent refusal is not repeated before the
        reservation's end.
        """
        reserver, failed, asked = self.reserver(reservation.offer.provider), None, False
        over = reservation.ends_at is not None and reservation.ends_at <= self._clock.now()
        for lease in leases:
            if not over and (lease.provider, lease.reference) in self._not_before_end:
                continue
            try:
                asked = True
                crash_points.here("call.release_again.before")
                await reserver.release(lease)
                crash_points.here("call.release_again.after")
            except LeaseNotFound:
                continue
            except ProviderError as error:
                failed = error
                if isinstance(error, ReleaseRefused) and error.forever:
                    self._not_before_end.add((lease.provider, lease.reference))
        if failed is not None:
            return await self._release_refused(reservation, failed, actor)
        if reservation.tries and asked:
            taken = replace(untried(reservation), reason=because(reservation, TAKEN))
            return await self._steps.store(taken, "reservation.release_taken", actor, taken.reason)
        return reservation

    async def _release_refused(
        self, reservation: Reservation, error: ProviderError, actor: str
    ) -> Reservation:
        noted = release_refused(tried(reservation, self._clock.now()), error)
        is_news = str(error).removeprefix(f"{error.provider}: ") not in reservation.reason
        return await self._steps.store(
            noted,
            "reservation.release_refused",
            actor,
            noted.reason,
            error.request_id,
            is_news=is_news,
        )

    async def reload(self, reservation: Reservation) -> Reservation:
        """The current row from the database."""
        return await self._steps.reload(reservation)

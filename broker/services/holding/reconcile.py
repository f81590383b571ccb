"""Reconciling: passes that bring stored reservations and the providers' leases into agreement."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.errors import (
    BrokerError,
    ConcurrentChange,
    LeaseNotFound,
    OrdersBarred,
    OverCap,
    PriceAboveLimit,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
)
from broker.domain.holding.holding_orders import Outcome, bought_later
from broker.domain.holding.reservation import Lease, Reservation, ReservationState, UnitState
from broker.domain.market.exchange import ExchangeRate
from broker.domain.market.market import ChangeKind, OfferChange
from broker.domain.moving.moving import OpenRows, handover
from broker.domain.reconciling.ending import running_units
from broker.domain.reconciling.entering import changed_machines
from broker.domain.reconciling.lease_effects import LeaseEffect, effects_of, orphan_effect
from broker.domain.reconciling.reconciling import (
    decide,
    find_orphaned_leases,
    is_behind,
    is_due,
    missing_units,
    quiet_since,
)
from broker.domain.reconciling.reconciling_actions import (
    Abandon,
    Action,
    Adopt,
    BeginRelease,
    Book,
    Buy,
    Grant,
    Lost,
    MoveTo,
    ReconcileInput,
    Release,
    Resend,
    Retry,
    Wait,
)
from broker.domain.reconciling.replacing import replacement_of, unreplaced
from broker.domain.reconciling.shortfalls import as_refused, find_shortfalls, shortfall_at
from broker.ports.unit_of_work import Clock, Notifier, UnitOfWork, UnitOfWorkFactory
from broker.services.holding.buyer import Buyer

log = logging.getLogger(__name__)

ACTOR = "reconciler"
SHORT = "reservation.short"
"""The event that a workload lacks nodes in some hours."""


@dataclass(frozen=True, slots=True)
class ReconcileRules:
    """Times and limits of a pass.

    ``order_grace``: how long an unanswered order may be in flight or unlisted; longer than any call.
    ``orphan_grace``: how long an orphaned lease is watched before it is released. A pass releases at most
    ``max_orphans``; ``report_only`` releases none, and ``keep_orphans`` books them as reservations instead.
    ``second_look``: a lease is gone if it is missing from two lists that are this far apart.
    ``list_limit_s``: timeout of a list of leases; the pass continues without that provider.
    """

    order_grace: timedelta = timedelta(minutes=2)
    orphan_grace: timedelta = timedelta(minutes=15)
    max_orphans: int = 3
    report_only: bool = False
    keep_orphans: bool = False
    second_look: timedelta = timedelta(seconds=10)
    list_limit_s: float = 30.0


@dataclass(frozen=True, slots=True)
class UnreadList:
    """A provider whose list of leases cannot be read, since when, and why.

    Its reservations do not change until the list can be read again.
    """

    provider: str
    since: datetime
    error: str


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """One pass: the action per reservation, orphaned leases seen and released, and errors.

    ``unread``: providers whose list of leases could not be read, each also in ``errors``.
    ``alarm``: more orphaned leases were due than one pass may release. ``sold_out``: offers that were refused
    without a fallback although a plan needs them now, as market changes for the re-optimization.
    """

    started_at: datetime
    actions: tuple[tuple[str, str], ...] = ()
    orphans: tuple[Lease, ...] = ()
    released: tuple[Lease, ...] = ()
    alarm: bool = False
    errors: tuple[str, ...] = ()
    unread: tuple[UnreadList, ...] = ()
    sold_out: tuple[OfferChange, ...] = ()


class ReconcileService:
    """Finishes steps that crashes interrupted, follows the providers' states, and releases orphaned leases.

    ``rates`` are the exchange rates known now. One pass at a time.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        buying: Buyer,
        clock: Clock,
        notifier: Notifier,
        *,
        rules: ReconcileRules | None = None,
        rates: Callable[[], Iterable[ExchangeRate]] = tuple,
    ) -> None:
        self._rates = rates
        self._uow_factory = uow_factory
        self._clock = clock
        self._notifier = notifier
        self._rules = rules or ReconcileRules()
        self._lease_service = buying.lease_service
        self._reservers = buying.lease_service.reservers
        self._creator = buying.creator
        self._fallback_offers = buying.fallback_offers
        self._missed: dict[str, dict[int, datetime]] = {}
        self._orphan_since: dict[tuple[str, str], datetime] = {}
        self._untagged_since: dict[tuple[str, str], datetime] = {}
        self._sold_out: list[OfferChange] = []
        self._unread: dict[str, UnreadList] = {}
        self._passing = asyncio.Lock()

    def unread_lists(self) -> Mapping[str, UnreadList]:
        """Providers whose list of leases could not be read in the last pass of this process."""
        return self._unread

    async def run_once(self) -> ReconcileReport:
        """One pass: lists the leases of every provider, then takes one action per open reservation.

        A provider whose leases cannot be listed is skipped in this pass, and named in ``errors``.
        """
        async with self._passing:
            report, self._sold_out = ReconcileReport(self._clock.now()), []
            clouds, unread = await self._list_clouds()
            errors = list(unread.values())
            self._note_unread(unread, report.started_at)
            async with self._uow_factory(EVERY_TEAM) as uow:
                rows = await uow.reservations.find_open()
                install_id = await uow.accounts.install_id()
            await self._note_seen(rows, clouds, report.started_at)
            await self._lease_service.take_rates(rows, self._rates(), ACTOR)
            actions, known = [], OpenRows(rows)
            for row in rows:
                if row.offer.provider in clouds:
                    name, error = await self._try_to_advance(row, clouds, known)
                    if error is not None:
                        errors.append(f"{row.reservation_id}: {error}")
                    if name != Wait.__name__:
                        actions.append((row.reservation_id, name))
                        known = known if row.plan_id is None else await self._find_open()
            report = replace(
                report,
                actions=tuple(actions),
                errors=tuple(errors),
                unread=tuple(self._unread.values()),
                sold_out=tuple(self._sold_out),
            )
            return await self._sweep(report, clouds, install_id)

    def _note_unread(self, unread: Mapping[str, str], at: datetime) -> None:
        before = self._unread
        self._unread = {
            name: UnreadList(name, before[name].since if name in before else at, error)
            for name, error in unread.items()
        }
        for name in self._unread.keys() - before.keys():
            log.error(
                "leases at %s cannot be listed; their reservations stay as they are: %s", name, unread[name]
            )
        for name in before.keys() - self._unread.keys():
            log.warning("the leases at %s can be listed again", name)

    async def _list_clouds(self) -> tuple[dict[str, Sequence[Lease]], dict[str, str]]:
        """Leases by provider, and the error by provider whose leases could not be listed."""
        names = list(self._reservers)
        answers = await asyncio.gather(*(self._list_leases(name) for name in names), return_exceptions=True)
        clouds: dict[str, Sequence[Lease]] = {}
        unread: dict[str, str] = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, ProviderError):
                unread[name] = str(answer)
            elif isinstance(answer, Exception):
                log.error("listing the leases at %s failed unexpectedly", name, exc_info=answer)
                unread[name] = f"{name}: unexpected {type(answer).__name__}: {answer}"
            elif isinstance(answer, BaseException):
                raise answer
            else:
                clouds[name] = answer
        return clouds, unread

    async def _list_leases(self, name: str) -> Sequence[Lease]:
        """Our leases at a provider, with a time limit, so that a slow provider delays no other."""
        limit_s = self._rules.list_limit_s
        try:
            async with asyncio.timeout(limit_s):
                crash_points.here("call.list.before")
                leases = await self._reservers[name].list_leases()
                crash_points.here("call.list.after")
                return leases
        except TimeoutError as error:
            raise ProviderUnavailable(
                name, f"its list of leases did not arrive within {limit_s:g} s"
            ) from error

    async def _note_seen(
        self, rows: Sequence[Reservation], clouds: Mapping[str, Sequence[Lease]], at: datetime
    ) -> None:
        """Stores which units were seen running, and how their machines are entered.

        A unit that is lost later ran at least until it was last seen.
        """
        seen = [unit for row in rows for unit in running_units(row, clouds.get(row.offer.provider, ()))]
        entered = changed_machines(rows, clouds, {name: self._reservers[name].ssh_port for name in clouds})
        if seen or entered:
            async with self._uow_factory(EVERY_TEAM) as uow:
                await uow.reservations.note_seen(seen, at)
                await uow.reservations.note_machines(entered)
                crash_points.here("reservation.seen.before")
                await uow.commit()
                crash_points.here("reservation.seen.after")

    async def _find_open(self) -> OpenRows:
        async with self._uow_factory(EVERY_TEAM) as uow:
            return OpenRows(await uow.reservations.find_open())

    async def _try_to_advance(
        self, row: Reservation, clouds: Mapping[str, Sequence[Lease]], known: OpenRows
    ) -> tuple[str, str | None]:
        """The name of the action, and the error if it failed, which does not stop the other reservations."""
        try:
            if self._rests(row.reservation_id, clouds, known):
                return Wait.__name__, None
            return await self._advance(row, clouds, known), None
        except ConcurrentChange:
            return "overtaken", None
        except BrokerError as error:
            return "failed", str(error)
        except Exception as error:  # a fault of one adapter; the next pass tries again
            log.exception("reconciling %s failed unexpectedly", row.reservation_id)
            return "failed", f"unexpected {type(error).__name__}: {error}"

    async def preview(self) -> tuple[tuple[LeaseEffect, ...], Mapping[str, str]]:
        """The effects that passes would have now, and errors by provider that cannot be listed; changes
        nothing.

        It counts missing leases as gone at once, and orphaned leases as past their grace time.
        """
        async with self._passing:
            clouds, unread = await self._list_clouds()
            async with self._uow_factory(EVERY_TEAM) as uow:
                rows = await uow.reservations.find_open()
                install_id = await uow.accounts.install_id()
            found: list[LeaseEffect] = []
            known = OpenRows(rows)
            for row in rows:
                if row.offer.provider in clouds:
                    current, action, sight = await self._decided(row, clouds, known, timedelta(0))
                    found.extend(effects_of(current, action, sight.now))
            for provider, leases in clouds.items():
                mine = [row for row in rows if row.offer.provider == provider]
                found.extend(
                    orphan_effect(lease, kept=self._rules.keep_orphans)
                    for lease in find_orphaned_leases(leases, mine, install_id)
                )
            return tuple(found), unread

    def _rests(self, name: str, clouds: Mapping[str, Sequence[Lease]], known: OpenRows) -> bool:
        """Whether the reservation in ``known`` needs no action.

        False also if its provider has to be asked about it alone. Actions are decided later, on the row as it
        is then.
        """
        row = known.find(name)
        if row is None:
            return True
        leases = clouds[row.offer.provider]
        if missing_units(row, leases) or known.successors(row):
            return False
        sight = self._sight(row, leases, known.siblings(row), self._rules.second_look)
        return isinstance(decide(row, sight), Wait)

    async def _advance(self, row: Reservation, clouds: Mapping[str, Sequence[Lease]], known: OpenRows) -> str:
        """Decides on the current row of a reservation, and acts. Returns the name of the action."""
        row, action, sight = await self._decided(row, clouds, known, self._rules.second_look)
        if not isinstance(action, Wait) and not await self._claim(row):
            return Wait.__name__
        await self._act(row, action, sight)
        return type(action).__name__

    async def _decided(
        self,
        row: Reservation,
        clouds: Mapping[str, Sequence[Lease]],
        known: OpenRows,
        second_look: timedelta,
    ) -> tuple[Reservation, Action, ReconcileInput]:
        """The current row of a reservation, the action for it, and the input of that decision."""
        leases = clouds[row.offer.provider]
        alone = row.plan_id is None and not known.successors(row)
        async with self._uow_factory(EVERY_TEAM) as uow:
            row = await uow.reservations.find(row.reservation_id)
            known = OpenRows(()) if alone else OpenRows(await uow.reservations.find_open())
        shown = [*leases, *await self._second_look(row, leases)]
        sight = self._sight(row, shown, known.siblings(row), second_look)
        successors = known.successors(row)
        seen = [other for other in successors if await self._is_seen(other, clouds)]
        return row, handover(row, successors, seen, sight.now) or decide(row, sight), sight

    def _sight(
        self,
        row: Reservation,
        leases: Sequence[Lease],
        siblings: Sequence[Reservation],
        second_look: timedelta,
    ) -> ReconcileInput:
        return ReconcileInput(
            now=self._clock.now(),
            leases=leases,
            idempotency=self._reservers[row.offer.provider].idempotency,
            order_grace=self._rules.order_grace,
            quiet_since=quiet_since(row, siblings),
            behind=is_behind(row, siblings),
            missed=self._missed_since(row, leases),
            second_look=second_look,
        )

    async def _is_seen(self, row: Reservation, clouds: Mapping[str, Sequence[Lease]]) -> bool:
        """Whether its provider lists all held units of ``row`` in this pass."""
        leases = clouds.get(row.offer.provider)
        if leases is None:
            return False
        return not missing_units(row, [*leases, *await self._second_look(row, leases)])

    def _missed_since(self, row: Reservation, leases: Sequence[Lease]) -> dict[int, datetime]:
        """Since when each held unit is missing, by ordinal. A unit that is listed again is forgotten."""
        now, before = self._clock.now(), self._missed.pop(row.reservation_id, {})
        missed = {u.ordinal: before.get(u.ordinal, now) for u in missing_units(row, leases)}
        if missed:
            self._missed[row.reservation_id] = missed
        return missed

    async def _claim(self, row: Reservation) -> bool:
        """Claims ``row`` for this process; False if another process acts on it."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            claimed = await uow.reservations.claim(row.reservation_id)
            crash_points.here("reservation.claim.before")
            await uow.commit()
            crash_points.here("reservation.claim.after")
        return claimed

    async def _second_look(self, row: Reservation, leases: Sequence[Lease]) -> list[Lease]:
        """Held leases that are missing from the list and are found by their id."""
        listed = {lease.reference for lease in leases}
        reserver = self._reservers[row.offer.provider]
        found = []
        for unit in row.units:
            if unit.state is UnitState.HELD and unit.reference is not None and unit.reference not in listed:
                try:
                    crash_points.here("call.second_look.before")
                    found.append(await reserver.find_lease(unit.reference, row.offer.region))
                    crash_points.here("call.second_look.after")
                except LeaseNotFound:
                    continue
        return found

    async def _act(self, row: Reservation, action: Action, sight: ReconcileInput) -> None:
        lease_service = self._lease_service
        match action:
            case Wait():
                return
            case Buy():
                await self._follow_up(await lease_service.buy(row, ACTOR))
            case Resend(ordinal):
                outcome = await lease_service.resend(row, ordinal, ACTOR, list(sight.leases))
                await self._follow_up(outcome)
            case Adopt(ordinal, lease, extras):
                adopted = await lease_service.adopt(row, ordinal, lease, sight.leases, ACTOR)
                for extra in extras:
                    await lease_service.adopt_orphan(extra, sight.now, ACTOR)
                await self._follow_up(await lease_service.within_limit(adopted, ACTOR))
            case Retry(ordinal):
                await lease_service.retry(row, ordinal, ACTOR)
            case Book():
                outcome = await lease_service.book(row, sight.leases, ACTOR)
                if outcome.error is not None:
                    await self._follow_up(outcome)
            case Release(leases):
                await lease_service.ask_release(row, leases, ACTOR)
            case _:
                await self._conclude(row, action, sight.leases)

    async def _conclude(self, row: Reservation, action: Action, leases: Sequence[Lease]) -> None:
        """Takes an action that changes only our rows, and notifies of it."""
        match action:
            case Abandon(reason, whole_plan):
                for left in await self._lease_service.abandon(row, reason, ACTOR, whole_plan=whole_plan):
                    await self._tell(left)
            case Lost():
                await self._lose(row, action, leases)
            case MoveTo(state):
                await self._tell(await self._lease_service.move(row, state, ACTOR, leases))
            case Grant(window):
                await self._tell(await self._lease_service.grant(row, window, ACTOR))
            case BeginRelease(reason):
                leaving = await self._lease_service.begin_release(row, reason, ACTOR)
                await self._tell(await self._lease_service.release_held(leaving, ACTOR))

    async def _lose(self, row: Reservation, lost: Lost, leases: Sequence[Lease]) -> None:
        """Stores a loss, together with its replacement if there has to be one."""
        lease_service, ends = self._lease_service, dict(lost.at)
        if not await lease_service.end_failed(row, lost.ordinals, leases):
            return
        wanted = replacement_of(row, lost.ordinals, self._clock.now())
        if wanted is None:
            reason = unreplaced(row, lost.reason)
            left = await lease_service.lose(row, lost.ordinals, reason, ACTOR, at=ends, leases=leases)
            await self._tell(left, "reservation.changed" if reason == lost.reason else "reservation.lost")
            return
        why = f"in place of {wanted.nodes} nodes of {row.reservation_id}, {lost.reason}"

        async def replace_them(uow: UnitOfWork) -> None:
            await self._creator.draft(
                uow,
                (wanted,),
                row.team,
                ACTOR,
                row.plan_id,
                why,
                replaces=row.replaces,
                though_none_left=True,
                setups={row.workload: row.setup},
            )

        try:
            async with self._creator.turn:
                left = await lease_service.lose(
                    row, lost.ordinals, lost.reason, ACTOR, at=ends, leases=leases, beside=replace_them
                )
        except (OrdersBarred, OverCap) as error:
            reason = f"{lost.reason}; it is not bought again: {error}"
            left = await lease_service.lose(row, lost.ordinals, reason, ACTOR, at=ends, leases=leases)
        await self._tell(left, "reservation.lost")

    async def _follow_up(self, outcome: Outcome) -> None:
        """Reacts to the outcome of an order.

        After a refusal a fallback offer is tried. If there is none, a first purchase is given up with its
        plan, a later one waits for its next try, and what was to be held early for its start.
        """
        row = outcome.reservation
        is_leaving = not row.is_open or row.state is ReservationState.RELEASING
        was_given_back = isinstance(outcome.error, PriceAboveLimit)
        is_over = (is_leaving and not was_given_back) or not is_due(row, self._clock.now())
        if not outcome.refused or is_over:
            if outcome.is_news:
                await self._tell(row)
        elif bought_later(row.offer, row.start, row.created_at):
            limited = isinstance(outcome.error, RateLimited)
            if (limited or not await self._take_next_best(outcome, later=True)) and outcome.is_news:
                await self._tell_short(row, outcome.error)
        elif not isinstance(outcome.error, RateLimited) and not await self._take_next_best(outcome):
            for left in await self._lease_service.abandon(row, str(outcome.error), ACTOR, whole_plan=True):
                await self._tell(left)

    async def _take_next_best(self, outcome: Outcome, *, later: bool = False) -> bool:
        """Whether a fallback offer replaced the refused one; later passes buy it."""
        if self._fallback_offers is None or outcome.error is None:
            return False
        taken = await self._fallback_offers.take(
            outcome.reservation, outcome.error, ACTOR, self._lease_service, self._creator, later=later
        )
        return bool(taken)

    async def _tell_short(self, row: Reservation, error: ProviderError | None) -> None:
        """Stores and notifies of a shortfall, and reports the offer as sold out for a re-optimization."""
        now = self._clock.now()
        was_given_back = not row.is_open or row.state is ReservationState.RELEASING
        async with self._uow_factory(EVERY_TEAM) as uow:
            beside = [
                other
                for other in await uow.reservations.find_open()
                if (other.plan_id, other.workload) == (row.plan_id, row.workload)
                and (row.plan_id is not None or other.reservation_id == row.reservation_id)
                and not (was_given_back and other.reservation_id == row.reservation_id)
            ]
            if was_given_back:
                beside.append(as_refused(row))
            short = shortfall_at(find_shortfalls(beside, now), max(row.start, now))
            if short is None:
                return
            words = str(short)
            if row.plan_id is not None:
                words += "; nothing else was found within the price tolerance"
            await uow.accounts.add_audit(
                AuditEntry(now, ACTOR, SHORT, "reservation", row.reservation_id, row.team, words)
            )
            crash_points.here("reservation.short.before")
            await uow.commit()
            crash_points.here("reservation.short.after")
        await self._tell(row, SHORT)
        if row.plan_id is not None and not isinstance(error, RateLimited):
            price = row.offer.price_usd_per_node_hour
            self._sold_out.append(
                OfferChange(ChangeKind.STOCK, row.offer.offer_id, row.offer.provider, now, price, price)
            )

    async def _sweep(
        self, report: ReconcileReport, clouds: Mapping[str, Sequence[Lease]], install_id: str
    ) -> ReconcileReport:
        """Watches orphaned leases, and releases those past their grace time."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            rows = await uow.reservations.find_open()
        by_provider: defaultdict[str, list[Reservation]] = defaultdict(list)
        for row in rows:
            by_provider[row.offer.provider].append(row)
        orphans = [
            lease
            for provider, leases in clouds.items()
            for lease in find_orphaned_leases(leases, by_provider[provider], install_id)
        ]
        await self._book_orphans(rows, clouds)
        due = self._past_grace(orphans, clouds)
        released = []
        if not self._rules.report_only:
            for lease in due[: self._rules.max_orphans]:
                seen_at = self._orphan_since[lease.provider, lease.reference]
                await self._lease_service.adopt_orphan(lease, seen_at, ACTOR, keep=self._rules.keep_orphans)
                if not self._rules.keep_orphans:
                    released.append(lease)
        alarm = len(due) > self._rules.max_orphans
        if alarm:
            log.error("%d orphaned leases are due, more than one pass may release", len(due))
        return replace(report, orphans=tuple(orphans), released=tuple(released), alarm=alarm)

    async def _book_orphans(self, rows: Sequence[Reservation], clouds: Mapping[str, Sequence[Lease]]) -> None:
        """Books untagged leases that no reservation holds and that orders with lost answers probably left."""
        held = {unit.reference for row in rows for unit in row.units}
        free = [
            lease
            for leases in clouds.values()
            for lease in leases
            if lease.tag is None and lease.reference not in held
        ]
        now, before = self._clock.now(), self._untagged_since
        gone = {key: since for key, since in before.items() if key[0] not in clouds}
        keys = ((lease.provider, lease.reference) for lease in free)
        self._untagged_since = gone | {key: before.get(key, now) for key in keys}
        booked = await self._lease_service.book_orphans(free, self._untagged_since, ACTOR) if free else ()
        for row in booked:
            await self._tell(row, "lease.orphaned")

    def _past_grace(self, orphans: Sequence[Lease], clouds: Mapping[str, object]) -> list[Lease]:
        now = self._clock.now()
        seen = {(lease.provider, lease.reference) for lease in orphans}
        self._orphan_since = {
            key: since for key, since in self._orphan_since.items() if key in seen or key[0] not in clouds
        }
        for key in seen:
            self._orphan_since.setdefault(key, now)
        return [
            lease
            for lease in orphans
            if now - self._orphan_since[lease.provider, lease.reference] >= self._rules.orphan_grace
        ]

    async def _tell(self, row: Reservation, event: str = "reservation.changed") -> None:
        await self._notifier.notify(event, row.team, row.news)

"""Reconciling: passes that bring our rows and the providers' ledgers together."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.errors import (
    BrokerError,
    ConcurrentChange,
    LeaseNotFound,
    PriceAboveLimit,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
)
from broker.domain.holding.holding_orders import bought_later
from broker.domain.holding.outcome import Outcome
from broker.domain.holding.reservation import Lease, Reservation, ReservationState, UnitState
from broker.domain.market.market import ChangeKind, OfferChange
from broker.domain.moving.moving import OpenRows, handover
from broker.domain.reconciling.ending import running_units
from broker.domain.reconciling.lease_effects import LeaseEffect, effects_of, orphan_effect
from broker.domain.reconciling.reconciling import (
    decide,
    find_orphaned_leases,
    is_behind,
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
from broker.ports.holding import Reserver
from broker.ports.unit_of_work import Clock, Notifier, UnitOfWork, UnitOfWorkFactory
from broker.services.holding.fallback_offer import FallbackOffers
from broker.services.holding.lease_service import LeaseService
from broker.services.holding.reservation_creator import ReservationCreator

log = logging.getLogger(__name__)

ACTOR = "reconciler"
SHORT = "reservation.short"
"""The event that some hours of a workload lack nodes."""


@dataclass(frozen=True, slots=True)
class ReconcileRules:
    """``settle``: how long an unanswered order may be in flight or not yet listed; longer than any call.

    ``stray_grace``: how long a lease that nobody asked for is watched before it is released, at most
    ``max_strays`` a pass; ``report_only`` releases none, and ``keep_strays`` books them as reservations that
    run on. ``second_look``: what is not shown any more is gone when it is not shown this much later either.
    ``list_limit_s``: a list of leases that takes longer is not read in this pass, which goes on without it.
    """

    settle: timedelta = timedelta(minutes=2)
    stray_grace: timedelta = timedelta(minutes=15)
    max_strays: int = 3
    report_only: bool = False
    keep_strays: bool = False
    second_look: timedelta = timedelta(seconds=10)
    list_limit_s: float = 30.0


@dataclass(frozen=True, slots=True)
class UnreadList:
    """A provider whose list of leases cannot be read: since which pass, and why.

    Until it can be read again its reservations stay as they are.
    """

    provider: str
    since: datetime
    error: str


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """One pass: what was done to which reservation, strays seen and released, what failed.

    ``unread``: providers whose list of leases could not be read, each also in ``errors``.
    ``alarm``: more strays were due than one pass may release. ``sold_out``: offers whose sellers refused what
    a plan needs now, with nothing in its place: a change of the market, for whoever looks at plans again.
    """

    started_at: datetime
    actions: tuple[tuple[str, str], ...] = ()
    strays: tuple[Lease, ...] = ()
    released: tuple[Lease, ...] = ()
    alarm: bool = False
    errors: tuple[str, ...] = ()
    unread: tuple[UnreadList, ...] = ()
    sold_out: tuple[OfferChange, ...] = ()


class ReconcileService:
    """Finishes what crashes left, follows the providers' states, and cleans up after both.

    ``reservers`` by provider key. One pass at a time.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        reservers: Mapping[str, Reserver],
        clock: Clock,
        notifier: Notifier,
        *,
        rules: ReconcileRules | None = None,
        creator: ReservationCreator | None = None,
        fallback_offers: FallbackOffers | None = None,
    ) -> None:
        self._uow_factory = uow_factory
        self._reservers = reservers
        self._clock = clock
        self._notifier = notifier
        self._rules = rules or ReconcileRules()
        self._lease_service = LeaseService(uow_factory, reservers, clock)
        self._creator = creator or ReservationCreator(self._lease_service, clock)
        self._fallback_offers = fallback_offers
        self._missed: dict[str, dict[int, datetime]] = {}
        self._stray_since: dict[tuple[str, str], datetime] = {}
        self._untagged_since: dict[tuple[str, str], datetime] = {}
        self._sold_out: list[OfferChange] = []
        self._unread: dict[str, UnreadList] = {}
        self._passing = asyncio.Lock()

    def unread_lists(self) -> Mapping[str, UnreadList]:
        """Providers whose list of leases could not be read in the last pass of this process."""
        return self._unread

    async def run_once(self) -> ReconcileReport:
        """One pass: lists every provider, then takes one action for each open reservation.

        A provider that cannot be listed is left alone in this pass, and named in ``errors``.
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
                "leases at %s stay as they are, nobody knows what became of them: %s", name, unread[name]
            )
        for name in before.keys() - self._unread.keys():
            log.warning("the leases at %s can be listed again", name)

    async def _list_clouds(self) -> tuple[dict[str, Sequence[Lease]], dict[str, str]]:
        """Leases by provider, and in words why a provider's could not be listed."""
        names = list(self._reservers)
        answers = await asyncio.gather(*(self._list_leases(name) for name in names), return_exceptions=True)
        clouds: dict[str, Sequence[Lease]] = {}
        unread: dict[str, str] = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, ProviderError):
                unread[name] = str(answer)
            elif isinstance(answer, Exception):
                log.error("listing %s failed unexpectedly", name, exc_info=answer)
                unread[name] = f"{name}: unexpected {type(answer).__name__}: {answer}"
            elif isinstance(answer, BaseException):
                raise answer
            else:
                clouds[name] = answer
        return clouds, unread

    async def _list_leases(self, name: str) -> Sequence[Lease]:
        """What a provider has leased to us; nobody else waits for one that is slow."""
        limit_s = self._rules.list_limit_s
        try:
            async with asyncio.timeout(limit_s):
                crash_points.here("call.list.before")
                leases = await self._reservers[name].list_leases()
                crash_points.here("call.list.after")
                return leases
        except TimeoutError as error:
            raise ProviderUnavailable(name, f"its list of leases did not come in {limit_s:g} s") from error

    async def _note_seen(
        self, rows: Sequence[Reservation], clouds: Mapping[str, Sequence[Lease]], at: datetime
    ) -> None:
        """Notes what was running when its provider was listed: until then what goes later surely ran."""
        seen = [unit for row in rows for unit in running_units(row, clouds.get(row.offer.provider, ()))]
        if seen:
            async with self._uow_factory(EVERY_TEAM) as uow:
                await uow.reservations.note_seen(seen, at)
                crash_points.here("reservation.seen.before")
                await uow.commit()
                crash_points.here("reservation.seen.after")

    async def _find_open(self) -> OpenRows:
        async with self._uow_factory(EVERY_TEAM) as uow:
            return OpenRows(await uow.reservations.find_open())

    async def _try_to_advance(
        self, row: Reservation, clouds: Mapping[str, Sequence[Lease]], known: OpenRows
    ) -> tuple[str, str | None]:
        """The action's name, and what failed: one reservation must not stop the others."""
        try:
            if self._rests(row.reservation_id, clouds, known):
                return Wait.__name__, None
            return await self._advance(row, clouds, known), None
        except ConcurrentChange:
            return "overtaken", None
        except BrokerError as error:
            return "failed", str(error)
        except Exception as error:  # an adapter's own fault; the row stays as it is for the next pass
            log.exception("reconciling %s failed unexpectedly", row.reservation_id)
            return "failed", f"unexpected {type(error).__name__}: {error}"

    async def preview(self) -> tuple[tuple[LeaseEffect, ...], Mapping[str, str]]:
        """What passes would do as things stand, and which providers cannot be listed; does nothing.

        What is not shown counts as gone at once, and leases that nobody asked for as past their grace.
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
                    orphan_effect(lease, kept=self._rules.keep_strays)
                    for lease in find_orphaned_leases(leases, mine, install_id)
                )
            return tuple(found), unread

    def _rests(self, name: str, clouds: Mapping[str, Sequence[Lease]], known: OpenRows) -> bool:
        """Whether nothing is to be done about a reservation as it was read together with all others.

        False where its provider has to be asked about it alone. What is to be done is decided anew, on the
        row as it stands then.
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
        """Decides on one reservation as it stands now, and acts; the action's name."""
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
        """One reservation as it stands now, what is to be done with it, and what that was decided on."""
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
            settle=self._rules.settle,
            quiet_since=quiet_since(row, siblings),
            behind=is_behind(row, siblings),
            missed=self._missed_since(row, leases),
            second_look=second_look,
        )

    async def _is_seen(self, row: Reservation, clouds: Mapping[str, Sequence[Lease]]) -> bool:
        """Whether its provider shows all that is held of ``row`` in this pass."""
        leases = clouds.get(row.offer.provider)
        if leases is None:
            return False
        return not missing_units(row, [*leases, *await self._second_look(row, leases)])

    def _missed_since(self, row: Reservation, leases: Sequence[Lease]) -> dict[int, datetime]:
        """Since when each held unit is not shown; what shows again starts anew."""
        now, before = self._clock.now(), self._missed.pop(row.reservation_id, {})
        missed = {u.ordinal: before.get(u.ordinal, now) for u in missing_units(row, leases)}
        if missed:
            self._missed[row.reservation_id] = missed
        return missed

    async def _claim(self, row: Reservation) -> bool:
        """Whether no other process acts on ``row``."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            claimed = await uow.reservations.claim(row.reservation_id)
            crash_points.here("reservation.claim.before")
            await uow.commit()
            crash_points.here("reservation.claim.after")
        return claimed

    async def _second_look(self, row: Reservation, leases: Sequence[Lease]) -> list[Lease]:
        """Held leases that the list does not show, asked for one by one; what is gone stays out."""
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
                outcome = await lease_service.ask(row, ordinal, ACTOR, list(sight.leases))
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
        """Actions on our own rows, which others are told of."""
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
        """Stores a loss; in one transaction with what takes its place, where something has to."""
        lease_service, ends = self._lease_service, dict(lost.at)
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
            )

        async with self._creator.turn:
            left = await lease_service.lose(
                row, lost.ordinals, lost.reason, ACTOR, at=ends, leases=leases, beside=replace_them
            )
        await self._tell(left, "reservation.lost")

    async def _follow_up(self, outcome: Outcome) -> None:
        """After an order: a refusal ends a first purchase with its plan, and delays a later one.

        Either may find another way, a later one after each of its refusals.
        """
        row = outcome.reservation
        is_leaving = not row.is_open or row.state is ReservationState.RELEASING
        was_given_back = isinstance(outcome.error, PriceAboveLimit)
        if not outcome.refused or (is_leaving and not was_given_back):
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
        """Whether other intents took the place of what was refused; later passes buy them."""
        if self._fallback_offers is None or outcome.error is None:
            return False
        taken = await self._fallback_offers.take(
            outcome.reservation, outcome.error, ACTOR, self._lease_service, self._creator, later=later
        )
        return bool(taken)

    async def _tell_short(self, row: Reservation, error: ProviderError | None) -> None:
        """Says which hours are short of what, and has the plan looked at again without that offer."""
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
        """Watches leases of ours that no open intent is for, and releases those past their grace."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            rows = await uow.reservations.find_open()
        by_provider: defaultdict[str, list[Reservation]] = defaultdict(list)
        for row in rows:
            by_provider[row.offer.provider].append(row)
        strays = [
            lease
            for provider, leases in clouds.items()
            for lease in find_orphaned_leases(leases, by_provider[provider], install_id)
        ]
        await self._book_orphans(rows, clouds)
        due = self._past_grace(strays, clouds)
        released = []
        if not self._rules.report_only:
            for lease in due[: self._rules.max_strays]:
                seen_at = self._stray_since[lease.provider, lease.reference]
                await self._lease_service.adopt_orphan(lease, seen_at, ACTOR, keep=self._rules.keep_strays)
                if not self._rules.keep_strays:
                    released.append(lease)
        alarm = len(due) > self._rules.max_strays
        if alarm:
            log.error("%d leases carry our tag and nobody asked for them", len(due))
        return replace(report, strays=tuple(strays), released=tuple(released), alarm=alarm)

    async def _book_orphans(self, rows: Sequence[Reservation], clouds: Mapping[str, Sequence[Lease]]) -> None:
        """Takes leases that carry no tag and that nobody holds for what lost orders have left."""
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

    def _past_grace(self, strays: Sequence[Lease], clouds: Mapping[str, object]) -> list[Lease]:
        now = self._clock.now()
        seen = {(lease.provider, lease.reference) for lease in strays}
        self._stray_since = {
            key: since for key, since in self._stray_since.items() if key in seen or key[0] not in clouds
        }
        for key in seen:
            self._stray_since.setdefault(key, now)
        return [
            lease
            for lease in strays
            if now - self._stray_since[lease.provider, lease.reference] >= self._rules.stray_grace
        ]

    async def _tell(self, row: Reservation, event: str = "reservation.changed") -> None:
        body: dict[str, object] = {
            "reservation_id": row.reservation_id,
            "state": row.state.value,
            "plan_id": row.plan_id,
            "reason": row.reason,
        }
        await self._notifier.notify(event, row.team, body)

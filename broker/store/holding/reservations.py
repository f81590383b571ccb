"""Stored reservations with their units."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import ColumnElement, Select, and_, delete, or_, select, tuple_, update
from sqlalchemy.orm import joinedload

from broker.domain.basics.errors import NotFound
from broker.domain.basics.machines import Machine
from broker.domain.basics.money import from_micro_usd, to_micro_usd
from broker.domain.basics.page import Page
from broker.domain.basics.window import Window, Wish
from broker.domain.holding.machine_setup import NO_SETUP, MachineSetup
from broker.domain.holding.reservation import OPEN_STATES, Reservation, ReservationState, Unit, UnitState
from broker.domain.holding.startup_run import StartupRun
from broker.domain.market.billing import billed_seconds
from broker.domain.market.offer import Offer
from broker.domain.reconciling.entering import MachinesByUnit
from broker.store.documents import from_document, to_document
from broker.store.pages import fetch_page
from broker.store.tables import CapacityRow, ReservationRow, UnitRow
from broker.store.team_session import TeamSession, of_every_team
from broker.store.workers import claim_rows, from_now, take_turn
from broker.store.writes import (
    Values,
    batches,
    change,
    count_up,
    insert_many,
    insert_new,
    update_unchanged,
)

_NEWEST_FIRST = (ReservationRow.created_at, ReservationRow.reservation_id)
BUYING_LEASE = timedelta(minutes=2)
"""How long a purchase stays claimed by its process after its last step."""
ACTING_LEASE = timedelta(seconds=30)
"""How long a row stays claimed by the reconciler that acts on it."""
ORDERS_TURN = 0x6F726472
"""Key of the advisory lock of orders that ask budgets ("ordr" in ASCII)."""
MOST_IN_ONE = 500
"""Maximum number of units in one statement."""
_OPEN_WORDS = sorted(state.value for state in OPEN_STATES)
_HELD_STATES = frozenset({ReservationState.HELD, ReservationState.SCHEDULED, ReservationState.ACTIVE})


class SqlReservationRepository:
    """Reservations, by team."""

    def __init__(self, session: TeamSession, worker_id: str) -> None:
        self._session = session
        self._worker_id = worker_id

    async def add(self, reservation: Reservation) -> None:
        """Stores a new intent. Raises Conflict if its id is taken."""
        name = f"reservation {reservation.reservation_id}"
        await insert_new(self._session, ReservationRow, self._values(reservation), name)
        await insert_many(self._session, UnitRow, _unit_values(reservation))

    async def update(self, reservation: Reservation) -> Reservation:
        """Writes it, and returns it with the next version. Raises ConcurrentChange if ``version`` is old."""
        key = ReservationRow.reservation_id == reservation.reservation_id
        name = f"reservation {reservation.reservation_id}"
        await update_unchanged(self._session, ReservationRow, key, self._values(reservation), name)
        await change(
            self._session, delete(UnitRow).where(UnitRow.reservation_id == reservation.reservation_id)
        )
        await insert_many(self._session, UnitRow, _unit_values(reservation))
        return replace(reservation, version=reservation.version + 1)

    async def find(self, reservation_id: str) -> Reservation:
        """One reservation. Raises NotFound."""
        found = await self._fetch(_whole().where(ReservationRow.reservation_id == reservation_id))
        if not found:
            raise NotFound("reservation", reservation_id)
        return found[0]

    async def find_of_tags(self, stem: str) -> tuple[Reservation, ...]:
        """Reservations with a unit whose tag begins with ``stem``, oldest first."""
        tagged = select(UnitRow.reservation_id).where(UnitRow.tag.startswith(stem, autoescape=True))
        return await self._fetch(_whole().where(ReservationRow.reservation_id.in_(tagged)))

    async def find_page(
        self, limit: int, cursor: str | None, plan_id: str | None = None
    ) -> Page[Reservation]:
        """Newest first."""
        statement = _whole()
        if plan_id is not None:
            statement = statement.where(ReservationRow.plan_id == plan_id)
        return await fetch_page(self._session, statement, _NEWEST_FIRST, limit, cursor, _reservation)

    async def find_open(self) -> tuple[Reservation, ...]:
        """Open reservations, oldest first."""
        return await self._fetch(_whole().where(ReservationRow.state.in_(_OPEN_WORDS)))

    async def find_spending(self, since: datetime) -> tuple[Reservation, ...]:
        """Reservations of all teams that are open, or that were held and may be charged after ``since``.

        The caller takes the turn before, so that no other order is stored meanwhile.
        """
        until = ReservationRow.owed_until
        recent = and_(ReservationRow.ever_held, or_(until.is_(None), until > since))
        spending = _whole().where(or_(ReservationRow.state.in_(_OPEN_WORDS), recent))
        return await self._fetch(spending.execution_options(**of_every_team("caps are over all teams")))

    async def find_lost(self, since: datetime) -> tuple[Reservation, ...]:
        """Reservations that failed since then with an order whose answer was lost, oldest first."""
        lost = select(UnitRow.reservation_id).where(
            UnitRow.state == UnitState.GONE.value, UnitRow.reference.is_(None), UnitRow.gone_at.is_not(None)
        )
        failed = ReservationRow.state == ReservationState.FAILED.value
        recent = ReservationRow.released_at >= since
        return await self._fetch(_whole().where(failed, recent, ReservationRow.reservation_id.in_(lost)))

    async def find_of_bills(self, bill_ids: Collection[str]) -> tuple[Reservation, ...]:
        """Reservations of the plans ``bill_ids``, and those without a plan with these ids, oldest first."""
        found: list[Reservation] = []
        alone = ReservationRow.plan_id.is_(None)
        for part in batches(sorted(bill_ids)):
            bill = or_(ReservationRow.plan_id.in_(part), and_(alone, ReservationRow.reservation_id.in_(part)))
            found.extend(await self._fetch(_whole().where(bill)))
        return tuple(found)

    async def find_competing(
        self, offers: Iterable[Offer], providers: Collection[str] = ()
    ) -> tuple[Reservation, ...]:
        """Open reservations of all teams that use the stock or pools of ``offers``, or are at ``providers``.

        They are ordered from oldest to newest. First it increments the capacity rows in the order of their
        names, so that the next transaction that takes from them waits for this one, and reads what it stored.
        The remaining stock is not stored as a number, because it depends on the requested times and on when
        the provider last counted.
        """
        wanted = list(offers)
        taken = {f"provider/{provider}" for provider in providers}
        for capacity_id in sorted(taken.union(*(capacities_of(offer) for offer in wanted))):
            await count_up(self._session, CapacityRow, {"capacity_id": capacity_id}, "takings")
        mine = ReservationRow.offer_id.in_({offer.offer_id for offer in wanted})
        pools = {pool_id for offer in wanted if (pool_id := _pool_of(offer)) is not None}
        beside = or_(ReservationRow.pool_id.in_(pools), ReservationRow.provider.in_(providers))
        competing = _whole().where(ReservationRow.state.in_(_OPEN_WORDS), or_(mine, beside))
        return await self._fetch(competing.execution_options(**of_every_team("stock is taken by all")))

    async def take_turn(self) -> None:
        """Takes a lock that serialises orders which ask budgets; it is held until this transaction ends.

        It is one lock for all teams, because a budget may be that of all teams together.
        """
        await take_turn(self._session, ORDERS_TURN, "budgets")

    async def claim(self, reservation_id: str) -> bool:
        """Claims a row for ``ACTING_LEASE``; False while another live process has claimed it."""
        key = ReservationRow.reservation_id
        claimed = await claim_rows(
            self._session, ReservationRow, key, key == reservation_id, self._worker_id, ACTING_LEASE
        )
        return bool(claimed)

    async def note_seen(self, units: Sequence[tuple[str, int]], at: datetime) -> None:
        """Stores when these units were last seen running, without a new version of their reservations.

        Units that another transaction is writing are skipped until the next pass, which avoids deadlocks.
        """
        names = UnitRow.reservation_id, UnitRow.ordinal
        for first in range(0, len(units), MOST_IN_ONE):
            some = tuple_(*names).in_(units[first : first + MOST_IN_ONE])
            free = select(*names).where(some).with_for_update(skip_locked=True)
            await change(self._session, update(UnitRow).where(tuple_(*names).in_(free)).values(seen_at=at))

    async def note_machines(self, machines: MachinesByUnit) -> None:
        """Stores how these units are entered: their machines, and the note of their provider.

        It makes no new version of their reservations.
        """
        for (reservation_id, ordinal), (nodes, note) in machines.items():
            one = and_(UnitRow.reservation_id == reservation_id, UnitRow.ordinal == ordinal)
            values = {"machines": to_document(nodes), "access_note": note}
            await change(self._session, update(UnitRow).where(one).values(values))

    def _values(self, reservation: Reservation) -> Values:
        """The values of the row. During a purchase it stays claimed by the process that stores its steps."""
        claim: dict[str, object] = {"claimed_by": None, "claimed_until": None}
        if reservation.state is ReservationState.PENDING:
            claim = {"claimed_by": self._worker_id, "claimed_until": from_now(self._session, BUYING_LEASE)}
        return {**_values(reservation), **claim, "rolled_up": False}

    async def find_workloads(self) -> frozenset[str]:
        """Names of the workloads of all reservations."""
        named = select(ReservationRow.workload).where(ReservationRow.workload.is_not(None)).distinct()
        return frozenset(name for name in await self._session.scalars(named) if name is not None)

    async def find_plans_held(self, window: Window | None) -> frozenset[str]:
        """Plans with a reservation that overlaps ``window`` (None: any time)."""
        statement = select(ReservationRow.plan_id).where(
            ReservationRow.plan_id.is_not(None), *_touching(window)
        )
        found = await self._session.scalars(statement.distinct())
        return frozenset(name for name in found if name is not None)

    async def find_overlapping(self, window: Window | None) -> tuple[Reservation, ...]:
        """Reservations that were ever held and may be charged in ``window`` (None: all), oldest first.

        When a reservation may be charged, ``owed_span`` says.
        """
        return await self._fetch(_whole().where(ReservationRow.ever_held, *_touching(window)))

    async def _fetch(self, statement: Select[ReservationRow]) -> tuple[Reservation, ...]:
        ordered = statement.order_by(*_NEWEST_FIRST).execution_options(populate_existing=True)
        rows = (await self._session.scalars(ordered)).unique()
        return tuple(_reservation(row) for row in rows)


def _whole() -> Select[ReservationRow]:
    """Reservations with their units in one statement, so that both are of the same version."""
    return select(ReservationRow).options(joinedload(ReservationRow.units))


def _touching(window: Window | None) -> tuple[ColumnElement[bool], ...]:
    if window is None:
        return ()
    until = ReservationRow.owed_until
    return (ReservationRow.owed_from < window.end, or_(until.is_(None), until > window.start))


def capacities_of(offer: Offer) -> frozenset[str]:
    """Names of the capacities of ``offer``: its own stock, and its pool."""
    names = {f"offer/{offer.offer_id}"}
    if (pool_id := _pool_of(offer)) is not None:
        names.add(f"pool/{pool_id}")
    return frozenset(names)


def _pool_of(offer: Offer) -> str | None:
    return offer.stock.pool.pool_id if offer.stock.pool is not None else None


def was_ever_held(reservation: Reservation) -> bool:
    """Whether any of its units was ever held."""
    return (
        reservation.state in _HELD_STATES
        or reservation.active_at is not None
        or bool(reservation.provider_references)
    )


def owed_span(reservation: Reservation) -> tuple[datetime, datetime | None]:
    """The time in which a reservation may be charged; end None: unknown.

    It begins at the earlier of the requested and the actual start, and ends at the latest of the requested
    end, the release, and the end of the minimum term and billing increment. An open reservation has no end
    until it is released.
    """
    begun = reservation.active_at or reservation.start
    given = reservation.granted.start if reservation.granted is not None else begun
    earliest = min(reservation.start, begun, given)
    ends = [end for end in (reservation.end, reservation.released_at) if end is not None]
    if not ends or (reservation.is_open and reservation.released_at is None):
        return earliest, None
    held_until = max(ends)
    if held_until <= begun or reservation.offer.is_sold_whole:
        return earliest, max(held_until, earliest)
    billed = timedelta(seconds=billed_seconds(reservation.offer, Window(begun, held_until)))
    return earliest, max(held_until, begun + billed)


def _values(reservation: Reservation) -> Values:
    owed_from, owed_until = owed_span(reservation)
    return {
        "reservation_id": reservation.reservation_id,
        "team": reservation.team,
        "state": reservation.state.value,
        "provider": reservation.offer.provider,
        "offer_id": reservation.offer.offer_id,
        "pool_id": _pool_of(reservation.offer),
        "offer": to_document(reservation.offer),
        "nodes": reservation.nodes,
        "starts_at": reservation.start,
        "ends_at": reservation.end,
        "created_at": reservation.created_at,
        "workload": reservation.workload,
        "plan_id": reservation.plan_id,
        "reason": reservation.reason,
        "requested_by": reservation.requested_by,
        "active_at": reservation.active_at,
        "released_at": reservation.released_at,
        "requested_start": reservation.requested.start if reservation.requested is not None else None,
        "requested_end": reservation.requested.end if reservation.requested is not None else None,
        "granted_start": reservation.granted.start if reservation.granted is not None else None,
        "granted_end": reservation.granted.end if reservation.granted is not None else None,
        "ever_held": was_ever_held(reservation),
        "owed_from": owed_from,
        "owed_until": owed_until,
        "replaces": list(reservation.replaces) or None,
        "limit_per_node_hour_micro_usd": _micro(reservation.limit_usd_per_node_hour),
        "tries": reservation.tries,
        "tried_at": reservation.tried_at,
        "setup": to_document(reservation.setup),
        "version": reservation.version,
    }


def _unit_values(reservation: Reservation) -> list[Values]:
    return [
        {
            "reservation_id": reservation.reservation_id,
            "ordinal": unit.ordinal,
            "tag": unit.tag,
            "nodes": unit.nodes,
            "state": unit.state.value,
            "reference": unit.reference,
            "ordered_at": unit.ordered_at,
            "began_at": unit.began_at,
            "leaving_at": unit.leaving_at,
            "seen_at": unit.seen_at,
            "gone_at": unit.gone_at,
            "paid_micro_usd": _micro(unit.paid_usd),
            "credit_micro_usd": _micro(unit.credit_usd),
            "price_per_node_hour_micro_usd": _micro(unit.price_usd_per_node_hour),
            "is_price_confirmed": unit.is_price_confirmed,
            "machines": to_document(unit.machines),
            "startup": None if unit.startup is None else to_document(unit.startup),
            "access_note": unit.access_note,
        }
        for unit in reservation.units
    ]


def _reservation(row: ReservationRow) -> Reservation:
    return Reservation(
        reservation_id=row.reservation_id,
        team=row.team,
        state=ReservationState(row.state),
        offer=from_document(Offer, row.offer),
        nodes=row.nodes,
        start=row.starts_at,
        end=row.ends_at,
        units=tuple(_unit(unit) for unit in row.units),
        created_at=row.created_at,
        workload=row.workload,
        plan_id=row.plan_id,
        reason=row.reason,
        requested_by=row.requested_by,
        active_at=row.active_at,
        released_at=row.released_at,
        requested=Wish(row.requested_start, row.requested_end) if row.requested_start is not None else None,
        granted=_granted(row),
        replaces=tuple(row.replaces or ()),
        limit_usd_per_node_hour=_usd(row.limit_per_node_hour_micro_usd),
        tries=row.tries,
        tried_at=row.tried_at,
        version=row.version,
        setup=NO_SETUP if row.setup is None else from_document(MachineSetup, row.setup),
    )


def _granted(row: ReservationRow) -> Window | None:
    if row.granted_start is None or row.granted_end is None:
        return None
    return Window(row.granted_start, row.granted_end)


def _unit(row: UnitRow) -> Unit:
    return Unit(
        ordinal=row.ordinal,
        tag=row.tag,
        nodes=row.nodes,
        state=UnitState(row.state),
        reference=row.reference,
        ordered_at=row.ordered_at,
        began_at=row.began_at,
        leaving_at=row.leaving_at,
        seen_at=row.seen_at,
        gone_at=row.gone_at,
        paid_usd=_usd(row.paid_micro_usd),
        credit_usd=_usd(row.credit_micro_usd),
        price_usd_per_node_hour=_usd(row.price_per_node_hour_micro_usd),
        is_price_confirmed=row.is_price_confirmed,
        machines=from_document(tuple[Machine, ...], row.machines or []),
        startup=None if row.startup is None else from_document(StartupRun, row.startup),
        access_note=row.access_note,
    )


def _micro(usd: Decimal | None) -> int | None:
    return None if usd is None else to_micro_usd(usd)


def _usd(micro_usd: int | None) -> Decimal | None:
    return None if micro_usd is None else from_micro_usd(micro_usd)

"""Spending caps: the most that reservations may cost in an hour and on a day, over what is held and ordered.

The *hour* is what the nodes that are held at one instant cost per hour; a window counts at its price spread
over its hours. The *day* is what sellers bill on one UTC day: nodes by the hour for the hours of that day,
and a window, an upfront fee or a minimum term whole on the day on which it is bought. What was released on
that day stays in it. Until a seller confirms its price, an order counts at the highest price that it accepts.
Orders in the sandbox market count as orders at real sellers do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from broker.domain.basics.errors import FieldProblem, OverCap
from broker.domain.basics.money import ZERO, format_usd, usd_words
from broker.domain.holding.holding_orders import FOREVER, Intent, at_limit, ends_by_itself
from broker.domain.holding.lease_money import billed_offer
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.spend.charging import reservation_charges

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOUR_SETTING, DAY_SETTING, TEAMS_SETTING = (
    "BROKER_MAX_USD_PER_HOUR",
    "BROKER_MAX_USD_PER_DAY",
    "BROKER_TEAM_CAPS",
)


_Sum = tuple[Decimal, Decimal, str]
"""What is held, what is added to it, and when."""


@dataclass(frozen=True, slots=True)
class SpendingCap:
    """The most that is held may cost per hour, and that is billed on a UTC day; None: no limit."""

    usd_per_hour: Decimal | None = None
    usd_per_day: Decimal | None = None


@dataclass(frozen=True, slots=True)
class SpendingCaps:
    """The cap of all teams together, and those of single teams."""

    all_teams: SpendingCap = SpendingCap()
    teams: Mapping[str, SpendingCap] = field(default_factory=dict)

    @property
    def are_set(self) -> bool:
        """Whether anything is capped."""
        return any(cap != SpendingCap() for cap in (self.all_teams, *self.teams.values()))

    def limits_of(self, team: str) -> Iterator[CapLimit]:
        """Every limit that an order of ``team`` is held to."""
        cap, own = self.all_teams, self.teams.get(team, SpendingCap())
        yield CapLimit(HOUR_SETTING, "all teams", "hour", cap.usd_per_hour)
        yield CapLimit(TEAMS_SETTING, f"team {team}", "hour", own.usd_per_hour, team)
        yield CapLimit(DAY_SETTING, "all teams", "day", cap.usd_per_day)
        yield CapLimit(TEAMS_SETTING, f"team {team}", "day", own.usd_per_day, team)


@dataclass(frozen=True, slots=True)
class CapLimit:
    """One limit of a setting, in USD per ``period``; ``usd`` None: no limit. ``team`` None: of all teams."""

    setting: str
    whose: str
    period: str
    usd: Decimal | None
    team: str | None = None

    def counts(self, row: Reservation) -> bool:
        """Whether ``row`` counts towards this limit."""
        return self.team in (None, row.team)


def require_within_caps(
    caps: SpendingCaps, wanted: Sequence[Reservation], known: Iterable[Reservation], now: datetime
) -> None:
    """Raises OverCap if ``wanted``, reservations of one team, would exceed a cap at any time.

    ``known`` are the open reservations of all teams, and those that ended today. One that ``wanted`` has in
    another form, such as with another start or end, does not count itself, and one that is being replaced
    counts until an hour after the start of its replacement.
    """
    if not wanted:
        return
    names, every = {row.reservation_id for row in wanted}, tuple(known)
    others = [row for row in every if row.reservation_id not in names]
    leaving = _leaving((*others, *wanted), now)
    held = [_ending(row, leaving.get(row.reservation_id)) for row in map(_at_limit, others)]
    asked = [_at_limit(row) for row in wanted]
    starts = {row.reservation_id: row.start for row in every}
    is_early = any(row.start < starts.get(row.reservation_id, row.start) for row in wanted)
    pointer = "/start" if is_early else "/nodes" if len(others) == len(every) else "/end"
    for limit in caps.limits_of(wanted[0].team):
        if limit.usd is not None:
            mine = [row for row in held if limit.counts(row)]
            sums = _by_hour(asked, mine, now) if limit.period == "hour" else _by_day(asked, mine, now)
            _require(limit, limit.usd, sums, pointer)


def _leaving(rows: Iterable[Reservation], now: datetime) -> Mapping[str, datetime]:
    """Until when each reservation counts that one of ``rows`` replaces, by id."""
    found: dict[str, datetime] = {}
    for row in rows:
        for name in row.replaces if row.is_open else ():
            end = max(row.start, now) + HOUR
            found[name] = max(end, found.get(name, end))
    return found


def _ending(row: Reservation, at: datetime | None) -> Reservation:
    """``row``, which ends ``at`` this time if it would end later."""
    if at is None or row.offer.window is not None or (row.end is not None and row.end <= at):
        return row
    return replace(row, end=max(at, row.start))


def _at_limit(row: Reservation) -> Reservation:
    """``row`` at the highest price that it accepts, for the units whose price is not confirmed."""
    limit = row.limit_usd_per_node_hour
    if limit is None:
        return row
    dearest = at_limit(Intent(row.offer, row.nodes, row.start, row.end, limit_usd_per_node_hour=limit)).offer
    units = (u if u.is_price_confirmed else replace(u, price_usd_per_node_hour=None) for u in row.units)
    return replace(row, offer=dearest, units=tuple(units))


def _by_hour(wanted: Sequence[Reservation], held: Sequence[Reservation], now: datetime) -> Iterator[_Sum]:
    """What all nodes cost per hour, from each instant on at which that changes."""
    steps: defaultdict[datetime, list[Decimal]] = defaultdict(lambda: [ZERO, ZERO])
    for column, rows in enumerate((held, wanted)):
        for row in rows:
            start, end = _held_between(row, now)
            usd = sum((u.nodes * billed_offer(row, u).price_usd_per_node_hour for u in row.open_units), ZERO)
            steps[start][column] += usd
            steps[end][column] -= usd
    has = adds = ZERO
    for at in sorted(steps):
        has, adds = has + steps[at][0], adds + steps[at][1]
        yield has, adds, f"{at:%Y-%m-%d %H:%M} UTC"


def _held_between(row: Reservation, now: datetime) -> tuple[datetime, datetime]:
    """When the open units of ``row`` are held; what is overdue, or is being released, for another hour."""
    start, end = max(row.start, now), row.ends_at or FOREVER
    if row.state is ReservationState.RELEASING and not ends_by_itself(row.offer):
        end = now
    return start, max(start, end if end > now else now + HOUR)


def _by_day(wanted: Sequence[Reservation], held: Sequence[Reservation], now: datetime) -> Iterator[_Sum]:
    """What is billed on each UTC day from today on."""
    until = max(max(row.start, now) for row in (*wanted, *held)) + 2 * DAY
    adds, has = _billed_by_day(wanted, now, until), _billed_by_day(held, now, until)
    for day in sorted(adds):
        if day >= now.astimezone(UTC).date():
            yield has.get(day, ZERO), adds[day], f"{day} (UTC)"


def _billed_by_day(rows: Sequence[Reservation], now: datetime, until: datetime) -> dict[date, Decimal]:
    """What is billed of ``rows`` on each UTC day; those without an end are projected up to ``until``.

    Credits do not count.
    """
    ordered_now = {row.reservation_id for row in rows if _is_paid_now(row)}
    found: defaultdict[date, Decimal] = defaultdict(lambda: ZERO)
    for charge in reservation_charges(rows, {}, now, until=until):
        at = now if charge.reservation_id in ordered_now else charge.paid_at or charge.window.start
        if charge.usd > 0:
            found[at.astimezone(UTC).date()] += charge.usd
    return found


def _is_paid_now(row: Reservation) -> bool:
    """Whether it is a window that is billed at its order, which is about to be sent."""
    terms = row.offer.window
    is_ordered_now = row.state in (ReservationState.PENDING, ReservationState.UNKNOWN)
    return terms is not None and terms.is_prepaid and is_ordered_now


def _require(limit: CapLimit, most: Decimal, sums: Iterable[_Sum], pointer: str) -> None:
    """Raises OverCap for the highest of ``sums`` to which something is added, if it is above ``most``."""
    worst = max(((has + adds, has, adds, when) for has, adds, when in sums if adds > 0), default=None)
    if worst is None or worst[0] <= most:
        return
    total, has, adds, when = worst
    per, what = f"per {limit.period}", "this order" if pointer == "/nodes" else "this extension"
    facts = {
        "setting": limit.setting,
        "team": limit.team,
        "period": limit.period,
        "held_usd": format_usd(has),
        "added_usd": format_usd(adds),
        "cap_usd": format_usd(most),
    }
    raise OverCap(
        f"{limit.setting} allows {limit.whose} {usd_words(most)} {per}, but {usd_words(has)} held and "
        f"ordered + {usd_words(adds)} of {what} = {usd_words(total)} > {usd_words(most)} on {when}: "
        "order less, release something first, or have the cap raised",
        facts,
    ).naming(
        FieldProblem(pointer, f"{usd_words(adds)} {per}", f"at most {usd_words(max(ZERO, most - has))} {per}")
    )

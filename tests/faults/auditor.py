"""An auditor of a month: every figure from the market's ledger and prices, by plain arithmetic.

It imports nothing of the broker. It knows how each seller bills (``TERMS``, from their price pages), asks the
market what was sold and at which price, and adds up. What is held and for whom it is told, as rows of
``GET /v1/reservations``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

import httpx

CENT, ZERO = Decimal("0.01"), Decimal(0)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
WAITING = frozenset({"pending", "unknown", "scheduled", "held", "active"})
"""States of reservations of which more is to be bought or held."""

Row = Mapping[str, Any]
Sums = dict[str, Decimal]


class Terms(NamedTuple):
    """An increment begun is billed whole; the first ``least`` is billed with the lease."""

    increment: timedelta
    least: timedelta


TERMS: Mapping[tuple[str, str], Terms] = {
    ("digitalocean", ""): Terms(SECOND, timedelta(minutes=1)),
    ("vultr", ""): Terms(HOUR, timedelta(0)),
    ("prime_intellect", ""): Terms(HOUR, timedelta(0)),
    ("prime_intellect", "8xB200-prepaid"): Terms(HOUR, 24 * HOUR),
    ("hotaisle", "Large MI300X bare metal 8x (one-month minimum)"): Terms(timedelta(minutes=1), 720 * HOUR),
}
"""By seller and SKU; an empty SKU is any other of that seller."""


def terms_of(provider: str, sku: str) -> Terms:
    """How a seller bills a SKU by time."""
    return TERMS.get((provider, sku)) or TERMS[provider, ""]


@dataclass
class Line:
    """A line of the ledger. ``usd_per_hour``: of all its nodes; a window has none, it is billed at once."""

    provider: str
    names: frozenset[str]
    sku: str
    nodes: int
    starts_at: datetime
    ends_at: datetime | None
    released_at: datetime | None
    billed_usd: Decimal
    usd_per_hour: Decimal | None

    @property
    def terms(self) -> Terms:
        """How it is billed by time."""
        return terms_of(self.provider, self.sku)

    def booked_usd(self, now: datetime) -> Decimal:
        """What is billed by ``now``. The market alone books a minute at the instant of the purchase."""
        at_once = self.usd_per_hour is None or self.terms.least > HOUR
        return self.billed_usd if at_once or self.starts_at < now else ZERO

    def cost_usd(self, until: datetime) -> Decimal:
        """What it has cost by ``until`` if nobody gives it back before."""
        if self.usd_per_hour is None:
            return self.billed_usd
        held = min(until, self.released_at or until) - self.starts_at
        if until <= self.starts_at and self.terms.least <= HOUR:
            return (
                ZERO  # at the very instant of the purchase a minute's minimum is booked by the market alone
            )
        return held_usd(self.terms, self.usd_per_hour, held)

    def amortized_usd(self, until: datetime, now: datetime) -> Decimal:
        """The part of what is billed by ``now`` that is for use before ``until``.

        A window and a minimum term of more than an hour are spread evenly over their time.
        """
        if self.usd_per_hour is None:
            assert self.ends_at is not None
            used, whole = min(until, self.ends_at) - self.starts_at, self.ends_at - self.starts_at
            return self.billed_usd * max(used // SECOND, 0) / (whole // SECOND)
        least = self.terms.least
        if least <= HOUR or until - self.starts_at >= least:
            return self.cost_usd(min(until, now)) if until > self.starts_at else ZERO
        return self.usd_per_hour * max((until - self.starts_at) // SECOND, 0) / 3600


def held_usd(terms: Terms, usd_per_hour: Decimal, held: timedelta) -> Decimal:
    """What ``held`` costs: increments that have begun, the minimum term at least."""
    increments = -(-max(held, terms.least, timedelta(0)) // terms.increment)
    return usd_per_hour * increments * (terms.increment // SECOND) / 3600


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def is_whole(usd: Decimal) -> bool:
    """Whether ``usd`` is whole cents, so that nobody has to round it."""
    return usd % CENT == 0


def added(amounts: Iterable[tuple[str, Decimal]]) -> Sums:
    """Sums by name, without those that are nothing."""
    sums: defaultdict[str, Decimal] = defaultdict(Decimal)
    for name, usd in amounts:
        sums[name] += usd
    return {name: usd for name, usd in sums.items() if usd}


def differences(found: Mapping[str, Decimal], expected: Mapping[str, Decimal], parts: Sums) -> list[str]:
    """What differs, by name. ``parts``: how many amounts of a name are no whole cents."""
    return [
        f"{name}: found {found.get(name, ZERO)}, reckoned {expected.get(name, ZERO):.4f}"
        for name in sorted({*found, *expected})
        if not _agree(found.get(name, ZERO), expected.get(name, ZERO), parts.get(name, ZERO))
    ]


def _agree(found: Decimal, expected: Decimal, parts: Decimal) -> bool:
    """Exactly, or within what rounding each of ``parts`` amounts to a cent can make."""
    gap = abs(found - expected)
    return gap < CENT * parts if parts else gap == 0


@dataclass
class Reckoning:
    """Amounts, each with its team and seller."""

    amounts: list[tuple[str, str, Decimal]] = field(default_factory=list)

    def add(self, team: str, provider: str, usd: Decimal) -> None:
        """One amount that is rounded by itself."""
        self.amounts.append((team, provider, usd))

    @property
    def by_team(self) -> Sums:
        """USD by team."""
        return added((team, usd) for team, _, usd in self.amounts)

    @property
    def by_provider(self) -> Sums:
        """USD by seller."""
        return added((provider, usd) for _, provider, usd in self.amounts)

    def of(self, team: str) -> Decimal:
        """USD of one team, ``*``: of all."""
        return sum((usd for name, _, usd in self.amounts if team in ("*", name)), ZERO)

    def compare(self, by_team: Sums, by_provider: Sums) -> list[str]:
        """What the broker says otherwise."""
        odd = [one for one in self.amounts if not is_whole(one[2])]
        teams = added((team, Decimal(1)) for team, _, _ in odd)
        sellers = added((provider, Decimal(1)) for _, provider, _ in odd)
        return [
            *differences(by_team, self.by_team, teams),
            *differences(by_provider, self.by_provider, sellers),
        ]

    def odd(self, team: str) -> Decimal:
        """How many amounts of a team (``*``: of all) are no whole cents."""
        return Decimal(sum(1 for name, _, usd in self.amounts if team in ("*", name) and not is_whole(usd)))


class Auditor:
    """Asks the market, and reckons."""

    def __init__(self, control: httpx.Client) -> None:
        self._control = control
        self._rates: dict[str, Decimal] = {}
        self._quoted: dict[str, Decimal] = {}
        self.lines: dict[str, Line] = {}
        self.now = self._asked("ledger")[0]
        self.snapshots: dict[datetime, dict[str, Decimal]] = {}

    def _asked(self, what: str) -> tuple[datetime, dict[str, Any]]:
        answer = self._control.get(f"/_sandbox/{what}").json()
        return datetime.fromisoformat(answer["now"]), answer

    def _price(self, sold: Row) -> Decimal:
        """USD per node-hour at which the market sells what ``sold`` names now."""
        cells = self._asked(f"market?provider={sold['provider']}")[1]["cells"]
        found = {
            Decimal(cell["usd_per_unit_hour"])
            for cell in cells
            if (cell["sku"], cell["region"], cell["tier"]) == (sold["sku"], sold["region"], sold["tier"])
            and cell["unit"] == "node"
            and sold.get("zone", cell["zone"]) == cell["zone"]
        }
        assert len(found) == 1, f"{sold['provider']} {sold['sku']} {sold['region']}: prices {found}"
        return found.pop()

    def look(self, rows: Iterable[Row] = ()) -> None:
        """Reads the ledger. What is new, in it and among ``rows`` (reservations), has the price of now."""
        self.now, answer = self._asked("ledger")
        for entry in answer["instances"]:
            name = entry["instance_id"]
            if name not in self._rates and entry["tier"] != "window":
                self._rates[name] = entry["nodes"] * self._price(entry)
            self.lines[name] = Line(
                provider=entry["provider"],
                names=frozenset({name, *entry["also_known_as"]}),
                sku=entry["sku"],
                nodes=entry["nodes"],
                starts_at=datetime.fromisoformat(entry["starts_at"]),
                ends_at=_instant(entry["ends_at"]),
                released_at=_instant(entry["released_at"]),
                billed_usd=Decimal(entry["billed_usd"]),
                usd_per_hour=self._rates.get(name),
            )
        for row in rows:
            is_to_be_bought = row["state"] in WAITING and not row["provider_references"]
            if is_to_be_bought and row["reservation_id"] not in self._quoted:
                self._quoted[row["reservation_id"]] = self._price(row)

    def keep(self) -> None:
        """Notes what is billed at this instant."""
        self.snapshots[self.now] = {name: line.booked_usd(self.now) for name, line in self.lines.items()}

    def misbilled(self) -> list[str]:
        """Lines that the market bills otherwise than its sellers' terms and prices say."""
        return [
            f"{name}: billed {line.billed_usd}, its terms make {line.cost_usd(self.now):.6f}"
            for name, line in self.lines.items()
            if line.starts_at < self.now
            if abs(line.cost_usd(self.now) - line.billed_usd) > Decimal("0.000001")
        ]

    def owners(self, rows: Sequence[Row]) -> tuple[dict[str, str], list[str]]:
        """The team of each line; and lines of nobody or of two, and references to none."""
        claims: defaultdict[str, list[str]] = defaultdict(list)
        wrong = []
        by_name = {known: name for name, line in self.lines.items() for known in line.names}
        for row in rows:
            for reference in row["provider_references"]:
                if reference in by_name:
                    claims[by_name[reference]].append(row["team"])
                else:
                    wrong.append(f"{row['reservation_id']}: {reference} was never sold")
        wrong += [f"{name}: held by {claims[name]}" for name in self.lines if len(claims[name]) != 1]
        return {name: teams[0] for name, teams in claims.items()}, wrong

    def billed(self, teams: Mapping[str, str], at: datetime | None = None) -> Reckoning:
        """What sellers have billed by now, or had by then, where that was noted."""
        usd = {name: line.booked_usd(self.now) for name, line in self.lines.items()}
        return self._reckoned(teams, lambda name: (self.snapshots[at] if at else usd).get(name, ZERO))

    def amortized(self, teams: Mapping[str, str], start: datetime, end: datetime) -> Reckoning:
        """What of it is for use in ``[start, end)``."""

        def share(name: str) -> Decimal:
            line = self.lines[name]
            return line.amortized_usd(end, self.now) - line.amortized_usd(start, self.now)

        return self._reckoned(teams, share)

    def _reckoned(self, teams: Mapping[str, str], usd_of: Callable[[str], Decimal]) -> Reckoning:
        found = Reckoning()
        for name, team in teams.items():
            found.add(team, self.lines[name].provider, usd_of(name))
        return found

    def expected(self, rows: Iterable[Row], until: datetime) -> Reckoning:
        """What is held and will be bought, to its end or ``until``, beyond what is billed."""
        by_name = {known: line for line in self.lines.values() for known in line.names}
        found = Reckoning()
        for row in rows:
            if row["state"] not in WAITING or row["tier"] == "window":
                continue
            end = datetime.fromisoformat(row["end"]) if row["end"] else until
            held = [by_name[name] for name in row["provider_references"]]
            for line in held:
                coming = line.cost_usd(end) - line.booked_usd(self.now)
                if line.released_at is None and coming > 0:
                    found.add(row["team"], row["provider"], coming)
            nodes, start = (
                row["nodes"] - sum(line.nodes for line in held),
                datetime.fromisoformat(row["start"]),
            )
            if nodes > 0 and end > max(start, self.now):
                rate, terms = self._quoted[row["reservation_id"]], terms_of(row["provider"], row["sku"])
                usd = nodes * held_usd(terms, rate, end - max(start, self.now))
                found.add(row["team"], row["provider"], usd)
        return found


def drafted(plans: Iterable[Row]) -> Reckoning:
    """What drafts cost, each placement by itself, to the cent that their documents say."""
    found = Reckoning()
    for plan in plans:
        for placement in plan["placements"]:
            usd = Decimal(placement["cost_usd"]).quantize(CENT, rounding=ROUND_HALF_UP)
            found.add(plan["team"], placement["provider"], usd)
    return found

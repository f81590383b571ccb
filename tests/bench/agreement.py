"""Whether a database and a market say what clients were told: nothing is lost, and nothing is doubled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple


class Unit(NamedTuple):
    """What one order of a reservation buys, as it is stored."""

    tag: str
    reference: str | None
    reservation_id: str
    ordinal: int
    nodes: int
    state: str


@dataclass(frozen=True)
class Stored:
    """Rows of the database: state and reason by reservation, state and problem by plan, and all units."""

    reservations: Mapping[str, tuple[str, str | None]]
    plans: Mapping[str, tuple[str, str | None]]
    units: Collection[Unit]


def lost_or_doubled(
    active: Collection[str],
    released: Collection[str],
    plans: Collection[str],
    stored: Stored,
    ledger: Iterable[Mapping[str, Any]],
) -> list[str]:
    """Each difference in words; empty where all is as told.

    ``active``, ``released``, ``plans``: ids that clients were told. What failed and says why is not lost.
    ``ledger``: the rows of the market.
    """
    return [
        *_not_as_told(
            stored.reservations, {**dict.fromkeys(active, "active"), **dict.fromkeys(released, "released")}
        ),
        *_not_as_told(stored.plans, dict.fromkeys(plans, "done"), {"cancelled"}),
        *_other_leases(stored, ledger),
    ]


def _not_as_told(
    rows: Mapping[str, tuple[str, str | None]], told: Mapping[str, str], also: Collection[str] = ()
) -> Iterator[str]:
    for one in rows.keys() - told.keys():
        yield f"doubled: {one} is stored, and no client was told of it"
    for one, wanted in told.items():
        state, why = rows.get(one, ("not stored", None))
        if state != wanted and state not in also and not (state == "failed" and why):
            yield f"lost: {one} is {state}, not {wanted}"


def _other_leases(stored: Stored, ledger: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Leases that no unit has, that run on, or that are too many or too few of a unit."""
    by_name = {
        name: unit for unit in stored.units for name in (_order(unit.tag), unit.reference) if name is not None
    }
    leases: dict[Unit, list[Mapping[str, Any]]] = defaultdict(list)
    for row in ledger:
        names = (_order(row["tag"]), row["instance_id"], *row["also_known_as"])
        unit = next((by_name[name] for name in names if name in by_name), None)
        if unit is None:
            yield f"lost: the lease {row['instance_id']} ({row['tag']}) has no reservation"
        elif not row["failed"]:
            leases[unit].append(row)
            if row["released_at"] is None and unit.state != "held":
                yield f"lost: the lease {row['instance_id']} runs on, and its unit {unit.tag} is {unit.state}"
    for unit in stored.units:
        rows = sorted(leases[unit], key=lambda row: str(row["created_at"]))
        for one, later in pairwise(rows):
            if one["released_at"] is None or one["released_at"] > later["created_at"]:
                yield f"doubled: {one['instance_id']} and {later['instance_id']} are both {unit.tag}"
        nodes = sum(row["nodes"] for row in rows if row["released_at"] is None)
        if unit.state == "held" and nodes != unit.nodes:
            yield f"lost: {unit.tag} holds {unit.nodes} nodes, and {nodes} in the market"


def _order(tag: str) -> str:
    """What all attempts at one order have in common: the tag without the number of the attempt at its end."""
    return tag.rpartition("-")[0]

"""The check at the end of ``tests.bench.mixed_load`` sees what is lost and what is doubled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.bench.agreement import Stored, Unit, lost_or_doubled

UNIT = Unit("broker-a-r1-0-2", "i-1", "r1", 0, 2, "held")
ENDED = Unit("broker-a-r2-0-1", "i-2", "r2", 0, 1, "gone")
LEASE: dict[str, Any] = {
    "instance_id": "i-1",
    "tag": "broker-a-r1-0-2",
    "also_known_as": [],
    "nodes": 2,
    "created_at": "2026-11-27T00:00:00Z",
    "released_at": None,
    "failed": False,
}
OVER = {
    **LEASE,
    "instance_id": "i-2",
    "tag": "broker-a-r2-0-1",
    "nodes": 1,
    "released_at": "2026-11-27T01:00:00Z",
}
FIRST = {**LEASE, "instance_id": "i-0", "tag": "broker-a-r1-0-1", "failed": True}
STORED = Stored(
    {"r1": ("active", None), "r2": ("released", None), "r3": ("failed", "no stock")},
    {"p1": ("done", None), "p2": ("cancelled", None), "p3": ("failed", "no offer")},
    [UNIT, ENDED],
)
ACTIVE, RELEASED, PLANS = ("r1", "r3"), ("r2",), ("p1", "p2", "p3")


def test_what_is_as_told_is_neither_lost_nor_doubled() -> None:
    assert lost_or_doubled(ACTIVE, RELEASED, PLANS, STORED, [FIRST, LEASE, OVER]) == []


@pytest.mark.parametrize(
    ("told", "stored", "leases", "words"),
    [
        (("r1", "r3", "r4"), STORED, [LEASE, OVER], "lost: r4 is not stored"),
        (("r1",), STORED, [LEASE, OVER], "doubled: r3 is stored"),
        (
            ACTIVE,
            replace(STORED, reservations={**STORED.reservations, "r3": ("failed", "")}),
            [LEASE, OVER],
            "lost: r3 is failed",
        ),
        (
            ACTIVE,
            replace(STORED, reservations={**STORED.reservations, "r2": ("releasing", "")}),
            [LEASE, OVER],
            "lost: r2 is releasing",
        ),
        (
            ACTIVE,
            replace(STORED, plans={**STORED.plans, "p1": ("running", None)}),
            [LEASE, OVER],
            "lost: p1 is running",
        ),
        (ACTIVE, STORED, [OVER], "lost: broker-a-r1-0-2 holds 2 nodes, and 0"),
        (ACTIVE, STORED, [LEASE, {**OVER, "released_at": None}], "lost: the lease i-2 runs on"),
        (ACTIVE, STORED, [LEASE, OVER, {**OVER, "instance_id": "i-9", "tag": "x"}], "lost: the lease i-9"),
        (
            ACTIVE,
            STORED,
            [
                {**FIRST, "failed": False, "released_at": "2026-11-27T00:09:00Z"},
                {**LEASE, "created_at": "2026-11-27T00:05:00Z"},
                OVER,
            ],
            "doubled: i-0 and i-1",
        ),
    ],
)  # fmt: skip
def test_each_difference_is_told(
    told: tuple[str, ...], stored: Stored, leases: list[dict[str, Any]], words: str
) -> None:
    (difference,) = lost_or_doubled(told, RELEASED, PLANS, stored, leases)
    assert difference.startswith(words)

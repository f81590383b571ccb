"""Which bills are over, and that finding it out costs nothing for those that are not."""

from __future__ import annotations

import cProfile
import pstats
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

from broker.domain.holding.reservation import Reservation, ReservationState, UnitState
from broker.services.spend.ledger import Entries
from broker.services.spend.summaries import settled_bills
from tests.store.examples import HOUR, NOON, reservation

LATER = NOON + timedelta(days=1)


def released(name: str) -> Reservation:
    row = reservation(name, state=ReservationState.RELEASED, end=None)
    (unit,) = row.units
    ended = replace(unit, state=UnitState.GONE, gone_at=NOON + HOUR)
    return replace(row, units=(ended,), released_at=NOON + HOUR)


def running(name: str) -> Reservation:
    return reservation(name, end=None)


def calls_of(*rows: Reservation) -> int:
    """Calls of functions that finding the settled bills among ``rows`` took."""
    profile = cProfile.Profile()
    profile.runcall(settled_bills, Entries((), rows, ()), LATER)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_bill_is_settled_when_all_of_it_has_ended() -> None:
    together = (replace(released("b"), plan_id="plan"), replace(running("c"), plan_id="plan"))
    over = settled_bills(Entries((), (released("a"), *together), ()), LATER)
    assert {name: sum(charge.usd for charge in owed) for name, owed in over.items()} == {"a": Decimal(24)}


def test_leases_that_run_on_without_an_end_cost_no_computing() -> None:
    assert calls_of(*map(running, "abcdefgh")) < calls_of(released("r"))

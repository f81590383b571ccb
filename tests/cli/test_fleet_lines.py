"""A fleet is a line in the terminal, however many leases it had."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from rich.console import Console

from api.cli.holding.reservation_view import print_reservations
from api.schemas.holding.reservation import ReservationForm, reservation_to_document
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer

HOUR = timedelta(hours=1)
SLOTS = 87


def an_hour(number: int) -> ReservationForm:
    """An hour of a fleet that is over."""
    start, end = NOON + number * HOUR, NOON + (number + 1) * HOUR
    unit = Unit(0, f"broker-ab-{number}-0-1", 1, UnitState.GONE, f"i-{number:03}", start, gone_at=end)
    row = Reservation(
        reservation_id=f"rsv-{number:03}",
        team="serve",
        state=ReservationState.RELEASED,
        offer=an_offer(),
        nodes=1,
        start=start,
        end=end,
        units=(unit,),
        created_at=start,
        workload="chat",
        plan_id="plan-1",
        reason="its time is over",
        released_at=end,
    )
    return ReservationForm.model_validate(reservation_to_document(row, NOON))


@pytest.mark.parametrize(("each", "names"), [(False, 4), (True, SLOTS)])
def test_a_fleet_of_many_hours_takes_few_lines(each: bool, names: int) -> None:
    text = io.StringIO()
    rows = [an_hour(number) for number in range(SLOTS)]
    print_reservations(Console(file=text, width=140, no_color=True), rows, each=each)
    printed = text.getvalue()
    assert sum(f"i-{number:03}" in printed for number in range(SLOTS)) == names
    assert ("and 83 more: --each" in printed) is not each
    assert each or len(printed.splitlines()) < 14
    counted = "87 reservations: 87 released" if each else "1 fleet of 87 reservations: 1 released"
    assert printed.splitlines()[-1].strip() == counted


def test_what_was_never_ordered_is_called_not_tried() -> None:
    plain = an_hour(0).model_copy(update={"state": ReservationState.FAILED, "provider_references": []})
    rows = [
        plain,
        plain.model_copy(update={"reservation_id": "rsv-b", "not_tried": True, "reason": "refused"}),
    ]
    text = io.StringIO()
    print_reservations(Console(file=text, width=140, no_color=True), rows)
    assert "2 fleets: 1 failed, 1 not tried" in text.getvalue()

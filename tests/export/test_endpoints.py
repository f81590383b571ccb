"""Which servers of a service a balancer sends requests to, as its fleet grows, shrinks and ends."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from api.export.endpoints import EndpointsFormat, EndpointState, endpoints_of, endpoints_text
from broker.domain.basics.machines import Access, Machine
from broker.domain.holding.machine_setup import MachineSetup, Served
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def server(name: str, start_h: float, end_h: float, *, is_ready: bool = True) -> Reservation:
    """A machine of a service from ``start_h`` to ``end_h``, in hours from noon."""
    ready_at = NOON if is_ready else None
    machine = Machine(Access(f"{name}.example", "ubuntu"), NOON, ready_at=ready_at)
    unit = Unit(0, name, 1, UnitState.HELD, machines=(machine,))
    setup = MachineSetup(served=Served(8000, "/health", 5.0))
    start, end = NOON + start_h * HOUR, NOON + end_h * HOUR
    return Reservation(
        f"rsv-{name}", "research", ReservationState.ACTIVE, an_offer(), 1, start, end, (unit,), NOON,
        workload="chat", setup=setup,
    )  # fmt: skip


def states(now: datetime, *rows: Reservation) -> dict[str, str]:
    return {str(one.host).split(".")[0]: one.state.value for one in endpoints_of(rows, now)}


def test_what_leaves_drains_in_its_last_minutes_while_others_stay() -> None:
    rows = server("stays", 0, 8), server("leaves", 0, 4)
    assert states(NOON + 4 * HOUR - 6 * MINUTE, *rows) == {"stays": "ready", "leaves": "ready"}
    assert states(NOON + 4 * HOUR - 5 * MINUTE, *rows) == {"stays": "ready", "leaves": "draining"}


def test_what_leaves_serves_on_until_what_follows_is_ready() -> None:
    late = NOON + 4 * HOUR - MINUTE
    leaves = server("leaves", 0, 4)
    assert states(late, leaves, server("next", 3.9, 8, is_ready=False))["leaves"] == "ready"
    assert states(late, leaves, server("next", 3.9, 8))["leaves"] == "draining"


@pytest.mark.parametrize("names", [("one",), ("one", "two")])
def test_the_last_servers_of_a_service_serve_until_its_end(names: tuple[str, ...]) -> None:
    rows = [server(name, 0, 4) for name in names]
    late = NOON + 4 * HOUR - MINUTE
    assert set(states(late, *rows).values()) == {EndpointState.READY.value}
    text = endpoints_text("plan-1", endpoints_of(rows, late), EndpointsFormat.NGINX, late)
    assert "down" not in text

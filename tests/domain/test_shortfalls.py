"""Missing hours, against a count of every quarter of an hour that is made apart."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.reconciling.shortfalls import find_shortfalls
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer

STEP = timedelta(minutes=15)


@st.composite
def rows(draw: st.DrawFn) -> list[Reservation]:
    """Parts of one service: bought, waiting for their time, or refused."""
    found = []
    for ordinal in range(draw(st.integers(1, 7))):
        start = draw(st.integers(-8, 20))
        kind = draw(st.sampled_from(["bought", "waiting", "refused"]))
        state = UnitState.HELD if kind == "bought" else UnitState.PLANNED
        nodes = draw(st.integers(1, 3))
        found.append(
            Reservation(
                reservation_id=f"rsv-{ordinal}",
                team="research",
                state=ReservationState.ACTIVE if kind == "bought" else ReservationState.SCHEDULED,
                offer=an_offer(provider=draw(st.sampled_from(["north", "south"]))),
                nodes=nodes,
                start=NOON + start * STEP,
                end=NOON + (start + draw(st.integers(1, 12))) * STEP,
                units=(Unit(0, f"tag-{ordinal}", nodes, state),),
                created_at=NOON - timedelta(days=1),
                workload="chat",
                tries=int(kind == "refused"),
                tried_at=NOON if kind == "refused" else None,
                reason="no stock" if kind == "refused" else "",
            )
        )
    return found


def counted(parts: list[Reservation], at: datetime) -> tuple[int, int]:
    """Nodes that are refused at an instant, and nodes that are wanted then."""
    here = [row for row in parts if row.end is not None and row.start <= at < row.end]
    return sum(row.nodes for row in here if row.tries), sum(row.nodes for row in here)


@given(rows())
def test_every_quarter_of_an_hour_is_told_as_it_is(parts: list[Reservation]) -> None:
    told = find_shortfalls(parts, NOON)
    assert all(one.start >= NOON for one in told), "what is over is missing no more"
    for step in range(40):
        at = NOON + step * STEP
        here = [one for one in told if one.end is not None and one.start <= at < one.end]
        short, nodes = counted(parts, at)
        assert [(one.nodes_short, one.nodes) for one in here] == ([(short, nodes)] if short else [])

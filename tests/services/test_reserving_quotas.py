"""Quotas when capacity is reserved: what is held counts, at every instant of what is wanted."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.cli.errors import ExitCode, exit_code_of
from api.http.errors import kind_of
from broker.domain.basics.errors import OverQuota
from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.quotas import QuotaScope, require_within_quotas
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, Quota, WorkloadKind
from broker.services.planning.quota_gate import QuotaGate
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE, BOB, a_placement, a_plan, a_request, a_segment, an_offer
from tests.services.conftest import House

HOUR = timedelta(hours=1)


def house_of(*installed: Quota, request: PlanRequest | None = None) -> House:
    """A broker with quotas of the installation, and those of ``request`` for every plan."""
    read = None if request is None else lambda document: request
    house = House(quotas=QuotaGate(installed, read))
    house.sell(an_offer("o-1", stock=None), an_offer("o-2", stock=None))
    return house


def under_policy(quota: Quota, *, of_run: bool = False) -> PlanRequest:
    """The usual request with a quota of its team, or of its run alone."""
    request = a_request()
    run, chat = request.workloads
    if of_run:
        return replace(request, workloads=(replace(run, policy=replace(run.policy, quotas=(quota,))), chat))
    return replace(request, policy=replace(request.policy, quotas=(quota,)))


def plan_of(nodes: int, plan_id: str = "plan-1") -> Plan:
    """A run of some nodes for ten hours and a service of one node for twenty."""
    return a_plan(
        a_placement(an_offer("o-1", stock=None), [a_segment(0, 10, nodes)]),
        a_placement(an_offer("o-2", stock=None), [a_segment(0, 20)], "chat", WorkloadKind.SERVING),
        plan_id=plan_id,
    )


async def test_the_installation_s_quota_counts_what_every_team_holds() -> None:
    house = house_of(Quota("fake", gpus=24))
    await house.reservations.reserve_offer(BOB, "o-1", 1)
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    with pytest.raises(
        OverQuota, match=r"fake: 16 more GPUs beside the 16 held .* would make 32, but .* allows 24"
    ) as raised:
        await house.reservations.reserve_offer(ALICE, "o-2", 2)
    error = raised.value
    assert (error.provider, error.unit, error.found, error.allowed) == ("fake", "GPUs", 32, 24)
    assert error.facts == {"provider": "fake", "unit": "GPUs", "found": 32, "allowed": 24}
    (problem,) = error.problems
    assert (problem.pointer, problem.expected) == ("/nodes", "at most 8 GPUs of fake")
    assert (kind_of(error).status, kind_of(error).code) == (409, "over-quota")
    assert exit_code_of(error) is ExitCode.CONFLICT
    assert len(house.rows()) == 2
    assert len(house.provider.ledger) == 2
    await house.reservations.reserve_offer(ALICE, "o-2", 1)


async def test_only_what_is_held_at_the_same_time_counts() -> None:
    house = house_of(Quota("fake", nodes=2))
    row = await house.reservations.reserve_offer(ALICE, "o-1", 2, NOON + 2 * HOUR, NOON + 4 * HOUR)
    await house.reservations.reserve_offer(ALICE, "o-1", 2, NOON, NOON + 2 * HOUR)
    with pytest.raises(OverQuota, match="1 more nodes beside the 2 held at 2026-11-23 14:00"):
        await house.reservations.reserve_offer(BOB, "o-2", 1, NOON + HOUR, NOON + 9 * HOUR)
    await house.reservations.reserve_offer(BOB, "o-2", 1, NOON + 4 * HOUR, NOON + 9 * HOUR)
    with pytest.raises(OverQuota, match=r"2 more nodes beside the 1 held"):
        await house.reservations.extend(ALICE, row.reservation_id, NOON + 5 * HOUR)


async def test_a_plan_is_held_to_its_team_s_quota_beside_what_the_team_holds() -> None:
    house = house_of(request=under_policy(Quota("fake", nodes=3)))
    house.store_plan(plan_of(2))
    await house.reservations.reserve_offer(BOB, "o-1", 3)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    house.store_plan(plan_of(2, "plan-2"))
    with pytest.raises(OverQuota, match="quota of team research allows 3"):
        await house.reservations.reserve_plan(ALICE, "plan-2")
    assert {row.plan_id for row in house.rows()} == {None, "plan-1"}


async def test_a_workload_s_quota_counts_it_alone() -> None:
    request = under_policy(Quota("fake", gpus=16), of_run=True)
    house = house_of(request=request)
    house.store_plan(plan_of(3))
    with pytest.raises(OverQuota, match="quota of workload train allows 16"):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    assert not house.rows()
    house.store_plan(plan_of(2, "plan-2"))
    assert len(await house.reservations.reserve_plan(ALICE, "plan-2")) == 2


async def test_a_move_needs_room_for_both_places() -> None:
    house = house_of(Quota("fake", nodes=3), request=a_request())
    house.sell(an_offer("o-1", "9"), an_offer("o-2", "5"))
    house.store_plan(
        a_plan(a_placement(an_offer("o-1", "9"), [a_segment(0, 40, 2)], "chat", WorkloadKind.SERVING))
    )
    (row,) = await house.reservations.reserve_plan(ALICE, "plan-1")
    plan = a_plan(a_placement(an_offer("o-2", "5"), [a_segment(0, 40, 2)], "chat"), plan_id="plan-2")
    house.store_plan(plan)
    with pytest.raises(OverQuota, match="2 more nodes beside the 2 held"):
        await house.moves.move("reoptimizer", plan, [row.reservation_id])
    assert house.states() == [ReservationState.ACTIVE]


def _row(number: int, start: int, end: int | None, nodes: int, *, gone: int) -> Reservation:
    offer = an_offer(f"h-{number}")
    parts = [
        Unit(n, f"t-{number}-{n}", 1, UnitState.GONE if n < gone else UnitState.HELD) for n in range(nodes)
    ]
    until = None if end is None else NOON + end * HOUR
    return Reservation(
        f"r-{number}",
        "research",
        ReservationState.ACTIVE,
        offer,
        nodes,
        NOON + start * HOUR,
        until,
        tuple(parts),
        NOON,
    )


_spans = st.tuples(st.integers(0, 6), st.integers(1, 6), st.integers(1, 3), st.integers(0, 1))


@given(st.lists(_spans, max_size=4), st.lists(_spans, min_size=1, max_size=3), st.integers(0, 9))
@settings(max_examples=80, deadline=None)
def test_a_quota_is_passed_exactly_where_an_hour_counts_more(
    held: list[tuple[int, int, int, int]], wanted: list[tuple[int, int, int, int]], limit: int
) -> None:
    rows = [_row(i, a, a + n, nodes, gone=gone) for i, (a, n, nodes, gone) in enumerate(held)]
    intents = [Intent(an_offer(), nodes, NOON + a * HOUR, NOON + (a + n) * HOUR) for a, n, nodes, _ in wanted]
    most = 0
    for hour in range(12):
        mine = sum(nodes for a, n, nodes, _ in wanted if a <= hour < a + n)
        others = sum(nodes - gone for a, n, nodes, gone in held if a <= hour < a + n)
        most = max(most, mine + others if mine else 0)
    scopes = (QuotaScope((Quota("fake", nodes=limit),)),)
    if most <= limit:
        require_within_quotas(scopes, "research", intents, rows)
        return
    with pytest.raises(OverQuota) as raised:
        require_within_quotas(scopes, "research", intents, rows)
    assert (raised.value.found, raised.value.allowed) == (most, limit)

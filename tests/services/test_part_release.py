"""A part of a plan is released alone: the fleet of a workload, whatever the others hold."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import cast

import pytest

from broker.domain.basics.access import TeamScope
from broker.domain.basics.errors import ConcurrentChange, InputError
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.ports.unit_of_work import UnitOfWork
from broker.services.holding.reservations import ReservationsService
from broker.services.holding.reserving_requests import PlanPart
from tests.fakes.buying import a_buyer
from tests.fakes.examples import ALICE, BOB
from tests.fakes.store import InMemoryUnitOfWork, Reservations, Tables
from tests.services.conftest import House
from tests.services.test_reservations import fleet_plan

ACTIVE, RELEASED = ReservationState.ACTIVE, ReservationState.RELEASED


async def test_the_fleet_of_a_workload_is_released_and_the_others_stay(house: House) -> None:
    fleet_plan(house)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    chat = PlanPart("plan-1", "chat")
    before = await house.reservations.estimate_part_release(ALICE, chat)
    assert (before.stays_usd, before.coming_usd) == (Decimal(3), Decimal(3)), "one node now, one later"
    found = await house.reservations.release_part(ALICE, chat)
    assert (len(found.asked), found.failed) == (2, ())
    states = {(row.workload, row.state) for row in house.rows()}
    assert states == {("chat", RELEASED), ("train", ACTIVE)}
    assert (await house.reservations.release_part(ALICE, chat)).asked == ()
    house.assert_agreement()


async def test_only_what_is_of_one_offer_is_released(house: House) -> None:
    fleet_plan(house)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    assert (await house.reservations.release_part(ALICE, PlanPart("plan-1", "chat", "run"))).asked == ()
    found = await house.reservations.release_part(ALICE, PlanPart("plan-1", None, "run"))
    assert [row.workload for row in found.asked] == ["train"]


async def test_nothing_of_another_team_is_released(house: House) -> None:
    fleet_plan(house)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    assert (await house.reservations.release_part(BOB, PlanPart("plan-1"))).asked == ()
    assert RELEASED not in {row.state for row in house.rows()}


async def test_the_estimate_of_a_plan_that_holds_nothing_is_that_of_the_workload(house: House) -> None:
    fleet_plan(house)
    run = await house.reservations.estimate_part_release(ALICE, PlanPart("plan-1", "train"))
    chat = await house.reservations.estimate_part_release(ALICE, PlanPart("plan-1", "chat"))
    whole = await house.reservations.estimate_part_release(ALICE, PlanPart("plan-1"))
    assert run.stays_usd + chat.stays_usd == whole.stays_usd == Decimal(2 * 10 + 3)
    with pytest.raises(InputError, match=r"nearest: chat") as refused:
        await house.reservations.estimate_part_release(ALICE, PlanPart("plan-1", "chatt"))
    assert refused.value.problems[0].pointer == "/workload"


class _Stale(Reservations):
    """Reservations of which the second is always changed by somebody else after it was read."""

    async def find(self, reservation_id: str) -> Reservation:
        row = await super().find(reservation_id)
        return replace(row, version=row.version - 1) if row.start > row.created_at else row


class _StaleUnit(InMemoryUnitOfWork):
    def __init__(self, tables: Tables, scope: TeamScope) -> None:
        super().__init__(tables, scope)
        self.reservations = _Stale(tables, self._staged, scope)


async def test_one_that_fails_does_not_keep_the_others(house: House) -> None:
    fleet_plan(house)
    await house.reservations.reserve_plan(ALICE, "plan-1")

    def units(scope: TeamScope) -> UnitOfWork:
        return cast("UnitOfWork", _StaleUnit(house.tables, scope))

    buying = a_buyer(units, {"fake": house.provider}, house.clock)
    service = ReservationsService(units, buying, house.clock, house.notifier)
    found = await service.release_part(ALICE, PlanPart("plan-1"))
    ((row, error),) = found.failed
    assert isinstance(error, ConcurrentChange)
    assert (row.workload, len(found.asked)) == ("chat", 2)
    assert [one.state for one in house.rows() if one.reservation_id == row.reservation_id] == [
        ReservationState.SCHEDULED
    ]

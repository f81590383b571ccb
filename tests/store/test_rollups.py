"""Budgets, rolled-up spend and closed months, on both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.access import EVERY_TEAM, TeamScope
from broker.domain.basics.errors import Conflict, NotFound
from broker.domain.basics.export_jobs import ExportJob, ExportState
from broker.domain.basics.window import Window
from broker.domain.focus.columns import FocusRow
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.budgets import Budget, BudgetAlert, BudgetPeriod
from broker.domain.spend.month_close import ClosedMonth
from broker.domain.spend.spend import ChargeBasis
from broker.domain.spend.spend_cells import Amounts, CellKey
from broker.domain.spend.unit_costs import DayWork
from broker.ports.spend import DaySum, FocusCosts, LedgerMark
from broker.store import Store
from tests.store.examples import NOON, plan_record, reservation

DAY, NEXT, LATER = date(2026, 11, 1), date(2026, 11, 2), date(2026, 11, 3)
KEY = CellKey("research", "train", "training", "aws", "p5", "spot", "o-1", "H100", "us-1")
OTHER = KEY._replace(workload="chat", kind="serving", tier="window")
MONTH = Window(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))


async def test_sums_follow_what_is_stored_of_each_bill(store: Store) -> None:
    old = {(DAY, KEY): Amounts(100, 100, 3600), (DAY, OTHER): Amounts(7, 0, 60, 10, 1)}
    new = {(DAY, KEY): Amounts(40, 100, 3600), (NEXT, KEY): Amounts(60, 0, 3600)}
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.rollups.put("plan-1", "research", {}, old)
        await unit.rollups.put("plan-2", "research", {}, {(DAY, KEY): Amounts(5, 5)})
        await unit.rollups.next_generation()
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.rollups.find_stored(["plan-1", "nothing"]) == {"plan-1": old}
        await unit.rollups.put("plan-1", "research", old, new)
        await unit.rollups.next_generation()
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        by_team = await unit.rollups.find_sums((DAY, LATER), "team")
        by_word = await unit.rollups.find_sums((DAY, NEXT), "workload")
        bound = await unit.rollups.find_sums(None, "commitment")
        assert await unit.rollups.find_first_day() == DAY
        assert await unit.rollups.find_generation() == 2
    async with store.unit_of_work(TeamScope("product")) as unit:
        assert await unit.rollups.find_sums(None, "team") == ()
    assert set(by_team) == {DaySum(DAY, "research", 45, 105), DaySum(NEXT, "research", 60, 0)}
    assert set(by_word) == {DaySum(DAY, "train", 45, 105), DaySum(DAY, "chat", 0, 0)}
    assert {(row.day, row.group, row.cents) for row in bound} == {
        (DAY, "committed", 45),
        (NEXT, "committed", 60),
    }


async def test_a_write_takes_a_bill_out_of_what_is_rolled_up(store: Store) -> None:
    row = reservation("rsv-1")
    bill = row.plan_id or row.reservation_id
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.reservations.add(row)
        await unit.commit()
    async with store.unit_of_work(TeamScope("nobody")) as unit:
        assert await unit.rollups.find_open_bills() == frozenset()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.rollups.find_open_bills() == {bill}
        (found,) = await unit.reservations.find_of_bills([bill])
        assert await unit.rollups.settle([found])
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.rollups.find_open_bills() == frozenset()
        await unit.reservations.update(replace(found, reason="again"))
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.rollups.find_open_bills() == {bill}
        assert not await unit.rollups.settle([found]), "that version is over"


async def test_every_write_that_spend_depends_on_changes_the_mark(store: Store) -> None:
    async def mark(team: str | None = None) -> LedgerMark:
        async with store.unit_of_work(TeamScope(team)) as unit:
            return await unit.rollups.find_mark()

    seen = [await mark()]

    async def wrote() -> None:
        seen.append(await mark())
        assert seen[-1] not in seen[:-1]
        assert await mark() == seen[-1], "to read changes nothing"

    row = reservation("rsv-1")
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.reservations.add(row)
        await unit.commit()
    await wrote()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        row = await unit.reservations.update(replace(row, reason="again"))
        await unit.commit()
    await wrote()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.plans.add(plan_record("plan-1", "train"))
        await unit.commit()
    await wrote()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.plans.update(await unit.plans.find("plan-1"))
        await unit.commit()
    await wrote()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.rollups.settle([row])
        await unit.rollups.next_generation()
        await unit.commit()
    await wrote()
    assert await mark("nobody") != await mark("research")
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.reservations.update(replace(row, reason="once more"))
        await unit.commit()
    await wrote()


async def test_cells_over_days_and_sums_of_a_part(store: Store) -> None:
    spot = {(DAY, KEY): Amounts(100, 100, 3600), (NEXT, KEY): Amounts(1, 1, 60)}
    window = {(DAY, OTHER): Amounts(7, 0, 60, 10, 1)}
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.rollups.put("plan-1", "research", {}, {**spot, **window})
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        whole = await unit.rollups.find_cells(None)
        first = await unit.rollups.find_cells((DAY, NEXT))
        part = await unit.rollups.find_sums(None, "team", {"tier": "spot", "kind": "training"})
        assert await unit.rollups.find_sums(None, "team", {"tier": "committed"}) == ()
    async with store.unit_of_work(TeamScope("product")) as unit:
        assert await unit.rollups.find_cells(None) == {}
    assert whole == {KEY: Amounts(101, 101, 3660), OTHER: Amounts(7, 0, 60, 10, 1)}
    assert first == {KEY: Amounts(100, 100, 3600), OTHER: Amounts(7, 0, 60, 10, 1)}
    assert set(part) == {DaySum(DAY, "research", 100, 100), DaySum(NEXT, "research", 1, 1)}


async def test_plans_of_which_something_is_held(store: Store) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.reservations.add(reservation("rsv-1", plan_id="plan-1"))
        await unit.reservations.add(reservation("rsv-2", plan_id="plan-2", team="product"))
        await unit.reservations.add(reservation("rsv-3"))
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.reservations.find_plans_held(None) == {"plan-1", "plan-2"}
        before = Window(datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 2, 1, tzinfo=UTC))
        assert await unit.reservations.find_plans_held(before) == frozenset()
    async with store.unit_of_work(TeamScope("product")) as unit:
        assert await unit.reservations.find_plans_held(MONTH) == {"plan-2"}


async def test_exports_are_kept_until_they_are_forgotten(store: Store) -> None:
    job = ExportJob("exp-1", "research", "rows.xlsx", "text/plain", NOON)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert [await unit.exports.add(job), await unit.exports.add(job)] == [True, False]
        await unit.commit()
    done = replace(job, state=ExportState.DONE, manifest='{"rows": 1}')
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.exports.find("exp-1") == job
        with pytest.raises(NotFound):
            await unit.exports.find_content("exp-1")
        await unit.exports.finish(done, b"PK\x00")
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.exports.find("exp-1") == done
        assert await unit.exports.find_content("exp-1") == b"PK\x00"
        await unit.exports.forget(NOON + timedelta(days=1))
        with pytest.raises(NotFound):
            await unit.exports.find("exp-1")


async def test_closed_months_keep_their_rows(store: Store) -> None:
    month = ClosedMonth(DAY, NOON, "key-1", "ok", Decimal("12.34"), 1)
    row: FocusRow = {
        "BilledCost": Decimal("12.34"),
        "ChargePeriodStart": MONTH.start,
        "SubAccountId": "research",
        "Tags": '{"team": "é"}',
        "ChargeClass": None,
    }
    kind = WorkloadKind.SERVING
    work = DayWork(DAY, "research", "plan-1", "chat", kind, Decimal("0.29"), 7200, 0, 4.75e9, is_used=True)
    unread = replace(work, day=date(2026, 11, 2), kind=None, tokens=None, is_used=False)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.rollups.add_closed(month)
        await unit.rollups.add_closed_rows(DAY, 0, "research", [row])
        await unit.rollups.add_closed_costs(DAY, {"rsv-1": FocusCosts(1234, 1000)})
        await unit.rollups.add_closed_costs(date(2026, 12, 1), {"rsv-1": FocusCosts(-34, 0)})
        await unit.rollups.add_closed_work(DAY, [work, unread])
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.rollups.find_closed() == (month,)
        assert await unit.rollups.find_closed_parts(DAY) == (0,)
        (kept,) = await unit.rollups.find_closed_rows(DAY, 0)
        assert kept == {name: cell for name, cell in row.items() if cell is not None}
        months = [DAY, date(2026, 12, 1)]
        assert await unit.rollups.find_closed_costs(months, ["rsv-1", "rsv-2"]) == {"rsv-1": (1200, 1000)}
        assert await unit.rollups.find_closed_work(None) == (work, unread)
        assert await unit.rollups.find_closed_work((DAY, date(2026, 11, 2))) == (work,)
        assert await unit.rollups.find_months_with_work() == (DAY,)
    async with store.unit_of_work(TeamScope("product")) as unit:
        assert await unit.rollups.find_closed_parts(DAY) == ()
        assert await unit.rollups.find_closed_work(None) == ()
        with pytest.raises(Conflict, match="2026-11"):
            await unit.rollups.add_closed(month)


async def test_budgets_and_what_was_told_of_them(store: Store) -> None:
    budget = Budget("research", BudgetPeriod.MONTH, Decimal("10.50"), (50, 100), None, "key-1", NOON)
    span = replace(budget, period=BudgetPeriod.HORIZON, horizon=MONTH)
    alert = BudgetAlert(budget, MONTH, 50, ChargeBasis.ACTUAL, Decimal(6))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.budgets.put(replace(budget, limit_usd=Decimal(1)))
        await unit.budgets.put(budget)
        await unit.budgets.put(span)
        assert [await unit.budgets.tell(alert), await unit.budgets.tell(alert)] == [True, False]
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.budgets.find_all() == (span, budget)
        assert not await unit.budgets.tell(alert)
        await unit.budgets.take_back(alert)
        assert await unit.budgets.tell(alert)
        await unit.budgets.remove("research", BudgetPeriod.MONTH)
        assert await unit.budgets.tell(alert), "what was told goes with the budget"
        with pytest.raises(NotFound):
            await unit.budgets.find("research", BudgetPeriod.MONTH)

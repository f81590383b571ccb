"""Whether a plan passes a budget, on a SQLite file: what counts beside it, and from which cent on."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.basics.window import Window
from broker.domain.holding.early_holding import plan_held_early
from broker.domain.holding.holding_orders import Intent, unplaced_order
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.planning.plan import Plan
from broker.domain.spend.budgets import Budget, BudgetPeriod
from broker.services.spend.budget_gate import BudgetGate
from broker.services.spend.summaries import Summaries
from broker.store import Store, create_store
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import a_placement, a_plan, a_record, a_segment, an_offer

HOUR = timedelta(hours=1)
OFFER = an_offer("a", "10")
PLAN = a_plan(a_placement(OFFER, [a_segment(0, 10, 2)], "chat"))
NOVEMBER = Window(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))


@pytest.fixture
async def file(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[Store]:
    """An open store on a file of the test's own."""
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    opened = create_store(f"sqlite:///{tmp_path / 'broker.db'}")
    yield opened
    await opened.close()


def held(name: str, team: str = "research", plan_id: str | None = None) -> Reservation:
    """Two nodes at $10 for ten hours from noon: $200."""
    unit = Unit(0, f"t-{name}", 2, UnitState.HELD, f"i-{name}", NOON)
    return Reservation(
        name, team, ReservationState.ACTIVE, OFFER, 2, NOON, NOON + 10 * HOUR, (unit,), NOON,
        workload="chat", plan_id=plan_id, active_at=NOON,
    )  # fmt: skip


def draft(name: str, workload: str) -> Plan:
    """Another plan of $100 that somebody intends to buy."""
    return replace(a_plan(a_placement(OFFER, [a_segment(0, 10)], workload)), plan_id=name)


async def overruns(
    file: Store,
    limit: str,
    *rows: Reservation | Plan,
    plan: Plan = PLAN,
    window: Window | None = None,
    confidence: float | None = None,
) -> int:
    """How many budgets of ``limit`` the plan passes, beside reservations and drafts."""
    period = BudgetPeriod.MONTH if window is None else BudgetPeriod.HORIZON
    budget = Budget("research", period, Decimal(limit), (100,), window, "k", NOON, confidence)
    record = a_record(plan)
    async with file.unit_of_work(EVERY_TEAM) as uow:
        await uow.plans.add(record)
        await uow.budgets.put(budget)
        await uow.budgets.put(replace(budget, team="product", limit_usd=Decimal("0.01")))
        for row in rows:
            if isinstance(row, Plan):
                await uow.plans.add(a_record(row))
            else:
                await uow.reservations.add(row)
        await uow.commit()
    clock = FakeClock()
    gate = BudgetGate(file.unit_of_work, clock, Summaries(file.unit_of_work, clock))
    found = await gate.find_overruns(record, plan)
    assert all("research" in words and f"${Decimal(limit):,.2f}" in words for words in found), found
    return len(found)


@pytest.mark.parametrize(("limit", "passed"), [("200.00", 0), ("199.99", 1), ("5000", 0)])
async def test_a_plan_may_take_a_budget_to_its_last_cent(file: Store, limit: str, passed: int) -> None:
    assert await overruns(file, limit) == passed


@pytest.mark.parametrize(
    ("confidence", "most"), [(None, "200.00"), (0.5, "190.00"), (0.9, "240.00"), (0.95, "256.43")]
)
@pytest.mark.parametrize(("cents", "passed"), [(0, 0), (-1, 1)])
async def test_a_budget_at_a_confidence_counts_what_a_plan_is_paid_at_most(
    file: Store, confidence: float | None, most: str, cents: int, passed: int
) -> None:
    """$200 are held, $190 is the median of what is paid, $240 its P90: 190 · (24/19)^(z/1.2816)."""
    told = replace(PLAN, cost_p50_usd=Decimal(190), cost_p90_usd=Decimal(240))
    limit = Decimal(most) + Decimal(cents) / 100
    assert await overruns(file, str(limit), plan=told, confidence=confidence) == passed


@pytest.mark.parametrize(("confidence", "most"), [(0.5, "285.00"), (0.9, "360.00")])
@pytest.mark.parametrize(("cents", "passed"), [(0, 0), (-1, 1)])
async def test_a_budget_at_a_confidence_counts_every_plan_at_it(
    file: Store, confidence: float, most: str, cents: int, passed: int
) -> None:
    """Beside the plan's $190 or $240 another plan of $100 counts with $95 or $120."""
    other = replace(draft("other", "train"), cost_p50_usd=Decimal(95), cost_p90_usd=Decimal(120))
    told = replace(PLAN, cost_p50_usd=Decimal(190), cost_p90_usd=Decimal(240))
    limit = Decimal(most) + Decimal(cents) / 100
    assert await overruns(file, str(limit), other, plan=told, confidence=confidence) == passed


async def test_a_plan_of_an_earlier_version_counts_with_what_it_holds(file: Store) -> None:
    assert await overruns(file, "200.00", confidence=0.9) == 0


@pytest.mark.parametrize(
    ("rows", "whole"),
    [
        ([held("r")], "400.00"),
        ([held("r"), held("s")], "600.00"),
        ([held("r", "product")], "200.00"),  # another team's
        ([held("r", plan_id=PLAN.plan_id)], "200.00"),  # its own purchase is not paid twice
        ([draft("other", "chat")], "200.00"),  # it takes that draft's place
        ([draft("other", "train")], "300.00"),
    ],
)
@pytest.mark.parametrize(("cents", "passed"), [(0, 0), (-1, 1)])
async def test_what_counts_beside_a_plan(
    file: Store, rows: list[Reservation | Plan], whole: str, cents: int, passed: int
) -> None:
    limit = Decimal(whole) + Decimal(cents) / 100
    assert await overruns(file, str(limit), *rows) == passed


@pytest.mark.parametrize(("limit", "passed"), [("200.00", 0), ("199.99", 1)])
@pytest.mark.parametrize("hours_later", [240, 31 * 24])
async def test_a_later_month_has_the_same_budget(
    file: Store, hours_later: int, limit: str, passed: int
) -> None:
    """All of the plan falls into December: it is held against December, and November stays within."""
    later = a_plan(a_placement(OFFER, [a_segment(hours_later, hours_later + 10, 2)], "chat"))
    assert await overruns(file, limit, plan=later) == passed


async def test_a_plan_over_two_months_takes_its_part_of_each(file: Store) -> None:
    """Twelve hours of $20 up to the end of November, and ten more: $240 there, $200 in December."""
    both = a_plan(a_placement(OFFER, [a_segment(7 * 24, 7 * 24 + 22, 2)], "chat"))
    assert await overruns(file, "240.00", plan=both) == 0


async def test_each_month_that_would_be_exceeded_is_told(file: Store) -> None:
    both = a_plan(a_placement(OFFER, [a_segment(7 * 24, 7 * 24 + 22, 2)], "chat"))
    assert await overruns(file, "199.99", plan=both) == 2


async def test_a_budget_that_others_passed_is_no_concern_of_a_plan_without_a_part_in_it(file: Store) -> None:
    """The plan begins at noon; $20 of a lease fall into the two hours of a budget after it."""
    later = Window(NOON + 12 * HOUR, NOON + 14 * HOUR)
    row = replace(held("r"), end=NOON + 20 * HOUR)
    assert await overruns(file, "1.00", row, window=later) == 0


async def test_a_plan_has_a_part_in_a_month_that_it_leaves(file: Store) -> None:
    """Ten days from 23 November on; what falls into December counts there."""
    long = a_plan(a_placement(OFFER, [a_segment(0, 240)], "chat"))
    november = (NOVEMBER.end - NOON) / HOUR * 10
    assert NOVEMBER.end < NOON + 240 * HOUR
    assert await overruns(file, f"{november - 0.01:.2f}", plan=long) == 1


async def test_a_plan_within_a_month_that_it_leaves_passes_nothing(file: Store) -> None:
    long = a_plan(a_placement(OFFER, [a_segment(0, 240)], "chat"))
    assert await overruns(file, f"{(NOVEMBER.end - NOON) / HOUR * 10:.2f}", plan=long) == 0


def order(hours: int | None, nodes: int = 2, team: str = "research") -> Reservation:
    """An order of nodes at $10 an hour from now on."""
    end = None if hours is None else NOON + hours * HOUR
    return unplaced_order(Intent(OFFER, nodes, NOON, end), team, NOON)


@pytest.mark.parametrize(
    ("limit", "asked", "passed"),
    [
        ("400.00", order(10), 0),  # $200 of it are held already
        ("399.99", order(10), 1),
        ("1.00", order(10, team="other"), 0),
        ("7440.00", order(None, nodes=1), 0),  # 7.5 days of November, $2,000 in all, and all of December
        ("7439.99", order(None, nodes=1), 1),
        ("2000.00", order(None, nodes=1), 1),
        ("1999.99", order(None, nodes=1), 2),
    ],
)
async def test_an_order_counts_beside_what_is_held(
    file: Store, limit: str, asked: Reservation, passed: int
) -> None:
    async with file.unit_of_work(EVERY_TEAM) as uow:
        await uow.budgets.put(Budget("research", BudgetPeriod.MONTH, Decimal(limit), (100,), None, "k", NOON))
        await uow.reservations.add(held("r"))
        await uow.commit()
    clock = FakeClock()
    gate = BudgetGate(file.unit_of_work, clock, Summaries(file.unit_of_work, clock))
    assert len(await gate.find_overruns_of_order(asked)) == passed


@pytest.mark.parametrize(
    ("limit", "hours", "plan_id", "passed"),
    [
        ("500.00", 20, None, 0),  # $200 and $100 are held, ten more hours are $200
        ("499.99", 20, None, 1),
        ("499.99", 20, PLAN.plan_id, 1),
        ("500.00", 20, PLAN.plan_id, 0),
        ("299.99", 10, None, 0),  # exceeded already, and the extension adds nothing
    ],
)
async def test_an_extension_counts_beside_what_is_held(
    file: Store, limit: str, hours: int, plan_id: str | None, passed: int
) -> None:
    row, beside = held("r", plan_id=plan_id), replace(held("s", plan_id=plan_id), end=NOON + 5 * HOUR)
    async with file.unit_of_work(EVERY_TEAM) as uow:
        await uow.budgets.put(Budget("research", BudgetPeriod.MONTH, Decimal(limit), (100,), None, "k", NOON))
        await uow.plans.add(a_record(PLAN))
        for one in (row, beside):
            await uow.reservations.add(one)
        await uow.commit()
    clock = FakeClock()
    gate = BudgetGate(file.unit_of_work, clock, Summaries(file.unit_of_work, clock))
    found = await gate.find_overruns_of_extension(row, NOON + hours * HOUR)
    assert len(found) == passed
    if passed:
        assert "exceed its budget of $499.99 per month by $0.01" in found[0]
        assert "$300.00 counts already, and this extension adds $200.00 in that time" in found[0]


@pytest.mark.parametrize("begin", [NOON + 10 * HOUR, NOVEMBER.end])
async def test_a_few_cents_count_where_nothing_is_left(file: Store, begin: datetime) -> None:
    """An hour of two nodes at 15 cents is 30 cents, of one cent a month; in December nothing else counts."""
    cheap = an_offer("a", "0.15")
    row = replace(held("r"), offer=cheap, end=begin)
    async with file.unit_of_work(EVERY_TEAM) as uow:
        await uow.budgets.put(
            Budget("research", BudgetPeriod.MONTH, Decimal("0.01"), (100,), None, "k", NOON)
        )
        await uow.reservations.add(row)
        await uow.commit()
    clock = FakeClock()
    gate = BudgetGate(file.unit_of_work, clock, Summaries(file.unit_of_work, clock))
    ordered = unplaced_order(Intent(cheap, 2, begin, begin + HOUR), "research", NOON)
    (of_order,) = await gate.find_overruns_of_order(ordered)
    (of_extension,) = await gate.find_overruns_of_extension(row, begin + HOUR)
    assert "this order adds $0.30 in that time" in of_order
    assert "this extension adds $0.30 in that time" in of_extension


async def test_an_extension_into_a_later_month_is_held_against_that_month(file: Store) -> None:
    """The reservation ends in November; two hours of December are $40."""
    row = replace(held("r"), end=NOVEMBER.end)
    async with file.unit_of_work(EVERY_TEAM) as uow:
        whole = Budget("research", BudgetPeriod.MONTH, Decimal("39.99"), (100,), None, "k", NOON)
        await uow.budgets.put(whole)
        await uow.reservations.add(row)
        await uow.commit()
    clock = FakeClock()
    gate = BudgetGate(file.unit_of_work, clock, Summaries(file.unit_of_work, clock))
    (words,) = await gate.find_overruns_of_extension(row, NOVEMBER.end + 2 * HOUR)
    assert "by $0.01 (2026-12-01 to 2026-12-31)" in words


async def gate_with(
    file: Store, *rows: Reservation, limit_usd: str | None = None, **budgets: str
) -> BudgetGate:
    """A gate with monthly budgets by team (``all_teams`` for ``*``), beside what is held."""
    async with file.unit_of_work(EVERY_TEAM) as uow:
        for team, usd in budgets.items():
            whose = ALL_TEAMS if team == "all_teams" else team
            await uow.budgets.put(Budget(whose, BudgetPeriod.MONTH, Decimal(usd), (100,), None, "k", NOON))
        if rows:
            await uow.plans.add(a_record(PLAN))
        for row in rows:
            await uow.reservations.add(row)
        await uow.commit()
    clock = FakeClock()
    limit = None if limit_usd is None else Decimal(limit_usd)
    return BudgetGate(file.unit_of_work, clock, Summaries(file.unit_of_work, clock), limit)


@pytest.mark.parametrize(("limit", "over"), [("600.00", None), ("599.99", "$0.01"), ("500.00", "$100.00")])
async def test_a_budget_of_all_teams_is_held_against_each_team(
    file: Store, limit: str, over: str | None
) -> None:
    """$200 of each team are held; a plan, an order and a longer lease add $200 to the sum of all teams."""
    row = held("r")
    gate = await gate_with(file, row, held("s", "product"), all_teams=limit, research="5000")
    asked = {
        "this plan": await gate.find_overruns(a_record(PLAN), PLAN),
        "this order": await gate.find_overruns_of_order(order(10)),
        "this extension": await gate.find_overruns_of_extension(row, NOON + 20 * HOUR),
    }
    span = "(2026-11-01 to 2026-11-30)"
    for adds, found in asked.items():
        expected = f"the budget of all teams would be exceeded by {over} {span}: {adds} adds $200.00"
        assert found == (() if over is None else (f"{expected} in that time",)), "no figure of another team"


async def test_every_period_of_both_budgets_is_told_the_worst_first(file: Store) -> None:
    """Ten hours in November and all of December at $20 an hour."""
    gate = await gate_with(file, research="250.00", all_teams="100.00")
    long = Intent(OFFER, 2, NOVEMBER.end - 10 * HOUR, datetime(2027, 1, 1, tzinfo=UTC))
    found = await gate.find_overruns_of_order(unplaced_order(long, "research", NOON))
    assert [words.split(":")[0] for words in found] == [
        "the budget of all teams would be exceeded by $14,780.00 (2026-12-01 to 2026-12-31)",
        "team research would exceed its budget of $250.00 per month by $14,630.00 (2026-12-01 to 2026-12-31)",
        "the budget of all teams would be exceeded by $100.00 (2026-11-01 to 2026-11-30)",
    ]


@pytest.mark.parametrize(
    ("hours", "told"),
    [
        (20, ()),
        (21, ("this order costs $420.00",)),
        (None, ("this order costs $18,480.00",)),  # the rest of November and all of December, 924 hours
    ],
)
async def test_an_order_without_a_plan_keeps_the_limit_of_what_needs_no_approval(
    file: Store, hours: int | None, told: tuple[str, ...]
) -> None:
    gate = await gate_with(file, limit_usd="400.00")
    over = ", which is over the limit of $400.00 per plan or order"
    assert await gate.find_overruns_of_order(order(hours)) == tuple(words + over for words in told)


async def test_an_extension_keeps_the_limit_by_what_it_adds(file: Store) -> None:
    row = held("r")
    gate = await gate_with(file, row, limit_usd="400.00")
    assert await gate.find_overruns_of_extension(row, NOON + 30 * HOUR) == ()
    (words,) = await gate.find_overruns_of_extension(row, NOON + 31 * HOUR)
    assert words.startswith("this extension costs $420.00, which is over the limit")


async def test_an_exchange_is_held_against_budgets_by_what_it_adds(file: Store) -> None:
    """A refused order of a plan, $200, for another offer at $11: $20 more, of which $15 are left."""
    row = held("r", plan_id=PLAN.plan_id)
    gate = await gate_with(file, row, research="215.00", all_teams="5000")
    other = an_offer("b", "11")
    wanted = replace(
        unplaced_order(Intent(other, 2, NOON, NOON + 10 * HOUR), "research", NOON), plan_id=PLAN.plan_id
    )
    (words,) = await gate.find_overruns_of_exchange((row,), (wanted,), "this exchange")
    assert words.startswith("team research would exceed its budget of $215.00 per month by $5.00")
    assert "this exchange adds $20.00 in that time" in words


async def test_an_order_that_starts_later_counts_the_whole_month_after_its_start(file: Store) -> None:
    gate = await gate_with(file, research="7439.99")
    late = Intent(OFFER, 1, datetime(2027, 2, 28, tzinfo=UTC), None)
    (words,) = await gate.find_overruns_of_order(unplaced_order(late, "research", NOON))
    assert "by $0.01 (2027-03-01 to 2027-03-31)" in words


@pytest.mark.parametrize(
    ("limits", "is_approved", "told"),
    [
        ({"research": "320.00"}, False, ()),
        ({"research": "319.99"}, False, ("holding it now adds $120.00",)),
        ({"research": "319.99"}, True, ("exceed its budget of $319.99 per month by $0.01",)),
        ({"limit_usd": "320.00"}, False, ()),
        ({"limit_usd": "319.99"}, False, ("this plan, held now, costs $320.00, which is over the limit",)),
        ({"limit_usd": "120.00"}, True, ()),  # the plan was approved; what is added is within the limit
        ({"limit_usd": "119.99"}, True, ("holding it now costs $120.00, which is over the limit",)),
    ],
)
async def test_what_holding_a_plan_adds_is_held_to_budgets_and_to_the_limit(
    file: Store, limits: dict[str, str], is_approved: bool, told: tuple[str, ...]
) -> None:
    """Two nodes at $10 for ten hours from six hours on: $200, and $120 more if they are held now."""
    plan = a_plan(a_placement(OFFER, [a_segment(6, 16, 2)], "chat"))
    early = plan_held_early(plan, {"a": OFFER}, NOON)
    record = a_record(plan)
    if is_approved:
        record = replace(record, approved_by="key-finance", approved_at=NOON)
    gate = await gate_with(file, **limits)
    found = await gate.find_overruns_of_hold(record, plan, early)
    assert len(found) == len(told)
    assert all(words in one for words, one in zip(told, found, strict=True)), found
    assert await gate.find_overruns_of_hold(record, plan, plan) == ()

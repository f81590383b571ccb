"""Finance's use cases on a SQLite file: which scope each asks for, approvals, standings, and deliveries."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from api.bootstrap import Product
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry, Caller, Scope
from broker.domain.basics.errors import Conflict, InputError, NotPermitted
from broker.domain.basics.webhook import ALL_TEAMS, TRIES_AFTER, DeliveryState, SendOutcome
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import Tier
from broker.domain.spend.approvals import ApprovalState
from broker.domain.spend.budgets import Budget, BudgetPeriod
from broker.domain.spend.spend import Charge, ChargeBasis, Interval
from broker.ports.planning import PlanRecord, PlanState
from broker.services.accounts.webhooks import MOST_PATTERNS, WebhooksService
from broker.services.market.forecasting import ForecastSources
from broker.services.spend.approvals import ApprovalsService, Looked
from broker.services.spend.intervals import _at, _periods, _spans, _sums
from broker.services.spend.spend_futures import SpendFutures
from optimizer.spend_interval import MonteCarlo
from tests.api.house import House
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import ALICE, a_placement, a_plan, a_record, a_segment, an_offer

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
OFFER = an_offer("a", "10")
MONTH = Budget("research", BudgetPeriod.MONTH, Decimal(1000), (50, 100), None, "k", NOON)
WINDOW = Window(NOON, NOON + DAY)


@pytest.fixture
async def product(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[Product]:
    """The use cases on a migrated file of the test's own; nothing runs by itself."""
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    made = House(tmp_path / "broker.db", offers=(OFFER,)).build()
    yield made
    await made.store.close()


Use = Callable[[Product, Caller], Awaitable[object]]
USES: dict[str, tuple[Scope, Use]] = {
    "webhooks.create": (Scope.SPEND_READ, lambda p, c: p.webhooks.create(c, "https://1.1.1.1/")),
    "webhooks.find_webhooks": (Scope.SPEND_READ, lambda p, c: p.webhooks.find_webhooks(c)),
    "webhooks.find": (Scope.SPEND_READ, lambda p, c: p.webhooks.find(c, "x")),
    "webhooks.remove": (Scope.SPEND_READ, lambda p, c: p.webhooks.remove(c, "x")),
    "approvals.find_approvals": (Scope.SPEND_READ, lambda p, c: p.approvals.find_approvals(c)),
    "approvals.find_approval": (Scope.SPEND_READ, lambda p, c: p.approvals.find_approval(c, "x")),
    "approvals.approve": (Scope.SPEND_APPROVE, lambda p, c: p.approvals.approve(c, "x")),
    "approvals.reject": (Scope.SPEND_APPROVE, lambda p, c: p.approvals.reject(c, "x", "no")),
    "budgets.put": (Scope.SPEND_APPROVE, lambda p, c: p.budgets.put(c, MONTH)),
    "budgets.remove": (Scope.SPEND_APPROVE, lambda p, c: p.budgets.remove(c, "x", BudgetPeriod.MONTH)),
    "budgets.find_statuses": (Scope.SPEND_READ, lambda p, c: p.budgets.find_statuses(c)),
    "budgets.find_status": (
        Scope.SPEND_READ,
        lambda p, c: p.budgets.find_status(c, "x", BudgetPeriod.MONTH),
    ),
    "intervals.find": (Scope.SPEND_READ, lambda p, c: p.intervals.find(c, WINDOW)),
    "changes.between_windows": (
        Scope.SPEND_READ,
        lambda p, c: p.changes.between_windows(c, WINDOW, WINDOW),
    ),
    "changes.between_plans": (Scope.SPEND_READ, lambda p, c: p.changes.between_plans(c, "x", "y")),
}


@pytest.mark.parametrize("name", sorted(USES))
async def test_a_key_without_the_scope_gets_nowhere(product: Product, name: str) -> None:
    """It may do all else; whether the object exists is not told."""
    scope, use = USES[name]
    with pytest.raises(NotPermitted, match=f"lacks the scope {scope}"):
        await use(product, replace(ALICE, scopes=ALICE.scopes - {scope}))


PLAN = a_plan(a_placement(OFFER, [a_segment(0, 10, 2)]))
FINANCE = Caller("key-finance", "research", frozenset({Scope.SPEND_READ, Scope.SPEND_APPROVE}))
LOOKER = Caller("key-looker", "research", frozenset({Scope.SPEND_READ}))


async def stored(product: Product, **changes: object) -> PlanRecord:
    """A plan of $200 that waits for finance."""
    record = replace(a_record(PLAN, needs_approval=True), **changes)  # type: ignore[arg-type]
    async with product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.plans.add(record)
        await uow.commit()
    return record


def with_four_eyes(product: Product) -> ApprovalsService:
    futures = SpendFutures(MonteCarlo(), ForecastSources())
    units = product.store.unit_of_work
    return ApprovalsService(units, product.clock, product.approvals._notifier, futures, four_eyes=True)


async def test_who_may_decide_is_said_and_held_to(product: Product) -> None:
    """With four eyes nobody decides what they asked for; without, whoever may approve does."""
    await stored(product)
    strict = with_four_eyes(product)
    for service, caller, may in (
        (product.approvals, ALICE, True),
        (product.approvals, LOOKER, False),
        (strict, ALICE, False),
        (strict, FINANCE, True),
        (strict, LOOKER, False),
    ):
        shown = await service.find_approval(caller, PLAN.plan_id)
        assert shown is not None
        assert (shown.state, shown.may_decide) == (ApprovalState.WAITING, may)
        (listed,) = (await service.find_approvals(caller)).items
        assert listed.may_decide is may
    with pytest.raises(NotPermitted, match="somebody else has to approve it"):
        await strict.approve(ALICE, PLAN.plan_id)
    said = await strict.reject(ALICE, PLAN.plan_id, "I was wrong")
    assert said.approval is ApprovalState.REJECTED
    yes = await strict.approve(FINANCE, PLAN.plan_id)
    assert yes.approval is ApprovalState.APPROVED


@pytest.mark.parametrize(
    ("state", "superseded", "is_current"),
    [
        (PlanState.DONE, False, True),
        (PlanState.DONE, True, False),
        (PlanState.PROPOSED, False, False),
    ],
)
async def test_a_replaced_plan_and_one_of_no_open_proposal_have_nothing_to_decide(
    product: Product, state: PlanState, superseded: bool, is_current: bool
) -> None:
    await stored(product, state=state)
    if superseded:
        newer = replace(PLAN, plan_id="plan-new")
        await stored(product, plan_id="plan-new", plan=newer, supersedes=PLAN.plan_id, needs_approval=False)
    shown = await product.approvals.find_approval(ALICE, PLAN.plan_id)
    assert shown is not None
    assert shown.is_current is is_current
    listed = {one.record.plan_id: one for one in (await product.approvals.find_approvals(ALICE)).items}
    assert listed[PLAN.plan_id].is_current is is_current
    assert shown.may_decide is is_current
    assert shown.replaced_by == ("plan-new" if superseded else None)
    if is_current:
        assert (await product.approvals.approve(ALICE, PLAN.plan_id)).approved_by == ALICE.key_id
        return
    with pytest.raises(Conflict, match="was replaced by plan plan-new" if superseded else "of a proposal"):
        await product.approvals.approve(ALICE, PLAN.plan_id)


async def test_a_plan_that_needs_no_word_or_is_not_made_is_not_shown(product: Product) -> None:
    await stored(product, needs_approval=False)
    assert await product.approvals.find_approval(ALICE, PLAN.plan_id) is None
    await stored(product, plan_id="plan-2", plan=None, state=PlanState.RUNNING)
    assert await product.approvals.find_approval(ALICE, "plan-2") is None
    assert (await product.approvals.find_approvals(ALICE)).items == ()
    with pytest.raises(Conflict, match="only a finished plan can be decided"):
        await product.approvals.approve(ALICE, "plan-2")


async def test_the_tightest_budget_is_the_one_that_is_told(product: Product) -> None:
    """A month of $1,000 and a quarter of $5,000, of which the plan takes $200."""
    await stored(product)
    shown = await product.approvals.find_approval(ALICE, PLAN.plan_id)
    assert shown is not None
    assert shown.figures.budget_left_usd is None
    await product.budgets.put(ALICE, replace(MONTH, period=BudgetPeriod.QUARTER, limit_usd=Decimal(5000)))
    await product.budgets.put(ALICE, MONTH)
    again = await product.approvals.find_approval(ALICE, PLAN.plan_id)
    assert again is not None
    assert again.figures.budget_left_usd == 800


@pytest.mark.parametrize(
    ("looked", "words"),
    [
        (Looked(), None),
        (Looked(cost_now_usd=Decimal(200)), None),
        (Looked(cost_now_usd=Decimal("200.01")), None),
        (Looked(cost_now_usd=Decimal("199.99")), r"costs \$200\.00 now, \$199\.99 when it was looked at"),
        (Looked(plan_sha256="0" * 64), "changed since you looked at it"),
    ],
)
async def test_a_word_is_on_what_was_looked_at(product: Product, looked: Looked, words: str | None) -> None:
    await product.offers.refresh()
    await stored(product)
    if words is None:
        yes = await product.approvals.approve(FINANCE, PLAN.plan_id, looked=looked)
        (decision,) = yes.decisions
        assert decision.seen is not None
        assert decision.seen.cost_now_usd == 200
        same = Looked(plan_sha256=decision.seen.plan_sha256)
        assert await product.approvals.approve(FINANCE, PLAN.plan_id, looked=same) == yes
        return
    with pytest.raises(Conflict, match=words):
        await product.approvals.approve(FINANCE, PLAN.plan_id, looked=looked)


def a_reservation(plan_id: str | None, team: str = "research", name: str = "rsv") -> Reservation:
    unit = Unit(0, f"t-{name}", 2, UnitState.HELD, f"i-{name}", NOON)
    return Reservation(
        name, team, ReservationState.ACTIVE, OFFER, 2, NOON, NOON + 10 * HOUR, (unit,), NOON,
        workload="chat", plan_id=plan_id, active_at=NOON,
    )  # fmt: skip


async def hold(product: Product, *rows: Reservation) -> None:
    async with product.store.unit_of_work(EVERY_TEAM) as uow:
        for row in rows:
            await uow.reservations.add(row)
        await uow.commit()


async def test_only_a_plan_that_is_not_held_can_be_rejected(product: Product) -> None:
    """Something else is held beside it; a second no adds nothing, and a yes after it does."""
    await stored(product)
    await hold(product, a_reservation(None, name="other"))
    no = await product.approvals.reject(FINANCE, PLAN.plan_id, "too dear")
    assert await product.approvals.reject(FINANCE, PLAN.plan_id, "still") == no
    yes = await product.approvals.approve(FINANCE, PLAN.plan_id)
    assert [one.verdict.value for one in yes.decisions] == ["rejected", "approved"]
    await hold(product, a_reservation(PLAN.plan_id))
    with pytest.raises(Conflict, match="is already reserved"):
        await product.approvals.reject(FINANCE, PLAN.plan_id, "late")


async def test_budgets_stand_each_against_its_own_teams_spend(product: Product) -> None:
    """$200 of one team, $200 of another; all of it against the budget of every team."""
    admin = Caller("key-admin", "admin", frozenset(Scope))
    await hold(product, a_reservation(None, "research", "r-1"), a_reservation(None, "product", "r-2"))
    with pytest.raises(InputError):
        await product.budgets.put(admin, replace(MONTH, limit_usd=Decimal(0)))
    assert await product.budgets.find_statuses(admin) == ()
    teams = ("research", "product", "nobody", ALL_TEAMS)
    for team in teams:
        await product.budgets.put(admin, replace(MONTH, team=team))
        if team == "product":
            both = {one.expected_usd for one in await product.budgets.find_statuses(admin)}
            assert both == {Decimal(200)}, "two teams' money, each its own"
    found = {one.budget.team: one.expected_usd for one in await product.budgets.find_statuses(admin)}
    assert found == {"research": 200, "product": 200, "nobody": 0, ALL_TEAMS: 400}
    (own,) = await product.budgets.find_statuses(ALICE)
    assert (own.budget.team, own.expected_usd) == ("research", Decimal(200))
    one = await product.budgets.find_status(admin, ALL_TEAMS, BudgetPeriod.MONTH)
    assert one.expected_usd == 400
    part = replace(MONTH, period=BudgetPeriod.HORIZON, horizon=Window(NOON, NOON + 3 * HOUR))
    await product.budgets.put(admin, part)
    standings = {one.budget.period: one.expected_usd for one in await product.budgets.find_statuses(ALICE)}
    assert standings == {BudgetPeriod.MONTH: 200, BudgetPeriod.HORIZON: 200}, (
        "what begins at noon, not that day"
    )


@dataclass
class Sender:
    """Gives ``outcomes`` in turn, then success; remembers what was sent."""

    outcomes: list[SendOutcome] = field(default_factory=list)
    sent: list[tuple[str, str]] = field(default_factory=list)
    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def require_allowed(self, url: str) -> None:
        if "private" in url:
            raise InputError("webhook", ())

    async def send(self, url: str, headers: dict[str, str], body: str) -> SendOutcome:
        self.sent.append((url, json.loads(body)["type"]))
        if self.meanwhile is not None:
            await self.meanwhile()
        return self.outcomes.pop(0) if self.outcomes else SendOutcome(200, "")


def hooks(product: Product, sender: Sender) -> WebhooksService:
    return WebhooksService(product.store.unit_of_work, sender, product.clock)


async def tell(product: Product, kind: str = "plan", object_id: str = "plan-x", times: int = 1) -> None:
    async with product.store.unit_of_work(EVERY_TEAM) as uow:
        for _ in range(times):
            await uow.accounts.add_audit(AuditEntry(NOON, "me", f"{kind}.done", kind, object_id, "research"))
        await uow.commit()


@pytest.mark.parametrize(
    ("url", "events", "is_made"),
    [
        ("https://a/", ["plan.*"], True),
        ("https://a/", ["plan.*"] * MOST_PATTERNS, True),
        ("https://a/", ["plan.*"] * (MOST_PATTERNS + 1), False),
        ("https://a/", [], False),
        ("https://a/", ["plan.*", "weather.*"], False),
        ("https://private/", ["plan.*"], False),
    ],
)
async def test_a_webhook_has_a_public_address_and_patterns_that_can_match(
    product: Product, url: str, events: list[str], is_made: bool
) -> None:
    service = hooks(product, Sender())
    if not is_made:
        with pytest.raises(InputError):
            await service.create(ALICE, url, events)
    else:
        assert (await service.create(ALICE, url, events)).events == tuple(events)
    assert len((await service.find_webhooks(ALICE)).items) == is_made


async def test_a_failed_try_waits_and_a_taken_one_ends(product: Product) -> None:
    sender = Sender([SendOutcome(500, "boom"), SendOutcome(None, "no answer")])
    service, clock = hooks(product, sender), product.clock
    assert isinstance(clock, FakeClock)
    hook = await service.create(ALICE, "https://a/", ["plan.*"])
    await tell(product)
    for attempts, wait in ((1, TRIES_AFTER[0]), (2, TRIES_AFTER[1])):
        assert await service.deliver() == 1
        (found,) = (await service.find(ALICE, hook.webhook_id))[1]
        assert (found.state, found.attempts) == (DeliveryState.PENDING, attempts)
        assert found.next_at == clock.now() + wait
        assert await service.deliver() == 0, "it is not due"
        clock.advance(seconds=wait.total_seconds())
    assert await service.deliver() == 1
    (taken,) = (await service.find(ALICE, hook.webhook_id))[1]
    assert (taken.state, taken.attempts, taken.error) == (DeliveryState.DELIVERED, 3, "")
    clock.advance(days=9)
    assert await service.deliver() == 0


async def test_an_address_that_is_gone_gets_nothing_more(product: Product) -> None:
    sender = Sender([SendOutcome(410, "gone")])
    service = hooks(product, sender)
    hook = await service.create(ALICE, "https://a/", ["plan.*"])
    await tell(product, times=2)
    await service.deliver()
    ended, deliveries = await service.find(ALICE, hook.webhook_id)
    assert ended.disabled_at == product.clock.now()
    assert len(sender.sent) == 1
    assert any(one.state is DeliveryState.FAILED and one.attempts == 1 for one in deliveries)
    clock = product.clock
    assert isinstance(clock, FakeClock)
    clock.advance(days=9)
    await tell(product)
    await service.deliver()
    assert len(sender.sent) == 1, "nothing is sent to what has ended"
    assert (await service.find(ALICE, hook.webhook_id))[0].disabled_at == ended.disabled_at


async def test_what_one_process_sends_no_other_sends_meanwhile(product: Product) -> None:
    """And many events leave in one call."""
    other = Sender()
    sender = Sender(meanwhile=hooks(product, other).deliver)
    service = hooks(product, sender)
    await service.create(ALICE, "https://a/", ["plan.*"])
    await tell(product, times=3)
    await service.deliver()
    assert len(sender.sent) == 3
    assert other.sent == []


SPANS = _spans(Window(NOON, NOON + 3 * DAY), Interval.DAY)


def test_a_window_is_cut_at_midnights_and_keeps_its_ends() -> None:
    midnight = NOON.replace(hour=0)
    assert [(span.start, span.end) for span in SPANS] == [
        (NOON, midnight + DAY),
        (midnight + DAY, midnight + 2 * DAY),
        (midnight + 2 * DAY, midnight + 3 * DAY),
        (midnight + 3 * DAY, NOON + 3 * DAY),
    ]
    month = datetime(2027, 1, 1, tzinfo=UTC)
    spans = _spans(Window(month, datetime(2037, 1, 1, tzinfo=UTC)), Interval.MONTH)
    assert (len(spans), spans[-1].end) == (120, datetime(2037, 1, 1, tzinfo=UTC))
    days = 3_660
    assert len(_spans(Window(month, month + days * DAY), Interval.DAY)) == days
    with pytest.raises(InputError):
        _spans(Window(month, month + days * DAY + HOUR), Interval.DAY)


@pytest.mark.parametrize(
    ("now", "days", "periods"),
    [
        (NOON + DAY, 4, (1, 2, 3, -1)),
        (NOON, 3, (-1, 1, 2)),  # today began before the window does
        (NOON - 2 * DAY, 4, (-1, -1, -1, 1)),
    ],
)
def test_each_day_from_today_lies_in_its_period(now: datetime, days: int, periods: tuple[int, ...]) -> None:
    assert _periods(SPANS, now, days) == periods


def test_a_window_that_begins_today_has_today_in_its_first_period() -> None:
    midnight = NOON.replace(hour=0)
    assert _periods(_spans(Window(midnight, midnight + 2 * DAY), Interval.DAY), NOON, 3) == (0, 1, -1)


def test_money_counts_in_its_period_and_what_is_late_today() -> None:
    """Owed on each day what its number says; a dollar that was expected yesterday is expected today."""

    def charge(at: datetime, usd: int, basis: ChargeBasis) -> Charge:
        return Charge(
            Window(at, at + HOUR), "research", "w", None, "fake", "s", Tier.ON_DEMAND, Decimal(usd), basis
        )

    midnight = NOON.replace(hour=0)
    owed = [charge(midnight + n * DAY + 13 * HOUR, 10**n, ChargeBasis.ACTUAL) for n in range(5)]
    assert _sums(owed, SPANS, NOON) == [1, 10, 100, 0], "the last ends at noon"
    assert _sums([charge(NOON - HOUR, 7, ChargeBasis.ACTUAL)], SPANS, NOON) == [0, 0, 0, 0]
    late = [charge(NOON, 1, ChargeBasis.PROJECTED), charge(midnight + 2 * DAY, 5, ChargeBasis.PROJECTED)]
    assert _sums(late, SPANS, NOON + DAY) == [0, 1, 5, 0]
    assert _sums([charge(NOON, 1, ChargeBasis.ACTUAL)], SPANS, NOON + DAY) == [1, 0, 0, 0]


def test_nothing_is_drawn_after_the_last_day_that_was_simulated() -> None:
    assert _at((), 0) == _at((), 5)

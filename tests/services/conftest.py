from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from broker.domain.holding.reservation import Idempotency, Reservation, ReservationState, UnitState
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.holding import Reserver
from broker.ports.planning import BudgetWatch, PlanCall, PlanRecord
from broker.ports.unit_of_work import UnitOfWorkFactory
from broker.services.holding.buyer import Buyer
from broker.services.holding.early_holding import EarlyHoldingService
from broker.services.holding.fallback_offer import FallbackOffers, FallbackRules
from broker.services.holding.order_gate import OrderGate
from broker.services.holding.reconcile import ReconcileReport, ReconcileRules, ReconcileService
from broker.services.holding.reservations import ReservationsService, ReservingRules
from broker.services.moving.moves import MovesService
from broker.services.planning.plan_queue import PlanQueue
from broker.services.planning.quota_gate import QuotaGate
from tests.fakes.buying import a_buyer
from tests.fakes.clock import FakeClock
from tests.fakes.examples import a_record, a_request
from tests.fakes.notifier import InlineExecutor, RecordingNotifier
from tests.fakes.provider import FakeProvider
from tests.fakes.store import Tables

SETTLE = timedelta(minutes=2)
GRACE = timedelta(minutes=15)


@dataclass
class House:
    """A broker with one fake provider, as the wiring would build it."""

    clock: FakeClock = field(default_factory=FakeClock)
    tables: Tables = field(default_factory=Tables)
    notifier: RecordingNotifier = field(default_factory=RecordingNotifier)
    idempotency: Idempotency = Idempotency.TAG
    plan_call: PlanCall | None = None
    request: PlanRequest = field(default_factory=a_request)
    quotas: QuotaGate | None = None
    next_best_rules: FallbackRules = field(default_factory=FallbackRules)
    budgets: BudgetWatch | None = None
    orders: OrderGate | None = None

    def __post_init__(self) -> None:
        self.provider = FakeProvider(self.clock, idempotency=self.idempotency)
        self.queue = PlanQueue(InlineExecutor())
        self.restart()

    def restart(self) -> None:
        """New services over the same store and cloud, as after a crash."""
        reservers = {"fake": self.provider}
        units = self.tables.unit_of_work
        buying = a_buyer(units, reservers, self.clock, self._fallback_offers(), self.quotas, self.orders)
        parts = (units, buying, self.clock, self.notifier)
        self.moves = MovesService(*parts)
        self.reservations = ReservationsService(*parts, rules=ReservingRules())
        self.early_holding = EarlyHoldingService(*parts)
        rules = ReconcileRules(order_grace=SETTLE, orphan_grace=GRACE, max_orphans=50)
        self.reconcile = ReconcileService(*parts, rules=rules)

    def parts(
        self, reservers: Mapping[str, Reserver] | None = None
    ) -> tuple[UnitOfWorkFactory, Buyer, FakeClock, RecordingNotifier]:
        """Parts of another service over the same store, and over ``reservers`` if they are others."""
        units = self.tables.unit_of_work
        buying = a_buyer(units, reservers or {"fake": self.provider}, self.clock)
        return units, buying, self.clock, self.notifier

    def _fallback_offers(self) -> FallbackOffers | None:
        """The way out of a refusal; None while nobody plans."""
        if self.plan_call is None:
            return None
        return FallbackOffers(
            self.tables.unit_of_work,
            self.plan_call,
            self.queue,
            self.clock,
            read_request=lambda document: self.request,
            rules=self.next_best_rules,
            budgets=self.budgets,
            orders=None if self.orders is None else self.orders.rules,
        )

    def sell(self, *offers: Offer) -> None:
        """Puts offers on sale."""
        self.tables.put_offers(*offers)

    def store_plan(self, plan: Plan, *, needs_approval: bool = False) -> PlanRecord:
        """Stores a plan that is done."""
        record = a_record(plan, needs_approval=needs_approval)
        self.tables.plans[record.plan_id] = record
        return record

    def rows(self) -> list[Reservation]:
        """Every reservation."""
        return list(self.tables.reservations.values())

    def states(self) -> list[ReservationState]:
        """States of every reservation, in the order of their intents."""
        return [row.state for row in self.rows()]

    async def settle(self, passes: int = 12) -> ReconcileReport:
        """Passes of the reconciler with time between them; the last report."""
        for _ in range(passes):
            self.clock.advance(minutes=3)
            report = await self.reconcile.run_once()
        return report

    def assert_agreement(self) -> None:
        """The judge is the ledger: what is open there is held here, once, and nothing else."""
        held = [unit.reference for row in self.rows() for unit in row.units if unit.state is UnitState.HELD]
        assert sorted(i.reference for i in self.provider.open_instances()) == sorted(map(str, held))
        assert len(set(held)) == len(held)

    def set_time(self, offer: Offer, seen_at: datetime) -> None:
        """Pretends that ``offer`` was polled again."""
        self.sell(replace(offer, observed_at=seen_at))


@pytest.fixture
def house() -> House:
    return House()

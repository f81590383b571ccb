"""A whole product over a real SQLite file, one fake provider and a fake planner; and clients of it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from pydantic import SecretStr

from api.app import create_app
from api.background import Background
from api.bootstrap import Product, build_product
from api.clocks import SystemClock
from api.export.jobs import ExportJobs
from api.http.openapi import build_document
from api.identity.configured import people_of, provider_of
from api.machine_probe import MachineProbe
from api.notices.events import PlanEvents
from api.notices.notifier import LoggedNotifier
from api.notices.webhook_sender import HttpWebhookSender
from api.planning.planning_call import check_call, estimate_call, price_call, simulate_call
from api.planning.workers import Planners, PlannerThread
from api.schemas.base.problem import MEDIA_TYPE
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_energy_facts
from broker.domain.basics.account import Scope
from broker.domain.market.offer import Offer
from broker.domain.market.polling import PollPlan
from broker.domain.market.price_gate import GateRules
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanCall
from broker.ports.unit_of_work import Clock, Notifier
from broker.services.accounts.accounts import AccountsService
from broker.services.accounts.keys import KeysService
from broker.services.accounts.retention import RetentionService
from broker.services.accounts.ssh_keys import SshKeysService
from broker.services.accounts.webhooks import WebhooksService
from broker.services.holding.changes import ChangesService
from broker.services.holding.early_holding import EarlyHoldingService
from broker.services.holding.machines import MachinesService
from broker.services.holding.networks import NetworksService
from broker.services.holding.reconcile import ReconcileService
from broker.services.holding.reservations import ReservationsService
from broker.services.market.forecasting import ForecastSources
from broker.services.market.offers import OffersService
from broker.services.market.prices import PricesService
from broker.services.market.probes import Probe, ProbesService
from broker.services.moving.moves import MovesService
from broker.services.moving.proposals import ProposalsService
from broker.services.moving.reoptimize import ReoptimizeService
from broker.services.planning.confidence_pricing import ConfidencePricing
from broker.services.planning.estimating import EstimatingService
from broker.services.planning.plan_queue import PlanQueue
from broker.services.planning.planning import PlanningRules, PlanningService
from broker.services.spend.approvals import ApprovalsService
from broker.services.spend.budget_gate import BudgetGate
from broker.services.spend.budgets import BudgetsService
from broker.services.spend.economics import EconomicsService
from broker.services.spend.intervals import IntervalsService
from broker.services.spend.known_names import KnownNamesService
from broker.services.spend.spend import SpendService
from broker.services.spend.spend_futures import SpendFutures
from broker.services.spend.summaries import Summaries
from broker.settings import Settings
from broker.store import create_store
from optimizer.spend_interval import MonteCarlo
from tests.fakes.buying import a_buyer
from tests.fakes.clock import FakeClock
from tests.fakes.examples import an_offer, anew, plan_on_cheapest
from tests.fakes.network import FakeNetwork
from tests.fakes.provider import FakeProvider

ADMIN_KEY = "broker_live_test_admin_0123456789abcdef"
OFFERS = (an_offer("h100-a", "24"), an_offer("h100-b", "20.5"), an_offer("h100-c", "31"))
DOCUMENT: dict[str, Any] = {
    "team": "research",
    "horizon": {"start": "2026-11-24T00:00:00Z", "days": 7},
    "workloads": [
        {
            "name": "tune-8b",
            "kind": "training",
            "model": "Llama-3.1-8B",
            "tokens": 2.0e9,
            "sequence_length": 8192,
            "global_batch_tokens": 1.0e6,
            "precision": "bf16",
            "deadline": "+4d",
        }
    ],
}


@dataclass
class ClosableProvider(FakeProvider):
    """A fake provider that can be closed, as adapters can."""

    closed: bool = False

    async def aclose(self) -> None:
        """Remembers."""
        self.closed = True


@dataclass
class House:
    """How a product is put together for a test; ``open`` it."""

    database: Path
    clock: Clock = field(default_factory=FakeClock)
    true_time: Clock = field(default_factory=SystemClock)
    plan_call: PlanCall = plan_on_cheapest
    offers: tuple[Offer, ...] = OFFERS
    rules: PlanningRules = field(default_factory=PlanningRules)
    gate: GateRules = field(default_factory=GateRules)
    notifier: Notifier = field(default_factory=LoggedNotifier)
    executor: Planners = field(default_factory=PlannerThread)
    settings: Settings = field(
        default_factory=lambda: Settings(
            admin_key=SecretStr(ADMIN_KEY), poll_seconds=3600, debounce_seconds=0
        )
    )

    url: str | None = None
    probes: Mapping[str, Probe] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.provider = ClosableProvider(self.clock, offers=self.offers)
        self.network = FakeNetwork("east", "west")

    def build(self) -> Product:
        """The product, not migrated yet."""
        store = create_store(self.url or f"sqlite:///{self.database}")
        units, events, adapters = store.unit_of_work, PlanEvents(), {"fake": self.provider}

        def read(document: str, at: datetime | None = None) -> PlanRequest:
            now = at or self.clock.now()
            return read_workloads(document, source="stored plan", base=None, now=now, stored=True)

        buying = a_buyer(units, adapters, self.clock)
        futures = SpendFutures(MonteCarlo(), ForecastSources())
        summaries = Summaries(units, self.clock)
        gate = BudgetGate(units, self.clock, summaries)
        moves = MovesService(units, buying, self.clock, self.notifier)
        polls = PollPlan(timedelta(seconds=self.settings.poll_seconds))
        queue = PlanQueue(self.executor)
        planner = (units, self.plan_call, queue, self.clock, self.notifier)
        background, estimator = Background(), PlannerThread()
        identity = provider_of(self.settings, self.true_time)
        return Product(
            settings=self.settings,
            store=store,
            clock=self.clock,
            adapters=adapters,
            poll_plan=polls,
            executor=self.executor,
            estimator=estimator,
            plan_queue=queue,
            events=events,
            accounts=AccountsService(units, self.clock),
            keys=KeysService(units, self.clock),
            ssh_keys=SshKeysService(units, self.clock),
            people=people_of(self.settings, units, self.true_time, identity),
            identity=identity,
            offers=OffersService(units, adapters, self.clock, gate=self.gate, plan=polls),
            prices=PricesService(units, self.clock),
            retention=RetentionService(units, self.clock),
            probes=ProbesService(units, self.probes, self.clock, self.notifier),
            planning=PlanningService(
                *planner,
                events,
                read_request=read,
                replan_call=anew(self.plan_call),
                rules=self.rules,
                budgets=gate,
            ),
            estimating=EstimatingService(
                units,
                estimate_call,
                estimator,
                self.clock,
                self.rules.offers,
                simulate_call,
                read,
                check_call,
            ),
            confidence_pricing=ConfidencePricing(
                units, price_call, queue, self.clock, self.rules.offers, read
            ),
            reservations=ReservationsService(
                units, buying, self.clock, self.notifier, read_request=read, budgets=gate
            ),
            early_holding=EarlyHoldingService(units, buying, self.clock, self.notifier, gate),
            reconcile=ReconcileService(units, buying, self.clock, self.notifier),
            networks=NetworksService(units, {"fake": self.network}, self.clock, ("fake", "plain")),
            machines=MachinesService(units, adapters, MachineProbe(), self.clock, self.notifier),
            moves=moves,
            reoptimize=ReoptimizeService(
                units, anew(self.plan_call), *planner[2:], read_request=read, budgets=gate
            ),
            proposals=ProposalsService(
                units, moves, self.clock, self.notifier, read_request=read, budgets=gate
            ),
            spend=SpendService(units, self.clock, summaries, read_request=read),
            names=KnownNamesService(units),
            budgets=BudgetsService(units, self.clock, summaries),
            approvals=ApprovalsService(
                units,
                self.clock,
                self.notifier,
                futures,
                four_eyes=self.settings.four_eyes,
                summaries=summaries,
            ),
            intervals=IntervalsService(units, self.clock, futures, summaries),
            changes=ChangesService(units, self.clock, summaries),
            economics=EconomicsService(
                units, self.clock, summaries, read_request=read, energy=load_energy_facts()
            ),
            exports=ExportJobs(units, self.clock, background),
            background=background,
            webhooks=WebhooksService(units, HttpWebhookSender(allow_loopback=True), self.clock),
        )

    @asynccontextmanager
    async def open(self, *, scheduled: bool = False, polled: bool = True) -> AsyncIterator[Home]:
        """The application, living; it is closed at the end."""
        product = self.build()
        app = create_app(product, scheduled=scheduled)
        async with app.router.lifespan_context(app):
            if polled:
                await product.offers.refresh()
            home = Home(self, product, app)
            try:
                yield home
            finally:
                for client in home.clients:
                    await client.aclose()


@dataclass
class Home:
    """A living application."""

    house: House
    product: Product
    app: FastAPI
    clients: list[httpx.AsyncClient] = field(default_factory=list)

    def client(self, key: str | None = ADMIN_KEY, **options: Any) -> httpx.AsyncClient:
        """A client with a bearer key, or with none."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app),
            base_url="http://broker",
            headers=headers,
            event_hooks={"response": [partial(require_told, self.app)]},
            **options,
        )
        self.clients.append(client)
        return client

    async def key(self, team: str, scopes: Collection[Scope] | None = None) -> str:
        """The secret of a new key of ``team``; without ``scopes`` it may do all but administrate."""
        granted = frozenset(Scope) - {Scope.ADMIN} if scopes is None else frozenset(scopes)
        return (await self.product.keys.create_key("test", team, granted))[1]

    async def team(self, team: str, scopes: Collection[Scope] | None = None) -> httpx.AsyncClient:
        """A client with a key of its own."""
        return self.client(await self.key(team, scopes))

    async def plan(self, client: httpx.AsyncClient, document: Any = DOCUMENT) -> dict[str, Any]:
        """A plan, asked for and made."""
        answer = await client.post("/v1/plans?intended=true", json=document)
        assert answer.status_code == 202, answer.text
        async with client.stream("GET", answer.headers["Location"] + "/events") as events:
            async for _ in events.aiter_lines():
                pass
        plan: dict[str, Any] = (await client.get(answer.headers["Location"])).json()
        assert plan["state"] == "done", plan
        return plan


async def require_told(app: FastAPI, answer: httpx.Response) -> None:
    """Fails for a problem that the OpenAPI document does not tell of its operation."""
    if answer.is_success or answer.headers.get("Content-Type") != MEDIA_TYPE:
        return
    path, method = answer.request.url.path, answer.request.method
    document = api_document()
    for route in iter_route_contexts(app.routes):
        operation = document["paths"].get(route.path_format, {}).get(method.lower())
        if operation is not None and method in (route.methods or ()) and route.path_regex.match(path):
            await answer.aread()
            code = answer.json()["code"]
            told = code in operation["x-problems"] and str(answer.status_code) in operation["responses"]
            assert told or answer.status_code == 400, f"{method} {route.path_format}: {code}"
            return


@cache
def api_document() -> dict[str, Any]:
    """The OpenAPI document, derived once for all tests of a process."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "broker.db"
        database.touch()  # it is never opened
        product = build_product(Settings(database_url=f"sqlite:///{database}"), {}, exclusive=False)
        return build_document(create_app(product, scheduled=False))


def limit(usd: str) -> PlanningRules:
    """Plans above ``usd`` need finance's word."""
    return PlanningRules(approval_limit_usd=Decimal(usd))

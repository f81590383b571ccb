"""The asynchronous client of a running broker: the published calls, for programs with an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType, TracebackType
from typing import Self, TypeVar

import httpx

from api.client import calls
from api.client.answers import (
    MadePlan,
    ServerTimedOut,
    failure_of,
    made_or_waiting,
    parsed,
    problem_of,
)
from api.client.synchronous import address_and_key, authorization
from api.schemas.accounts.webhooks import NewWebhookForm, TestDeliveryForm, ToldWebhookForm, WebhookForm
from api.schemas.finance.spend import SpendForm
from api.schemas.holding.reservation import Fit, OrderQuoteForm, PlanQuoteForm, ReservationForm
from api.schemas.imports.starting_points import StartingPoint
from api.schemas.plans.comparison import AcceptedComparisonForm, ComparisonDocument
from api.schemas.plans.plan_record import AcceptedPlanForm, PlanSummaryForm, UnmadePlanForm
from broker.domain.basics.webhook import EVERYTHING, WebhookFormat
from broker.domain.market.offer import Offer
from broker.domain.planning.cost_estimate import CostEstimate
from broker.domain.spend.spend import CostView, Interval
from broker.settings import Settings

T = TypeVar("T")


class AsyncBrokerClient:
    """Calls one server with one key, as ``BrokerClient`` does; lists are asynchronous iterators."""

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        timeout_s: float = calls.TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._base_url = base_url
        self._http = httpx.AsyncClient(
            base_url=base_url, headers=authorization(key), timeout=timeout_s, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    def list_offers(
        self,
        *,
        gpu: str | None = None,
        provider: str | None = None,
        region: str | None = None,
        tier: str | None = None,
    ) -> AsyncIterator[Offer]:
        """Offers now, cheapest per GPU-hour first, page by page. ``gpu`` is a canonical name."""
        return self._each(calls.list_offers(gpu, provider, region, tier))

    async def find_offer(self, offer_id: str) -> Offer:
        """One offer that is on sale now. Raises NotFound."""
        return await self._do(calls.find_offer(offer_id))

    async def plan(
        self,
        workloads: calls.Workloads,
        *,
        time_limit_s: float | None = None,
        timeout_s: float = calls.PLAN_TIMEOUT_S,
        idempotency_key: str | None = None,
    ) -> MadePlan:
        """Asks for a plan of a workloads document and waits for it, at most ``timeout_s``.

        ``time_limit_s`` limits the search. Raises InputError for the document, PlanFailed, ServerTimedOut.
        """
        asked = await self.ask_for_plan(workloads, idempotency_key, time_limit_s=time_limit_s)
        return await self.wait_for_plan(asked.plan_id, timeout_s)

    async def estimate(self, workloads: calls.Workloads) -> CostEstimate:
        """What each workload would cost alone, without a search; at most 20 workloads. Stores nothing.

        Raises InputError for the document.
        """
        return await self._do(calls.estimate(workloads))

    async def read_source(self, text: str, kind: str | None = None) -> StartingPoint:
        """The workload that a SkyPilot task, a ``config.json`` or a command describes, and what is left out.

        Raises InputError for what cannot be planned, and for a source of another ``kind``.
        """
        return await self._do(calls.read_source(text, kind))

    async def ask_for_plan(
        self,
        workloads: calls.Workloads,
        idempotency_key: str | None = None,
        *,
        time_limit_s: float | None = None,
        new_team: bool = False,
    ) -> AcceptedPlanForm:
        """Asks for a plan of a workloads document: YAML or JSON text, a path, or its fields.

        ``new_team``: its team may be new although its name is like that of another.
        """
        asked = calls.ask_for_plan(workloads, idempotency_key, time_limit_s, new_team=new_team)
        return await self._do(asked)

    async def wait_for_plan(self, plan_id: str, timeout_s: float = calls.PLAN_TIMEOUT_S) -> MadePlan:
        """The plan once it is made. Raises PlanFailed, ServerTimedOut, NotFound."""
        until = time.monotonic() + timeout_s
        while (made := made_or_waiting(await self.find_plan(plan_id))) is None:
            if time.monotonic() >= until:
                raise ServerTimedOut(f"plan {plan_id} is not made after {timeout_s:g} s")
            await asyncio.sleep(calls.PAUSE_S)
        return made

    async def find_plan(self, plan_id: str) -> MadePlan | UnmadePlanForm:
        """One plan, or where it stands. Raises NotFound."""
        return await self._do(calls.find_plan(plan_id))

    def list_plans(self) -> AsyncIterator[PlanSummaryForm]:
        """Every plan, newest first, page by page."""
        return self._each(calls.list_plans())

    async def cancel_plan(self, plan_id: str) -> None:
        """Ends a plan that waits or is being made; twice is no error. Conflict for one that is made."""
        await self._do(calls.cancel_plan(plan_id))

    async def ask_what_if(
        self, plan_id: str, changes: Sequence[Mapping[str, object]], idempotency_key: str
    ) -> AcceptedComparisonForm:
        """Asks for a plan of each change of the plan's document."""
        return await self._do(calls.ask_what_if(plan_id, changes, idempotency_key))

    async def find_comparison(self, comparison_id: str) -> ComparisonDocument:
        """A plan beside its variants. Raises NotFound."""
        return await self._do(calls.find_comparison(comparison_id))

    async def compare_plans(self, plan_ids: Sequence[str]) -> ComparisonDocument:
        """Plans beside the first of them. Raises NotFound."""
        return await self._do(calls.compare_plans(plan_ids))

    async def reserve_plan(self, plan_id: str, idempotency_key: str | None = None) -> list[ReservationForm]:
        """Reserves all of a plan; the same key again gives the same answer and buys nothing twice.

        Raises Conflict where market or plan have changed, ApprovalRequired, OverBudget, ProviderError.
        """
        return await self._do(calls.reserve_plan(plan_id, idempotency_key))

    async def reserve_offer(
        self,
        offer_id: str,
        nodes: int,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        workload: str | None = None,
        fit: Fit = Fit.EXACT,
        max_price_usd_per_node_hour: Decimal | None = None,
        disk_gb: float | None = None,
        memory_gb: float | None = None,
        idempotency_key: str | None = None,
    ) -> ReservationForm:
        """Reserves nodes of one offer: from now unless ``start``, until released unless ``end`` (aware).

        ``fit`` outward extends times to the window on sale that covers them. ``disk_gb`` and ``memory_gb`` of
        a node: the seller's default unless given. Raises Conflict for too little
        stock and a price above ``max_price_usd_per_node_hour``, OverBudget, ProviderError.
        """
        wish = {
            "offer_id": offer_id,
            "nodes": nodes,
            "start": start,
            "end": end,
            "workload": workload,
            "fit": fit,
            "max_price_usd_per_node_hour": max_price_usd_per_node_hour,
            "disk_gb": disk_gb,
            "memory_gb": memory_gb,
        }
        return await self._do(calls.reserve_offer(wish, idempotency_key))

    async def quote_offer(
        self,
        offer_id: str,
        nodes: int,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        fit: Fit = Fit.EXACT,
        max_price_usd_per_node_hour: Decimal | None = None,
        disk_gb: float | None = None,
        memory_gb: float | None = None,
    ) -> OrderQuoteForm:
        """What ``reserve_offer`` would buy and cost now; it orders nothing.

        Raises what ``reserve_offer`` raises before it orders.
        """
        wish = {
            "offer_id": offer_id,
            "nodes": nodes,
            "start": start,
            "end": end,
            "fit": fit,
            "max_price_usd_per_node_hour": max_price_usd_per_node_hour,
            "disk_gb": disk_gb,
            "memory_gb": memory_gb,
        }
        return await self._do(calls.quote_offer(wish))

    async def quote_plan(self, plan_id: str) -> PlanQuoteForm:
        """What ``reserve_plan`` would cost; it orders nothing. Raises NotFound and Conflict."""
        return await self._do(calls.quote_plan(plan_id))

    async def find_reservation(self, reservation_id: str) -> ReservationForm:
        """One reservation. Raises NotFound."""
        return await self._do(calls.find_reservation(reservation_id))

    def list_reservations(self, plan_id: str | None = None) -> AsyncIterator[ReservationForm]:
        """Every reservation, newest first, page by page."""
        return self._each(calls.list_reservations(plan_id))

    async def release(self, reservation_id: str) -> ReservationForm:
        """Asks for the end of a reservation; a second time is no error."""
        return await self._do(calls.release(reservation_id))

    async def find_spend(
        self,
        *,
        group_by: str = "team",
        interval: Interval = Interval.MONTH,
        since: str | None = None,
        until: str | None = None,
        view: CostView = CostView.AMORTIZED,
        narrowed: Mapping[str, str] = MappingProxyType({}),
    ) -> SpendForm:
        """Projected and actual spend by period and group; ``narrowed``: only of a team, provider, tier …"""
        return await self._do(calls.find_spend(group_by, interval, since, until, view, narrowed))

    async def create_webhook(
        self,
        url: str,
        events: Sequence[str] = EVERYTHING,
        *,
        message_format: WebhookFormat = WebhookFormat.JSON,
        idempotency_key: str | None = None,
    ) -> NewWebhookForm:
        """A webhook with its secret, which no later answer has. ``events``: names, or patterns with ``*``."""
        return await self._do(calls.create_webhook(url, events, message_format, idempotency_key))

    def list_webhooks(self) -> AsyncIterator[WebhookForm]:
        """Every webhook of the team, newest first, page by page."""
        return self._each(calls.list_webhooks())

    async def find_webhook(self, webhook_id: str) -> ToldWebhookForm:
        """One webhook with its last deliveries. Raises NotFound."""
        return await self._do(calls.find_webhook(webhook_id))

    async def test_webhook(self, webhook_id: str, idempotency_key: str | None = None) -> TestDeliveryForm:
        """Sends the event ``webhook.test`` to it. Conflict for one that has ended."""
        return await self._do(calls.test_webhook(webhook_id, idempotency_key))

    async def delete_webhook(self, webhook_id: str) -> None:
        """Nothing more is sent to it."""
        await self._do(calls.delete_webhook(webhook_id))

    async def _do(self, call: calls.Call[T]) -> T:
        given = {name: value for name, value in call.params.items() if value is not None}
        try:
            answer = await self._http.request(
                call.method,
                call.path,
                params=given,
                headers=call.headers,
                json=call.body,
                content=call.content,
            )
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise failure_of(self._base_url, f"{call.method} {call.path}", error) from error
        if not answer.is_success:
            raise problem_of(answer)
        return parsed(self._base_url, call.read, answer) if call.has_answer else call.read(None)

    async def _each(self, listing: calls.Listing[T]) -> AsyncIterator[T]:
        cursor: str | None = None
        while True:
            page = await self._do(listing.page(cursor))
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return


def connect_async(settings: Settings | None = None) -> AsyncBrokerClient:
    """A client of the server that BROKER_URL names, with BROKER_KEY; InputError for what is no key."""
    return AsyncBrokerClient(*address_and_key(settings or Settings()))

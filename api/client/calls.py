"""The published calls, each stated once: what to send, and how to read the answer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from api.client.answers import MadePlan, ServerTimedOut, made_or_waiting, read_plan_answer
from api.client.bodies import Workloads, order_body, workloads_text
from api.client.transport import Call, Documents, Requests, once, part
from api.schemas.accounts.audit import AuditForm
from api.schemas.accounts.keys import KeyForm, KeyPage, NewKeyForm
from api.schemas.accounts.ssh_keys import SshKeyForm, SshKeyPage
from api.schemas.accounts.webhooks import NewWebhookForm, TestDeliveryForm, ToldWebhookForm, WebhookForm
from api.schemas.base.forms import PageForm
from api.schemas.finance.economics import SAVINGS, ChangesForm, IntervalForm, MonthCloseForm, UnitsForm
from api.schemas.finance.finance import ApprovalForm, ApprovalPage, BudgetForm, BudgetPage
from api.schemas.finance.spend import SpendForm
from api.schemas.holding.reservation import (
    RELEASE_ESTIMATE,
    ExtensionQuoteForm,
    Fit,
    FleetForm,
    HoldQuoteForm,
    OrderQuoteForm,
    PlanQuoteForm,
    PlanReleaseForm,
    ReservationForm,
    ReservationsForm,
    ShortfallForm,
)
from api.schemas.imports.answers import STARTING_POINT
from api.schemas.imports.starting_points import StartingPoint
from api.schemas.market.market import Market, MarketForm
from api.schemas.market.networks import NETWORK_PLAN
from api.schemas.market.offer import OFFER, OfferForm
from api.schemas.market.provider import QUARANTINED, QuarantinedForm
from api.schemas.plans.comparison import COMPARISON, AcceptedComparisonForm, ComparisonDocument
from api.schemas.plans.cost_estimate import COST_ESTIMATE
from api.schemas.plans.plan import ConfidencePricesForm
from api.schemas.plans.plan_record import AcceptedPlanForm, PlanSummaryForm, UnmadePlanForm
from api.schemas.plans.reoptimization import REOPTIMIZATION, ReoptimizationForm
from api.schemas.plans.simulation import SIMULATION, PlanCheckForm
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.webhook import EVERYTHING, WebhookFormat
from broker.domain.holding.early_holding import Hold
from broker.domain.holding.seller_network import NetworkPlan
from broker.domain.market.offer import Offer
from broker.domain.market.price_gate import Quarantined
from broker.domain.moving.reoptimization import Reoptimization
from broker.domain.moving.savings import Savings
from broker.domain.planning.cost_estimate import CostEstimate
from broker.domain.planning.plan import ConfidencePrice
from broker.domain.planning.simulation import DRAWS, SEED, Simulation
from broker.domain.reconciling.shortfalls import Shortfall
from broker.domain.spend.approvals import ApprovalState, Verdict
from broker.domain.spend.budgets import BudgetPeriod
from broker.domain.spend.release_estimate import ReleaseEstimate
from broker.domain.spend.spend import CostView, Interval

PAUSE_S = 0.5
"""Between two looks at a plan that is being made."""
TIMEOUT_S = 60.0
PLAN_TIMEOUT_S = 600.0


class PublishedCalls(Requests):
    """The calls of one server. A subclass sends requests and waits."""

    def list_offers(
        self,
        *,
        gpu: str | None = None,
        provider: str | None = None,
        region: str | None = None,
        tier: str | None = None,
        country: str | None = None,
        form: str | None = None,
        gpus_per_node: str | None = None,
        orderable: bool = False,
    ) -> AsyncIterator[Offer]:
        """Offers now, cheapest per GPU-hour first, page by page. Filters take several words by comma.

        ``orderable``: only what can be ordered and is not sold out.
        """
        wanted = {
            "gpu": gpu, "provider": provider, "region": region, "tier": tier, "country": country,
            "form": form, "gpus_per_node": gpus_per_node, "orderable": "true" if orderable else None,
        }  # fmt: skip
        return self._each("/v1/offers", PageForm[OfferForm], wanted)

    def list_providers(self) -> AsyncIterator[dict[str, Any]]:
        """The providers of the server with the health of their feeds, as documents."""
        return self._each("/v1/providers", Documents)

    def list_offer_days(
        self, offer_id: str, since: str | None = None, until: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The prices of one offer by UTC day, as documents; without times of the last 30 days."""
        wanted = {"interval": "day", "from": since, "to": until}
        return self._each(f"/v1/offers/{quote(offer_id)}/prices", Documents, wanted)

    def list_gpu_days(
        self,
        gpu: str,
        tier: str,
        since: str | None = None,
        until: str | None = None,
        *,
        by_provider: bool = False,
    ) -> AsyncIterator[dict[str, Any]]:
        """The prices of a GPU by UTC day, as documents; without times of the last 30 days."""
        by = "provider" if by_provider else "all"
        wanted = {"gpu": gpu, "tier": tier, "from": since, "to": until, "by": by}
        return self._each("/v1/prices", Documents, wanted)

    async def forecast_offer(self, offer_id: str) -> dict[str, Any]:
        """The forecast of an offer's price, as a document. Raises NotFound."""
        return await self._do(Call("GET", f"/v1/offers/{quote(offer_id)}/forecast"), dict)

    async def find_market(self, at: str, *, gpu: str | None = None, tier: str | None = None) -> Market:
        """The market as the server knew it at an instant."""
        call = Call("GET", "/v1/market", {"at": at, "gpu": gpu, "tier": tier})
        found = await self._do(call, MarketForm.model_validate)
        return Market(found.as_of, tuple(found.offers))

    async def find_offer(self, offer_id: str) -> Offer:
        """One offer that is on sale now. Raises NotFound."""
        return await self._do(Call("GET", f"/v1/offers/{quote(offer_id)}"), OFFER.read)

    async def plan(
        self,
        workloads: Workloads,
        *,
        time_limit_s: float | None = None,
        timeout_s: float = PLAN_TIMEOUT_S,
        idempotency_key: str | None = None,
    ) -> MadePlan:
        """Asks for a plan of a workloads document and waits for it, at most ``timeout_s``.

        ``time_limit_s`` limits the search. Raises InputError for the document, PlanFailed, ServerTimedOut.
        """
        asked = await self.ask_for_plan(workloads, idempotency_key, time_limit_s=time_limit_s)
        return await self.wait_for_plan(asked.plan_id, timeout_s)

    async def simulate_plan(self, plan_id: str, draws: int = DRAWS, seed: int = SEED) -> Simulation:
        """What may happen to a plan, over draws of what it does not know. Raises Conflict if its offers are
        gone.
        """
        call = Call("POST", f"/v1/plans/{plan_id}/simulate", body={"draws": draws, "seed": seed})
        return await self._do(call, SIMULATION.read)

    async def check_plan(self, plan_id: str) -> PlanCheckForm:
        """Every rule that a plan breaks, at the prices of its time. Raises NotFound, Conflict."""
        return await self._do(Call("GET", f"/v1/plans/{part(plan_id)}/check"), PlanCheckForm.model_validate)

    async def find_confidence_prices(self, plan_id: str) -> list[ConfidencePrice]:
        """What a plan's document costs at other confidences; the first answer takes as long as a plan."""
        path = f"/v1/plans/{plan_id}/confidence-prices"
        found = await self._do(Call("GET", path), ConfidencePricesForm.model_validate)
        return found.confidence_prices

    async def estimate(self, workloads: Workloads) -> CostEstimate:
        """What each workload would cost alone, without a search; at most 20 workloads. Stores nothing.

        Raises InputError for the document.
        """
        call = Call("POST", "/v1/estimates", headers=_YAML, content=workloads_text(workloads).encode())
        return await self._do(call, COST_ESTIMATE.read)

    async def read_source(self, text: str, kind: str | None = None) -> StartingPoint:
        """The workload that a tool's file, a ``config.json`` or a command describes, and what is left out.

        Raises InputError for what cannot be planned, and for a source of another ``kind``.
        """
        call = Call("POST", "/v1/starting-points", body={"text": text, "kind": kind})
        return await self._do(call, STARTING_POINT.read)

    async def ask_for_plan(
        self,
        workloads: Workloads,
        idempotency_key: str | None = None,
        *,
        time_limit_s: float | None = None,
        new_team: bool = False,
    ) -> AcceptedPlanForm:
        """Asks for a plan of a workloads document: YAML or JSON text, a path, or its fields.

        ``new_team``: its team may be new although its name is like that of another.
        """
        limit = None if time_limit_s is None else str(time_limit_s)
        params = {"time_limit_s": limit, "new_team": "true" if new_team else None}
        headers = {**once(idempotency_key), **_YAML}
        call = Call("POST", "/v1/plans", params, headers, content=workloads_text(workloads).encode())
        return await self._do(call, AcceptedPlanForm.model_validate)

    async def continue_plan(
        self, plan_id: str, idempotency_key: str | None = None, *, time_limit_s: float | None = None
    ) -> AcceptedPlanForm:
        """Asks for a plan that continues the search of a plan, with its document and options.

        Raises Conflict if that plan is proven, infeasible, reserved or not finished.
        """
        params = {"time_limit_s": None if time_limit_s is None else str(time_limit_s)}
        call = Call("POST", f"/v1/plans/{part(plan_id)}/continue", params, once(idempotency_key))
        return await self._do(call, AcceptedPlanForm.model_validate)

    async def wait_for_plan(self, plan_id: str, timeout_s: float = PLAN_TIMEOUT_S) -> MadePlan:
        """The plan once it is made. Raises PlanFailed, ServerTimedOut, NotFound."""
        until = time.monotonic() + timeout_s
        while (made := made_or_waiting(await self.find_plan(plan_id))) is None:
            if time.monotonic() >= until:
                raise ServerTimedOut(f"plan {plan_id} is not made after {timeout_s:g} s")
            await self._pause(PAUSE_S)
        return made

    async def find_plan(self, plan_id: str) -> MadePlan | UnmadePlanForm:
        """One plan, or where it stands. Raises NotFound."""
        return await self._do(Call("GET", f"/v1/plans/{part(plan_id)}"), read_plan_answer)

    def list_plans(self) -> AsyncIterator[PlanSummaryForm]:
        """Every plan, newest first, page by page."""
        return self._each("/v1/plans", PageForm[PlanSummaryForm])

    async def cancel_plan(self, plan_id: str) -> None:
        """Ends a plan that waits or is being made; twice is no error. Conflict for one that is made."""
        await self._ask(Call("DELETE", f"/v1/plans/{part(plan_id)}"))

    async def ask_what_if(
        self, plan_id: str, changes: Sequence[Mapping[str, object]], idempotency_key: str
    ) -> AcceptedComparisonForm:
        """Asks for a plan of each change of the plan's document."""
        body: dict[str, object] = {"based_on": plan_id, "changes": list(changes)}
        call = Call("POST", "/v1/plans", headers=once(idempotency_key), body=body)
        return await self._do(call, AcceptedComparisonForm.model_validate)

    async def find_comparison(self, comparison_id: str) -> ComparisonDocument:
        """A plan beside its variants. Raises NotFound."""
        return await self._do(Call("GET", f"/v1/comparisons/{part(comparison_id)}"), COMPARISON.read)

    async def compare_plans(self, plan_ids: Sequence[str]) -> ComparisonDocument:
        """Plans beside the first of them. Raises NotFound."""
        return await self._do(Call("GET", "/v1/comparisons", {"plan": list(plan_ids)}), COMPARISON.read)

    async def reserve_plan(
        self, plan_id: str, idempotency_key: str | None = None, hold: Hold = Hold.AT_START
    ) -> list[ReservationForm]:
        """Reserves all of a plan; the same key again gives the same answer and buys nothing twice.

        ``hold`` now: what starts later is bought now, and kept until it is last needed.
        Raises Conflict where market or plan have changed, ApprovalRequired, OverBudget, ProviderError.
        """
        path = f"/v1/plans/{part(plan_id)}/reserve"
        body = None if hold is Hold.AT_START else {"hold": str(hold)}
        call = Call("POST", path, headers=once(idempotency_key), body=body)
        return (await self._do(call, ReservationsForm.model_validate)).reservations

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
        call = Call("POST", "/v1/reservations", headers=once(idempotency_key), body=order_body(wish))
        return await self._do(call, ReservationForm.model_validate)

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
        call = Call("POST", "/v1/reservations/quote", body=order_body(wish))
        return await self._do(call, OrderQuoteForm.model_validate)

    async def quote_plan(self, plan_id: str) -> PlanQuoteForm:
        """What ``reserve_plan`` would cost; it orders nothing. Raises NotFound and Conflict."""
        return await self._do(Call("GET", f"/v1/plans/{part(plan_id)}/quote"), PlanQuoteForm.model_validate)

    async def find_reservation(self, reservation_id: str) -> ReservationForm:
        """One reservation. Raises NotFound."""
        call = Call("GET", f"/v1/reservations/{part(reservation_id)}")
        return await self._do(call, ReservationForm.model_validate)

    def list_reservations(self, plan_id: str | None = None) -> AsyncIterator[ReservationForm]:
        """Every reservation, newest first, page by page."""
        return self._each("/v1/reservations", PageForm[ReservationForm], {"plan_id": plan_id})

    def list_fleets(self, plan_id: str | None = None) -> AsyncIterator[FleetForm]:
        """Reservations as fleets, one for each workload and offer, newest first, page by page."""
        return self._each("/v1/reservations/fleets", PageForm[FleetForm], {"plan_id": plan_id})

    async def quote_hold(self, reservation_id: str) -> HoldQuoteForm:
        """What it adds to hold a reservation now that is ordered at its start. Raises NotFound, Conflict."""
        call = Call("GET", f"/v1/reservations/{part(reservation_id)}/hold")
        return await self._do(call, HoldQuoteForm.model_validate)

    async def quote_extension(self, reservation_id: str, end: str) -> ExtensionQuoteForm:
        """What it adds to hold a reservation until ``end``. Raises NotFound, InputError, Conflict."""
        call = Call("GET", f"/v1/reservations/{part(reservation_id)}/extend", {"end": end})
        return await self._do(call, ExtensionQuoteForm.model_validate)

    async def hold(self, reservation_id: str, idempotency_key: str | None = None) -> ReservationForm:
        """Holds a reservation now that is ordered at its start; twice is no error.

        Raises NotFound, Conflict, OverBudget, and the ProviderError of a seller that refuses; then it is
        ordered at its start as before.
        """
        path = f"/v1/reservations/{part(reservation_id)}/hold"
        call = Call("POST", path, headers=once(idempotency_key))
        return await self._do(call, ReservationForm.model_validate)

    async def finish(self, reservation_id: str) -> ReservationForm:
        """Says that the work of a reservation is over; the rest is released where that saves money."""
        call = Call("POST", f"/v1/reservations/{part(reservation_id)}/done", headers=once(str(uuid4())))
        return await self._do(call, ReservationForm.model_validate)

    async def release_plan(self, plan_id: str, workload: str | None = None) -> PlanReleaseForm:
        """Releases all that a plan holds, or what it holds for one workload; twice is no error."""
        body = {} if workload is None else {"workload": workload}
        path = f"/v1/plans/{part(plan_id)}/release"
        call = Call("POST", path, headers=once(str(uuid4())), body=body)
        return await self._do(call, PlanReleaseForm.model_validate)

    async def find_calendar(self, plan_id: str) -> str:
        """The windows of a plan as an iCalendar; once it is reserved, those of its reservations."""
        return (await self._ask(Call("GET", f"/v1/plans/{part(plan_id)}/windows.ics"))).text

    async def find_endpoints(self, plan_id: str, form: str = "json") -> str:
        """Where the services of a plan answer now, as text: json, prometheus, envoy or nginx."""
        call = Call("GET", f"/v1/plans/{part(plan_id)}/endpoints", {"format": form})
        return (await self._ask(call)).text

    async def release(self, reservation_id: str) -> ReservationForm:
        """Asks for the end of a reservation; a second time is no error."""
        call = Call("DELETE", f"/v1/reservations/{part(reservation_id)}")
        return await self._do(call, ReservationForm.model_validate)

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
        wanted = {"group_by": group_by, "interval": str(interval), "from": since, "to": until, **narrowed}
        call = Call("GET", "/v1/spend/projection", {**wanted, "view": str(view)})
        return await self._do(call, SpendForm.model_validate)

    async def create_webhook(
        self,
        url: str,
        events: Sequence[str] = EVERYTHING,
        *,
        message_format: WebhookFormat = WebhookFormat.JSON,
        idempotency_key: str | None = None,
    ) -> NewWebhookForm:
        """A webhook with its secret, which no later answer has. ``events``: names, or patterns with ``*``."""
        body: dict[str, object] = {"url": url, "events": list(events), "format": str(message_format)}
        call = Call("POST", "/v1/webhooks", headers=once(idempotency_key), body=body)
        return await self._do(call, NewWebhookForm.model_validate)

    def list_webhooks(self) -> AsyncIterator[WebhookForm]:
        """Every webhook of the team, newest first, page by page."""
        return self._each("/v1/webhooks", PageForm[WebhookForm])

    async def find_webhook(self, webhook_id: str) -> ToldWebhookForm:
        """One webhook with its last deliveries. Raises NotFound."""
        return await self._do(Call("GET", _webhook(webhook_id)), ToldWebhookForm.model_validate)

    async def test_webhook(self, webhook_id: str, idempotency_key: str | None = None) -> TestDeliveryForm:
        """Sends the event ``webhook.test`` to it. Conflict for one that has ended."""
        call = Call("POST", f"{_webhook(webhook_id)}/test", headers=once(idempotency_key))
        return await self._do(call, TestDeliveryForm.model_validate)

    async def delete_webhook(self, webhook_id: str) -> None:
        """Nothing more is sent to it."""
        await self._ask(Call("DELETE", _webhook(webhook_id)))

    async def set_intended(self, plan_id: str, *, intended: bool) -> None:
        """Sets whether a draft counts in planned spend. Raises Conflict for a plan that is not a draft."""
        await self._ask(Call("POST", f"/v1/plans/{part(plan_id)}/intend", body={"intended": intended}))

    async def list_shortfalls(self, plan_id: str | None = None) -> list[Shortfall]:
        """Times for which sellers refuse reserved nodes, earliest first."""
        path = "/v1/reservations/shortfalls"
        return [one async for one in self._each(path, PageForm[ShortfallForm], {"plan_id": plan_id})]

    async def estimate_release(self, reservation_id: str) -> ReleaseEstimate:
        """What the release of a reservation would give back now, and what would stay owed; NotFound."""
        call = Call("GET", f"/v1/reservations/{part(reservation_id)}/release")
        return await self._do(call, RELEASE_ESTIMATE.read)

    async def estimate_plan_release(self, plan_id: str, workload: str | None = None) -> ReleaseEstimate:
        """The same of all that a plan holds, or only of what it holds for ``workload``."""
        call = Call("GET", f"/v1/plans/{part(plan_id)}/release", {"workload": workload})
        return await self._do(call, RELEASE_ESTIMATE.read)

    async def extend(self, reservation_id: str, end: str) -> ReservationForm:
        """Extends a reservation until ``end`` (a time with its zone); twice is no error."""
        call = Call("POST", f"/v1/reservations/{part(reservation_id)}/extend", body={"end": end})
        return await self._do(call, ReservationForm.model_validate)

    def list_reoptimizations(self) -> AsyncIterator[Reoptimization]:
        """All re-optimizations, newest first, fetched page by page."""
        return self._each("/v1/reoptimizations", PageForm[ReoptimizationForm])

    async def find_reoptimization(self, reoptimization_id: str) -> Reoptimization:
        """One re-optimization with its moves. Raises NotFound."""
        return await self._do(
            Call("GET", f"/v1/reoptimizations/{part(reoptimization_id)}"), REOPTIMIZATION.read
        )

    async def decide_proposal(
        self, reoptimization_id: str, word: str, idempotency_key: str
    ) -> Reoptimization:
        """Accepts or rejects a proposal (``word``: accept, reject). Raises Conflict for one that has lapsed
        or was decided.
        """
        path = f"/v1/reoptimizations/{part(reoptimization_id)}/{word}"
        return await self._do(Call("POST", path, headers=once(idempotency_key)), REOPTIMIZATION.read)

    def list_audit(self, object_id: str) -> AsyncIterator[AuditEntry]:
        """All audit entries of one object, newest first, fetched page by page."""
        return self._each("/v1/audit", PageForm[AuditForm], {"object_id": object_id})

    def list_keys(self) -> AsyncIterator[KeyForm]:
        """All keys that the caller may see, newest first, fetched page by page."""
        return self._each("/v1/keys", KeyPage)

    async def create_key(self, body: Mapping[str, object], idempotency_key: str) -> NewKeyForm:
        """A new key with its secret."""
        call = Call("POST", "/v1/keys", headers=once(idempotency_key), body=body)
        return await self._do(call, NewKeyForm.model_validate)

    async def revoke_key(self, key_id: str) -> None:
        """Revokes a key for good; twice is no error."""
        await self._ask(Call("DELETE", f"/v1/keys/{part(key_id)}"))

    def list_ssh_keys(self) -> AsyncIterator[SshKeyForm]:
        """All public SSH keys that the caller may see, newest first, fetched page by page."""
        return self._each("/v1/ssh-keys", SshKeyPage)

    async def add_ssh_key(self, body: Mapping[str, object], idempotency_key: str) -> SshKeyForm:
        """Stores a public SSH key, which goes with later orders."""
        call = Call("POST", "/v1/ssh-keys", headers=once(idempotency_key), body=body)
        return await self._do(call, SshKeyForm.model_validate)

    async def remove_ssh_key(self, key_id: str) -> None:
        """Removes a public SSH key from later orders."""
        await self._ask(Call("DELETE", f"/v1/ssh-keys/{part(key_id)}"))

    def list_quarantine(self) -> AsyncIterator[Quarantined]:
        """All offers in quarantine, oldest first."""
        return self._each("/v1/quarantine", PageForm[QuarantinedForm])

    async def believe_price(self, offer_id: str) -> Quarantined:
        """Releases an offer from quarantine at its price; twice is no error."""
        return await self._do(Call("POST", f"/v1/quarantine/{quote(offer_id)}/release"), QUARANTINED.read)

    async def set_up_provider(
        self,
        provider: str,
        sources: Sequence[str],
        regions: Sequence[str] | None = None,
        *,
        dry_run: bool = False,
    ) -> NetworkPlan:
        """Makes the network of a seller's machines, reached from ``sources``; ``dry_run`` makes nothing."""
        body = {"sources": list(sources), "regions": regions and list(regions), "dry_run": dry_run}
        path = f"/v1/providers/{part(provider)}/setup"
        return await self._do(Call("POST", path, body=body), NETWORK_PLAN.read)

    async def list_budgets(self, month: str | None = None) -> list[BudgetForm]:
        """All budgets with what is owed and expected, now or in the periods that contain ``month``
        (2026-11)."""
        return (
            await self._do(Call("GET", "/v1/budgets", {"period": month}), BudgetPage.model_validate)
        ).items

    async def put_budget(self, team: str, period: BudgetPeriod, body: Mapping[str, object]) -> BudgetForm:
        """Sets a budget; it replaces the one of the same team and period."""
        return await self._do(Call("PUT", _budget(team, period), body=body), BudgetForm.model_validate)

    async def delete_budget(self, team: str, period: BudgetPeriod) -> None:
        """Deletes a budget. Raises NotFound."""
        await self._ask(Call("DELETE", _budget(team, period)))

    def list_approvals(self, state: ApprovalState | None = None) -> AsyncIterator[ApprovalForm]:
        """Plans that need approval, newest first, fetched page by page."""
        return self._each("/v1/approvals", ApprovalPage, {"state": state})

    async def decide(self, plan_id: str, verdict: Verdict, comment: str) -> None:
        """Approves or rejects a plan."""
        verb = {Verdict.APPROVED: "approve", Verdict.REJECTED: "reject"}[verdict]
        await self._ask(Call("POST", f"/v1/plans/{part(plan_id)}/{verb}", body={"comment": comment}))

    async def find_changes(self, before: str, after: str, view: CostView = CostView.AMORTIZED) -> ChangesForm:
        """Why the month or plan ``after`` costs more or less than ``before``."""
        wanted = {"from": before, "to": after, "view": None if view is CostView.AMORTIZED else str(view)}
        return await self._do(Call("GET", "/v1/spend/changes", wanted), ChangesForm.model_validate)

    async def find_interval(self, since: str | None, until: str | None, interval: Interval) -> IntervalForm:
        """P10, P50 and P90 of expected spend."""
        wanted = {"from": since, "to": until, "interval": str(interval)}
        return await self._do(Call("GET", "/v1/spend/interval", wanted), IntervalForm.model_validate)

    async def close_month(self, month: str, comment: str) -> MonthCloseForm:
        """Closes a past month, and says which sellers did not confirm their leases since."""
        wanted = {"month": month, "comment": comment}
        return await self._do(Call("POST", "/v1/spend/close", wanted), MonthCloseForm.model_validate)

    async def find_units(self, since: str | None, until: str | None) -> UnitsForm:
        """Unit costs and energy."""
        wanted = {"from": since, "to": until}
        return await self._do(Call("GET", "/v1/spend/units", wanted), UnitsForm.model_validate)

    async def find_savings(self) -> Savings:
        """What current plans save against simpler strategies."""
        return await self._do(Call("GET", "/v1/spend/savings"), SAVINGS.read)


_YAML = {"Content-Type": "application/yaml"}


def _budget(team: str, period: BudgetPeriod) -> str:
    return f"/v1/budgets/{quote(team, safe='*')}/{period}"


def _webhook(webhook_id: str) -> str:
    return f"/v1/webhooks/{part(webhook_id)}"

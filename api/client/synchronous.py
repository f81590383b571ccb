"""The synchronous client of a running broker, which the command line uses too."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from api.client import calls
from api.client.answers import (
    MadePlan,
    ServerTimedOut,
    failure_of,
    made_or_waiting,
    parsed,
    problem_of,
)
from api.client.calls import part
from api.schemas.accounts.audit import AuditForm
from api.schemas.accounts.keys import KeyForm, KeyPage, NewKeyForm
from api.schemas.accounts.webhooks import NewWebhookForm, TestDeliveryForm, ToldWebhookForm, WebhookForm
from api.schemas.base.forms import PageForm
from api.schemas.finance.economics import SAVINGS, ChangesForm, IntervalForm, MonthCloseForm, UnitsForm
from api.schemas.finance.finance import ApprovalForm, ApprovalPage, BudgetForm, BudgetPage
from api.schemas.finance.spend import AS_OF_HEADER, SpendForm
from api.schemas.holding.reservation import (
    RELEASE_ESTIMATE,
    Fit,
    OrderQuoteForm,
    PlanQuoteForm,
    ReservationForm,
    ShortfallForm,
)
from api.schemas.imports.starting_points import StartingPoint
from api.schemas.market.provider import QUARANTINED, QuarantinedForm
from api.schemas.plans.comparison import AcceptedComparisonForm, ComparisonDocument
from api.schemas.plans.plan_record import AcceptedPlanForm, PlanSummaryForm, UnmadePlanForm
from api.schemas.plans.reoptimization import REOPTIMIZATION, ReoptimizationForm
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.webhook import EVERYTHING, WebhookFormat
from broker.domain.market.offer import Offer
from broker.domain.market.price_gate import Quarantined
from broker.domain.moving.reoptimization import Reoptimization
from broker.domain.moving.savings import Savings
from broker.domain.planning.cost_estimate import CostEstimate
from broker.domain.reconciling.shortfalls import Shortfall
from broker.domain.spend.approvals import ApprovalState, Verdict
from broker.domain.spend.budgets import BudgetPeriod
from broker.domain.spend.release_estimate import ReleaseEstimate
from broker.domain.spend.spend import CostView, Interval
from broker.settings import Settings

Form = TypeVar("Form", bound=BaseModel)
Parsed = TypeVar("Parsed")
Item = TypeVar("Item")
T = TypeVar("T")
_NO_KEY = re.compile(r"[^!-~]")


class BrokerClient:
    """Calls one server with one key, and closes its connections at the end of a ``with`` block.

    An error of the server is raised as the BrokerError that it means. ``timeout_s`` limits one request.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        timeout_s: float = calls.TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._base_url = base_url
        self._http = httpx.Client(
            base_url=base_url,
            headers=authorization(key),
            timeout=timeout_s,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def list_offers(
        self,
        *,
        gpu: str | None = None,
        provider: str | None = None,
        region: str | None = None,
        tier: str | None = None,
    ) -> Iterator[Offer]:
        """Offers now, cheapest per GPU-hour first, page by page. ``gpu`` is a canonical name."""
        return self._each(calls.list_offers(gpu, provider, region, tier))

    def find_offer(self, offer_id: str) -> Offer:
        """One offer that is on sale now. Raises NotFound."""
        return self._do(calls.find_offer(offer_id))

    def plan(
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
        asked = self.ask_for_plan(workloads, idempotency_key, time_limit_s=time_limit_s)
        return self.wait_for_plan(asked.plan_id, timeout_s)

    def estimate(self, workloads: calls.Workloads) -> CostEstimate:
        """What each workload would cost alone, without a search; at most 20 workloads. Stores nothing.

        Raises InputError for the document.
        """
        return self._do(calls.estimate(workloads))

    def read_source(self, text: str, kind: str | None = None) -> StartingPoint:
        """The workload that a SkyPilot task, a ``config.json`` or a command describes, and what is left out.

        Raises InputError for what cannot be planned, and for a source of another ``kind``.
        """
        return self._do(calls.read_source(text, kind))

    def ask_for_plan(
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
        return self._do(asked)

    def wait_for_plan(self, plan_id: str, timeout_s: float = calls.PLAN_TIMEOUT_S) -> MadePlan:
        """The plan once it is made. Raises PlanFailed, ServerTimedOut, NotFound."""
        until = time.monotonic() + timeout_s
        while (made := made_or_waiting(self.find_plan(plan_id))) is None:
            if time.monotonic() >= until:
                raise ServerTimedOut(f"plan {plan_id} is not made after {timeout_s:g} s")
            time.sleep(calls.PAUSE_S)
        return made

    def find_plan(self, plan_id: str) -> MadePlan | UnmadePlanForm:
        """One plan, or where it stands. Raises NotFound."""
        return self._do(calls.find_plan(plan_id))

    def list_plans(self) -> Iterator[PlanSummaryForm]:
        """All plans, newest first, fetched page by page."""
        return self._each(calls.list_plans())

    def cancel_plan(self, plan_id: str) -> None:
        """Cancels a plan that is queued or running; twice is no error. Raises Conflict
        for a finished plan.
        """
        self._do(calls.cancel_plan(plan_id))

    def ask_what_if(
        self, plan_id: str, changes: Sequence[Mapping[str, object]], idempotency_key: str
    ) -> AcceptedComparisonForm:
        """Asks for a plan of each change of the plan's document."""
        return self._do(calls.ask_what_if(plan_id, changes, idempotency_key))

    def find_comparison(self, comparison_id: str) -> ComparisonDocument:
        """A plan beside its variants. Raises NotFound."""
        return self._do(calls.find_comparison(comparison_id))

    def compare_plans(self, plan_ids: Sequence[str]) -> ComparisonDocument:
        """Plans beside the first of them. Raises NotFound."""
        return self._do(calls.compare_plans(plan_ids))

    def set_intended(self, plan_id: str, *, intended: bool) -> None:
        """Sets whether a draft counts in planned spend. Raises Conflict for a plan that is not a draft."""
        self._call("POST", f"/v1/plans/{part(plan_id)}/intend", body={"intended": intended})

    def reserve_plan(self, plan_id: str, idempotency_key: str | None = None) -> list[ReservationForm]:
        """Reserves all of a plan; the same key again gives the same answer and buys nothing twice.

        Raises Conflict where market or plan have changed, ApprovalRequired, OverBudget, ProviderError.
        """
        return self._do(calls.reserve_plan(plan_id, idempotency_key))

    def reserve_offer(
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
        return self._do(calls.reserve_offer(wish, idempotency_key))

    def quote_offer(
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
        return self._do(calls.quote_offer(wish))

    def quote_plan(self, plan_id: str) -> PlanQuoteForm:
        """What ``reserve_plan`` would cost; it orders nothing. Raises NotFound and Conflict."""
        return self._do(calls.quote_plan(plan_id))

    def find_reservation(self, reservation_id: str) -> ReservationForm:
        """One reservation. Raises NotFound."""
        return self._do(calls.find_reservation(reservation_id))

    def list_reservations(self, plan_id: str | None = None) -> Iterator[ReservationForm]:
        """All reservations, newest first, fetched page by page."""
        return self._each(calls.list_reservations(plan_id))

    def release(self, reservation_id: str) -> ReservationForm:
        """Requests the release of a reservation; twice is no error."""
        return self._do(calls.release(reservation_id))

    def list_shortfalls(self, plan_id: str | None = None) -> list[Shortfall]:
        """Times for which sellers refuse reserved nodes, earliest first."""
        path = "/v1/reservations/shortfalls"
        return list(self._pages(PageForm[ShortfallForm], path, {"plan_id": plan_id}))

    def estimate_release(self, reservation_id: str) -> ReleaseEstimate:
        """What the release of a reservation would give back now, and what would stay owed; NotFound."""
        path = f"/v1/reservations/{part(reservation_id)}/release"
        return self._parsed(RELEASE_ESTIMATE.read, self._call("GET", path))

    def estimate_plan_release(self, plan_id: str, workload: str | None = None) -> ReleaseEstimate:
        """The same of all that a plan holds, or only of what it holds for ``workload``."""
        path = f"/v1/plans/{part(plan_id)}/release"
        return self._parsed(RELEASE_ESTIMATE.read, self._call("GET", path, params={"workload": workload}))

    def extend(self, reservation_id: str, end: str) -> ReservationForm:
        """Extends a reservation until ``end`` (a time with its zone); twice is no error."""
        path = f"/v1/reservations/{part(reservation_id)}/extend"
        return self._read(ReservationForm, self._call("POST", path, body={"end": end}))

    def list_reoptimizations(self) -> Iterator[Reoptimization]:
        """All re-optimizations, newest first, fetched page by page."""
        return self._pages(PageForm[ReoptimizationForm], "/v1/reoptimizations")

    def find_reoptimization(self, reoptimization_id: str) -> Reoptimization:
        """One re-optimization with its moves. Raises NotFound."""
        path = f"/v1/reoptimizations/{part(reoptimization_id)}"
        return self._parsed(REOPTIMIZATION.read, self._call("GET", path))

    def decide_proposal(self, reoptimization_id: str, word: str, idempotency_key: str) -> Reoptimization:
        """Accepts or rejects a proposal (``word``: accept, reject). Raises Conflict for one that has lapsed
        or was decided.
        """
        path = f"/v1/reoptimizations/{part(reoptimization_id)}/{word}"
        answer = self._call("POST", path, headers={"Idempotency-Key": idempotency_key})
        return self._parsed(REOPTIMIZATION.read, answer)

    def list_audit(self, object_id: str) -> Iterator[AuditEntry]:
        """All audit entries of one object, newest first, fetched page by page."""
        return self._pages(PageForm[AuditForm], "/v1/audit", {"object_id": object_id})

    def list_keys(self) -> Iterator[KeyForm]:
        """All keys that the caller may see, newest first, fetched page by page."""
        return self._pages(KeyPage, "/v1/keys")

    def create_key(self, body: Mapping[str, object], idempotency_key: str) -> NewKeyForm:
        """A new key with its secret."""
        headers = {"Idempotency-Key": idempotency_key}
        return self._read(NewKeyForm, self._call("POST", "/v1/keys", body=body, headers=headers))

    def revoke_key(self, key_id: str) -> None:
        """Revokes a key for good; twice is no error."""
        self._call("DELETE", f"/v1/keys/{part(key_id)}")

    def list_quarantine(self) -> Iterator[Quarantined]:
        """All offers in quarantine, oldest first."""
        return self._pages(PageForm[QuarantinedForm], "/v1/quarantine")

    def believe_price(self, offer_id: str) -> Quarantined:
        """Releases an offer from quarantine at its price; twice is no error."""
        path = f"/v1/quarantine/{quote(offer_id)}/release"
        return self._parsed(QUARANTINED.read, self._call("POST", path))

    def list_budgets(self, month: str | None = None) -> list[BudgetForm]:
        """All budgets with what is owed and expected, now or in the periods that contain ``month``
        (2026-11)."""
        answer = self._call("GET", "/v1/budgets", params={"period": month})
        return self._read(BudgetPage, answer).items

    def put_budget(self, team: str, period: BudgetPeriod, body: Mapping[str, object]) -> BudgetForm:
        """Sets a budget; it replaces the one of the same team and period."""
        return self._read(BudgetForm, self._call("PUT", _budget(team, period), body=body))

    def delete_budget(self, team: str, period: BudgetPeriod) -> None:
        """Deletes a budget. Raises NotFound."""
        self._call("DELETE", _budget(team, period))

    def list_approvals(self, state: ApprovalState | None = None) -> Iterator[ApprovalForm]:
        """Plans that need approval, newest first, fetched page by page."""
        return self._pages(ApprovalPage, "/v1/approvals", {"state": state})

    def decide(self, plan_id: str, verdict: Verdict, comment: str) -> None:
        """Approves or rejects a plan."""
        verb = {Verdict.APPROVED: "approve", Verdict.REJECTED: "reject"}[verdict]
        self._call("POST", f"/v1/plans/{part(plan_id)}/{verb}", body={"comment": comment})

    def find_changes(self, before: str, after: str, view: CostView = CostView.AMORTIZED) -> ChangesForm:
        """Why the month or plan ``after`` costs more or less than ``before``."""
        wanted = {"from": before, "to": after, "view": None if view is CostView.AMORTIZED else str(view)}
        return self._read(ChangesForm, self._call("GET", "/v1/spend/changes", params=wanted))

    def find_interval(self, since: str | None, until: str | None, interval: Interval) -> IntervalForm:
        """P10, P50 and P90 of expected spend."""
        wanted = {"from": since, "to": until, "interval": str(interval)}
        return self._read(IntervalForm, self._call("GET", "/v1/spend/interval", params=wanted))

    def close_month(self, month: str, comment: str) -> MonthCloseForm:
        """Closes a past month, and says which sellers did not confirm their leases since."""
        wanted = {"month": month, "comment": comment}
        return self._read(MonthCloseForm, self._call("POST", "/v1/spend/close", params=wanted))

    def find_units(self, since: str | None, until: str | None) -> UnitsForm:
        """Unit costs and energy."""
        wanted = {"from": since, "to": until}
        return self._read(UnitsForm, self._call("GET", "/v1/spend/units", params=wanted))

    def find_savings(self) -> Savings:
        """What current plans save against simpler strategies."""
        return self._parsed(SAVINGS.read, self._call("GET", "/v1/spend/savings"))

    def find_spend(
        self,
        *,
        group_by: str = "team",
        interval: Interval = Interval.MONTH,
        since: str | None = None,
        until: str | None = None,
        view: CostView = CostView.AMORTIZED,
        narrowed: Mapping[str, str] = MappingProxyType({}),
    ) -> SpendForm:
        """Projected and actual spend by period and group. ``narrowed`` filters by team, provider, tier and so
        on.
        """
        return self._do(calls.find_spend(group_by, interval, since, until, view, narrowed))

    def create_webhook(
        self,
        url: str,
        events: Sequence[str] = EVERYTHING,
        *,
        message_format: WebhookFormat = WebhookFormat.JSON,
        idempotency_key: str | None = None,
    ) -> NewWebhookForm:
        """A webhook with its secret, which no later answer has. ``events``: names, or patterns with ``*``."""
        return self._do(calls.create_webhook(url, events, message_format, idempotency_key))

    def list_webhooks(self) -> Iterator[WebhookForm]:
        """Every webhook of the team, newest first, page by page."""
        return self._each(calls.list_webhooks())

    def find_webhook(self, webhook_id: str) -> ToldWebhookForm:
        """One webhook with its last deliveries. Raises NotFound."""
        return self._do(calls.find_webhook(webhook_id))

    def test_webhook(self, webhook_id: str, idempotency_key: str | None = None) -> TestDeliveryForm:
        """Sends the event ``webhook.test`` to it. Conflict for one that has ended."""
        return self._do(calls.test_webhook(webhook_id, idempotency_key))

    def delete_webhook(self, webhook_id: str) -> None:
        """Nothing more is sent to it."""
        self._do(calls.delete_webhook(webhook_id))

    def download(self, path: str, file: Path, params: Mapping[str, str | None]) -> str:
        """Streams an answer into ``file`` and returns its ``Broker-As-Of`` header."""
        given = {name: value for name, value in params.items() if value is not None}
        try:
            with self._http.stream("GET", path, params=given) as answer, file.open("wb") as out:
                if not answer.is_success:
                    answer.read()
                    raise problem_of(answer)
                for block in answer.iter_bytes():
                    out.write(block)
                return str(answer.headers.get(AS_OF_HEADER, ""))
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise failure_of(self._base_url, f"GET {path}", error) from error

    def _do(self, call: calls.Call[T]) -> T:
        answer = self._call(
            call.method,
            call.path,
            params=call.params,
            headers=call.headers,
            body=call.body,
            content=call.content,
        )
        return parsed(self._base_url, call.read, answer) if call.has_answer else call.read(None)

    def _each(self, listing: calls.Listing[T]) -> Iterator[T]:
        cursor: str | None = None
        while True:
            page = self._do(listing.page(cursor))
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | Sequence[str] | None] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        try:
            answer = self._http.request(
                method, path, params=given, headers=headers, json=body, content=content
            )
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise failure_of(self._base_url, f"{method} {path}", error) from error
        if answer.is_success:
            return answer
        raise problem_of(answer)

    def _pages(
        self,
        form: type[calls.PageOf[Item]],
        path: str,
        wanted: Mapping[str, str | None] = MappingProxyType({}),
    ) -> Iterator[Item]:
        return self._each(calls.Listing(path, form, wanted))

    def _read(self, form: type[Form], answer: httpx.Response) -> Form:
        return self._parsed(form.model_validate, answer)

    def _parsed(self, parse: Callable[[Any], Parsed], answer: httpx.Response) -> Parsed:
        return parsed(self._base_url, parse, answer)


def _budget(team: str, period: BudgetPeriod) -> str:
    return f"/v1/budgets/{quote(team, safe='*')}/{period}"


def connect(settings: Settings | None = None) -> BrokerClient:
    """A client of the server that BROKER_URL names, with BROKER_KEY; InputError for what is no key."""
    return BrokerClient(*address_and_key(settings or Settings()))


def address_and_key(settings: Settings) -> tuple[str, str]:
    """The server's address and the key that the settings name."""
    key = settings.key.get_secret_value().strip() if settings.key is not None else ""
    if _NO_KEY.search(key):
        expected = "a key as `broker keys --new` prints it"
        problem = FieldProblem("BROKER_KEY", "characters that are not allowed in a key", expected)
        raise InputError("environment", (problem,))
    return settings.url, key


def authorization(key: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}

"""The published calls without any input or output: what to send, and how to read the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

from api.client.answers import MadePlan, read_plan_answer
from api.schemas.accounts.webhooks import NewWebhookForm, TestDeliveryForm, ToldWebhookForm, WebhookForm
from api.schemas.base.document import Document
from api.schemas.base.forms import PageForm
from api.schemas.base.times import format_time
from api.schemas.base.validation import validate
from api.schemas.finance.spend import SpendForm
from api.schemas.holding.reservation import (
    OrderQuoteForm,
    PlanQuoteForm,
    ReservationForm,
    ReservationRequest,
    ReservationsForm,
)
from api.schemas.imports.answers import STARTING_POINT
from api.schemas.imports.starting_points import StartingPoint
from api.schemas.market.offer import OFFER, OfferForm
from api.schemas.plans.comparison import COMPARISON, AcceptedComparisonForm, ComparisonDocument
from api.schemas.plans.cost_estimate import COST_ESTIMATE
from api.schemas.plans.plan_record import AcceptedPlanForm, PlanSummaryForm, UnmadePlanForm
from broker.domain.basics.webhook import WebhookFormat
from broker.domain.market.offer import Offer
from broker.domain.planning.cost_estimate import CostEstimate
from broker.domain.spend.spend import CostView, Interval

PAGE = 200
PAUSE_S = 0.5
"""Between two looks at a plan that is being made."""
TIMEOUT_S = 60.0
PLAN_TIMEOUT_S = 600.0

T = TypeVar("T")
Item = TypeVar("Item", covariant=True)
Workloads = str | Path | Mapping[str, object]
"""A workloads document: YAML or JSON text, a file that holds it, or its fields."""


class PageOf(Protocol[Item]):
    """A part of a list, as every list answers."""

    @property
    def items(self) -> Sequence[Item]:
        """What is listed."""
        ...

    @property
    def next_cursor(self) -> str | None:
        """Where the next part begins; None at the end."""
        ...

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """The part that plain data says."""
        ...


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and ``read``, which makes the result of the JSON of its answer (None: it has none)."""

    method: str
    path: str
    read: Callable[[Any], T]
    params: Mapping[str, str | Sequence[str] | None] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, object] | None = None
    content: bytes | None = None
    has_answer: bool = True


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list that is read page by page."""

    path: str
    form: Any
    params: Mapping[str, str | None] = field(default_factory=dict)

    def page(self, cursor: str | None) -> Call[PageOf[T]]:
        """The call of the page at ``cursor``."""
        params = {"limit": str(PAGE), **self.params, "cursor": cursor}
        return Call("GET", self.path, self.form.model_validate, params)


def part(name: str) -> str:
    """A path segment. Ids have no slash; one in a name must not lead to another route."""
    return quote(name, safe="")


def once(idempotency_key: str | None) -> dict[str, str]:
    """The header with which a repeated request has the first answer again, and acts only once."""
    return {"Idempotency-Key": idempotency_key or f"client-{uuid4()}"}


def list_offers(
    gpu: str | None, provider: str | None, region: str | None, tier: str | None
) -> Listing[Offer]:
    """``GET /v1/offers``."""
    wanted = {"gpu": gpu, "provider": provider, "region": region, "tier": tier}
    return Listing("/v1/offers", PageForm[OfferForm], wanted)


def find_offer(offer_id: str) -> Call[Offer]:
    """``GET /v1/offers/{id}``."""
    return Call("GET", f"/v1/offers/{quote(offer_id)}", OFFER.read)


def ask_for_plan(
    workloads: Workloads, idempotency_key: str | None, time_limit_s: float | None, *, new_team: bool
) -> Call[AcceptedPlanForm]:
    """``POST /v1/plans``."""
    limit = None if time_limit_s is None else str(time_limit_s)
    return Call(
        "POST",
        "/v1/plans",
        AcceptedPlanForm.model_validate,
        {"time_limit_s": limit, "new_team": "true" if new_team else None},
        {**once(idempotency_key), "Content-Type": "application/yaml"},
        content=_text(workloads).encode(),
    )


def estimate(workloads: Workloads) -> Call[CostEstimate]:
    """``POST /v1/estimates``."""
    headers = {"Content-Type": "application/yaml"}
    content = _text(workloads).encode()
    return Call("POST", "/v1/estimates", COST_ESTIMATE.read, headers=headers, content=content)


def read_source(text: str, kind: str | None) -> Call[StartingPoint]:
    """``POST /v1/starting-points``."""
    return Call("POST", "/v1/starting-points", STARTING_POINT.read, body={"text": text, "kind": kind})


def ask_what_if(
    plan_id: str, changes: Sequence[Mapping[str, object]], idempotency_key: str
) -> Call[AcceptedComparisonForm]:
    """``POST /v1/plans`` with ``based_on``."""
    body: dict[str, object] = {"based_on": plan_id, "changes": list(changes)}
    read = AcceptedComparisonForm.model_validate
    return Call("POST", "/v1/plans", read, headers=once(idempotency_key), body=body)


def find_comparison(comparison_id: str) -> Call[ComparisonDocument]:
    """``GET /v1/comparisons/{id}``."""
    return Call("GET", f"/v1/comparisons/{part(comparison_id)}", COMPARISON.read)


def compare_plans(plan_ids: Sequence[str]) -> Call[ComparisonDocument]:
    """``GET /v1/comparisons``."""
    return Call("GET", "/v1/comparisons", COMPARISON.read, {"plan": list(plan_ids)})


def _text(workloads: Workloads) -> str:
    if isinstance(workloads, Path):
        return workloads.read_text(encoding="utf-8-sig")
    return workloads if isinstance(workloads, str) else json.dumps(workloads, default=_told)


def _told(value: object) -> str:
    if isinstance(value, datetime):
        return format_time(value)
    raise TypeError(f"a workloads document has text, numbers, lists and times, found {value!r}")


def find_plan(plan_id: str) -> Call[MadePlan | UnmadePlanForm]:
    """``GET /v1/plans/{id}``."""
    return Call("GET", f"/v1/plans/{part(plan_id)}", read_plan_answer)


def list_plans() -> Listing[PlanSummaryForm]:
    """``GET /v1/plans``."""
    return Listing("/v1/plans", PageForm[PlanSummaryForm])


def cancel_plan(plan_id: str) -> Call[None]:
    """``DELETE /v1/plans/{id}``."""
    return _without_answer("DELETE", f"/v1/plans/{part(plan_id)}")


def reserve_plan(plan_id: str, idempotency_key: str | None) -> Call[list[ReservationForm]]:
    """``POST /v1/plans/{id}/reserve``."""
    path = f"/v1/plans/{part(plan_id)}/reserve"
    return Call("POST", path, _reservations, headers=once(idempotency_key))


def _reservations(body: Any) -> list[ReservationForm]:
    return ReservationsForm.model_validate(body).reservations


def reserve_offer(wish: Mapping[str, object], idempotency_key: str | None) -> Call[ReservationForm]:
    """``POST /v1/reservations``. Raises InputError for a field of ``wish`` that it does not take."""
    read = ReservationForm.model_validate
    return Call("POST", "/v1/reservations", read, headers=once(idempotency_key), body=_order(wish))


def quote_offer(wish: Mapping[str, object]) -> Call[OrderQuoteForm]:
    """``POST /v1/reservations/quote``. Raises InputError for a field of ``wish`` that it does not take."""
    return Call("POST", "/v1/reservations/quote", OrderQuoteForm.model_validate, body=_order(wish))


def quote_plan(plan_id: str) -> Call[PlanQuoteForm]:
    """``GET /v1/plans/{id}/quote``."""
    return Call("GET", f"/v1/plans/{part(plan_id)}/quote", PlanQuoteForm.model_validate)


def _order(wish: Mapping[str, object]) -> dict[str, object]:
    request = validate(ReservationRequest, Document("order", wish))
    return request.model_dump(mode="json", exclude_defaults=True)


def find_reservation(reservation_id: str) -> Call[ReservationForm]:
    """``GET /v1/reservations/{id}``."""
    return Call("GET", f"/v1/reservations/{part(reservation_id)}", ReservationForm.model_validate)


def list_reservations(plan_id: str | None) -> Listing[ReservationForm]:
    """``GET /v1/reservations``."""
    return Listing("/v1/reservations", PageForm[ReservationForm], {"plan_id": plan_id})


def release(reservation_id: str) -> Call[ReservationForm]:
    """``DELETE /v1/reservations/{id}``."""
    return Call("DELETE", f"/v1/reservations/{part(reservation_id)}", ReservationForm.model_validate)


def find_spend(
    group_by: str,
    interval: Interval,
    since: str | None,
    until: str | None,
    view: CostView,
    narrowed: Mapping[str, str],
) -> Call[SpendForm]:
    """``GET /v1/spend/projection``."""
    wanted = {"group_by": group_by, "interval": str(interval), "from": since, "to": until, **narrowed}
    return Call("GET", "/v1/spend/projection", SpendForm.model_validate, {**wanted, "view": str(view)})


def create_webhook(
    url: str, events: Sequence[str], message_format: WebhookFormat, idempotency_key: str | None
) -> Call[NewWebhookForm]:
    """``POST /v1/webhooks``."""
    body: dict[str, object] = {"url": url, "events": list(events), "format": str(message_format)}
    read = NewWebhookForm.model_validate
    return Call("POST", "/v1/webhooks", read, headers=once(idempotency_key), body=body)


def list_webhooks() -> Listing[WebhookForm]:
    """``GET /v1/webhooks``."""
    return Listing("/v1/webhooks", PageForm[WebhookForm])


def find_webhook(webhook_id: str) -> Call[ToldWebhookForm]:
    """``GET /v1/webhooks/{id}``."""
    return Call("GET", f"/v1/webhooks/{part(webhook_id)}", ToldWebhookForm.model_validate)


def test_webhook(webhook_id: str, idempotency_key: str | None) -> Call[TestDeliveryForm]:
    """``POST /v1/webhooks/{id}/test``."""
    path = f"/v1/webhooks/{part(webhook_id)}/test"
    return Call("POST", path, TestDeliveryForm.model_validate, headers=once(idempotency_key))


def delete_webhook(webhook_id: str) -> Call[None]:
    """``DELETE /v1/webhooks/{id}``."""
    return _without_answer("DELETE", f"/v1/webhooks/{part(webhook_id)}")


def _without_answer(method: str, path: str) -> Call[None]:
    return Call(method, path, _nothing, has_answer=False)


def _nothing(_: Any) -> None:
    """A 204 has no document."""

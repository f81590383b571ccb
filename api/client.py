"""The HTTP client of a running broker, for the commands that need a server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from api.schemas.accounts.audit import AuditForm
from api.schemas.accounts.keys import KeyForm, KeyPage, NewKeyForm
from api.schemas.base.forms import PageForm
from api.schemas.base.problem import Problem, error_of
from api.schemas.finance.economics import CLOSED_MONTH, SAVINGS, ChangesForm, IntervalForm, UnitsForm
from api.schemas.finance.finance import ApprovalForm, ApprovalPage, BudgetForm, BudgetPage
from api.schemas.finance.spend import AS_OF_HEADER, SpendForm
from api.schemas.holding.reservation import (
    RELEASE_ESTIMATE,
    ReservationForm,
    ReservationsForm,
    ShortfallForm,
)
from api.schemas.market.provider import QUARANTINED, QuarantinedForm
from api.schemas.plans.comparison import COMPARISON, AcceptedComparisonForm, ComparisonDocument
from api.schemas.plans.plan import PLAN
from api.schemas.plans.plan_record import AcceptedPlanForm, PlanSummaryForm, StandingForm, UnmadePlanForm
from api.schemas.plans.reoptimization import REOPTIMIZATION, ReoptimizationForm
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.errors import BrokerError, FieldProblem, InputError
from broker.domain.market.price_gate import Quarantined
from broker.domain.moving.reoptimization import Reoptimization
from broker.domain.moving.savings import Savings
from broker.domain.planning.plan import Plan
from broker.domain.reconciling.shortfalls import Shortfall
from broker.domain.spend.approvals import ApprovalState, Verdict
from broker.domain.spend.budgets import BudgetPeriod
from broker.domain.spend.month_close import ClosedMonth
from broker.domain.spend.release_estimate import ReleaseEstimate
from broker.domain.spend.spend import CostView, Interval
from broker.settings import Settings

Form = TypeVar("Form", bound=BaseModel)
Parsed = TypeVar("Parsed")
Item = TypeVar("Item", covariant=True)
PAGE = 200
_NO_KEY = re.compile(r"[^!-~]")
TIMEOUT_S = 60.0


class ServerTimedOut(BrokerError):
    """The server did not answer in time; the requested action may still happen."""


class _PageOf(Protocol[Item]):
    """A page of a list."""

    @property
    def items(self) -> Sequence[Item]: ...

    @property
    def next_cursor(self) -> str | None: ...

    @classmethod
    def model_validate(cls, obj: Any) -> Self: ...


@dataclass(frozen=True, slots=True)
class MadePlan:
    """A finished plan, its status, and the document that has both."""

    plan: Plan
    stands: StandingForm
    document: dict[str, Any]


class BrokerClient:
    """A client of one server with one key. Problem documents are raised as the errors that they stand for."""

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._base_url = base_url
        self._http = httpx.Client(
            base_url=base_url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=timeout_s,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def ask_for_plan(self, workloads: str, idempotency_key: str) -> AcceptedPlanForm:
        """Asks for a plan of a workloads document (YAML or JSON)."""
        headers = {"Idempotency-Key": idempotency_key, "Content-Type": "application/yaml"}
        answer = self._call("POST", "/v1/plans", headers=headers, content=workloads.encode())
        return self._read(AcceptedPlanForm, answer)

    def find_plan(self, plan_id: str) -> MadePlan | UnmadePlanForm:
        """One plan, or where it stands; NotFound."""
        return self._parsed(_plan_form, self._call("GET", f"/v1/plans/{_part(plan_id)}"))

    def ask_what_if(
        self, plan_id: str, changes: Sequence[Mapping[str, object]], idempotency_key: str
    ) -> AcceptedComparisonForm:
        """Asks for a plan of each change of the plan's document."""
        answer = self._call(
            "POST",
            "/v1/plans",
            headers={"Idempotency-Key": idempotency_key},
            body={"based_on": plan_id, "changes": list(changes)},
        )
        return self._read(AcceptedComparisonForm, answer)

    def find_comparison(self, comparison_id: str) -> ComparisonDocument:
        """A plan beside its variants; NotFound."""
        return self._parsed(COMPARISON.read, self._call("GET", f"/v1/comparisons/{_part(comparison_id)}"))

    def compare_plans(self, plan_ids: Sequence[str]) -> ComparisonDocument:
        """Plans beside the first of them; NotFound."""
        params = {"plan": list(plan_ids)}
        return self._parsed(COMPARISON.read, self._call("GET", "/v1/comparisons", params=params))

    def list_plans(self) -> Iterator[PlanSummaryForm]:
        """All plans, newest first, fetched page by page."""
        return self._pages(PageForm[PlanSummaryForm], "/v1/plans")

    def cancel_plan(self, plan_id: str) -> None:
        """Cancels a plan that is queued or running; twice is no error. Raises Conflict
        for a finished plan.
        """
        self._call("DELETE", f"/v1/plans/{_part(plan_id)}")

    def set_intended(self, plan_id: str, *, intended: bool) -> None:
        """Sets whether a draft counts in projected spend. Raises Conflict for a plan that is not a draft."""
        self._call("POST", f"/v1/plans/{_part(plan_id)}/intend", body={"intended": intended})

    def reserve_plan(self, plan_id: str, idempotency_key: str) -> list[ReservationForm]:
        """Reserves all of a plan. The same idempotency key gives the same answer, and nothing is bought
        twice.
        """
        answer = self._call(
            "POST", f"/v1/plans/{_part(plan_id)}/reserve", headers={"Idempotency-Key": idempotency_key}
        )
        return self._read(ReservationsForm, answer).reservations

    def find_reservation(self, reservation_id: str) -> ReservationForm:
        """One reservation. Raises NotFound."""
        return self._read(ReservationForm, self._call("GET", f"/v1/reservations/{_part(reservation_id)}"))

    def list_reservations(self, plan_id: str | None = None) -> Iterator[ReservationForm]:
        """All reservations, newest first, fetched page by page."""
        return self._pages(PageForm[ReservationForm], "/v1/reservations", {"plan_id": plan_id})

    def list_shortfalls(self, plan_id: str | None = None) -> list[Shortfall]:
        """Times for which sellers refuse reserved nodes, earliest first."""
        path = "/v1/reservations/shortfalls"
        return list(self._pages(PageForm[ShortfallForm], path, {"plan_id": plan_id}))

    def release(self, reservation_id: str) -> ReservationForm:
        """Requests the release of a reservation; twice is no error."""
        return self._read(ReservationForm, self._call("DELETE", f"/v1/reservations/{_part(reservation_id)}"))

    def estimate_release(self, reservation_id: str) -> ReleaseEstimate:
        """What the release of a reservation would give back now, and what would stay owed; NotFound."""
        path = f"/v1/reservations/{_part(reservation_id)}/release"
        return self._parsed(RELEASE_ESTIMATE.read, self._call("GET", path))

    def estimate_plan_release(self, plan_id: str) -> ReleaseEstimate:
        """The same of all that a plan holds."""
        path = f"/v1/plans/{_part(plan_id)}/release"
        return self._parsed(RELEASE_ESTIMATE.read, self._call("GET", path))

    def extend(self, reservation_id: str, end: str) -> ReservationForm:
        """Extends a reservation until ``end`` (a time with its zone); twice is no error."""
        path = f"/v1/reservations/{_part(reservation_id)}/extend"
        return self._read(ReservationForm, self._call("POST", path, body={"end": end}))

    def list_reoptimizations(self) -> Iterator[Reoptimization]:
        """All re-optimizations, newest first, fetched page by page."""
        return self._pages(PageForm[ReoptimizationForm], "/v1/reoptimizations")

    def find_reoptimization(self, reoptimization_id: str) -> Reoptimization:
        """One re-optimization with its moves. Raises NotFound."""
        path = f"/v1/reoptimizations/{_part(reoptimization_id)}"
        return self._parsed(REOPTIMIZATION.read, self._call("GET", path))

    def decide_proposal(self, reoptimization_id: str, word: str, idempotency_key: str) -> Reoptimization:
        """Accepts or rejects a proposal (``word``: accept, reject). Raises Conflict for one that has lapsed
        or was decided.
        """
        path = f"/v1/reoptimizations/{_part(reoptimization_id)}/{word}"
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
        self._call("DELETE", f"/v1/keys/{_part(key_id)}")

    def list_quarantine(self) -> Iterator[Quarantined]:
        """All offers in quarantine, oldest first."""
        return self._pages(PageForm[QuarantinedForm], "/v1/quarantine")

    def believe_price(self, offer_id: str) -> Quarantined:
        """Releases an offer from quarantine at its price; twice is no error."""
        path = f"/v1/quarantine/{quote(offer_id)}/release"
        return self._parsed(QUARANTINED.read, self._call("POST", path))

    def list_budgets(self) -> list[BudgetForm]:
        """All budgets with what is owed and expected."""
        return self._read(BudgetPage, self._call("GET", "/v1/budgets")).items

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
        self._call("POST", f"/v1/plans/{_part(plan_id)}/{verb}", body={"comment": comment})

    def find_changes(self, before: str, after: str) -> ChangesForm:
        """Why the month or plan ``after`` costs more or less than ``before``."""
        wanted = {"from": before, "to": after}
        return self._read(ChangesForm, self._call("GET", "/v1/spend/changes", params=wanted))

    def find_interval(self, since: str | None, until: str | None, interval: Interval) -> IntervalForm:
        """P10, P50 and P90 of expected spend."""
        wanted = {"from": since, "to": until, "interval": str(interval)}
        return self._read(IntervalForm, self._call("GET", "/v1/spend/interval", params=wanted))

    def close_month(self, month: str, comment: str) -> ClosedMonth:
        """Closes a past month."""
        wanted = {"month": month, "comment": comment}
        return self._parsed(CLOSED_MONTH.read, self._call("POST", "/v1/spend/close", params=wanted))

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
        group_by: str,
        interval: Interval,
        since: str | None = None,
        until: str | None = None,
        view: CostView = CostView.AMORTIZED,
        narrowed: Mapping[str, str] = MappingProxyType({}),
    ) -> SpendForm:
        """Projected and actual spend by period and group. ``narrowed`` filters by team, provider, tier and so
        on.
        """
        wanted = {"group_by": group_by, "interval": str(interval), "from": since, "to": until, **narrowed}
        wanted["view"] = str(view)
        return self._read(SpendForm, self._call("GET", "/v1/spend/projection", params=wanted))

    def download(self, path: str, file: Path, params: Mapping[str, str | None]) -> str:
        """Streams an answer into ``file`` and returns its ``Broker-As-Of`` header."""
        given = {name: value for name, value in params.items() if value is not None}
        try:
            with self._http.stream("GET", path, params=given) as answer, file.open("wb") as out:
                if not answer.is_success:
                    answer.read()
                    raise _error(answer)
                for block in answer.iter_bytes():
                    out.write(block)
                return str(answer.headers.get(AS_OF_HEADER, ""))
        except httpx.ReadTimeout as error:
            raise ServerTimedOut(f"GET {path}: no answer in time") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error

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
        except httpx.ReadTimeout as error:
            raise ServerTimedOut(f"{method} {path}: no answer in time; the server may still do it") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        if answer.is_success:
            return answer
        raise _error(answer)

    def _pages(
        self, form: type[_PageOf[Item]], path: str, wanted: Mapping[str, str | None] | None = None
    ) -> Iterator[Item]:
        cursor: str | None = None
        while True:
            asked = {"limit": str(PAGE), **(wanted or {}), "cursor": cursor}
            page = self._parsed(form.model_validate, self._call("GET", path, params=asked))
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def _read(self, form: type[Form], answer: httpx.Response) -> Form:
        return self._parsed(form.model_validate, answer)

    def _parsed(self, parse: Callable[[Any], Parsed], answer: httpx.Response) -> Parsed:
        try:
            return parse(answer.json())
        except ValueError as error:
            raise self._not_a_broker(answer.text[:60]) from error

    def _unreachable(self, error: Exception) -> InputError:
        found = f"{self._base_url!r} ({str(error) or type(error).__name__})"
        expected = "the address of a running broker (start one with `broker up`)"
        return InputError("environment", (FieldProblem("BROKER_URL", found, expected),))

    def _not_a_broker(self, found: str) -> InputError:
        problem = FieldProblem("BROKER_URL", f"{self._base_url!r} that answers {found!r}", "a broker")
        return InputError("environment", (problem,))


def _plan_form(body: dict[str, Any]) -> MadePlan | UnmadePlanForm:
    if "placements" not in body:
        return UnmadePlanForm.model_validate(body)
    return MadePlan(PLAN.read(body), StandingForm.model_validate(body), body)


def _part(name: str) -> str:
    """A path segment. A slash is escaped, so that an id with one is not found and does not reach another
    route.
    """
    return name.replace("/", "%2F")


def _budget(team: str, period: BudgetPeriod) -> str:
    return f"/v1/budgets/{quote(team, safe='*')}/{period}"


def _error(answer: httpx.Response) -> BrokerError:
    try:
        return error_of(Problem.model_validate(answer.json()))
    except ValueError:
        return error_of(Problem(title=answer.reason_phrase or "no reason", status=answer.status_code))


def connect(settings: Settings) -> BrokerClient:
    """A client of the server at BROKER_URL with BROKER_KEY. Raises InputError for a malformed key."""
    key = settings.key.get_secret_value().strip() if settings.key is not None else ""
    if _NO_KEY.search(key):
        expected = "a key as `broker keys --new` prints it"
        problem = FieldProblem("BROKER_KEY", "characters that are not allowed in a key", expected)
        raise InputError("environment", (problem,))
    return BrokerClient(settings.url, key)

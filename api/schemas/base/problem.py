"""RFC 9457 problem documents on the client's side, which turns them back into typed errors.

The server's side, with the status of each error, is ``api.http.errors``; both use the same codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict

from broker.domain.basics.errors import (
    ApprovalRequired,
    BrokerError,
    ConcurrentChange,
    Conflict,
    FieldProblem,
    IdempotencyMismatch,
    InputError,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    OrdersBarred,
    OverBudget,
    OverCap,
    PlannerDied,
    ProviderError,
    StalePlan,
    StillAtWork,
    StoreTooNew,
    StoreUnavailable,
)

MEDIA_TYPE = "application/problem+json"


class FieldProblemForm(BaseModel):
    """One wrong field."""

    pointer: str
    found: str
    expected: str
    line: int | None = None
    column: int | None = None

    def to_problem(self) -> FieldProblem:
        """The domain object."""
        return FieldProblem(self.pointer, self.found, self.expected, self.line, self.column)


class Problem(BaseModel):
    """A problem document. ``code`` names the kind of error, ``errors`` lists wrong fields."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    instance: str | None = None
    code: str = ""
    retryable: bool = False
    errors: list[FieldProblemForm] = []
    retry_after_s: float | None = None
    trace_id: str | None = None

    @property
    def message(self) -> str:
        """The message for a person."""
        return self.detail or self.title


class NotFoundOnServer(NotFound):
    """A 404 of the server, with the server's message."""

    def __init__(self, message: str) -> None:
        super().__init__("object", message)
        self.args = (message,)


class ProviderFailure(ProviderError):
    """A provider's failure, reported by the server; the message already names the provider."""

    def __init__(self, message: str) -> None:
        super().__init__("provider", message)
        self.args = (message,)


def _bad_input(problem: Problem) -> BrokerError:
    fields = tuple(row.to_problem() for row in problem.errors)
    whole = FieldProblem("", problem.message, "a valid request")
    return InputError("request", fields or (whole,))


def _said(error: type[BrokerError]) -> Callable[[Problem], BrokerError]:
    return lambda problem: error(problem.message)


BY_CODE: Mapping[str, Callable[[Problem], BrokerError]] = {
    "invalid-input": _bad_input,
    "not-found": lambda problem: NotFoundOnServer(problem.message),
    "stale-plan": _said(StalePlan),
    # What the error says besides its words is in the document's own members.
    "over-quota": _said(Conflict),
    "orders-barred": _said(OrdersBarred),
    "over-cap": _said(OverCap),
    "too-many-plans": _said(Conflict),
    "too-many-estimates": _said(Conflict),
    "concurrent-change": _said(ConcurrentChange),
    "idempotency-mismatch": _said(IdempotencyMismatch),
    "still-at-work": _said(StillAtWork),
    "conflict": _said(Conflict),
    "approval-required": _said(ApprovalRequired),
    "over-budget": _said(OverBudget),
    "not-authenticated": _said(NotAuthenticated),
    "not-permitted": _said(NotPermitted),
    "store-too-new": _said(StoreTooNew),
    "store-unavailable": _said(StoreUnavailable),
    "planner-out-of-memory": _said(PlannerDied),
    "planner-died": _said(PlannerDied),
    **dict.fromkeys(
        (
            "insufficient-capacity",
            "price-above-limit",
            "quota-exceeded",
            "provider-rate-limited",
            "outcome-unknown",
            "provider-unavailable",
            "provider-refused",
        ),
        lambda problem: ProviderFailure(problem.message),
    ),
}
_BY_STATUS: Mapping[int, Callable[[Problem], BrokerError]] = {
    400: _bad_input,
    401: _said(NotAuthenticated),
    403: _said(NotPermitted),
    404: lambda problem: NotFoundOnServer(problem.message),
    409: _said(Conflict),
    422: _bad_input,
}


def error_of(problem: Problem) -> BrokerError:
    """The error that a problem document stands for, by its code or else by its HTTP status."""
    rebuild = BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status)
    if rebuild is not None:
        return rebuild(problem)
    return BrokerError(f"the server answered {problem.status}: {problem.message}")

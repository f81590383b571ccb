"""Errors named by meaning.

BrokerError
├── InputError                 bad input; carries one or more FieldProblem
├── NotFound                   the named thing does not exist (for this team)
├── Conflict                   the object's current state forbids the request
│   ├── StalePlan              prices moved beyond the tolerance, or an offer is no longer on sale
│   ├── TooManyPlans           the team has reached its limit of queued and running plans
│   ├── OverQuota              the order would exceed a quota at a provider
│   ├── OrdersBarred           the installation does not order from the seller, or not in one plan
│   ├── OverCap                the order would exceed a spending cap of the installation
│   ├── ConcurrentChange       another writer changed the row first
│   ├── IdempotencyMismatch    one idempotency key came with two different bodies
│   └── StillAtWork            the first request with this idempotency key is still running
├── ApprovalRequired           a policy requires finance to approve first
│   ├── ApprovalLapsed         the plan was approved, but it has changed or costs more since
│   └── PlanRejected           finance rejected the plan
├── OverBudget                 the plan costs more than the budget allows
├── NotAuthenticated           no key, or an unknown one
├── NotPermitted               the key lacks a scope
├── StoreTooNew                the database was written by a newer version
├── StoreUnavailable           the database does not answer, or is locked by another program
├── PlanInvalid                the planner's own result failed the independent check: a defect
├── PlannerDied                the planner's process ended before the plan was finished
│   └── PlannerOutOfMemory     the planner needed more memory than it may use
└── ProviderError              a provider failed; ``retryable`` says whether a later try may succeed
├── ProviderUnavailable    timeout, connection, 5xx, breaker open
├── RateLimited            carries ``retry_after_s``
├── PayloadUnreadable      the answer is not what the provider documents
├── CredentialsRejected    401, 403
├── InsufficientCapacity   no stock for the order
├── QuotaExceeded          our account's limit
├── OrderRejected          the provider refuses the order as it stands
├── PriceAboveLimit        the provider's price is above the order's limit
├── ReleaseRefused         not possible now (still provisioning) or ever (a prepaid block)
├── LeaseNotFound          the lease is already gone; for a release this is success
├── LeasesUnreadable       the provider's list of our leases cannot be read
└── OutcomeUnknown         the order may or may not have been carried out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Self


class BrokerError(Exception):
    """Base class of every error that the product raises on purpose.

    ``facts`` are extra members of the RFC 9457 problem document. ``problems`` are the fields at fault.
    """

    facts: Mapping[str, object] = MappingProxyType({})
    problems: tuple[FieldProblem, ...] = ()

    def naming(self, *problems: FieldProblem) -> Self:
        """Sets the fields at fault, and returns the error."""
        self.problems = problems
        return self

    def __reduce__(self) -> tuple[Callable[..., BrokerError], tuple[object, ...]]:
        """Pickles the error without calling its constructor again, whose parameters differ by class."""
        return _whole, (type(self), self.args, self.__dict__)


def _whole(kind: type[BrokerError], args: tuple[object, ...], members: Mapping[str, object]) -> BrokerError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(members)
    return error


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One wrong field: where it is, the value found, and the value expected.

    ``pointer`` is a JSON pointer into the input (``/workloads/0/deadline``). ``line`` and ``column`` count
    from 1 in the source text; they are None if the input was not text. In a table ``column`` counts cells.
    """

    pointer: str
    found: str
    expected: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column}"
        line = f"(line {self.line}{column})" if self.line is not None else ""
        place = " ".join(filter(None, (self.pointer, line)))
        return f"{place and f'{place}: '}found {self.found}, expected {self.expected}"


class InputError(BrokerError):
    """The input is invalid. The error carries every problem that was found."""

    def __init__(self, source: str, problems: tuple[FieldProblem, ...]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))


class NotFound(BrokerError):
    """No object of that kind and name exists, or it belongs to another team."""

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"{kind} {name!r} not found" + (f"; {hint}" if hint else ""))


class Conflict(BrokerError):
    """The request is valid, but the object's current state forbids it."""


class StockHeld(Conflict):
    """Reservations of this installation, of whichever team, hold stock that the request wants.

    ``offer_id`` in ``facts``: the offer that is short.
    """

    def __init__(self, words: str, offer_id: str) -> None:
        self.facts = {"offer_id": offer_id}
        super().__init__(words)


class StockShort(StockHeld):
    """The provider itself has fewer nodes than the request wants."""


class StalePlan(Conflict):
    """The market moved beyond the plan's price tolerance after the plan was made."""


class TooManyPlans(Conflict):
    """The request would exceed the team's limit of queued and running plans, or of workloads in them.

    ``found`` is the count in ``unit``, this request included. ``retry_after_s`` says when to try again.
    """

    def __init__(
        self, team: str, unit: str, found: int, allowed: int, setting: str, retry_after_s: int
    ) -> None:
        self.retry_after_s = retry_after_s
        self.facts = {
            "team": team,
            "limit": setting,
            "unit": unit,
            "found": found,
            "allowed": allowed,
            "retry_after_s": retry_after_s,
        }
        super().__init__(
            f"team {team} would have {found:,} {unit} queued or running, but {setting} allows {allowed:,}; "
            "wait until a plan is finished, or cancel one"
        )


class OverQuota(Conflict):
    """The order would exceed one of our quotas at a provider at some instant; nothing was bought.

    ``found`` and ``allowed`` are in ``unit`` (GPUs or nodes) and include what is held already.
    """

    def __init__(self, provider: str, unit: str, found: int, allowed: int, words: str) -> None:
        self.provider = provider
        self.unit = unit
        self.found = found
        self.allowed = allowed
        self.facts = {"provider": provider, "unit": unit, "found": found, "allowed": allowed}
        super().__init__(words)


class OrdersBarred(Conflict):
    """A setting or a policy keeps the installation from ordering there; nothing was ordered."""

    def __init__(self, words: str, facts: Mapping[str, object] = MappingProxyType({})) -> None:
        self.facts = facts
        super().__init__(words)


class OverCap(Conflict):
    """The order would exceed a spending cap; nothing was ordered. ``facts`` has the arithmetic."""

    def __init__(self, words: str, facts: Mapping[str, object] = MappingProxyType({})) -> None:
        self.facts = facts
        super().__init__(words)


class ConcurrentChange(Conflict):
    """Another writer changed the row after it was read."""


class LeadershipLost(BrokerError):
    """Another process has become the leader, so this process's write was refused."""


class IdempotencyMismatch(Conflict):
    """An idempotency key was sent again with a different body."""


class StillAtWork(Conflict):
    """The first request with this idempotency key is still running; try again shortly."""


class TooManyEstimates(Conflict):
    """Too many estimates are under way; ``retry_after_s`` says when to try again."""

    def __init__(self, under_way: int, retry_after_s: int) -> None:
        self.facts = {"under_way": under_way, "retry_after_s": retry_after_s}
        super().__init__(f"{under_way} estimates are under way; ask again in {retry_after_s} s")


class ApprovalRequired(BrokerError):
    """The plan is above the approval limit and must be approved by a key with ``spend:approve``."""


class ApprovalLapsed(ApprovalRequired):
    """The plan was approved, but it is no longer what would be bought. ``why`` says what changed."""

    def __init__(self, plan_id: str, why: str) -> None:
        self.plan_id = plan_id
        self.why = why
        super().__init__(f"plan {plan_id} was approved, but {why}; it must be approved again")


class PlanRejected(ApprovalRequired):
    """Finance rejected the plan."""


class OverBudget(BrokerError):
    """The plan or order costs more than is left of a budget, or than needs no approval."""


class NotAuthenticated(BrokerError):
    """The request has no bearer key, or its key is unknown, expired or revoked."""


class NotPermitted(BrokerError):
    """The key is known but lacks a scope."""


class StoreTooNew(BrokerError):
    """The database's schema revision is unknown to this version of the program."""


class StoreUnavailable(BrokerError):
    """The database does not answer, or another program locks it; a later try may succeed."""


class PlanInvalid(BrokerError):
    """A new plan fails the independent check. The error carries every violation."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        self.violations = violations
        super().__init__("the plan fails the independent check: " + "; ".join(violations))


class PlannerDied(BrokerError):
    """The planner's process ended before the plan was finished. The next plan starts a new process."""


class PlannerOutOfMemory(PlannerDied):
    """Planning needs more memory than its process may use.

    ``found`` describes the memory use that was observed; ``limit_gib`` is the limit in GiB.
    """

    def __init__(self, found: str, limit_gib: float) -> None:
        self.found = found
        self.limit_gib = limit_gib
        self.facts = {"limit_gib": limit_gib, "setting": "BROKER_PLANNER_MEMORY_GIB"}
        super().__init__(
            f"planning needs more memory than its process may use: {found}, the limit is {limit_gib:g} GiB; "
            "plan fewer workloads in one document, or raise BROKER_PLANNER_MEMORY_GIB"
        )


class ProviderError(BrokerError):
    """A provider failed or refused. ``retryable`` says whether a later try may succeed."""

    retryable = False
    endpoint: str | None = None
    """Method and path of the call that failed; None if there was no HTTP answer."""
    status: int | None = None
    """HTTP status of that call."""

    def __init__(self, provider: str, message: str, *, request_id: str | None = None) -> None:
        self.provider = provider
        self.request_id = request_id
        super().__init__(f"{provider}: {message}")

    def saying(self, message: str, facts: Mapping[str, object]) -> Self:
        """A copy of the error with another message and other facts."""
        same = type(self).__new__(type(self))
        same.__dict__.update(self.__dict__)
        same.args = (f"{self.provider}: {message}",)
        same.facts = facts
        return same


class ProviderUnavailable(ProviderError):
    """A call failed without effect: timeout, refused or reset connection, 5xx, or an open circuit breaker.

    ``until`` is when an open circuit breaker lets calls through again; None for other failures.
    """

    retryable = True

    def __init__(
        self, provider: str, message: str, *, until: datetime | None = None, request_id: str | None = None
    ) -> None:
        self.until = until
        super().__init__(provider, message, request_id=request_id)


class RateLimited(ProviderError):
    """Too many calls. ``retry_after_s`` is the wait that the provider asked for, or None."""

    retryable = True

    def __init__(self, provider: str, message: str, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(provider, message)


class PayloadUnreadable(ProviderError):
    """The whole answer does not have the documented form. (Single unreadable rows are *rejected* instead.)"""


class CredentialsRejected(ProviderError):
    """The provider does not accept our credentials."""


class InsufficientCapacity(ProviderError):
    """The provider has no stock for this order now."""


class QuotaExceeded(ProviderError):
    """The order exceeds the provider's limit for our account."""


class OrderRejected(ProviderError):
    """The provider refuses the order as it stands; sending it again will not help."""


class PriceAboveLimit(ProviderError):
    """The provider's price per node-hour, quoted or charged, is above the order's limit.

    ``asks_usd_per_node_hour`` is that price; None if the provider does not state it.
    """

    def __init__(
        self,
        provider: str,
        message: str,
        *,
        asks_usd_per_node_hour: Decimal | None = None,
        request_id: str | None = None,
    ) -> None:
        self.asks_usd_per_node_hour = asks_usd_per_node_hour
        super().__init__(provider, message, request_id=request_id)


class ReleaseRefused(ProviderError):
    """The provider refuses to end the lease: not yet or, with ``forever``, never (a prepaid block)."""

    def __init__(self, provider: str, message: str, *, forever: bool) -> None:
        self.forever = forever
        self.retryable = not forever
        super().__init__(provider, message)


class LeaseNotFound(ProviderError):
    """The provider does not know this lease, or no longer knows it."""


class LeasesUnreadable(ProviderError):
    """The provider's list of our leases cannot be read, so it is unknown which of them still exist.

    Its endpoint is missing (404) or retired (410), refuses the request, or answers in an unknown form.
    """


class OutcomeUnknown(ProviderError):
    """The order was sent but its answer was lost. Look whether it was carried out before you repeat it."""

    retryable = True

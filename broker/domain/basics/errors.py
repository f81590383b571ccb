"""Errors named by meaning.

BrokerError
├── InputError                 bad input; carries one or more FieldProblem
├── NotFound                   the named thing does not exist (for this team)
├── Conflict                   the state of the thing forbids the wish
│   ├── StalePlan              prices moved past the tolerance, or an offer went away
│   ├── TooManyPlans           a team has as much on its way as it may
│   ├── OverQuota              more of a provider would be held than a quota allows
│   ├── ConcurrentChange       somebody else wrote the row first
│   ├── IdempotencyMismatch    one key, two bodies
│   └── StillAtWork            the first request under a key has not answered yet
├── ApprovalRequired           a policy asks for finance's word first
│   ├── ApprovalLapsed         it was given, and the plan costs more since
│   └── PlanRejected           it was refused
├── OverBudget                 the plan costs more than the budget allows
├── NotAuthenticated           no key, or an unknown one
├── NotPermitted               the key lacks a scope
├── StoreTooNew                the database was written by a newer version
├── StoreUnavailable           the database does not answer, or is locked by another program
├── PlanInvalid                the planner's own result failed the independent check: a defect
├── PlannerDied                the process that made a plan ended before it was done
│   └── PlannerOutOfMemory     it needed more memory than it may use
└── ProviderError              a provider failed; ``retryable`` says whether waiting may help
├── ProviderUnavailable    timeout, connection, 5xx, breaker open
├── RateLimited            carries ``retry_after_s``
├── PayloadUnreadable      the answer is not what the provider documents
├── CredentialsRejected    401, 403
├── InsufficientCapacity   no stock for the order
├── QuotaExceeded          our account's limit
├── OrderRejected          the provider refuses the order as it stands
├── PriceAboveLimit        it asks, or charges, more than the order allows
├── ReleaseRefused         not now (still provisioning) or never (a block)
├── LeaseNotFound          already gone: success of a release
├── LeasesUnreadable       the list of what we hold cannot be read: nothing is known of it
└── OutcomeUnknown         a buy may or may not have happened
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Self


class BrokerError(Exception):
    """Root of every error that the product raises on purpose.

    ``facts``: what else its problem document says, by member name. ``problems``: the fields at fault.
    """

    facts: Mapping[str, object] = MappingProxyType({})
    problems: tuple[FieldProblem, ...] = ()

    def naming(self, *problems: FieldProblem) -> Self:
        """The same error, which names fields."""
        self.problems = problems
        return self

    def __reduce__(self) -> tuple[Callable[..., BrokerError], tuple[object, ...]]:
        """Comes back whole from another process, whatever its constructor asks for."""
        return _whole, (type(self), self.args, self.__dict__)


def _whole(kind: type[BrokerError], args: tuple[object, ...], members: Mapping[str, object]) -> BrokerError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(members)
    return error


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One wrong field: where it is, what stood there, what was expected.

    ``pointer`` is a JSON pointer into the input (``/workloads/0/deadline``); ``line`` and
    ``column`` are 1-based places in the source text when it was text.
    """

    pointer: str
    found: str
    expected: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = f" (line {self.line}, column {self.column})" if self.line is not None else ""
        return f"{self.pointer or '/'}{place}: found {self.found}, expected {self.expected}"


class InputError(BrokerError):
    """Input that cannot be used, with every problem that was found."""

    def __init__(self, source: str, problems: tuple[FieldProblem, ...]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))


class NotFound(BrokerError):
    """Nothing of that kind and name exists, or it belongs to another team."""

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"{kind} {name!r} not found" + (f"; {hint}" if hint else ""))


class Conflict(BrokerError):
    """The wish is well formed, but the state of the thing forbids it."""


class StalePlan(Conflict):
    """The market moved past the plan's tolerance since it was made."""


class TooManyPlans(Conflict):
    """A team has as many plans, or as many workloads in them, queued or running as ``setting`` allows.

    ``found`` in ``unit`` with what was asked for; ``retry_after_s``: when it is worth while to ask again.
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
            f"team {team} would have {found:,} {unit} queued or running, and {setting} allows {allowed:,}: "
            "wait until a plan is made, or cancel one"
        )


class OverQuota(Conflict):
    """More of a provider would be held at an instant than a quota of ours allows; nothing was bought.

    ``found`` and ``allowed`` in ``unit`` (GPUs or nodes), what is held already included.
    """

    def __init__(self, provider: str, unit: str, found: int, allowed: int, words: str) -> None:
        self.provider = provider
        self.unit = unit
        self.found = found
        self.allowed = allowed
        self.facts = {"provider": provider, "unit": unit, "found": found, "allowed": allowed}
        super().__init__(words)


class ConcurrentChange(Conflict):
    """The row's version is not the one that was read."""


class LeadershipLost(BrokerError):
    """Another process leads now: what this one was about to write as the leader is not written."""


class IdempotencyMismatch(Conflict):
    """An idempotency key came again with another body."""


class StillAtWork(Conflict):
    """The first request under an idempotency key has not answered yet; ask again shortly."""


class ApprovalRequired(BrokerError):
    """A plan over the policy's limit waits for ``spend:approve``."""


class ApprovalLapsed(ApprovalRequired):
    """What was approved is not what would be bought now; ``why`` says what changed."""

    def __init__(self, plan_id: str, why: str) -> None:
        self.plan_id = plan_id
        self.why = why
        super().__init__(f"plan {plan_id} was approved, but {why}: it has to be approved again")


class PlanRejected(ApprovalRequired):
    """Finance said no to the plan."""


class OverBudget(BrokerError):
    """The plan costs more than the team's budget leaves."""


class NotAuthenticated(BrokerError):
    """No bearer key, or one that is unknown, expired or revoked."""


class NotPermitted(BrokerError):
    """The key is known but lacks a scope."""


class StoreTooNew(BrokerError):
    """The database's schema revision is unknown to this version of the program."""


class StoreUnavailable(BrokerError):
    """The database does not answer, or stays locked; trying again later may help."""


class PlanInvalid(BrokerError):
    """A plan that was just made fails the independent check; carries every violation."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        self.violations = violations
        super().__init__("the plan fails its own check: " + "; ".join(violations))


class PlannerDied(BrokerError):
    """The process that made a plan ended before it was done; the next plan has a new one."""


class PlannerOutOfMemory(PlannerDied):
    """A plan needs more memory than its process may use. ``found`` says what was seen; ``limit_gib``."""

    def __init__(self, found: str, limit_gib: float) -> None:
        self.found = found
        self.limit_gib = limit_gib
        self.facts = {"limit_gib": limit_gib, "setting": "BROKER_PLANNER_MEMORY_GIB"}
        super().__init__(
            f"planning needs more memory than a process may use: {found}, the limit is {limit_gib:g} GiB; "
            "plan fewer workloads in one document, or raise BROKER_PLANNER_MEMORY_GIB"
        )


class ProviderError(BrokerError):
    """A provider failed or refused. ``provider`` names it; ``retryable`` says if waiting may help."""

    retryable = False
    endpoint: str | None = None
    """Method and path of the call that failed, where an answer of it says so."""
    status: int | None = None
    """Its HTTP status."""

    def __init__(self, provider: str, message: str, *, request_id: str | None = None) -> None:
        self.provider = provider
        self.request_id = request_id
        super().__init__(f"{provider}: {message}")

    def saying(self, message: str, facts: Mapping[str, object]) -> Self:
        """The same error in other words, with other facts."""
        same = type(self).__new__(type(self))
        same.__dict__.update(self.__dict__)
        same.args = (f"{self.provider}: {message}",)
        same.facts = facts
        return same


class ProviderUnavailable(ProviderError):
    """Timeout, refused or reset connection, 5xx, or an open breaker, on a call without effect.

    ``until``: before then an open breaker sends nothing; None where only the provider knows.
    """

    retryable = True

    def __init__(
        self, provider: str, message: str, *, until: datetime | None = None, request_id: str | None = None
    ) -> None:
        self.until = until
        super().__init__(provider, message, request_id=request_id)


class RateLimited(ProviderError):
    """Too many calls. ``retry_after_s`` is the provider's own wish, or None."""

    retryable = True

    def __init__(self, provider: str, message: str, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(provider, message)


class PayloadUnreadable(ProviderError):
    """The answer as a whole is not what the provider documents (single rows are *rejected* instead)."""


class CredentialsRejected(ProviderError):
    """The provider does not accept our credentials."""


class InsufficientCapacity(ProviderError):
    """No stock for this order now."""


class QuotaExceeded(ProviderError):
    """Our account may not hold more."""


class OrderRejected(ProviderError):
    """The provider refuses the order as it stands; sending it again will not help."""


class PriceAboveLimit(ProviderError):
    """The provider asks, or charges, more per node-hour than the order allows.

    ``asks_usd_per_node_hour`` is that price, None where the provider does not say it.
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
    """The provider will not end it now. ``forever`` when it never will (a block that ends by itself)."""

    def __init__(self, provider: str, message: str, *, forever: bool) -> None:
        self.forever = forever
        self.retryable = not forever
        super().__init__(provider, message)


class LeaseNotFound(ProviderError):
    """The provider knows no such lease (any more)."""


class LeasesUnreadable(ProviderError):
    """The list of what is held there cannot be read, so that nobody knows what is there and what is gone.

    Its endpoint is not there (404), is retired (410), refuses the question, or answers in another form.
    """


class OutcomeUnknown(ProviderError):
    """The order was sent and the answer was lost: look before you act again."""

    retryable = True

"""What both clients make of a server's answers: objects of the domain, and errors by their meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from api.client.notebook import plan_markdown
from api.schemas.base.problem import Problem, error_of
from api.schemas.plans.plan import PLAN
from api.schemas.plans.plan_record import StandingForm, UnmadePlanForm
from broker.domain.basics.errors import BrokerError, FieldProblem, InputError
from broker.domain.planning.plan import Plan
from broker.ports.planning import PlanState

Parsed = TypeVar("Parsed")


class ServerTimedOut(BrokerError):
    """The server was asked and did not answer in time; what was asked may still happen."""


class PlanFailed(BrokerError):
    """The plan failed or was cancelled, so there is none. The message says why."""


@dataclass(frozen=True, slots=True)
class MadePlan:
    """A plan that is made: the plan, its standing, and the JSON document that contained both.

    ``document["workloads"]`` is the workloads document that the plan was asked for with. A notebook shows
    the plan as Markdown, with its tables.
    """

    plan: Plan
    stands: StandingForm
    document: dict[str, Any]

    @property
    def plan_id(self) -> str:
        """The id on the server."""
        return self.plan.plan_id

    def _repr_markdown_(self) -> str:
        return plan_markdown(self.plan, self.stands.holding)


def read_plan_answer(body: dict[str, Any]) -> MadePlan | UnmadePlanForm:
    """The plan, or where it stands while there is none."""
    if "placements" not in body:
        return UnmadePlanForm.model_validate(body)
    return MadePlan(PLAN.read(body), StandingForm.model_validate(body), body)


def made_or_waiting(found: MadePlan | UnmadePlanForm) -> MadePlan | None:
    """The plan; None while it is queued or running. PlanFailed."""
    if isinstance(found, MadePlan):
        return found
    if found.state is PlanState.CANCELLED:
        raise PlanFailed(f"plan {found.plan_id} was cancelled")
    if not found.state.is_on_its_way:
        raise PlanFailed(f"plan {found.plan_id} failed: {found.problem or 'the server does not say why'}")
    return None


def parsed(base_url: str, parse: Callable[[Any], Parsed], answer: httpx.Response) -> Parsed:
    """What ``parse`` makes of a JSON answer; InputError for a server that is no broker."""
    try:
        return parse(answer.json())
    except ValueError as error:
        problem = FieldProblem("BROKER_URL", f"{base_url!r} that answers {answer.text[:60]!r}", "a broker")
        raise InputError("environment", (problem,)) from error


def problem_of(answer: httpx.Response) -> BrokerError:
    """The error that an answer other than 2xx means."""
    try:
        return error_of(Problem.model_validate(answer.json()))
    except ValueError:
        return error_of(Problem(title=answer.reason_phrase or "no reason", status=answer.status_code))


def failure_of(base_url: str, asked: str, error: Exception) -> BrokerError:
    """The error that a transport's exception means; ``asked`` is the method and the path."""
    if isinstance(error, httpx.ReadTimeout):
        return ServerTimedOut(f"{asked}: no answer in time; the server may still do it")
    found = f"{base_url!r} ({str(error) or type(error).__name__})"
    expected = "the address of a running broker (start one with `broker up`)"
    return InputError("environment", (FieldProblem("BROKER_URL", found, expected),))

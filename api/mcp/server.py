"""The tools of the broker for assistants. They buy nothing that a person has not confirmed.

Reserving takes two steps. A client that can ask its user is told to ask. With any other client the first
call only says what would be bought and gives a confirmation, which the second call repeats.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from typing import Annotated, Any

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from api.client import AsyncBrokerClient, MadePlan
from api.mcp.results import (
    ComparisonResult,
    EstimateResult,
    OfferResult,
    OffersResult,
    OrderResult,
    PlanResult,
    ReservationResult,
    SpendLine,
    SpendResult,
    estimate_result,
    offer_result,
    plan_result,
    reservation_result,
    result_of,
    would_buy,
)
from api.schemas.plans.comparison import compare_plans, comparison_to_document
from api.schemas.plans.plan_record import UnmadePlanForm
from broker.domain.basics.errors import BrokerError
from broker.domain.holding.reservation import ReservationState
from broker.domain.planning.plan import Plan
from broker.domain.spend.spend import Interval

INSTRUCTIONS = """\
Plans GPU capacity for training, serving and batch workloads over many sellers, and reserves it.
Search offers, or estimate and plan a workloads document (YAML); a plan buys nothing. Compare plans before you
reserve. Reserving spends money: show the user what would be bought, and confirm only what the user agreed to.
"""
WORKLOADS = """\
A workloads document, YAML or JSON, for example:
team: research
horizon: {start: now, days: 14}
workloads:
  - {name: tune, kind: training, model: Llama-3.1-8B, tokens: 2.0e9, sequence_length: 8192,
     global_batch_tokens: 1.0e6, precision: bf16, deadline: +9d}
  - {name: chat, kind: serving, model: Llama-3.1-70B,
     traffic: {peak_requests_per_s: 12, input_tokens: 1500, output_tokens: 300},
     slo: {ttft_p95_ms: 1000, itl_p95_ms: 60}}
"""
MOST_OFFERS = 100
SECRET_BYTES = 32
CONFIRMATION_LENGTH = 20

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
DRAFTS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
BUYS = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True
)

PlanId = Annotated[str, Field(description="The id of a plan on the server, plan-…")]
Document = Annotated[str, Field(description=WORKLOADS)]


@dataclass(frozen=True, slots=True)
class Session:
    """What the tools work with: the broker's client, and the secret that confirmations are made with."""

    broker: AsyncBrokerClient
    secret: bytes

    def confirmation(self, plan: Plan) -> str:
        """The confirmation of exactly this plan at exactly this cost."""
        bought = json.dumps([plan.plan_id, str(plan.cost_usd), would_buy(plan)])
        return hmac.new(self.secret, bought.encode(), hashlib.sha256).hexdigest()[:CONFIRMATION_LENGTH]


ToolContext = Context[Session, Any]


class Agreement(BaseModel):
    """The answer of a person to what would be bought."""

    reserve: bool = Field(description="Whether to reserve all of it now")


def build_server(broker: AsyncBrokerClient) -> MCPServer[Session]:
    """The server over ``broker``, which it closes at its end."""

    @asynccontextmanager
    async def life(_: MCPServer[Session]) -> AsyncIterator[Session]:
        async with broker:
            yield Session(broker, secrets.token_bytes(SECRET_BYTES))

    server = MCPServer[Session](
        "gpu-capacity-broker",
        instructions=INSTRUCTIONS,
        version=version("gpu-capacity-broker"),
        lifespan=life,
        log_level="WARNING",
    )
    tools: tuple[tuple[Callable[..., Any], str, ToolAnnotations], ...] = (
        (search_offers, "Search offers", READS),
        (estimate, "Estimate workloads", READS),
        (plan, "Plan workloads", DRAFTS),
        (get_plan, "Read a plan", READS),
        (compare, "Compare two plans", READS),
        (reserve, "Reserve a plan", BUYS),
        (list_reservations, "List reservations", READS),
        (release, "Release reservations", BUYS),
        (spend, "Read spend", READS),
    )
    for tool, title, hints in tools:
        server.add_tool(tool, title=title, annotations=hints)
    return server


@contextmanager
def _told() -> Iterator[None]:
    """What the broker refuses is told to the model in the broker's words."""
    try:
        yield
    except BrokerError as error:
        raise ToolError(str(error)) from error


def _broker(ctx: ToolContext) -> AsyncBrokerClient:
    return ctx.request_context.lifespan_context.broker


async def search_offers(
    ctx: ToolContext,
    gpu: Annotated[str | None, Field(description="Canonical name, such as H100-SXM-80GB")] = None,
    provider: Annotated[str | None, Field(description="Key of a seller, such as lambda")] = None,
    region: Annotated[str | None, Field(description="A region as its seller names it")] = None,
    tier: Annotated[str | None, Field(description="on_demand, spot, committed or window")] = None,
    limit: Annotated[int, Field(ge=1, le=MOST_OFFERS)] = 20,
) -> OffersResult:
    """Finds what is on sale now, cheapest per GPU-hour first."""
    found: list[OfferResult] = []
    with _told():
        async for offer in _broker(ctx).list_offers(gpu=gpu, provider=provider, region=region, tier=tier):
            if len(found) == limit:
                return OffersResult(offers=found, more=True)
            found.append(offer_result(offer))
    return OffersResult(offers=found, more=False)


async def estimate(ctx: ToolContext, workloads: Document) -> EstimateResult:
    """Checks workloads and estimates each alone: GPUs that fit, how many, for how long, and at what cost.

    It takes less than a second, searches nothing and stores nothing. Use plan for a plan to be reserved.
    """
    with _told():
        return estimate_result(await _broker(ctx).estimate(workloads))


async def plan(
    ctx: ToolContext,
    workloads: Document,
    time_limit_s: Annotated[
        float | None, Field(gt=0, le=600, description="Seconds to search at most")
    ] = None,
) -> PlanResult:
    """Plans workloads over the whole market at least cost, and waits for the plan. Nothing is bought."""
    with _told():
        return _plan(await _broker(ctx).plan(workloads, time_limit_s=time_limit_s))


async def get_plan(ctx: ToolContext, plan_id: PlanId) -> PlanResult:
    """Reads a plan, or its state while it is being made."""
    with _told():
        return _plan(await _broker(ctx).find_plan(plan_id))


async def compare(
    ctx: ToolContext,
    first_plan_id: PlanId,
    second_plan_id: PlanId,
) -> ComparisonResult:
    """Compares two plans: cost, end, GPUs and places of each workload, and what moves."""
    made = [(plan_id, await _made(ctx, plan_id)) for plan_id in (first_plan_id, second_plan_id)]
    return ComparisonResult.model_validate({"comparison": comparison_to_document(compare_plans(made))})


async def ask_person(
    plan_id: str, confirmation: str | None, ctx: ToolContext
) -> Agreement | Elicit[Agreement]:
    """Asks the user, where the client can and the call does not confirm already."""
    capabilities = ctx.client_capabilities
    if confirmation is not None or capabilities is None or capabilities.elicitation is None:
        return Agreement(reserve=False)
    made = await _made(ctx, plan_id)
    bought = "\n".join(would_buy(made))
    return Elicit(f"Reserve plan {plan_id} for ${made.cost_usd:,.2f}?\n{bought}", Agreement)


async def reserve(
    ctx: ToolContext,
    plan_id: PlanId,
    agreed: Annotated[ElicitationResult[Agreement], Resolve(ask_person)],
    confirmation: Annotated[
        str | None,
        Field(description="From the answer to the first call, once the user has agreed to what it lists"),
    ] = None,
) -> OrderResult:
    """Reserves all of a plan, or nothing: this buys capacity.

    The first call buys nothing. It says what would be bought and gives a confirmation of that plan and cost.
    Repeat the call with it only after the user has agreed. A repeated confirmation buys nothing twice.
    """
    made = await _made(ctx, plan_id)
    session = ctx.request_context.lifespan_context
    expected = session.confirmation(made)
    order = OrderResult(
        reserved=False, plan_id=plan_id, cost_usd=made.cost_usd, would_buy=would_buy(made), told=""
    )
    if confirmation is not None and not hmac.compare_digest(confirmation, expected):
        raise ToolError(
            "this confirmation is not that of this plan at its cost; "
            "call without one to see what would be bought"
        )
    if not isinstance(agreed, AcceptedElicitation):
        return order.model_copy(update={"told": "The user did not agree; nothing was bought."})
    if confirmation is None and not agreed.data.reserve:
        told = "Nothing was bought. Ask the user; to reserve exactly this, call again with the confirmation."
        return order.model_copy(update={"confirmation": expected, "told": told})
    with _told():
        rows = await session.broker.reserve_plan(plan_id, f"mcp-{plan_id}-{expected}")
    told = "Ordered. States change as sellers confirm: list_reservations tells them."
    reserved = [reservation_result(row) for row in rows]
    return order.model_copy(update={"reserved": True, "told": told, "reservations": reserved})


async def list_reservations(
    ctx: ToolContext,
    plan_id: Annotated[str | None, Field(description="Only what this plan reserved")] = None,
    only_open: Annotated[bool, Field(description="Only what is not over")] = True,
    limit: Annotated[int, Field(ge=1, le=500)] = 100,
) -> list[ReservationResult]:
    """Lists what is reserved, newest first."""
    rows: list[ReservationResult] = []
    with _told():
        async for row in _broker(ctx).list_reservations(plan_id):
            if len(rows) == limit:
                break
            if not only_open or row.state not in OVER:
                rows.append(reservation_result(row))
    return rows


OVER = frozenset({ReservationState.RELEASED, ReservationState.FAILED})


async def release(
    ctx: ToolContext,
    plan_id: Annotated[str | None, Field(description="Releases all that this plan reserved")] = None,
    reservation_id: Annotated[str | None, Field(description="Releases one reservation")] = None,
) -> list[ReservationResult]:
    """Gives capacity back. What a minimum term or a bought window still costs stays owed.

    Give a plan or a reservation, not both. A second call is no error.
    """
    if (plan_id is None) == (reservation_id is None):
        raise ToolError("give plan_id or reservation_id, one of both")
    broker = _broker(ctx)
    with _told():
        if reservation_id is not None:
            ids = [reservation_id]
        else:
            rows = [row async for row in broker.list_reservations(plan_id)]
            ids = [row.reservation_id for row in rows if row.state not in OVER]
        return [reservation_result(await broker.release(one)) for one in ids]


async def spend(
    ctx: ToolContext,
    group_by: Annotated[
        str, Field(description="team, workload, provider, kind, tier, or several with commas")
    ] = "team",
    interval: Annotated[Interval, Field(description="day or month")] = Interval.MONTH,
    since: Annotated[str | None, Field(description="A date or a time; with until")] = None,
    until: Annotated[str | None, Field(description="Exclusive; with since")] = None,
) -> SpendResult:
    """Reads projected and actual spend, in USD."""
    with _told():
        found = await _broker(ctx).find_spend(group_by=group_by, interval=interval, since=since, until=until)
    lines = [result_of(SpendLine, item.row, basis=str(item.basis)) for item in islice(found.items, 1000)]
    return SpendResult(total_usd=found.total_usd, lines=lines)


async def _made(ctx: ToolContext, plan_id: str) -> Plan:
    with _told():
        found = await _broker(ctx).find_plan(plan_id)
    if isinstance(found, MadePlan):
        return found.plan
    raise ToolError(f"plan {plan_id} is {found.state}; there is no plan to look at yet")


def _plan(found: MadePlan | UnmadePlanForm) -> PlanResult:
    if isinstance(found, UnmadePlanForm):
        return PlanResult(plan_id=found.plan_id, state=str(found.state), problem=found.problem)
    stands = found.stands
    return plan_result(
        found.plan,
        state=str(stands.state),
        standing=None if stands.standing is None else str(stands.standing),
        needs_approval=stands.needs_approval,
        holding=None if stands.holding is None else stands.holding.text,
    )

"""Requests for plans and their progress, for the API and the pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from api.notices.events import FINAL_STATES, with_pauses
from api.planning.planning_call import installed_quotas
from api.schemas.plans.comparison import ComparisonDocument, compare
from api.schemas.workloads.what_if import WhatIfForm, assumed_prices, changed_document
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import format_usd
from broker.domain.holding.plan_holding import PlanHolding
from broker.domain.planning.cost_estimate import CostEstimate
from broker.domain.planning.workload_document import to_document
from broker.ports.planning import BusinessStatus, LimitClock, PlanOptions, PlanRecord, PlanState, Whereabouts
from broker.services.planning.planning import Change, Comparison
from broker.settings import Settings

if TYPE_CHECKING:
    from api.bootstrap import Product

HEARTBEAT_S = 10.0
LONGEST_RETRY_S = 30


def options_of(settings: Settings) -> PlanOptions:
    """The planning options of the installation, for requests that give none."""
    return PlanOptions(
        settings.plan_time_limit_s,
        limit_clock=LimitClock.CPU,
        workers=settings.plan_workers,
    )


async def ask_for_plan(
    product: Product,
    caller: Caller,
    text: str,
    options: PlanOptions,
    source: str,
    *,
    intended: bool = False,
    new_team: bool = False,
) -> PlanRecord:
    """Stores the request of a workloads document and starts planning. Raises InputError with positions in
    ``text``. ``new_team``: its team may be new although its name is like another's.
    """
    # In a thread, because a large document takes seconds, during which other requests are served.
    read = partial(read_workloads, source=source, base=None, now=product.clock.now())
    wish = await asyncio.to_thread(read, text)
    if not new_team:
        await product.names.require_not_mistyped(caller, wish.team)
    # Stored with absolute times, so that planning again after a crash gives the same request.
    document = json.dumps(to_document(wish))
    record = await product.planning.request_plan(caller, document, wish, options, intended=intended)
    product.background.start(product.planning.run(record.plan_id))
    return record


async def ask_to_continue(
    product: Product, caller: Caller, plan_id: str, time_limit_s: float | None = None
) -> PlanRecord:
    """Stores the request to continue the search of a plan and starts it; Conflict if it cannot be."""
    record = await product.planning.request_continuation(caller, plan_id, time_limit_s)
    product.background.start(product.planning.run(record.plan_id))
    return record


async def estimate(product: Product, caller: Caller, text: str, source: str) -> CostEstimate:
    """What each workload of a document would cost alone. Stores nothing. Raises InputError with positions in
    ``text``.
    """
    read = partial(read_workloads, source=source, base=None, now=product.clock.now())
    wish = await asyncio.to_thread(read, text)
    asked = replace(wish, quotas=installed_quotas(product.settings))
    return await product.estimating.estimate(caller, asked)


async def ask_for_comparison(
    product: Product, caller: Caller, asked: WhatIfForm, options: PlanOptions, *, new_team: bool = False
) -> Comparison:
    """Stores a plan for each question and begins to make them; InputError with places in ``asked``.

    ``new_team``: as for a plan.
    """
    base = await product.planning.find_plan(caller, asked.based_on)
    now = product.clock.now()
    changes = await asyncio.to_thread(_changes, base.document, asked, now)
    teams = set() if new_team else {change.request.team for change in changes} - {base.team}
    for team in sorted(teams):
        await product.names.require_not_mistyped(caller, team)
    found = await product.planning.request_comparison(caller, base.plan_id, changes, options)
    for record in found.variants:
        product.background.start(product.planning.run(record.plan_id))
    return found


def _changes(document: str, asked: WhatIfForm, now: datetime) -> list[Change]:
    changes: list[Change] = []
    problems: list[FieldProblem] = []
    for index, change in enumerate(asked.changes):
        try:
            text = changed_document(document, change, index)
        except InputError as error:
            problems += error.problems
            continue
        try:
            request = read_workloads(text, source="request", base=None, now=now)
        except InputError as error:
            problems += [_in_changed(problem, index) for problem in error.problems]
            continue
        stored = json.dumps(to_document(request))
        changes.append(Change(change.name, stored, request, assumed_prices(change)))
    if problems:
        raise InputError("request", tuple(problems))
    return changes


def _in_changed(problem: FieldProblem, index: int) -> FieldProblem:
    """A problem of the document that a change makes, whose lines nobody has seen, at that change."""
    found = f"{problem.found} at {problem.pointer or '/'} of the changed document"
    return FieldProblem(f"/changes/{index}", found, problem.expected)


def comparison_of(
    product: Product, base: PlanRecord, others: Sequence[PlanRecord], comparison_id: str | None = None
) -> ComparisonDocument:
    """``others`` beside ``base``, as the API tells it."""
    read = partial(read_workloads, source="stored plan", base=None, now=product.clock.now(), stored=True)
    return compare(base, others, read, comparison_id=comparison_id)


def retry_after_s(whereabouts: Whereabouts) -> int:
    """Seconds after which a client should ask again for a plan that is being made."""
    return min(whereabouts.position or 1, LONGEST_RETRY_S)


def record_to_event(record: PlanRecord, whereabouts: Whereabouts | None) -> dict[str, object]:
    """The status of a plan as an event of its stream."""
    event: dict[str, object] = {"state": str(record.state)}
    if whereabouts is not None:
        told = {"position": whereabouts.position, "phase": whereabouts.phase}
        event |= {name: value for name, value in told.items() if value is not None}
    if record.plan is not None:
        event |= {"status": str(record.plan.status), "cost_usd": format_usd(record.plan.cost_usd)}
    if record.problem is not None:
        event["problem"] = record.problem
    return event


async def plan_events(
    product: Product, caller: Caller, first: PlanRecord
) -> AsyncIterator[Mapping[str, object] | None]:
    """The plan's status, then each change until it is finished; None after a pause.

    After a pause the store is read, because another process may make the plan, or its queue position may
    change.
    """
    last = await event_of(product, first)
    yield last
    if not first.state.is_on_its_way:
        return
    async for told in with_pauses(product.events.listen(first.plan_id), HEARTBEAT_S):
        event: Mapping[str, object] | None = told
        if event is None:
            yield None
            event = await event_of(product, await product.planning.find_plan(caller, first.plan_id))
        says_nothing_new = event.get("state") == last.get("state") and event.keys() <= {"state", "phase"}
        if event == last or says_nothing_new:
            continue
        last = event
        yield event
        if event.get("state") in FINAL_STATES:
            return


async def event_of(product: Product, record: PlanRecord) -> Mapping[str, object]:
    """The plan's stored status as an event of its stream."""
    whereabouts = await product.planning.find_whereabouts([record])
    return record_to_event(record, whereabouts.get(record.plan_id))


async def finished_within(product: Product, caller: Caller, record: PlanRecord, wait_s: float) -> PlanRecord:
    """The plan once it is finished, or as it is after ``wait_s`` seconds. It waits for the plan's events."""
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            async for _ in plan_events(product, caller, record):
                pass
    return await product.planning.find_plan(caller, record.plan_id)


async def find_holdings(
    product: Product,
    caller: Caller,
    records: Iterable[PlanRecord],
    statuses: Mapping[str, BusinessStatus],
) -> dict[str, PlanHolding]:
    """What is held of each of ``records`` that is reserved, by id."""
    reserved = [one for one in records if statuses.get(one.plan_id) is BusinessStatus.RESERVED]
    return await product.reservations.find_holdings(caller, reserved)


async def find_stale(
    product: Product, records: Iterable[PlanRecord], statuses: Mapping[str, BusinessStatus]
) -> dict[str, tuple[str, ...]]:
    """Why each of ``records`` that could be reserved cannot be ordered as planned, by id, if it cannot."""
    never = (None, BusinessStatus.RESERVED, BusinessStatus.REJECTED)
    return await product.reservations.find_stale(
        one for one in records if one.state is PlanState.DONE and statuses.get(one.plan_id) not in never
    )

"""Asking for a plan and following it: what the API and the pages share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from api.events import with_pauses
from api.schemas.workload_writer import to_document
from api.schemas.workloads import read_workloads
from broker.domain.account import Caller
from broker.domain.money import format_usd
from broker.plan_ports import PlanOptions, PlanRecord, PlanState
from broker.settings import Settings

if TYPE_CHECKING:
    from api.bootstrap import Product

UNFINISHED = frozenset({PlanState.QUEUED, PlanState.RUNNING})
HEARTBEAT_S = 10.0


def options_of(settings: Settings) -> PlanOptions:
    """How the installation plans where a request says nothing else."""
    return PlanOptions(
        settings.plan_time_limit_s,
        workers=settings.plan_workers,
    )


async def ask_for_plan(
    product: Product, caller: Caller, text: str, options: PlanOptions, source: str, *, intended: bool = False
) -> PlanRecord:
    """Stores the wish of a workloads document and begins to plan it; InputError with places in ``text``."""
    # In a thread: a large document takes seconds, and others want answers meanwhile.
    read = partial(read_workloads, source=source, base=None, now=product.clock.now())
    wish = await asyncio.to_thread(read, text)
    # Stored with absolute times, so that a run after a crash asks the same question.
    document = json.dumps(to_document(wish))
    record = await product.planning.request_plan(caller, document, wish, options, intended=intended)
    product.background.start(product.planning.run(record.plan_id))
    return record


def record_to_event(record: PlanRecord) -> dict[str, object]:
    """Where a plan stands, as its event stream says it."""
    event: dict[str, object] = {"state": str(record.state)}
    if record.plan is not None:
        event |= {"status": str(record.plan.status), "cost_usd": format_usd(record.plan.cost_usd)}
    if record.problem is not None:
        event["problem"] = record.problem
    return event


async def plan_events(
    product: Product, caller: Caller, first: PlanRecord
) -> AsyncIterator[Mapping[str, object] | None]:
    """Where the plan stands, then each change until it is finished; None in a silence.

    In a silence the store is asked, as the plan may be made by another process.
    """
    last = record_to_event(first)
    yield last
    if first.state not in UNFINISHED:
        return
    async for event in with_pauses(product.events.listen(first.plan_id), HEARTBEAT_S):
        if event is None:
            yield None
            record = await product.planning.find_plan(caller, first.plan_id)
            if record.state not in UNFINISHED:
                yield record_to_event(record)
                return
        elif event != last:
            last = event
            yield event

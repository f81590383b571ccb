"""The fallback when a provider refuses an order: what to buy instead, and how much more it may cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Segment, Window
from broker.domain.holding.holding_orders import Intent, free_gpus, free_nodes, rank_of
from broker.domain.holding.reservation import Reservation
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, Serving, Workload
from broker.domain.reconciling.replacing import as_later

CHEAP_TO_LEAVE = 1
"""The highest rank in the order of buying whose capacity costs at most an hour to release."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange for a refused reservation: buy ``wanted``, and release ``leaving``."""

    wanted: tuple[Intent, ...]
    leaving: tuple[Reservation, ...]
    before_usd: Decimal
    after_usd: Decimal


def request_of_one(request: PlanRequest, plan: Plan, name: str) -> PlanRequest | None:
    """``request`` with the workload ``name`` alone, and the budget that the rest of ``plan`` leaves.

    None if it has no such workload. A service that waits for a run starts at the run's planned end.
    """
    wanted = [_unchained(w, plan) for w in request.workloads if w.name == name]
    if not wanted:
        return None
    budget = request.budget_usd
    if budget is not None:
        budget -= sum((p.cost_usd for p in plan.placements if p.workload != name), ZERO)
    return replace(request, workloads=tuple(wanted), budget_usd=budget)


def _unchained(workload: Workload, plan: Plan) -> Workload:
    if not isinstance(workload, Serving) or workload.starts_after is None:
        return workload
    ends = [s.end for p in plan.placements_of(workload.starts_after) for s in p.segments]
    return replace(workload, starts=workload.starts.without_run(max(ends, default=None)))


def less_held(
    offer: Offer, reservations: Sequence[Reservation], start: datetime, end: datetime | None = None
) -> Offer | None:
    """``offer`` with the stock that ``reservations`` leave from ``start`` to ``end`` (None: without end);
    None if nothing is left."""
    wish = Intent(offer, 1, start, end)
    free = free_nodes(wish, reservations)
    if free is None:
        return offer
    if free <= 0:
        return None
    gpus, pool = free_gpus(wish, reservations), offer.stock.pool
    left = replace(pool, gpus=gpus) if pool is not None and gpus is not None else pool
    return replace(offer, stock=replace(offer.stock, nodes=free, pool=left))


def find_exchange(
    refused: Reservation, others: Iterable[Reservation], intents: Sequence[Intent], tolerance: float
) -> Exchange | None:
    """The exchange after which the workload of ``refused`` holds exactly ``intents``.

    ``others`` are the open reservations of the same workload; those that match an intent are kept. None if
    the exchange costs more than the share ``tolerance`` above what it replaces, or if it would release bought
    capacity that is expensive to release.
    """
    wanted, leaving = list(intents), [refused]
    for row in others:
        same = next((intent for intent in wanted if _is_same(intent, row)), None)
        if same is not None:
            wanted.remove(same)
        elif row.provider_references and rank_of(row) > CHEAP_TO_LEAVE:
            return None
        else:
            leaving.append(row)
    before = [_cost_usd(row.offer, row.nodes, row) for row in leaving]
    after = [_cost_usd(intent.offer, intent.nodes, intent) for intent in wanted]
    if not wanted or None in before or None in after:
        return None
    before_usd = sum((usd for usd in before if usd is not None), ZERO)
    after_usd = sum((usd for usd in after if usd is not None), ZERO)
    if after_usd > before_usd * (1 + Decimal(str(tolerance))):
        return None
    return Exchange(tuple(wanted), tuple(leaving), before_usd, after_usd)


def while_in_use(exchange: Exchange, now: datetime) -> Exchange | None:
    """``exchange`` as purchases apart from their plan, for a workload in use.

    None if it would release bought capacity or buy a window.
    """
    wanted = tuple(as_later(intent, now) for intent in exchange.wanted)
    held = any(row.provider_references for row in exchange.leaving)
    found = tuple(intent for intent in wanted if intent is not None)
    return None if held or len(found) < len(wanted) else replace(exchange, wanted=found)


def _is_same(intent: Intent, row: Reservation) -> bool:
    return (intent.offer.offer_id, intent.nodes, intent.end) == (row.offer.offer_id, row.nodes, row.end)


def _cost_usd(offer: Offer, nodes: int, times: Intent | Reservation) -> Decimal | None:
    """Cost of a holding in USD up to its end; None if it has no end."""
    if times.end is None:
        return None
    window = Window(times.start, times.end)
    return holding_cost_usd(offer, (Segment(window.start, window.end, nodes),))

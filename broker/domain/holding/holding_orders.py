"""From a plan's placements to orders: intents, the order of buying, units, price limits, free stock
and the outcome of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal

from broker.domain.basics.errors import (
    CredentialsRejected,
    FieldProblem,
    InputError,
    InsufficientCapacity,
    OrderRejected,
    PriceAboveLimit,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    StalePlan,
)
from broker.domain.basics.identity import make_tag
from broker.domain.basics.money import CENT, MICRO, to_cents, usd_words
from broker.domain.basics.window import Window, Wish, instant_words
from broker.domain.holding.early_holding import Hold, early_spans
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.billing import holding_cost_usd, holdings
from broker.domain.market.offer import CancelRule, Offer
from broker.domain.market.sku import SoldAmount
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import WorkloadKind

FOREVER = datetime.max.replace(tzinfo=UTC)
REFUSALS = (
    InsufficientCapacity,
    QuotaExceeded,
    OrderRejected,
    PriceAboveLimit,
    CredentialsRejected,
    RateLimited,
)


@dataclass(frozen=True, slots=True)
class Intent:
    """``nodes`` nodes of ``offer`` to buy for ``[start, end)``; ``end`` None means until released.

    ``requested`` is the time asked for, if it differs: the provider's grid changed it, or the capacity is
    held before it is needed. ``limit_usd_per_node_hour`` is the highest price to accept; None sets no limit.
    ``placement`` is that of the plan which asks for it; None: no plan does, or nodes that were lost are
    bought again.
    """

    offer: Offer
    nodes: int
    start: datetime
    end: datetime | None
    workload: str | None = None
    requested: Wish | None = None
    limit_usd_per_node_hour: Decimal | None = None
    placement: Placement | None = field(default=None, compare=False, repr=False)


def leaves_cheaply(offer: Offer) -> bool:
    """Whether an immediate release costs at most one hour."""
    return offer.window is None and offer.min_hours <= 1


def ends_by_itself(offer: Offer) -> bool:
    """Whether ``offer`` is a window that cannot be ended early."""
    return offer.window is not None and offer.window.cancel is CancelRule.NEVER


def order_at(offer: Offer, start: datetime) -> datetime:
    """When to order capacity that starts at ``start`` and is not sold in advance."""
    return start if offer.window is None else start - offer.window.longest_wait


def bought_later(offer: Offer, start: datetime, created_at: datetime) -> bool:
    """Whether the order must wait: windows are bought in advance, other capacity only when it starts.

    A window that begins when capacity appears is ordered its longest wait before its start. An earlier order
    could make it begin before it is needed.
    """
    sold_ahead = offer.window is not None and not offer.window.waits
    return not sold_ahead and order_at(offer, start) > created_at


def buying_rank(offer: Offer, *, begins_at_once: bool = False) -> int:
    """Rank in the order of buying, 0 first; what is hard to give back is bought last.

    0: windows that can be cancelled (with CancelRule.UNTIL only if they do not begin at once), as they are
    scarce. 1: hourly capacity with a minimum term of at most an hour. 2: capacity with a longer minimum
    term. 3: windows that can only be resold. 4: windows that cannot be given back.
    """
    if offer.window is None:
        return 1 if leaves_cheaply(offer) else 2
    cancel = offer.window.cancel
    if cancel is CancelRule.ANY_TIME or (cancel is CancelRule.UNTIL and not begins_at_once):
        return 0
    return 3 if cancel is CancelRule.RESELL else 4


def buying_order(intents: Iterable[Intent], now: datetime | None = None) -> tuple[Intent, ...]:
    """Intents by rank, then scarcest stock, then start, so that a failure comes while release is cheap."""

    def key(intent: Intent) -> tuple[int, int, datetime, str]:
        nodes = intent.offer.stock.nodes
        rank = buying_rank(intent.offer, begins_at_once=now is not None and intent.start <= now)
        return rank, nodes if nodes is not None else 1 << 30, intent.start, intent.offer.offer_id

    return tuple(sorted(intents, key=key))


def rank_of(reservation: Reservation) -> int:
    """The rank of ``reservation`` in the order of buying."""
    at_once = reservation.start <= reservation.created_at
    return buying_rank(reservation.offer, begins_at_once=at_once)


def intents_of(
    plan: Plan,
    offers: Mapping[str, Offer],
    now: datetime,
    patience: timedelta,
    tolerance: float | None = None,
    hold: Hold = Hold.AT_START,
) -> tuple[Intent, ...]:
    """Intents for every holding of ``plan`` from ``now`` on, in the order of buying.

    ``tolerance`` is the share by which the price of a node-hour may exceed the planned one; None sets no
    limit. A run whose start has passed by at most ``patience`` is shifted by that delay and keeps its length;
    a serving fleet starts now. ``hold`` now: what can be held early begins now. Raises StalePlan if a
    placement can no longer start.
    """
    found = []
    for ordinal, placement in enumerate(plan.placements):
        offer = placement.ordered(offers[placement.offer_id])
        limit = None if tolerance is None else limit_usd_per_node_hour(placement, offer, tolerance)
        early = early_spans(placement, offer, now) if hold is Hold.NOW else ()
        for span in early:
            wish = Wish(span.window.start, span.window.end)
            found.append(
                Intent(offer, span.nodes, now, span.window.end, placement.workload, wish, limit, placement)
            )
        for window, nodes in () if early else _pieces(placement, offer):
            begun = _begun(placement, offer, window, now, patience, ordinal)
            if begun is not None:
                asked, (start, end) = _wish(placement, begun), (begun.start, begun.end)
                found.append(Intent(offer, nodes, start, end, placement.workload, asked, limit, placement))
    return buying_order(found, now)


def limit_usd_per_node_hour(placement: Placement, offer: Offer, tolerance: float) -> Decimal:
    """The highest price of a node-hour of ``placement``: the planned price plus the share ``tolerance``.

    The planned price is the offer's price times the planned cost over the cost at the offer's price. Half a
    cent is added to the planned cost because it was rounded to whole cents.
    """
    offer = placement.ordered(offer)
    now_usd = holding_cost_usd(offer, placement.segments)
    price = offer.price_usd_per_node_hour
    planned = price * (placement.capacity_usd + CENT / 2) / now_usd if now_usd else price
    return with_tolerance(planned, tolerance)


def with_tolerance(usd_per_node_hour: Decimal, tolerance: float) -> Decimal:
    """A price plus the share ``tolerance``, in whole micro-dollars, rounded up."""
    return (usd_per_node_hour * (1 + Decimal(str(tolerance)))).quantize(MICRO, ROUND_CEILING)


def at_limit(intent: Intent) -> Intent:
    """``intent`` at the highest price that it accepts, which is what it may cost."""
    offer, limit = intent.offer, intent.limit_usd_per_node_hour
    if limit is None or offer.contract is not None or limit <= offer.price_usd_per_node_hour:
        return intent
    rise = limit / offer.price_usd_per_node_hour
    upfront = None if offer.upfront_usd is None else offer.upfront_usd * rise
    return replace(intent, offer=replace(offer, price_usd_per_node_hour=limit, upfront_usd=upfront))


def _wish(placement: Placement, window: Window) -> Wish | None:
    """The part of a window that the placement uses; None outside windows."""
    use = placement.window_use
    wanted = use.wanted.intersection(window) if use is not None else None
    return Wish(wanted.start, wanted.end) if wanted is not None else None


def _pieces(placement: Placement, offer: Offer) -> tuple[tuple[Window, int], ...]:
    if offer.is_sold_whole:
        return tuple((segment.window, segment.nodes) for segment in placement.segments)
    return tuple((holding.window, holding.nodes) for holding in holdings(placement.segments))


def _begun(
    placement: Placement, offer: Offer, window: Window, now: datetime, patience: timedelta, ordinal: int
) -> Window | None:
    if window.start >= now:
        return window
    if placement.kind is WorkloadKind.SERVING and offer.window is None:
        return Window(now, window.end) if now < window.end else None
    listed = offer.is_sold_whole
    if listed and now < window.end:
        return window
    delay = now - window.start
    if offer.window is not None or delay > patience:
        raise StalePlan(
            f"{placement.workload} should have started at {instant_words(window.start)} on offer "
            f"{offer.offer_id}, but it is {instant_words(now)} now; plan again"
        ).naming(
            FieldProblem(
                f"/placements/{ordinal}/segments/0/start",
                instant_words(window.start),
                f"not before {instant_words(now)}; plan again",
            )
        )
    return Window(now, window.end + delay)


def in_ordered_size(offer: Offer, disk_gb: float | None, memory_gb: float | None) -> Offer:
    """``offer`` with the disk and memory of an order, rounded up to what is sold; None: the default.

    Raises InputError for an amount that is fixed, or outside of the seller's limits.
    """
    problems: list[FieldProblem] = []
    disk = _sold_gb("/disk_gb", offer.disk, offer.sku.disk_gb, disk_gb, problems)
    memory = _sold_gb("/memory_gb", offer.memory, offer.sku.memory_gb, memory_gb, problems)
    if problems:
        raise InputError("reservation", tuple(problems))
    return offer.sized(disk, memory)


def _sold_gb(
    pointer: str, sold: SoldAmount | None, fixed: float | None, gb: float | None, problems: list[FieldProblem]
) -> float | None:
    if gb is None:
        return None
    if sold is None:
        size = "not stated and not chosen" if fixed is None else f"fixed at {fixed:g} GB"
        problems.append(FieldProblem(pointer, f"{gb:g}", f"nothing: it is {size} for this offer"))
        return None
    amount = sold.least(gb)
    if amount is None or gb < sold.min_gb:
        most = "on" if sold.max_gb is None else f"to {sold.max_gb:g}"
        problems.append(FieldProblem(pointer, f"{gb:g}", f"GB from {sold.min_gb:g} {most}"))
    return amount


def units_of(
    install_id: str, reservation_id: str, nodes: int, per_order: int | None, longest_tag: int | None = None
) -> tuple[Unit, ...]:
    """One unit per provider call, of at most ``per_order`` nodes (None: all nodes in one call).

    ``longest_tag`` is the number of characters that the provider keeps of a name; None sets no limit.
    """
    part = nodes if per_order is None else max(1, per_order)
    sizes = [part] * (nodes // part) + ([nodes % part] if nodes % part else [])
    return tuple(
        Unit(
            ordinal,
            make_tag(install_id, reservation_id, ordinal, longest=longest_tag),
            size,
            UnitState.PLANNED,
        )
        for ordinal, size in enumerate(sizes)
    )


def opening_state(intent: Intent, now: datetime) -> ReservationState:
    """``scheduled`` if the order must wait for its time, else ``pending``."""
    later = bought_later(intent.offer, intent.start, now)
    return ReservationState.SCHEDULED if later else ReservationState.PENDING


def unplaced_order(intent: Intent, team: str, now: datetime) -> Reservation:
    """The reservation that an order would become, for what it adds to spend; it is stored nowhere."""
    return Reservation(
        reservation_id="order",
        team=team,
        state=opening_state(intent, now),
        offer=intent.offer,
        nodes=intent.nodes,
        start=intent.start,
        end=intent.end,
        units=(Unit(0, "order", intent.nodes, UnitState.PLANNED),),
        created_at=now,
        workload=intent.workload,
    )


@dataclass(frozen=True, slots=True)
class Drift:
    """A placement whose price rose beyond the tolerance, or whose offer is gone (``now_usd`` None).

    ``ordinal`` is its index in the plan; ``most_usd`` is the highest cost that the tolerance allows.
    ``doubt`` says why the offer is in quarantine; empty if it is not.
    """

    ordinal: int
    workload: str
    offer_id: str
    planned_usd: Decimal
    now_usd: Decimal | None
    most_usd: Decimal
    doubt: str = ""

    def as_problem(self) -> FieldProblem:
        """The field of the placement that no longer holds."""
        place = f"/placements/{self.ordinal}"
        if self.now_usd is None:
            return FieldProblem(f"{place}/offer_id", repr(self.offer_id), "an offer on sale; plan again")
        most = f"at most {usd_words(self.most_usd)}; plan again"
        return FieldProblem(f"{place}/cost_usd", f"{usd_words(self.now_usd)} now", most)

    def __str__(self) -> str:
        planned = usd_words(self.planned_usd)
        if self.doubt:
            return (
                f"offer {self.offer_id} ({self.workload}, planned at {planned}) is in quarantine, "
                f"because {self.doubt}"
            )
        if self.now_usd is None:
            return f"offer {self.offer_id} ({self.workload}, planned at {planned}) is no longer on sale"
        return (
            f"offer {self.offer_id} ({self.workload}) was planned at {planned} "
            f"and costs {usd_words(self.now_usd)} now"
        )


def placement_cost_usd(placement: Placement, offer: Offer) -> Decimal:
    """Cost of ``placement``, as it orders ``offer``, including transfers, in whole cents."""
    return to_cents(holding_cost_usd(placement.ordered(offer), placement.segments)) + placement.transfer_usd


def find_drifts(
    plan: Plan, offers: Mapping[str, Offer], tolerance: float, doubts: Mapping[str, str] | None = None
) -> tuple[Drift, ...]:
    """Placements whose cost at the prices of ``offers`` is more than the share ``tolerance`` above plan.

    A placement whose offer is not in ``offers`` is included; ``doubts`` say by id why it is in quarantine.
    """
    found = []
    for ordinal, placement in enumerate(plan.placements):
        offer = offers.get(placement.offer_id)
        cost = None if offer is None else placement_cost_usd(placement, offer)
        most = placement.cost_usd * (1 + Decimal(str(tolerance)))
        if cost is None or cost > most:
            name, id_, planned = placement.workload, placement.offer_id, placement.cost_usd
            doubt = "" if offer is not None or doubts is None else doubts.get(id_, "")
            found.append(Drift(ordinal, name, id_, planned, cost, most, doubt))
    return tuple(found)


def free_nodes(intent: Intent, reservations: Sequence[Reservation]) -> int | None:
    """Nodes that are left for ``intent`` on its offer; None if the provider states no stock.

    The stated stock already excludes what was sold before it was observed. Only units that were ordered
    later, or not yet, are subtracted: their nodes on this offer, and their GPUs in the offer's pool.
    """
    stock, size = intent.offer.stock, intent.offer.sku.gpus_per_node
    left = []
    if stock.nodes is not None:
        mine = [r for r in reservations if r.offer.offer_id == intent.offer.offer_id]
        left.append(stock.nodes - _most_taken(intent, mine, in_gpus=False))
    gpus = free_gpus(intent, reservations)
    if gpus is not None:
        left.append(gpus // size)
    return min(left, default=None)


def free_gpus(intent: Intent, reservations: Sequence[Reservation]) -> int | None:
    """GPUs left for ``intent`` in its offer's pool; None without a pool or without a stated count."""
    pool = intent.offer.stock.pool
    if pool is None or pool.gpus is None:
        return None
    beside = [r for r in reservations if _is_of_pool(r.offer, pool.pool_id)]
    return pool.gpus - _most_taken(intent, beside, in_gpus=True)


def _is_of_pool(offer: Offer, pool_id: str) -> bool:
    return offer.stock.pool is not None and offer.stock.pool.pool_id == pool_id


def _most_taken(intent: Intent, reservations: Iterable[Reservation], *, in_gpus: bool) -> int:
    """The peak of nodes (or GPUs) that ``reservations`` take from the observed stock during ``intent``."""
    end = intent.end or FOREVER
    taken = [
        (
            max(r.start, intent.start),
            min(r.end or FOREVER, end),
            unit.nodes * (r.offer.sku.gpus_per_node if in_gpus else 1),
        )
        for r in reservations
        if r.start < end and intent.start < (r.end or FOREVER)
        for unit in r.units
        if _is_missing_from_stock(unit, intent.offer.observed_at)
    ]
    return max((sum(n for a, b, n in taken if a <= at < b) for at, _, _ in taken), default=0)


def _is_missing_from_stock(unit: Unit, observed_at: datetime) -> bool:
    """Whether the stock that was observed at ``observed_at`` does not yet reflect ``unit``."""
    if unit.state is UnitState.GONE:
        return False
    return unit.state is UnitState.PLANNED or unit.ordered_at is None or unit.ordered_at >= observed_at


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reservation after a step, and the provider's error if the step failed.

    ``is_news`` is False if the try before failed with the same error.
    """

    reservation: Reservation
    error: ProviderError | None = None
    is_news: bool = True

    @property
    def refused(self) -> bool:
        """Whether the last call certainly left nothing bought."""
        return isinstance(self.error, REFUSALS)

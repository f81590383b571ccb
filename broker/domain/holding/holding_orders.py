"""From placements to what must be bought: intents, their order, their units, and what forbids them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal

from broker.domain.basics.errors import FieldProblem, StalePlan
from broker.domain.basics.identity import make_tag
from broker.domain.basics.money import CENT, MICRO, to_cents, usd_words
from broker.domain.basics.window import Window, Wish
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.billing import holding_cost_usd, holdings
from broker.domain.market.offer import CancelRule, Offer
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import WorkloadKind

FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Intent:
    """``nodes`` nodes of ``offer`` wanted over ``[start, end)``; ``end`` None: until released.

    ``requested``: what was asked for before it was snapped to the seller's grid; None: the same.
    ``limit_usd_per_node_hour``: the most that the seller may charge; None: whatever it asks.
    """

    offer: Offer
    nodes: int
    start: datetime
    end: datetime | None
    workload: str | None = None
    requested: Wish | None = None
    limit_usd_per_node_hour: Decimal | None = None


def leaves_cheaply(offer: Offer) -> bool:
    """Whether giving back what was just bought costs an hour at most."""
    return offer.window is None and offer.min_hours <= 1


def ends_by_itself(offer: Offer) -> bool:
    """Whether nobody can end what is bought of ``offer`` before its time."""
    return offer.window is not None and offer.window.cancel is CancelRule.NEVER


def order_at(offer: Offer, start: datetime) -> datetime:
    """When what starts at ``start`` is to be ordered, if it is not sold ahead."""
    return start if offer.window is None else start - offer.window.longest_wait


def bought_later(offer: Offer, start: datetime, created_at: datetime) -> bool:
    """Whether capacity is bought only when its time comes: windows are sold ahead, the rest is not.

    A window that begins when capacity appears is ordered its longest wait before its start, not sooner:
    else it could begin before it is of use.
    """
    sold_ahead = offer.window is not None and not offer.window.waits
    return not sold_ahead and order_at(offer, start) > created_at


def buying_rank(offer: Offer, *, begins_at_once: bool = False) -> int:
    """Place in the order of buying: 0 first.

    Windows that can be given back come first, as they are scarce; then what costs at most a minimum
    term to leave; windows that only a buyer takes back, and at last those that nobody does. What may be
    cancelled until its start belongs to the last when it ``begins_at_once``.
    """
    if offer.window is None:
        return 1 if leaves_cheaply(offer) else 2
    cancel = offer.window.cancel
    if cancel is CancelRule.ANY_TIME or (cancel is CancelRule.UNTIL and not begins_at_once):
        return 0
    return 3 if cancel is CancelRule.RESELL else 4


def buying_order(intents: Iterable[Intent], now: datetime | None = None) -> tuple[Intent, ...]:
    """Intents by rank, then scarcest stock, then time: what fails, fails while leaving is cheap."""

    def key(intent: Intent) -> tuple[int, int, datetime, str]:
        nodes = intent.offer.stock.nodes
        rank = buying_rank(intent.offer, begins_at_once=now is not None and intent.start <= now)
        return rank, nodes if nodes is not None else 1 << 30, intent.start, intent.offer.offer_id

    return tuple(sorted(intents, key=key))


def rank_of(reservation: Reservation) -> int:
    """The place of ``reservation`` in the order of buying."""
    at_once = reservation.start <= reservation.created_at
    return buying_rank(reservation.offer, begins_at_once=at_once)


def intents_of(
    plan: Plan,
    offers: Mapping[str, Offer],
    now: datetime,
    patience: timedelta,
    tolerance: float | None = None,
) -> tuple[Intent, ...]:
    """Every holding of ``plan`` from ``now`` on, in the order of buying.

    A node-hour may cost ``tolerance`` (a share) more than planned, whenever it is bought; None sets no limit.
    A run whose start has just passed keeps its length and moves by the delay, at most ``patience``; a fleet
    begins now. Raises StalePlan for what can no longer begin.
    """
    found = []
    for ordinal, placement in enumerate(plan.placements):
        offer = offers[placement.offer_id]
        for window, nodes in _pieces(placement, offer):
            begun = _begun(placement, offer, window, now, patience, ordinal)
            if begun is not None:
                wish = _wish(placement, begun)
                limit = None if tolerance is None else limit_usd_per_node_hour(placement, offer, tolerance)
                found.append(Intent(offer, nodes, begun.start, begun.end, placement.workload, wish, limit))
    return buying_order(found, now)


def limit_usd_per_node_hour(placement: Placement, offer: Offer, tolerance: float) -> Decimal:
    """The most that a node-hour of ``placement`` may cost: what it was planned at, and ``tolerance`` of it.

    It comes from the ratio of its planned cost to what it costs at the offer's price. Planned costs are whole
    cents, so that the plan may have been made at up to half a cent more.
    """
    now_usd = holding_cost_usd(offer, placement.segments)
    price = offer.price_usd_per_node_hour
    planned = price * (placement.capacity_usd + CENT / 2) / now_usd if now_usd else price
    return (planned * (1 + Decimal(str(tolerance)))).quantize(MICRO, ROUND_CEILING)


def _wish(placement: Placement, window: Window) -> Wish | None:
    """The part of a window in which the placement's work runs."""
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
            f"{placement.workload} was to begin at {window.start.isoformat()} on offer {offer.offer_id}, "
            f"which has passed (now {now.isoformat()}); plan again"
        ).naming(
            FieldProblem(
                f"/placements/{ordinal}/segments/0/start",
                window.start.isoformat(),
                f"not before {now.isoformat()}; plan again",
            )
        )
    return Window(now, window.end + delay)


def units_of(
    install_id: str, reservation_id: str, nodes: int, per_order: int | None, longest_tag: int | None = None
) -> tuple[Unit, ...]:
    """One unit a provider call: ``nodes`` in parts of at most ``per_order`` (None: all in one).

    ``longest_tag``: characters that the provider keeps of a name (None: as many as we want).
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
    """``scheduled`` for what is bought when its time comes, else ``pending``."""
    later = bought_later(intent.offer, intent.start, now)
    return ReservationState.SCHEDULED if later else ReservationState.PENDING


@dataclass(frozen=True, slots=True)
class Drift:
    """A placement whose price moved, or whose offer went away (``now_usd`` None).

    ``ordinal``: its place in the plan; ``most_usd``: what it may cost.
    """

    ordinal: int
    workload: str
    offer_id: str
    planned_usd: Decimal
    now_usd: Decimal | None
    most_usd: Decimal

    def as_problem(self) -> FieldProblem:
        """The placement's field that the market has left behind."""
        place = f"/placements/{self.ordinal}"
        if self.now_usd is None:
            return FieldProblem(f"{place}/offer_id", repr(self.offer_id), "an offer on sale; plan again")
        most = f"at most {usd_words(self.most_usd)}; plan again"
        return FieldProblem(f"{place}/cost_usd", f"{usd_words(self.now_usd)} now", most)

    def __str__(self) -> str:
        planned = usd_words(self.planned_usd)
        if self.now_usd is None:
            return f"offer {self.offer_id} ({self.workload}, planned at {planned}) is gone"
        return (
            f"offer {self.offer_id} ({self.workload}) was planned at {planned} "
            f"and costs {usd_words(self.now_usd)} now"
        )


def placement_cost_usd(placement: Placement, offer: Offer) -> Decimal:
    """What ``placement`` costs at the prices of ``offer``, its transfers with it, in whole cents."""
    return to_cents(holding_cost_usd(offer, placement.segments)) + placement.transfer_usd


def find_drifts(plan: Plan, offers: Mapping[str, Offer], tolerance: float) -> tuple[Drift, ...]:
    """Placements that cost more than ``tolerance`` (a share) above plan at the prices of ``offers``."""
    found = []
    for ordinal, placement in enumerate(plan.placements):
        offer = offers.get(placement.offer_id)
        cost = None if offer is None else placement_cost_usd(placement, offer)
        most = placement.cost_usd * (1 + Decimal(str(tolerance)))
        if cost is None or cost > most:
            name, id_, planned = placement.workload, placement.offer_id, placement.cost_usd
            found.append(Drift(ordinal, name, id_, planned, cost, most))
    return tuple(found)


def free_nodes(intent: Intent, reservations: Sequence[Reservation]) -> int | None:
    """Nodes that are left for ``intent`` on its offer; None when the provider does not count.

    The provider's count already lacks what it had sold when it was asked, so only what is ordered
    since then, or not yet, is taken off: nodes of the offer, GPUs of what else shares its pool.
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
    """GPUs left for ``intent`` in the pool of its offer; None without one, or where nobody counts."""
    pool = intent.offer.stock.pool
    if pool is None or pool.gpus is None:
        return None
    beside = [r for r in reservations if _is_of_pool(r.offer, pool.pool_id)]
    return pool.gpus - _most_taken(intent, beside, in_gpus=True)


def _is_of_pool(offer: Offer, pool_id: str) -> bool:
    return offer.stock.pool is not None and offer.stock.pool.pool_id == pool_id


def _most_taken(intent: Intent, reservations: Iterable[Reservation], *, in_gpus: bool) -> int:
    """The most nodes, or GPUs, that others take at one time while ``intent`` lasts."""
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
        if _is_unseen(unit, intent.offer.observed_at)
    ]
    return max((sum(n for a, b, n in taken if a <= at < b) for at, _, _ in taken), default=0)


def _is_unseen(unit: Unit, observed_at: datetime) -> bool:
    if unit.state is UnitState.GONE:
        return False
    return unit.state is UnitState.PLANNED or unit.ordered_at is None or unit.ordered_at >= observed_at

"""The planning problem in integers: whole seconds from the start of the horizon, offers as arrays.

Shapes: O offers, K distinct kinds of node. Input without a meaning is refused here, so that no later step
needs to check it again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.node_launch import NodeLaunch
from broker.domain.market.launch_chance import launch_chance_of
from broker.domain.market.launch_statistics import LAUNCH_PRIOR
from broker.domain.market.offer import Offer, SizedId, StockLevel, Tier, WindowTerms, is_held_on
from broker.domain.market.sku import Sku
from broker.domain.market.stock_pools import shared
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.assumed_stock import is_counted, most_nodes
from broker.domain.planning.effective_rules import assumed_nodes
from broker.domain.planning.workload import Batch, PlanRequest, Serving, Training
from optimizer.memo_cache import MemoCache
from optimizer.placement.problem.gpu_pools import GpuPools, build_pools, no_pools
from optimizer.placement.problem.host_sizes import with_sizes

UNLIMITED_NODES = 1_000_000
NEVER_GONE = 1 << 40
ANY_COUNT = -1
MAX_HORIZON_DAYS = 400
MAX_USD_PER_NODE_HOUR = 1_000_000
TIERS = tuple(Tier)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, eq=False)
class OfferTable:
    """Offers as arrays [O].

    - ``sku_of`` indexes ``skus`` and ``launches``: one entry for each kind of node, whoever sells it. Nodes
      with different launch times are different kinds.
    - ``count_terms_of`` indexes ``count_terms``: the node counts that a seller sells; ``ANY_COUNT`` if any
      count is sold.
    - ``billing_group_of`` numbers groups of offers with the same kind of node, minimum and increment of
      billing, window or not, interruptible or not, held on or not, and the same ``launch_chance``, that an
      order of a node succeeds at an unknown moment. Within a group only price, stock and place differ.
    - ``is_held_on``: capacity that may be held until a run is done, so that it is held for the mean hours.
    - ``zone_of``: a zone is a place, which is one operator's data centre or region, whoever sells it.
    - ``gone_s``: the second from which the offer no longer exists (``NEVER_GONE`` if nobody says).
    - ``stock_of``: the first row of the same offer in another size of its disk or memory, else the row
      itself. Rows of one offer share its stock.
    """

    offers: Sequence[Offer]
    skus: tuple[Sku, ...]
    launches: tuple[NodeLaunch | None, ...]
    sku_of: Ints
    price_usd: Floats
    upfront_usd: Floats
    min_s: Ints
    increment_s: Ints
    stock_nodes: Ints
    joined_nodes: Ints
    gpus_per_node: Ints
    tier_of: Ints
    zone_of: Ints
    gone_s: Ints
    interruptions_per_hour: Floats
    is_window: Bools
    is_held_on: Bools
    pools: GpuPools
    count_terms_of: Ints
    count_terms: tuple[WindowTerms, ...]
    billing_group_of: Ints
    stock_of: Ints
    launch_chance: Floats

    def __len__(self) -> int:
        return len(self.offers)

    @property
    def has_sizes(self) -> bool:
        """Whether some offer has several rows."""
        return bool((self.stock_of != np.arange(len(self))).any())

    @property
    def each_once(self) -> tuple[Offer, ...]:
        """The offers without further sizes of the same one."""
        return tuple(offer for row, offer in enumerate(self.offers) if self.stock_of[row] == row)

    def billed_s(self, offers: Ints, held_s: Ints) -> Ints:
        """Billed seconds of one node that is held for ``held_s`` without a break."""
        increment = self.increment_s[offers]
        billed: Ints = -(-np.maximum(held_s, self.min_s[offers]) // increment) * increment
        return billed

    def node_cost_usd(self, offers: Ints, held_s: Ints) -> Floats:
        """USD of one node that is held for ``held_s`` without a break (float; not for ``listed`` windows)."""
        hours = self.billed_s(offers, held_s) / 3600
        cost: Floats = self.price_usd[offers] * hours + self.upfront_usd[offers]
        return cost


@dataclass(frozen=True, slots=True)
class Held:
    """What a workload holds before it is planned again: (offer, choice) of each piece, and the cost of
    leaving any.

    ``start_s``: a run's start; a column with another start also counts as leaving.
    """

    pieces: frozenset[tuple[int, int]]
    leaving_cents: int
    start_s: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A request over a market. Instants are seconds from ``origin``, the start of the horizon.

    ``terms``: prices of data transfer. ``kept`` caches what was derived from the offers, the mask ``allowed``
    and the times (see ``once``). ``memo`` is a cache that outlives the problem.
    """

    request: PlanRequest
    as_of: datetime
    origin: datetime
    t0_s: int
    end_s: int
    as_of_s: int
    table: OfferTable
    allowed: Bools = field(repr=False)
    index_of: Mapping[SizedId, int] = field(repr=False)
    terms: MovingTerms = field(default_factory=MovingTerms, repr=False)
    held: Mapping[str, Held] = field(default_factory=dict, repr=False)
    kept: dict[Hashable, object] = field(default_factory=dict, repr=False)
    kept_of_market: dict[Hashable, object] = field(default_factory=dict, repr=False)
    memo: MemoCache = field(default_factory=MemoCache, repr=False)

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Returns the cached result of ``make``, which may depend only on the key, the offers, the mask and
        the times.
        """
        if key not in self.kept:
            self.kept[key] = make()
        return cast("Made", self.kept[key])

    def once_for_market(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """As ``once``, for results that do not depend on the mask: restricted problems share them."""
        if key not in self.kept_of_market:
            self.kept_of_market[key] = make()
        return cast("Made", self.kept_of_market[key])

    def seconds(self, instant: datetime) -> float:
        """Seconds from the origin to ``instant``."""
        return (instant - self.origin) / timedelta(seconds=1)

    def instant(self, second: float) -> datetime:
        """The instant ``second`` seconds after the origin."""
        return self.origin + timedelta(seconds=second)

    def start_of(self, service: Serving, after_s: float) -> float:
        """The second at which a service starts: its own start, or ``after_s`` if that is later."""
        return after_s if service.starts_at is None else max(after_s, self.seconds(service.starts_at))

    def end_of(self, service: Serving) -> int:
        """The second at which a service ends: its own end, or the horizon's."""
        return math.floor(self.seconds(service.ends_by(self.request.horizon.end)))

    def unmeasured_from(self, service: str) -> datetime:
        """When a service may begin to be measured: with its document where it is held, else now."""
        return self.origin if service in self.held else max(self.origin, self.as_of)

    def row_of(self, offer_id: str) -> int | None:
        """The first row of an offer; None if it is not on sale."""
        return self.once_for_market(("first rows",), self._first_rows).get(offer_id)

    def _first_rows(self) -> dict[str, int]:
        first: dict[str, int] = {}
        for row, offer in enumerate(self.table.offers):
            first.setdefault(offer.offer_id, row)
        return first

    def runs(self) -> tuple[Training | Batch, ...]:
        """Workloads that end (training and batch), in the request's order."""
        return tuple(w for w in self.request.workloads if not isinstance(w, Serving))

    def services(self) -> tuple[Serving, ...]:
        """Workloads without an end, in the request's order."""
        return tuple(w for w in self.request.workloads if isinstance(w, Serving))

    def followers(self, run: str) -> tuple[Serving, ...]:
        """Services that start when ``run`` ends."""
        return self.request.followers(run)

    def restricted(self, allowed: Bools) -> Problem:
        """The same problem with fewer allowed offers."""
        return replace(self, allowed=self.allowed & allowed, kept={})

    def unpooled(self) -> Problem:
        """A relaxation in which offers do not share GPUs: each has its own stock alone."""
        return replace(self, table=replace(self.table, pools=no_pools(len(self.table))))


def build_problem(
    request: PlanRequest,
    offers: Sequence[Offer],
    as_of: datetime,
    terms: MovingTerms | None = None,
    memo: MemoCache | None = None,
) -> Problem:
    """Builds the problem; raises InputError with every reason why the request or the offers have no
    meaning.
    """
    problems = (*_request_problems(request, as_of), *_offer_problems(offers))
    if problems:
        raise InputError("plan request", problems)
    ordered = tuple(with_sizes(request.workloads, sorted(shared(offers), key=_place_of)))
    origin = request.horizon.start
    as_of_s = math.ceil((as_of - origin) / timedelta(seconds=1))
    return Problem(
        request=request,
        as_of=as_of,
        origin=origin,
        t0_s=max(0, as_of_s),
        end_s=math.floor((request.horizon.end - origin) / timedelta(seconds=1)),
        as_of_s=as_of_s,
        table=under_quotas(request, _offer_table(ordered, origin, assumed_nodes(request))),
        allowed=np.ones(len(ordered), dtype=np.bool_),
        index_of={offer.sized_id: index for index, offer in enumerate(ordered)},
        terms=terms or MovingTerms(),
        memo=MemoCache() if memo is None else memo,
    )


def _place_of(offer: Offer) -> tuple[int, str]:
    """Sort key of offers. If costs tie, the search takes the earlier offer, which is the one usable
    sooner.
    """
    return round(60 * (offer.learned or LAUNCH_PRIOR).wait_hours), offer.offer_id


def kind_of(offer: Offer) -> tuple[Sku, NodeLaunch | None]:
    """The fields of an offer that decide what runs on its nodes, how fast, and how soon. Equal nodes of two
    sellers are one kind.
    """
    sku = offer.sku
    fabric = replace(sku.fabric, domain=None) if sku.fabric is not None else None
    return replace(sku, name="", vcpus=None, fabric=fabric), offer.launch


def _gone_s(offer: Offer, origin: datetime) -> int:
    if offer.available_until is None:
        return NEVER_GONE
    return min(NEVER_GONE, math.floor((offer.available_until - origin) / timedelta(seconds=1)))


def _offer_table(offers: tuple[Offer, ...], origin: datetime, assumed: int) -> OfferTable:
    kinds: dict[tuple[Sku, NodeLaunch | None], int] = {}
    skus: list[Sku] = []
    places: dict[str, int] = {}
    sku_of = []
    for offer in offers:
        kind = kind_of(offer)
        if kind not in kinds:
            kinds[kind] = len(skus)
            skus.append(offer.sku)
        sku_of.append(kinds[kind])
        places.setdefault(offer.place, len(places))

    def floats(values: Iterator[float]) -> Floats:
        return np.fromiter(values, dtype=np.float64, count=len(offers))

    def ints(values: Iterator[int]) -> Ints:
        return np.fromiter(values, dtype=np.int64, count=len(offers))

    count_terms, count_terms_of = _count_terms(offers)
    sku_index = np.asarray(sku_of, dtype=np.int64)
    min_s = ints(math.ceil(round(o.min_hours * 3_600_000_000) / 1_000_000) for o in offers)
    increment_s = ints(max(1, o.billing_increment_s) for o in offers)
    rates = floats((o.interruptions_per_hour or 0.0) if o.tier is Tier.SPOT else 0.0 for o in offers)
    is_window = np.fromiter((o.window is not None for o in offers), dtype=np.bool_, count=len(offers))
    held_on = np.fromiter((is_held_on(o) for o in offers), dtype=np.bool_, count=len(offers))
    chance = floats(map(launch_chance_of, offers))
    chance_of = np.unique(chance, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return OfferTable(
        offers=offers,
        skus=tuple(skus),
        launches=tuple(launch for _, launch in kinds),
        sku_of=sku_index,
        price_usd=floats(float(o.price_usd_per_node_hour) for o in offers),
        upfront_usd=floats(float(o.upfront_usd or 0) for o in offers),
        min_s=min_s,
        increment_s=increment_s,
        stock_nodes=own_stock(offers, assumed),
        joined_nodes=ints(o.max_nodes_in_one_run for o in offers),
        gpus_per_node=ints(o.sku.gpus_per_node for o in offers),
        tier_of=ints(TIERS.index(o.tier) for o in offers),
        zone_of=ints(places[o.place] for o in offers),
        gone_s=ints(_gone_s(o, origin) for o in offers),
        interruptions_per_hour=rates,
        is_window=is_window,
        is_held_on=held_on,
        pools=build_pools(offers, assumed),
        count_terms_of=np.asarray(count_terms_of, dtype=np.int64),
        count_terms=count_terms,
        billing_group_of=_billing_groups(
            (sku_index, is_window, held_on, rates > 0, min_s, increment_s, chance_of)
        ),
        stock_of=_first_rows(offers),
        launch_chance=chance,
    )


def _first_rows(offers: Sequence[Offer]) -> Ints:
    """The first row [O] of each row's offer."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(o.offer_id, row) for row, o in enumerate(offers)], dtype=np.int64)


def _billing_groups(terms: tuple[Ints | Bools, ...]) -> Ints:
    """Numbers the distinct rows of ``terms`` in ascending order; returns the number of each offer [O]."""
    if not len(terms[0]):
        return np.zeros(0, dtype=np.int64)
    rows = np.column_stack([np.asarray(column, dtype=np.int64) for column in terms])
    _, group = np.unique(rows, axis=0, return_inverse=True)
    return group.reshape(-1).astype(np.int64)


def _count_terms(offers: Sequence[Offer]) -> tuple[tuple[WindowTerms, ...], list[int]]:
    """The distinct sets of node counts that sellers sell (one seller's terms for each), and each
    offer's set.
    """
    numbers: dict[tuple[tuple[int, ...] | None, int], int] = {}
    count_terms: list[WindowTerms] = []
    count_terms_of = []
    for offer in offers:
        terms = offer.window
        if terms is None or (terms.node_counts is None and terms.lot_nodes == 1):
            count_terms_of.append(ANY_COUNT)
            continue
        key = (terms.node_counts, terms.lot_nodes)
        if key not in numbers:
            numbers[key] = len(count_terms)
            count_terms.append(terms)
        count_terms_of.append(numbers[key])
    return tuple(count_terms), count_terms_of


def own_stock(offers: Sequence[Offer], assumed: int) -> Ints:
    """Nodes [O] that each offer has by itself, before pools and quotas; ``assumed`` where nobody says how
    many.
    """
    return np.fromiter((_stock_nodes(o, assumed) for o in offers), dtype=np.int64, count=len(offers))


def under_quotas(request: PlanRequest, table: OfferTable) -> OfferTable:
    """Caps the stock of each offer at what the quotas of its provider allow over all workloads."""
    quotas = (*request.quotas, *request.policy.quotas)
    if not quotas:
        return table
    most = table.stock_nodes.copy()
    for quota in quotas:
        here = np.array([offer.provider == quota.provider for offer in table.offers], dtype=np.bool_)
        for limit, per_node in ((quota.gpus, table.gpus_per_node), (quota.nodes, np.ones_like(most))):
            if limit is not None:
                most[here] = np.minimum(most[here], limit // per_node[here])
    return replace(table, stock_nodes=most)


def _stock_nodes(offer: Offer, assumed: int) -> int:
    if offer.stock.level is StockLevel.NONE or (offer.learned is not None and offer.learned.is_rare):
        return 0
    if not is_counted(offer):
        return min(most_nodes(offer, assumed), UNLIMITED_NODES)
    nodes = UNLIMITED_NODES if offer.stock.nodes is None else min(offer.stock.nodes, UNLIMITED_NODES)
    pool = offer.stock.pool
    if pool is None or pool.gpus is None:
        return nodes
    return min(nodes, pool.gpus // offer.sku.gpus_per_node)


def _offer_problems(offers: Sequence[Offer]) -> Iterator[FieldProblem]:
    for offer_id, count in sorted(Counter(offer.offer_id for offer in offers).items()):
        if count > 1:
            yield FieldProblem("/offers", f"offer_id {offer_id!r} {count} times", "each offer once")
    for index, offer in enumerate(offers):
        price = offer.price_usd_per_node_hour
        if not 0 <= price <= MAX_USD_PER_NODE_HOUR:
            where = f"/offers/{index}/price_usd_per_node_hour"
            yield FieldProblem(where, str(price), f"0 to {MAX_USD_PER_NODE_HOUR} USD")
        if offer.sku.gpus_per_node < 1:
            yield FieldProblem(f"/offers/{index}/gpus_per_node", str(offer.sku.gpus_per_node), "at least 1")


def _request_problems(request: PlanRequest, as_of: datetime) -> Iterator[FieldProblem]:
    if request.horizon.hours > 24 * MAX_HORIZON_DAYS:
        yield FieldProblem("/horizon", f"{request.horizon.hours:g} h", f"at most {MAX_HORIZON_DAYS} days")
    if as_of >= request.horizon.end:
        yield FieldProblem(
            "/horizon", f"ends {request.horizon.end.isoformat()}", f"after {as_of.isoformat()}"
        )
    for name, count in Counter(w.name for w in request.workloads).items():
        if count > 1:
            yield FieldProblem("/workloads", f"name {name!r} {count} times", "each name once")
    runs = {w.name for w in request.workloads if isinstance(w, Training)}
    for index, workload in enumerate(request.workloads):
        yield from _workload_problems(f"/workloads/{index}", workload, runs)


def _workload_problems(
    where: str, workload: Training | Serving | Batch, runs: set[str]
) -> Iterator[FieldProblem]:
    if isinstance(workload, Serving):
        if workload.starts_after is not None and workload.starts_after not in runs:
            yield FieldProblem(f"{where}/starts/after", repr(workload.starts_after), "a training workload")
        return
    if workload.deadline <= workload.earliest_start:
        yield FieldProblem(
            f"{where}/deadline", workload.deadline.isoformat(), f"after {workload.earliest_start.isoformat()}"
        )
    amount = workload.tokens if isinstance(workload, Training) else workload.requests
    if not (math.isfinite(amount) and amount > 0):
        yield FieldProblem(where, f"{amount:g}", "a positive amount of work")


def horizon_hours(problem: Problem) -> float:
    """Hours of the horizon in which capacity can be held."""
    return (problem.end_s - problem.t0_s) / 3600

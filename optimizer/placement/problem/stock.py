"""Stock over time: constraints on the offers that columns of several workloads share.

A row exists only where the columns of different workloads together could exceed the stock. Rows of one offer
in several sizes share its stock (``OfferTable.stock_of``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from broker.domain.planning.effective_rules import assumed_nodes
from optimizer.placement.problem.columns import Column, Piece, Span
from optimizer.placement.problem.problem import UNLIMITED_NODES, Floats, Ints, Problem, own_stock
from optimizer.placement.problem.quotas import QuotaRow, most_held, quota_rows
from optimizer.placement.problem.windows import free_nodes_steps
from optimizer.placement.runtime.tuning import TUNING


@dataclass(frozen=True, slots=True, eq=False)
class StockRow:
    """Σ nodes[i] × column[i] ≤ limit, in one or more intervals of time of one offer (for a pool or a quota:
    in its unit).
    """

    offer: int
    columns: tuple[int, ...]
    nodes: tuple[int, ...]
    limit: int


def contended_rows(
    problem: Problem,
    columns: Sequence[Column],
    out_of_time: Callable[[], bool] = lambda: False,
    ledger: Ledger | None = None,
) -> list[StockRow] | None:
    """Every constraint that a choice of columns could violate, each once, given what ``ledger`` already
    takes.

    Returns None if time ran out before all were found.
    """
    users: defaultdict[int, list[tuple[int, Piece]]] = defaultdict(list)
    in_sizes: defaultdict[int, list[tuple[int, Piece]]] = defaultdict(list)
    for index, column in enumerate(columns):
        for piece in column.taken:
            users[piece.offer].append((index, piece))
            in_sizes[int(problem.table.stock_of[piece.offer])].append((index, piece))
    rows: list[StockRow] = []
    for offer, pieces in sorted(in_sizes.items()):
        if out_of_time():
            return None
        taken = ledger.taken.get(offer, []) if ledger is not None else []
        if _is_limited(problem, offer) and (taken or _could_meet(pieces, columns)):
            rows.extend(_rows_of(problem, offer, pieces, columns, taken))
    for pool, members in enumerate(problem.table.pools.members):
        in_gpus = [
            (index, _in_gpus(problem, piece)) for o in members for index, piece in users.get(int(o), ())
        ]
        taken = ledger.gpus_taken(pool) if ledger is not None else []
        if in_gpus and (taken or _could_meet(in_gpus, columns)):
            rows.extend(_pool_rows(problem, pool, in_gpus, columns, taken))
    rows.extend(_quota_limits(problem, columns, ledger))
    return rows


def _quota_limits(problem: Problem, columns: Sequence[Column], ledger: Ledger | None) -> Iterator[StockRow]:
    """Quota constraints that the columns could violate, filed under one member offer, in the quota's unit."""
    for number, row in enumerate(quota_rows(problem)):
        spans = [(index, row.spans_of(column)) for index, column in enumerate(columns)]
        pieces = [(index, Piece(0, 0, tuple(mine), 0)) for index, mine in spans if mine]
        if pieces:
            taken = [*row.held, *(ledger.quota_taken[number] if ledger is not None else ())]
            times = _times(pieces, {edge for a, b, _ in taken for edge in (a, b)})
            limits = _left(np.full(len(times), row.limit, dtype=np.int64), times, taken)
            yield from _rows_over(int(np.argmax(row.members)), pieces, columns, times, limits)


def _could_meet(pieces: Sequence[tuple[int, Piece]], columns: Sequence[Column]) -> bool:
    """Whether a choice can contain two of the pieces: they are of several workloads, or of one column."""
    names = {columns[index].workload for index, _ in pieces}
    return len(names) > 1 or len({index for index, _ in pieces}) < len(pieces)


def _in_gpus(problem: Problem, piece: Piece) -> Piece:
    """The piece with its spans in GPUs instead of nodes."""
    return replace(piece, spans=_gpu_spans(problem, piece.offer, piece.spans))


def _gpu_spans(problem: Problem, offer: int, spans: Iterable[Span]) -> tuple[Span, ...]:
    gpus = int(problem.table.gpus_per_node[offer])
    return tuple((start, end, nodes * gpus) for start, end, nodes in spans)


def _is_limited(problem: Problem, offer: int) -> bool:
    return problem.table.stock_nodes[offer] < UNLIMITED_NODES or bool(free_nodes_steps(problem, offer))


def _rows_of(
    problem: Problem,
    offer: int,
    pieces: Sequence[tuple[int, Piece]],
    columns: Sequence[Column],
    taken: Sequence[Span],
) -> Iterator[StockRow]:
    edges = {edge for a, b, _ in (*free_nodes_steps(problem, offer), *taken) for edge in (a, b)}
    times = _times(pieces, edges)
    limits = _left(limits_at(problem, offer, times), times, taken)
    return _rows_over(offer, pieces, columns, times, limits)


def _pool_rows(
    problem: Problem,
    pool: int,
    pieces: Sequence[tuple[int, Piece]],
    columns: Sequence[Column],
    taken: Sequence[Span],
) -> Iterator[StockRow]:
    """Constraints on the GPUs of a pool, filed under its first offer; their ``nodes`` are GPUs."""
    pools = problem.table.pools
    times = _times(pieces, {edge for a, b, _ in taken for edge in (a, b)})
    limits = _left(np.full(len(times), pools.gpus[pool], dtype=np.int64), times, taken)
    return _rows_over(int(pools.members[pool][0]), pieces, columns, times, limits)


def _left(limits: Ints, times: Ints, taken: Iterable[Span]) -> Ints:
    """Limits less what is taken."""
    others = np.zeros(len(times), dtype=np.int64)
    _add_spans(others, times, taken)
    left: Ints = np.maximum(0, limits - others)
    return left


def _times(pieces: Sequence[tuple[int, Piece]], edges: set[int]) -> Ints:
    """Every instant at which a span begins or ends, sorted."""
    ends = {edge for _, piece in pieces for a, b, _ in piece.spans for edge in (a, b)}
    return np.array(sorted(ends | edges), dtype=np.int64)


def _rows_over(
    offer: int, pieces: Sequence[tuple[int, Piece]], columns: Sequence[Column], times: Ints, limits: Ints
) -> Iterator[StockRow]:
    indices = sorted({index for index, _ in pieces})
    position = {index: at for at, index in enumerate(indices)}
    held = np.zeros((len(times), len(indices)), dtype=np.int64)
    for index, piece in pieces:
        _add_spans(held[:, position[index]], times, piece.spans)
    groups = np.array(_group_numbers([columns[index].workload for index in indices]))
    most = np.zeros(len(times), dtype=np.int64)
    for group in np.unique(groups):
        most += held[:, groups == group].max(axis=1)
    over = most > limits
    unique = np.unique(np.column_stack((limits[over], held[over])), axis=0)
    for row in unique:
        used = np.flatnonzero(row[1:])
        chosen = tuple(indices[int(at)] for at in used)
        yield StockRow(offer, chosen, tuple(int(row[1 + at]) for at in used), int(row[0]))


def _group_numbers(names: Sequence[str]) -> list[int]:
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return [numbers[name] for name in names]


def _add_spans(held: Ints, times: Ints, spans: Iterable[Span]) -> None:
    for start, end, nodes in spans:
        first, last = np.searchsorted(times, (start, end))
        held[first:last] += nodes


def overlap(first: Iterable[Span], second: Iterable[Span]) -> bool:
    """Whether two holdings overlap in time."""
    others = list(second)
    return any(a < d and c < b for a, b, _ in first for c, d, _ in others)


def limits_at(problem: Problem, offer: int, times: Ints) -> Ints:
    """Node limit from each of ``times`` until the next."""
    limits = np.full(len(times), problem.table.stock_nodes[offer], dtype=np.int64)
    for start, end, nodes in free_nodes_steps(problem, offer):
        inside = (times >= start) & (times < end)
        limits[inside] = np.minimum(limits[inside], nodes)
    return limits


@dataclass(slots=True)
class Ledger:
    """Tracks what a changing set of columns takes of stock, pools and quotas.

    ``taken``, ``_most`` and ``_steps`` are by ``stock_of``: rows of one offer share its stock.
    """

    problem: Problem
    taken: defaultdict[int, list[Span]] = field(default_factory=lambda: defaultdict(list))
    _most: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    _steps: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    _free: dict[int, dict[int, int]] = field(default_factory=dict)
    quota_taken: list[list[Span]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.quota_taken:
            self.quota_taken = [[] for _ in quota_rows(self.problem)]

    def add(self, column: Column) -> None:
        """Adds what ``column`` holds."""
        for row, taken in zip(quota_rows(self.problem), self.quota_taken, strict=True):
            taken.extend(row.spans_of(column))
        for piece in column.taken:
            stock = self._stock_of(piece.offer)
            self.taken[stock].extend(piece.spans)
            self._most[stock] += most_nodes(piece.spans)
            self._changed(piece.offer)

    def remove(self, column: Column) -> None:
        """Removes what ``column`` holds; it must have been added before."""
        for row, held in zip(quota_rows(self.problem), self.quota_taken, strict=True):
            for span in row.spans_of(column):
                held.remove(span)
        for piece in column.taken:
            stock = self._stock_of(piece.offer)
            spans = self.taken[stock]
            for span in piece.spans:
                spans.remove(span)
            self._most[stock] -= most_nodes(piece.spans)
            self._changed(piece.offer)

    def _stock_of(self, offer: int) -> int:
        return int(self.problem.table.stock_of[offer])

    def taken_of(self, offer: int) -> list[Span]:
        """Spans taken of an offer, in any of its sizes."""
        return self.taken.get(self._stock_of(offer), [])

    def _changed(self, offer: int) -> None:
        """Invalidates the caches of an offer and of the other offers that are cut from the same GPUs."""
        self._steps.pop(self._stock_of(offer), None)
        for other in self.problem.table.pools.reach(offer):
            self._free.pop(other, None)

    def copy(self) -> Ledger:
        """An independent copy."""
        taken = defaultdict(list, {offer: list(spans) for offer, spans in self.taken.items()})
        quotas = [list(spans) for spans in self.quota_taken]
        return Ledger(self.problem, taken, self._most.copy(), dict(self._steps), quota_taken=quotas)

    def reached(self) -> set[int]:
        """Offers whose free nodes are reduced: those taken from, and others that share their GPUs."""
        return {other for offer in self.taken for other in self.problem.table.pools.reach(offer)}

    def taken_near(self, offer: int) -> list[Span]:
        """Spans taken of an offer, of the offers that share its GPUs, and of the quotas of its provider."""
        mates = (
            t for q, t in zip(quota_rows(self.problem), self.quota_taken, strict=True) if q.members[offer]
        )
        near = [span for other in self.problem.table.pools.reach(offer) for span in self.taken.get(other, ())]
        return [*near, *(span for taken in mates for span in taken)]

    def fits(self, column: Column) -> bool:
        """Whether ``column`` still fits in stock and quotas."""
        return self.fits_stock(column) and self.broken_quota(column) is None

    def broken_quota(self, column: Column) -> QuotaRow | None:
        """The first quota that ``column`` would exceed, or None."""
        for row, taken in zip(quota_rows(self.problem), self.quota_taken, strict=True):
            mine = row.spans_of(column)
            if not mine:
                continue
            held = [*taken, *row.held]
            if sum(n for _, _, n in mine) + sum(n for _, _, n in held) > row.limit:
                times = _edges(held, mine)
                if not _is_within(held, mine, times, np.full(len(times), row.limit, dtype=np.int64)):
                    return row
        return None

    def quota_against(self, column: Column) -> QuotaRow | None:
        """The quota that is the only reason why ``column`` does not fit, or None."""
        row = self.broken_quota(column)
        if row is None or self.fits_stock(column):
            return row
        table = self.problem.table
        offers = [piece.offer for piece in column.taken]
        stock = own_stock([table.offers[o] for o in offers], assumed_nodes(self.problem.request))
        capped = stock > table.stock_nodes[offers]
        return row if capped.any() else None

    def fits_stock(self, column: Column) -> bool:
        """Whether ``column`` still fits in stock."""
        if len(column.taken) == 1 and self.problem.table.pools.of[column.taken[0].offer] < 0:
            (piece,) = column.taken
            return self._fits(piece.offer, piece.spans)
        wanted: defaultdict[int, list[Span]] = defaultdict(list)
        for piece in column.taken:
            wanted[self._stock_of(piece.offer)].extend(piece.spans)
        return all(self._fits(offer, spans) for offer, spans in wanted.items()) and (
            self._overdrawn(wanted) is None
        )

    def overdrawn_pool(self, column: Column) -> int | None:
        """The first pool of GPUs that ``column`` would exceed, or None."""
        wanted: defaultdict[int, list[Span]] = defaultdict(list)
        for piece in column.taken:
            wanted[self._stock_of(piece.offer)].extend(piece.spans)
        return self._overdrawn(wanted)

    def _overdrawn(self, wanted: Mapping[int, list[Span]]) -> int | None:
        pools = sorted({int(self.problem.table.pools.of[offer]) for offer in wanted} - {-1})
        return next((pool for pool in pools if not self._pool_fits(pool, wanted)), None)

    def _fits(self, offer: int, spans: Sequence[Span]) -> bool:
        taken = self.taken_of(offer)
        stock = int(self.problem.table.stock_nodes[offer])
        if self.problem.table.is_window[offer]:
            return not _is_limited(self.problem, offer) or self._all_fit(offer, taken, spans)
        if stock >= UNLIMITED_NODES:
            return True
        mine = spans[0][2] if len(spans) == 1 else most_together(spans)
        if self._most[self._stock_of(offer)] + mine <= stock:
            return True
        if len(spans) == 1 and len(taken) <= TUNING.problem.few_spans:
            return single_fits(taken, spans[0], stock)
        return self._stretches_fit(offer, spans, stock)

    def _stretches_fit(self, offer: int, spans: Sequence[Span], stock: int) -> bool:
        """Compares each span with the most taken during it; spans that overlap each other need the general
        check.
        """
        asked = np.array(spans, dtype=np.int64)
        if (asked[1:, 0] < asked[:-1, 1]).any():
            return self._all_fit(offer, self.taken_of(offer), spans)
        times, held = self._taken_steps(offer)
        first = np.searchsorted(times, asked[:, 0], side="right") - 1
        last = np.searchsorted(times, asked[:, 1], side="left")
        edges = np.column_stack((first, last)).ravel()
        most = np.maximum.reduceat(held, edges)[::2]
        return bool((most + asked[:, 2] <= stock).all())

    def _taken_steps(self, offer: int) -> tuple[Ints, Ints]:
        """Taken nodes as a step function of time, with sentinels at both ends."""
        stock = self._stock_of(offer)
        if stock not in self._steps:
            taken = np.array(self.taken.get(stock, []), dtype=np.int64).reshape(-1, 3)
            edges = np.concatenate((taken[:, 0], taken[:, 1]))
            change = np.concatenate((taken[:, 2], -taken[:, 2]))
            times, where = np.unique(edges, return_inverse=True)
            each = np.bincount(where, weights=change, minlength=len(times)).astype(np.int64)
            far = np.iinfo(np.int64).max
            self._steps[stock] = (
                np.concatenate(([-far], times, [far])),
                np.concatenate(([0], np.cumsum(each), [0])),
            )
        return self._steps[stock]

    def most_taken(self, offer: int) -> int:
        """The most nodes of an offer that are taken at any instant."""
        return int(self._taken_steps(offer)[1].max())

    def _all_fit(self, offer: int, taken: Sequence[Span], spans: Sequence[Span]) -> bool:
        times = _edges(taken, spans)
        return _is_within(taken, spans, times, limits_at(self.problem, offer, times))

    def _pool_fits(self, pool: int, wanted: Mapping[int, list[Span]]) -> bool:
        taken, spans = self.gpus_taken(pool), self._pool_gpus(pool, wanted)
        times = _edges(taken, spans)
        limits = np.full(len(times), self.problem.table.pools.gpus[pool], dtype=np.int64)
        return _is_within(taken, spans, times, limits)

    def gpus_taken(self, pool: int) -> list[Span]:
        """Spans taken of a pool, in GPUs."""
        return self._pool_gpus(pool, self.taken)

    def _pool_gpus(self, pool: int, held: Mapping[int, list[Span]]) -> list[Span]:
        members = (int(offer) for offer in self.problem.table.pools.members[pool])
        return [span for o in members for span in _gpu_spans(self.problem, o, held.get(o, ()))]

    def free_nodes(self, offer: int, start_s: int) -> int:
        """Nodes free at every instant from ``start_s`` on."""
        known = self._free.setdefault(offer, {})
        if start_s not in known:
            known[start_s] = self._free_nodes(offer, start_s)
        return known[start_s]

    def free_between(self, offer: int, starts_s: Floats, ends_s: Floats) -> Ints:
        """Nodes that are free throughout each interval [H]."""
        table = self.problem.table
        free = np.full(len(starts_s), int(table.stock_nodes[offer]), dtype=np.int64)
        free -= _most_between(self.taken_of(offer), starts_s, ends_s)
        pool = int(table.pools.of[offer])
        if pool >= 0:
            gpus = int(table.pools.gpus[pool]) - _most_between(self.gpus_taken(pool), starts_s, ends_s)
            free = np.minimum(free, gpus // int(table.gpus_per_node[offer]))
        least: Ints = np.maximum(0, free)
        return least

    def _free_nodes(self, offer: int, start_s: int) -> int:
        table = self.problem.table
        free = int(table.stock_nodes[offer])
        if self.taken_of(offer):
            times, held = self._taken_steps(offer)
            first = int(np.searchsorted(times, start_s, side="right")) - 1
            free -= int(held[first:].max())
        pool = int(table.pools.of[offer])
        if pool >= 0:
            gpus = int(table.pools.gpus[pool]) - most_held(self.gpus_taken(pool), start_s)
            free = min(free, gpus // int(table.gpus_per_node[offer]))
        return max(0, free)


def _edges(first: Iterable[Span], second: Iterable[Span]) -> Ints:
    return np.array(sorted({edge for a, b, _ in (*first, *second) for edge in (a, b)}), dtype=np.int64)


def _is_within(taken: Iterable[Span], wanted: Iterable[Span], times: Ints, limits: Ints) -> bool:
    """Whether taken and wanted together stay within the limits wherever something is wanted."""
    held, mine = np.zeros(len(times), dtype=np.int64), np.zeros(len(times), dtype=np.int64)
    _add_spans(held, times, taken)
    _add_spans(mine, times, wanted)
    used = mine > 0
    return bool(((held + mine)[used] <= limits[used]).all())


def _most_between(spans: Iterable[Span], starts_s: Floats, ends_s: Floats) -> Ints:
    """The most that is held at any instant of each interval [H]."""
    taken = list(spans)
    times = _edges(taken, ())
    held = np.zeros(len(times) + 1, dtype=np.int64)
    _add_spans(held[1:], times, taken)
    first = np.searchsorted(times, starts_s, side="right")
    last = np.searchsorted(times, ends_s, side="left")
    most: Ints = np.array([held[a : b + 1].max() for a, b in zip(first, last, strict=True)], dtype=np.int64)
    return most


def most_nodes(spans: Iterable[Span]) -> int:
    """The most nodes that spans hold at once, if no two of them overlap."""
    return max((n for _, _, n in spans), default=0)


def most_together(spans: Sequence[Span]) -> int:
    """An upper bound on the nodes that spans in ascending order hold at once; exact if no two overlap."""
    most = most_nodes(spans)
    apart = all(before[1] <= after[0] for before, after in pairwise(spans))
    return most if apart else sum(n for _, _, n in spans)


def single_fits(taken: Sequence[Span], span: Span, stock: int) -> bool:
    """Whether one span fits in ``stock`` with what is taken. The commonest case, so it uses no arrays."""
    start, end, nodes = span
    overlapping = [(max(a, start), b, n) for a, b, n in taken if a < end and start < b]
    if nodes + sum(n for _, _, n in overlapping) <= stock:
        return True
    return all(
        nodes + sum(n for a, b, n in overlapping if a <= instant < b) <= stock
        for instant in {start, *(a for a, _, _ in overlapping)}
    )

"""Splits of an interruptible run into two parts: a window used to its end, and the rest before or after it.

The rest runs in another window or outside windows. Both parts have the same node count, each pays its
start-up, and a checkpoint is copied between their places. W parts in windows, F parts outside windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.planning.workload import Training
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.gates import Opened
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem
from optimizer.placement.problem.sold_counts import bought_nodes
from optimizer.placement.problem.transfers import handovers, staged_s
from optimizer.placement.problem.windows import cut_duration_s, longest_cut_s, window_rows
from optimizer.placement.runs.candidates import (
    Splits,
    Ways,
    first_instant_s,
    first_seconds,
    held_s,
    last_second,
)
from optimizer.placement.runs.sizes import SizedRun, Sizes, interrupted_s
from optimizer.placement.runtime.tuning import TUNING

EVEN = 1e-12
SECOND_AMOUNT_USD = 0.005
"""Largest error from rounding the second part's cost to cents separately."""


@dataclass(frozen=True, slots=True, eq=False)
class TwoParts:
    """Split runs [Y]."""

    first: Ways
    second: Splits

    def __len__(self) -> int:
        return len(self.first)

    def where(self, kept: Ints) -> TwoParts:
        """The entries ``kept``."""
        return TwoParts(self.first.where(kept), self.second.where(kept))


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Parts of one size: usable from ``begin_s`` to ``end_s``, bought from ``start_s`` to ``until_s``.

    ``whole_s``: held seconds of the whole run there; ``share``: the share of the run that fits.
    """

    offer: Ints
    nodes: Ints
    start_s: Ints
    until_s: Ints
    begin_s: Floats
    end_s: Floats
    whole_s: Floats
    share: Floats
    cost_usd: Floats
    row: Ints

    def where(self, kept: Ints | Bools) -> _Parts:
        return _Parts(*(getattr(self, name)[kept] for name in self.__slots__))


def build_splits(
    problem: Problem,
    estimates: Estimates,
    run: Training,
    opened: Opened,
    sizes: Sizes,
    most: int,
    whole_usd: float,
    *,
    bounded: bool = True,
) -> tuple[TwoParts | None, float]:
    """The ``most`` cheapest splits of an interruptible run (None if there is none), and a lower bound on all
    others, unless it is not ``bounded``.

    ``whole_usd``: node counts with which no split can cost less are not tried.
    """
    builder = _Builder(problem, estimates, run, opened, sizes, whole_usd)
    made = [
        way
        for size in (range(len(sizes.counts)) if bounded else builder.worth_trying())
        for way in builder.of_size(size)
    ]
    if not made:
        return None, builder.left_usd
    ways = TwoParts(Ways.joined([m.first for m in made]), Splits.joined([m.second for m in made]))
    order = np.argsort(ways.first.cost_usd, kind="stable")
    left = ways.first.cost_usd[order[most:]]
    return ways.where(order[:most]), min(builder.left_usd, float(left.min(initial=np.inf)))


def most_splits(runs: int) -> int:
    """How many splits are kept of each of ``runs`` runs."""
    return max(
        TUNING.runs.least_splits, min(TUNING.runs.most_splits, TUNING.runs.most_of_all_splits // max(1, runs))
    )


class _Builder(SizedRun):
    """Builds parts and pairs of parts of one run, size by size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.last_s = last_second(self.problem, self.run)
        self.windows = window_rows(self.problem)
        self.rows = np.flatnonzero(self.opened.passing[self.windows.offer])

    def worth_trying(self) -> Iterator[int]:
        """Sizes with which the whole run would cost less than ``worth_usd`` if it paid for its work alone."""
        table, windows, rows = self.problem.table, self.windows, self.rows
        passing = self.opened.passing & ~table.is_window
        usd = np.full(len(table.skus), np.inf)
        np.minimum.at(usd, table.sku_of[passing], table.price_usd[passing])
        hours = (windows.free_until_s[rows] - windows.start_s[rows]) / 3600
        offers = windows.offer[rows]
        listed = np.where(windows.whole[rows], windows.node_cost_usd[rows] / hours, table.price_usd[offers])
        np.minimum.at(usd, table.sku_of[offers], listed)
        work_h = np.maximum((self.sizes.needed_s - self.startup_s) * self.sizes.mean_share, 1.0) / 3600
        least = (work_h * self.sizes.counts * usd[:, None]).min(axis=0, initial=np.inf)
        return iter(np.flatnonzero(least < self.worth_usd).tolist() if len(rows) else ())

    def of_size(self, size: int) -> list[TwoParts]:
        """Pairs of parts with one node count."""
        at_windows = self._at_windows(size)
        if not len(at_windows.offer):
            return []
        free = self._free(size)
        least = min(self._least_usd(size, at_windows), self._least_usd(size, free))
        if least >= self.worth_usd:
            self.left_usd = min(self.left_usd, least)
            return []
        found = [
            self._after(size, at_windows, free),
            self._before(size, free, at_windows),
            self._window_after(size, at_windows),
            self._window_before(size, at_windows),
        ]
        return [ways for ways in found if len(ways)]

    def _least_usd(self, size: int, parts: _Parts) -> float:
        """Lower bound on a part's cost for a share of the run's work, divided by that share."""
        hour = self.problem.table.price_usd[parts.offer].copy()
        listed = np.flatnonzero((parts.row >= 0) & self.windows.whole[parts.row])
        rows = parts.row[listed]
        hours = (self.windows.free_until_s[rows] - self.windows.start_s[rows]) / 3600
        hour[listed] = self.windows.node_cost_usd[rows] / hours
        table = self.problem.table
        mean = self.sizes.mean_s(table.sku_of[parts.offer], self._sizes(size, parts.offer), parts.whole_s)
        held = np.where(table.is_held_on[parts.offer], mean, parts.whole_s)
        return float((parts.nodes * hour * held / 3600).min(initial=np.inf))

    def _at_windows(self, size: int) -> _Parts:
        """Windows that hold a part of the run, each used to its end; the cheapest per share of work."""
        windows, rows, table = self.windows, self.rows, self.problem.table
        offers = windows.offer[rows]
        whole = self._whole_s(size, offers)
        bought = bought_nodes(table, offers, self.sizes.counts[size : size + 1])[:, 0]
        fits = np.isfinite(whole) & (bought <= np.minimum(windows.nodes[rows], table.stock_nodes[offers]))
        fits &= self.sizes.counts[size] <= self.limit[offers]
        rows, offers, whole, bought = rows[fits], offers[fits], whole[fits], bought[fits]
        start, teardown = windows.start_s[rows], windows.teardown_s[rows]
        until = windows.free_until_s[rows].astype(np.float64)
        cut = np.flatnonzero(~windows.whole[rows])
        if len(cut):
            enough = np.maximum(self.last_s + teardown[cut] - start[cut], 1.0)
            until[cut] = start[cut] + longest_cut_s(windows, rows[cut], until[cut] - start[cut], enough)
        ready = np.maximum(first_instant_s(self.problem, self.run), staged_s(self.problem, self.run)[offers])
        begin, end = np.maximum(start, ready), np.minimum(until - teardown, self.last_s)
        share = (end - begin - self.startup_s) / np.maximum(whole - self.startup_s, 1e-9)
        held = until.astype(np.int64)
        cut_usd = table.node_cost_usd(offers, held - start)
        each: Floats = np.where(windows.whole[rows], windows.node_cost_usd[rows], cut_usd)
        parts = _Parts(offers, bought, start, held, begin, end, whole, share, each * bought, rows)
        parts = parts.where(
            (share >= TUNING.runs.least_part_share) & (share <= 1 - TUNING.runs.least_part_share)
        )
        order = np.lexsort((parts.begin_s, parts.cost_usd / parts.share))
        return parts.where(order[: TUNING.runs.most_windows])

    def _free(self, size: int) -> _Parts:
        """The cheapest offers outside windows, for the whole run."""
        groups, table = self.opened.groups, self.problem.table
        terms = groups.terms
        usable = np.isfinite(self.sizes.needed_s[terms.kind, size]) & ~terms.is_window & (groups.sizes > 0)
        group = np.flatnonzero(usable)
        offers, _ = groups.cheapest(group, np.minimum(groups.sizes[group], TUNING.runs.most_free))
        offers = offers[self.sizes.counts[size] <= self.limit[offers]]
        whole = self._whole_s(size, offers)
        offers, whole = offers[np.isfinite(whole)], whole[np.isfinite(whole)]
        held, _ = held_s(whole)
        cost = self.sizes.counts[size] * table.node_cost_usd(offers, self._billed_s(size, offers, whole))
        start = first_seconds(self.problem, self.run, offers)
        nodes = np.full(len(offers), self.sizes.counts[size], dtype=np.int64)
        ones, rows = np.ones(len(offers)), np.full(len(offers), -1, dtype=np.int64)
        begin = start.astype(np.float64)
        parts = _Parts(offers, nodes, start, start + held, begin, begin + whole, whole, ones, cost, rows)
        return parts.where(np.argsort(cost, kind="stable")[: TUNING.runs.most_free])

    def _whole_s(self, size: int, offers: Ints) -> Floats:
        """Held seconds of the whole run on each of ``offers``."""
        sizes = self._sizes(size, offers)
        return interrupted_s(self.problem, self.estimates, self.run, self.sizes, offers, sizes)

    def _billed_s(self, size: int, offers: Ints, needed_s: Floats) -> Ints:
        return self.sizes.billed_s(self.problem.table, offers, self._sizes(size, offers), needed_s)

    def _sizes(self, size: int, offers: Ints) -> Ints:
        return np.full(len(offers), size, dtype=np.int64)

    def _after(self, size: int, first: _Parts, free: _Parts) -> TwoParts:
        """A window, then the rest outside windows."""
        a, b = _pairs(first, free)
        start = np.ceil(np.maximum(a.end_s + self._handover(a, b), b.start_s)).astype(np.int64)
        rest = self._rest_s(b, 1 - a.share)
        held, length = held_s(rest)
        cost = b.nodes * self.problem.table.node_cost_usd(b.offer, self._billed_s(size, b.offer, rest))
        second = Splits(a.share, b.offer, b.nodes, start, start + held, rest)
        return self._ways(size, a, second, start + length, cost)

    def _before(self, size: int, free: _Parts, last: _Parts) -> TwoParts:
        """A part outside windows, then a window to its end."""
        a, b = _pairs(free, last)
        needed = self._rest_s(a, 1 - b.share)
        held, length = held_s(needed)
        fits = a.start_s + length + self._handover(a, b) <= b.begin_s
        cost = a.nodes * self.problem.table.node_cost_usd(a.offer, self._billed_s(size, a.offer, needed))
        second = Splits(1 - b.share, b.offer, b.nodes, b.start_s, b.until_s, self._rest_s(b, b.share))
        first = replace(a, until_s=a.start_s + held, cost_usd=cost)
        return self._ways(size, first, second, np.where(fits, b.end_s, np.inf), b.cost_usd)

    def _window_after(self, size: int, parts: _Parts) -> TwoParts:
        """A window to its end, then the rest in another."""
        a, b = _pairs(parts, parts)
        rest, end, until, cost = self._shortened(b, 1 - a.share)
        fits = (b.begin_s >= a.end_s + self._handover(a, b)) & (1 - a.share <= b.share + EVEN)
        second = Splits(a.share, b.offer, b.nodes, b.start_s, until, rest)
        return self._ways(size, a, second, np.where(fits, end, np.inf), cost)

    def _window_before(self, size: int, parts: _Parts) -> TwoParts:
        """The rest in one window, then another window to its end."""
        a, b = _pairs(parts, parts)
        _, end, until, cost = self._shortened(a, 1 - b.share)
        fits = (b.begin_s >= end + self._handover(a, b)) & (1 - b.share <= a.share + EVEN)
        second = Splits(1 - b.share, b.offer, b.nodes, b.start_s, b.until_s, self._rest_s(b, b.share))
        first = replace(a, until_s=until, cost_usd=cost)
        return self._ways(size, first, second, np.where(fits, b.end_s, np.inf), b.cost_usd)

    def _shortened(self, parts: _Parts, share: Floats) -> tuple[Floats, Floats, Ints, Floats]:
        """A window with less work: held seconds, end of work, end and cost of the shortest duration on sale
        that suffices.

        If that duration would exceed the whole part, ``share`` exceeds the part's own share and the result is
        not used.
        """
        windows, needed = self.windows, self._rest_s(parts, share)
        _, length = held_s(needed)
        end = parts.begin_s + length
        until = parts.until_s.astype(np.float64)
        cut = np.flatnonzero(~windows.whole[parts.row])
        if len(cut):
            at = parts.row[cut]
            least = end[cut] + windows.teardown_s[at] - windows.start_s[at]
            shortest = windows.start_s[at] + cut_duration_s(windows, at, least)
            until[cut] = np.minimum(shortest, parts.until_s[cut])
        bought = until.astype(np.int64)
        each = parts.nodes * self.problem.table.node_cost_usd(parts.offer, bought - parts.start_s)
        return needed, end, bought, np.where(windows.whole[parts.row], parts.cost_usd, each)

    def _rest_s(self, parts: _Parts, share: Floats) -> Floats:
        """Held seconds of a share of the run's work."""
        return self.startup_s + np.maximum(parts.whole_s - self.startup_s, 0.0) * share

    def _handover(self, a: _Parts, b: _Parts) -> Floats:
        return handovers(self.problem, self.run, a.offer, b.offer)[0]

    def _ways(self, size: int, a: _Parts, second: Splits, end: Floats, cost: Floats) -> TwoParts:
        """The splits that end in time, with the cost of their data."""
        gone_s = self.problem.table.gone_s
        there = (a.until_s <= gone_s[a.offer]) & (second.until_s <= gone_s[second.offer])
        worth = (second.share >= TUNING.runs.least_part_share) & (
            second.share <= 1 - TUNING.runs.least_part_share
        )
        at = np.flatnonzero((end <= self.last_s) & there & worth)
        hours, copied = handovers(self.problem, self.run, a.offer, second.offer)
        total = a.cost_usd + cost + copied + self.data_usd[a.offer] - SECOND_AMOUNT_USD
        total += np.where(copied + hours > 0, self.data_usd[second.offer], 0.0)
        first = Ways(
            offer=a.offer,
            size=self._sizes(size, a.offer),
            nodes=a.nodes,
            start_s=a.start_s,
            until_s=a.until_s,
            end_s=end,
            cost_usd=total,
            needed_s=self._rest_s(a, second.share),
        )
        return TwoParts(first, second).where(at)


def _pairs(first: _Parts, second: _Parts) -> tuple[_Parts, _Parts]:
    """The Cartesian product of two sets of parts."""
    i, j = np.divmod(np.arange(len(first.offer) * len(second.offer)), max(1, len(second.offer)))
    return first.where(i), second.where(j)

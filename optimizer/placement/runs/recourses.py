"""Runs on capacity that ends before they may be done, and whose rest then runs on other capacity by the hour.

A window or a committed term holds an interruptible run for its median at least, and for less than what
suffices with its confidence. What outlasts it goes on elsewhere with the same number of nodes. Every length
that a seller sells is priced with the cheapest recourses. L lengths, E offers elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from broker.domain.basics.confidence import MEDIAN, normal_quantile, overrun
from broker.domain.planning.recourse import DIGITS
from broker.domain.planning.workload import Training
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.gates import Opened
from optimizer.placement.problem.problem import Floats, Ints, Problem
from optimizer.placement.problem.sold_counts import bought_nodes
from optimizer.placement.problem.transfers import recourse_copies, staged_s
from optimizer.placement.problem.windows import (
    DurationTerms,
    duration_terms_of,
    waiting_offers,
    waiting_start_s,
    window_rows,
)
from optimizer.placement.runs.candidates import Ways, first_instant_s, first_seconds, held_s, last_second
from optimizer.placement.runs.sizes import SizedRun, Sizes, interrupted_s
from optimizer.placement.runtime.tuning import TUNING


@dataclass(frozen=True, slots=True, eq=False)
class Recourses:
    """Ways [Y] on capacity that ends, each with the offer on which the rest may run."""

    ways: Ways
    offer: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Holding:
    """Up to ``nodes`` nodes of an offer that ends, from any of ``starts_s`` on, there until ``free_until_s``.

    Work begins ``wait_s`` after the start, and ends ``teardown_s`` before the end.

    ``whole_usd`` is what a node costs of a window that is sold whole, which lasts ``whole_s``.
    """

    offer: int
    terms: DurationTerms
    wait_s: float
    teardown_s: int
    starts_s: Ints
    free_until_s: Ints
    nodes: Ints
    whole_s: int = 0
    whole_usd: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Elsewhere:
    """The cheapest offers [E] for the rest with one number of nodes: seconds of the run's median there, and
    the least USD that a median costs on any other.
    """

    offer: Ints
    work_s: Floats
    other_usd: float


@dataclass(slots=True)
class _Found:
    """Ways by cost: holding, length, recourse and size of each [P], and the seconds from the start to the end
    of the run with its confidence.
    """

    usd: list[Floats] = field(default_factory=list)
    which: list[Ints] = field(default_factory=list)
    held_s: list[Floats] = field(default_factory=list)
    elsewhere: list[Ints] = field(default_factory=list)
    end_s: list[Floats] = field(default_factory=list)


def build_recourses(
    problem: Problem,
    estimates: Estimates,
    run: Training,
    opened: Opened,
    sizes: Sizes,
    most: int,
    worth_usd: float,
) -> tuple[Recourses | None, float]:
    """About the ``most`` cheapest ways of an interruptible run with a recourse (None if there is none), and a
    lower bound on all others. Ways that cost ``worth_usd`` or more are not wanted.
    """
    if run.planned_confidence == MEDIAN:
        return None, math.inf
    builder = _Builder(problem, estimates, run, opened, sizes, worth_usd)
    ways = list(builder.ways(most))
    if not ways:
        return None, builder.left_usd
    offer = np.concatenate([np.full(len(way), elsewhere, dtype=np.int64) for way, elsewhere in ways])
    return Recourses(Ways.joined([way for way, _ in ways]), offer), builder.left_usd


class _Builder(SizedRun):
    """Prices every size of one run on every holding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.deviation = self.estimates.training.deviation[self.estimates.row_of[self.run.name]]
        self.sure_factor = np.exp(self.deviation * normal_quantile(self.run.planned_confidence))
        self.holdings = list(self._holdings())
        self.found, self.of = _Found(), list[tuple[_Holding, int, int]]()

    def ways(self, most: int) -> Iterator[tuple[Ways, int]]:
        """The cheapest ways, each with the offer of its recourse."""
        for size in range(len(self.sizes.counts) if self.holdings else 0):
            worth = self._worth(size)
            elsewhere = self._elsewhere(size) if len(worth) else None
            if elsewhere is not None:
                for number in worth:
                    self._price(self.holdings[number], size, elsewhere)
        if not self.of:
            return
        found = self.found
        usd, which, held, other, end = (
            np.concatenate(part)
            for part in (found.usd, found.which, found.held_s, found.elsewhere, found.end_s)
        )
        made = 0
        for tried, at in enumerate(np.argsort(usd, kind="stable")):
            if made >= most or tried >= TUNING.runs.most_recourses:
                self.left_usd = min(self.left_usd, float(usd[at]))
                return
            way = self._way(int(which[at]), int(held[at]), int(other[at]), float(end[at]), float(usd[at]))
            if len(way):
                made += len(way)
                yield way, int(other[at])

    def _way(self, which: int, held: int, elsewhere: int, end_s: float, usd: float) -> Ways:
        """A priced way from every start that it may have."""
        holding, size, nodes = self.of[which]
        starts = holding.starts_s
        gone_s = self.problem.table.gone_s
        fits = (starts + held <= holding.free_until_s) & (nodes <= holding.nodes)
        fits &= (starts + end_s <= self.last_s) & (starts + held <= gone_s[holding.offer])
        fits &= np.ceil(starts + end_s) <= gone_s[elsewhere]
        starts = starts[fits]
        same = np.ones(len(starts), dtype=np.int64)
        needed_s = np.full(len(starts), self._needed_s(holding.offer, size))
        ends = np.asarray(starts + end_s, dtype=np.float64)
        costs = np.full(len(starts), usd)
        return Ways(
            same * holding.offer, same * size, same * nodes, starts, starts + held, ends, costs, needed_s
        )

    @property
    def last_s(self) -> float:
        return last_second(self.problem, self.run)

    def _needed_s(self, offer: int, size: int) -> float:
        return float(self.sizes.needed_s[self.problem.table.sku_of[offer], size])

    def _worth(self, size: int) -> Ints:
        """Numbers of the holdings that fit a size and may cost less than is wanted, at the median alone."""
        table, offers = self.problem.table, np.array([one.offer for one in self.holdings], dtype=np.int64)
        kinds, count = table.sku_of[offers], int(self.sizes.counts[size])
        work_s = (self.sizes.needed_s[kinds, size] - self.startup_s) / self.sure_factor[kinds, size]
        whole_usd = np.array([one.whole_usd for one in self.holdings])
        least_usd = count * np.where(whole_usd > 0, whole_usd, table.price_usd[offers] * work_s / 3600)
        fits = np.isfinite(work_s) & (self.deviation[kinds, size] > 0) & (count <= self.limit[offers])
        cheap = fits & (least_usd < self.worth_usd)
        if (fits & ~cheap).any():
            self.left_usd = min(self.left_usd, self.worth_usd)
        return np.flatnonzero(cheap)

    def _price(self, holding: _Holding, size: int, elsewhere: _Elsewhere) -> None:
        """Adds every length of a holding with every recourse."""
        table, offer, count = self.problem.table, holding.offer, int(self.sizes.counts[size])
        kind = int(table.sku_of[offer])
        nodes = int(bought_nodes(table, np.array([offer]), self.sizes.counts[size : size + 1])[0, 0])
        if nodes > min(int(holding.nodes.max(initial=0)), int(table.stock_nodes[offer])):
            return
        deviation, most = float(self.deviation[kind, size]), float(self.sure_factor[kind, size])
        work_s = (self._needed_s(offer, size) - self.startup_s) / most
        unused_s = holding.wait_s + holding.teardown_s
        begun_s = self.startup_s + unused_s
        lengths, is_coarse = _lengths(table.min_s[offer], holding, begun_s + work_s, begun_s + most * work_s)
        room_s = (holding.free_until_s - holding.starts_s)[holding.nodes >= nodes].max(initial=0)
        longest_s = min(float(room_s), self.last_s - float(holding.starts_s.min()) + holding.teardown_s)
        lengths = lengths[lengths <= longest_s]
        if not len(lengths):
            return
        held = lengths.astype(np.int64)
        each = np.full(len(held), holding.whole_usd)
        if not holding.whole_s:
            each = table.node_cost_usd(np.full(len(held), offer), held)
        usd = np.round(nodes * each, 2) + self.data_usd[offer]
        share = np.maximum((lengths - begun_s) / work_s, 1.0)
        chance, excess = np.array([overrun(float(one), deviation) for one in share]).T
        chance = np.round(chance, DIGITS)
        again_s = 3600 * self.estimates.estimator.begun_again_hours(
            self.run, count, int(table.gpus_per_node[offer])
        )
        copy_s, copy_usd = recourse_copies(self.problem, self.run, offer, elsewhere.offer)
        mean_s = held_s(again_s + elsewhere.work_s * excess[:, None])[0]
        others = np.broadcast_to(elsewhere.offer, mean_s.shape)
        rest_usd = np.round(count * table.node_cost_usd(others, mean_s), 2) + copy_usd
        expected_usd = np.round(chance[:, None] * rest_usd, 2)
        total = usd[:, None] + expected_usd
        end_s = (lengths - holding.teardown_s)[:, None] + copy_s + again_s
        end_s = end_s + elsewhere.work_s * (most - share)[:, None]
        others_usd = chance * count * excess * elsewhere.other_usd
        self._left(usd + others_usd)
        if is_coarse:
            # A length between two costs at least the shorter one, and the recourse of the longer one.
            least = np.minimum(expected_usd.min(axis=1), others_usd)
            self._left(usd + np.append(least[1:], 0.0))
        wanted = total < self.worth_usd
        self._left(total[~wanted])
        if wanted.any():
            self._keep(holding, size, nodes, wanted, (total, lengths, others, end_s))

    def _keep(
        self, holding: _Holding, size: int, nodes: int, wanted: np.ndarray, priced: tuple[np.ndarray, ...]
    ) -> None:
        total, lengths, others, end_s = priced
        found, shape = self.found, total.shape
        found.usd.append(total[wanted])
        found.which.append(np.full(int(wanted.sum()), len(self.of), dtype=np.int64))
        found.held_s.append(np.broadcast_to(lengths[:, None], shape)[wanted])
        found.elsewhere.append(others[wanted])
        found.end_s.append(end_s[wanted])
        self.of.append((holding, size, nodes))

    def _left(self, usd: Floats) -> None:
        self.left_usd = min(self.left_usd, float(usd.min(initial=np.inf)))

    def _elsewhere(self, size: int) -> _Elsewhere | None:
        """The offers by the hour on which a median of the run costs least; None if there is none."""
        groups, table = self.opened.groups, self.problem.table
        terms, most = groups.terms, TUNING.runs.most_free
        usable = np.isfinite(self.sizes.needed_s[terms.kind, size]) & terms.held_on & (groups.sizes > 0)
        group = np.flatnonzero(usable)
        offers, which = groups.cheapest(group, np.minimum(groups.sizes[group], most + 1))
        fits = (self.sizes.counts[size] <= self.limit[offers]) & ~self._is_sized(offers)
        kinds = table.sku_of[offers]
        same = np.full(len(offers), size, dtype=np.int64)
        needed = interrupted_s(self.problem, self.estimates, self.run, self.sizes, offers, same)
        work_s = (needed - self.startup_s) / self.sure_factor[kinds, size]
        usd = table.price_usd[offers] * work_s / 3600
        # Of a group with more offers than were looked at, each other has at least the price of the last.
        more = groups.sizes[group] > most + 1
        last = np.zeros(len(group), dtype=np.int64)
        last[which] = np.arange(len(which))
        plain_s = (self.sizes.needed_s[terms.kind[group], size] - self.startup_s) / self.sure_factor[
            terms.kind[group], size
        ]
        beyond = (table.price_usd[offers[last]] * plain_s / 3600)[more] if len(offers) else np.zeros(0)
        order = np.flatnonzero(fits & np.isfinite(usd))
        order = order[np.argsort(usd[order], kind="stable")]
        if not len(order):
            return None
        other_usd = min(float(usd[order[most:]].min(initial=np.inf)), float(beyond.min(initial=np.inf)))
        return _Elsewhere(offers[order[:most]], work_s[order[:most]], other_usd)

    def _is_sized(self, offers: Ints) -> np.ndarray:
        """Offers of which more disk or memory is ordered than their default: a recourse takes the default."""
        table = self.problem.table
        if not table.has_sizes:
            return np.zeros(len(offers), dtype=np.bool_)
        rows = (table.offers[offer] for offer in offers)
        return np.array([one.sized_id[1:] != (None, None) for one in rows], dtype=np.bool_)

    def _holdings(self) -> Iterator[_Holding]:
        """Everything that ends and may be held: rows of windows, windows that wait for capacity, and
        commitments.
        """
        problem, table, passing = self.problem, self.problem.table, self.opened.passing
        windows = window_rows(problem)
        rows = np.flatnonzero(passing[windows.offer])
        offers = windows.offer[rows]
        ready = np.maximum(first_instant_s(problem, self.run), staged_s(problem, self.run)[offers])
        wait = np.maximum(ready - windows.start_s[rows], 0.0)
        # A window whose length is a multiple of its step begins at its last start before the work.
        step_s = np.array([np.inf if terms[0] else terms[1] * 3600 for terms in windows.duration_terms])
        last = windows.whole[rows] | (wait < step_s[windows.duration_terms_of[rows]])
        rows, offers, wait = rows[last], offers[last], wait[last]
        alone = np.where(windows.whole[rows], rows, -1)
        _, group = np.unique(np.column_stack((offers, wait, alone)), axis=0, return_inverse=True)
        for number in range(int(group.max(initial=-1)) + 1):
            at = rows[group.reshape(-1) == number]
            first = int(at[0])
            whole_s = int(windows.free_until_s[first] - windows.start_s[first]) if windows.whole[first] else 0
            yield _Holding(
                int(windows.offer[first]),
                windows.duration_terms[int(windows.duration_terms_of[first])],
                float(wait[group.reshape(-1) == number][0]),
                int(windows.teardown_s[first]),
                windows.start_s[at],
                windows.free_until_s[at],
                windows.nodes[at],
                whole_s,
                float(windows.node_cost_usd[first]),
            )
        waiting = waiting_offers(problem)
        committed = np.flatnonzero(passing & ~table.is_window & ~table.is_held_on)
        for offer in (*waiting[passing[waiting]].tolist(), *committed.tolist()):
            start: int | None = int(first_seconds(problem, self.run, np.array([offer]))[0])
            terms: DurationTerms = (None, int(table.increment_s[offer]) / 3600)
            teardown_s = 0
            if table.is_window[offer]:
                start = waiting_start_s(problem, offer, int(start or 0))
                terms, teardown_s = duration_terms_of(problem, offer)
            if start is not None:
                one = np.array([start], dtype=np.int64)
                yield _Holding(
                    offer, terms, 0.0, teardown_s, one, table.gone_s[[offer]], table.stock_nodes[[offer]]
                )


def _lengths(min_s: int, holding: _Holding, least_s: float, most_s: float) -> tuple[Floats, bool]:
    """The lengths [L] on sale in ``[least_s, most_s)``, ascending; and whether some were left out."""
    durations, step_hours = holding.terms
    if holding.whole_s:
        lengths = np.array([float(holding.whole_s)])
    elif durations is not None:
        lengths = np.sort(np.array(durations, dtype=np.float64)) * 3600
    else:
        step = step_hours * 3600
        first = max(1.0, math.ceil(round(least_s / step, 9)), math.ceil(min_s / step))
        many = max(0, math.ceil(round(most_s / step, 9)) - first)
        stride = max(1, math.ceil(many / TUNING.runs.most_lengths))
        lengths = (first + np.arange(0, many, stride)) * step
        return lengths[lengths < most_s], stride > 1
    return lengths[(lengths >= least_s) & (lengths < most_s)], False

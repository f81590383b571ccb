"""From sizes to candidates: the cheapest of all offers × node counts × first starts, group by group of
offers.

Within a billing group a size costs the offer's price times a factor, so the offers below a cost limit are the
first of each group. More expensive candidates are not built; ``RunCandidates.rest_usd`` bounds their cost
from below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Batch, Training
from optimizer.placement.problem.billing_groups import limit_of
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.gates import GateLog, Opened, open_gates, without_offers_that_end
from optimizer.placement.problem.problem import NEVER_GONE, Bools, Floats, Ints, Problem
from optimizer.placement.problem.sold_counts import bought_nodes, whole_only
from optimizer.placement.problem.transfers import dataset_usd, staged_s
from optimizer.placement.problem.windows import (
    WindowRows,
    cut_duration_s,
    waiting_duration_s,
    waiting_offers,
    waiting_start_s,
    window_rows,
)
from optimizer.placement.runs.any_parts import least_in_parts_usd
from optimizer.placement.runs.candidates import (
    Run,
    RunCandidates,
    Splits,
    Ways,
    deadline_s,
    first_instant_s,
    first_seconds,
    held_s,
    last_second,
)
from optimizer.placement.runs.parts import divided_ways, is_divisible, least_parts_usd
from optimizer.placement.runs.recourses import Recourses, build_recourses
from optimizer.placement.runs.sizes import Sizes, batch_counts, build_sizes, interrupted_s
from optimizer.placement.runs.splits import TwoParts, build_splits, most_splits
from optimizer.placement.runtime.tuning import TUNING


def most_each(runs: int) -> int:
    """How many candidates are built of each of ``runs`` runs, so that all fit in memory."""
    return max(TUNING.runs.least_of_each, TUNING.runs.most_of_all // max(1, runs))


def build_run_candidates(
    problem: Problem,
    estimates: Estimates,
    run: Run,
    most: int = TUNING.runs.most_of_all,
    *,
    bounded: bool = True,
    below_usd: float = np.inf,
) -> RunCandidates:
    """About the ``most`` cheapest candidates that pass the gates, at their first possible starts.

    ``bounded`` False: ``other_usd`` is 0, where only the candidates themselves are wanted. What costs more
    than ``below_usd`` is not wanted.
    """
    opened = open_gates(problem, run)
    log = opened.log()
    sizes = build_sizes(problem, estimates, run, opened, log)
    opened = without_offers_that_end(problem, opened, _too_short(problem, run, opened, sizes), log)
    at_windows = Ways.joined(
        [make(problem, estimates, run, opened, sizes) for make in (_at_windows, _waiting)]
    )
    pairs = _Pairs.of(opened, sizes)
    ceiling = min(below_usd, pairs.ceiling_usd(most) if len(pairs.group) else _ceiling_of(at_windows, most))
    free = _free_starts(problem, estimates, run, sizes, pairs, ceiling)
    while ceiling < below_usd and len(free.offer) < most // TUNING.runs.short and len(pairs.group):
        ceiling = min(below_usd, 2 * ceiling if pairs.most_usd() > 2 * ceiling else np.inf)
        free = _free_starts(problem, estimates, run, sizes, pairs, ceiling)
    cheap = at_windows.where(at_windows.cost_usd <= ceiling)
    split, back, next_usd = None, None, float("inf")
    if isinstance(run, Training) and run.interruptible:
        runs = len(problem.runs())
        whole_usd = min(float(part.cost_usd.min(initial=np.inf)) for part in (free, cheap))
        worth_usd = min(below_usd, whole_usd if runs > TUNING.runs.few_split else np.inf)
        most_kept = most_splits(runs)
        split, next_usd = build_splits(
            problem, estimates, run, opened, sizes, most_kept, worth_usd, bounded=below_usd == np.inf
        )
        worth_usd = min(below_usd, whole_usd if runs > TUNING.runs.few_split else 2 * whole_usd)
        back, left_usd = build_recourses(problem, estimates, run, opened, sizes, most_kept, worth_usd)
        next_usd = min(next_usd, left_usd)
    shorter = np.zeros(0, dtype=np.int64) if back is None else back.ways.offer
    _window_gate(opened, sizes, at_windows, shorter[problem.table.is_window[shorter]], log)
    rest_usd = min(ceiling, next_usd) * (1 - 1e-9)
    found = _candidates(problem, run, log, sizes, (free, cheap), rest_usd, split, back)
    if not len(found) and below_usd == np.inf and not _open_to_parts(problem, estimates, run, log):
        log.keep(Obstacle.DEADLINE, 0)
    other_usd = _least_of_others_usd(problem, estimates, run, sizes) if bounded else 0.0
    return replace(found, other_usd=other_usd)


def least_whole_usd(problem: Problem, estimates: Estimates, run: Run, below_usd: float) -> float:
    """Cost of the cheapest candidate, with lateness; inf if none costs at most ``below_usd``."""
    found = build_run_candidates(
        problem, estimates, run, TUNING.runs.few_candidates, bounded=False, below_usd=below_usd
    )
    return float(found.total_usd.min(initial=np.inf))


def _least_of_others_usd(problem: Problem, estimates: Estimates, run: Run, sizes: Sizes) -> float:
    """Lower bound on the ways of a run that are no candidates."""
    if isinstance(run, Batch):
        whole = not is_divisible(run) and _is_every_count_planned(problem, run)
        return np.inf if whole else least_parts_usd(problem, estimates, run)
    return least_in_parts_usd(problem, estimates, run, sizes) if run.interruptible else np.inf


def _is_every_count_planned(problem: Problem, run: Batch) -> bool:
    """Whether a batch that is kept whole is planned on every number of nodes that it may have."""
    stock = problem.table.stock_nodes[open_gates(problem, run).passing]
    most = int(stock.max(initial=0))
    return not len(np.setdiff1d(np.arange(1, most + 1), batch_counts(problem)))


def _open_to_parts(problem: Problem, estimates: Estimates, run: Run, log: GateLog) -> bool:
    """Whether a batch that no single offer can answer in time can be divided; then no gate stops it."""
    if not isinstance(run, Batch) or not is_divisible(run):
        return False
    ways = divided_ways(problem, estimates, run)
    if ways:
        log.obstacle = None
        log.left = len({piece.offer for way in ways for piece in way.pieces})
        log.kept += len(ways)
    return bool(ways)


def _too_short(problem: Problem, run: Run, opened: Opened, sizes: Sizes) -> Ints:
    """Offers on which the run would meet its deadline, but which disappear before its fastest size is
    done.
    """
    table = problem.table
    ending = np.flatnonzero(opened.passing & ~table.is_window & (table.gone_s < NEVER_GONE))
    fits = sizes.plain[table.sku_of[ending]] & (sizes.counts <= limit_of(table, sizes.limit)[ending][:, None])
    needed = np.where(fits, sizes.needed_s[table.sku_of[ending]], np.inf).min(axis=1, initial=np.inf)
    ending, needed = ending[np.isfinite(needed)], needed[np.isfinite(needed)]
    found: Ints = ending[first_seconds(problem, run, ending) + held_s(needed)[0] > table.gone_s[ending]]
    return found


def _ceiling_of(part: Ways, most: int) -> float:
    """The cost of the ``most``-th candidate; inf if there are fewer."""
    if len(part.offer) <= most:
        return float("inf")
    return float(np.partition(part.cost_usd, most)[most])


def _candidates(
    problem: Problem,
    run: Run,
    log: GateLog,
    sizes: Sizes,
    parts: tuple[Ways, ...],
    rest_usd: float,
    ways: TwoParts | None,
    back: Recourses | None,
) -> RunCandidates:
    dataset = dataset_usd(problem, run)
    joined = Ways.joined([replace(part, cost_usd=part.cost_usd + dataset[part.offer]) for part in parts])
    whole = len(joined.offer)
    others = [*(() if ways is None else (ways.first,)), *(() if back is None else (back.ways,))]
    more = sum(map(len, others))
    if more:
        joined = Ways.joined([joined, *others])
        log.obstacle = None if log.obstacle in (Obstacle.DEADLINE, Obstacle.WINDOW) else log.obstacle
        log.kept += more
    split = np.full(len(joined), -1, dtype=np.int64)
    recourse = split.copy()
    if ways is not None:
        split[whole : whole + len(ways)] = np.arange(len(ways))
    if back is not None:
        log.evaluated += len(back.offer)
        recourse[len(joined) - len(back.offer) :] = back.offer
    order = np.lexsort((joined.start_s, joined.size, joined.offer))
    part = joined.where(order)
    late = np.zeros(len(part.offer))
    if isinstance(run, Training) and run.late_usd_per_hour is not None:
        hours = np.maximum(0.0, part.end_s - deadline_s(problem, run)) / 3600
        late = hours * float(run.late_usd_per_hour)
    return RunCandidates(
        run=run,
        log=log,
        offer=part.offer,
        choice=sizes.choice[problem.table.sku_of[part.offer], part.size],
        nodes=part.nodes,
        start_s=part.start_s,
        until_s=part.until_s,
        end_s=part.end_s,
        cost_usd=part.cost_usd,
        late_usd=late,
        needed_s=part.needed_s,
        rest_usd=rest_usd,
        split=split[order],
        splits=Splits.none() if ways is None else ways.second,
        recourse=recourse[order],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Pairs [P] of billing group and size outside windows; ``factor``: cost of the size at 1 USD per
    node-hour.
    """

    opened: Opened
    group: Ints
    size: Ints
    factor: Floats

    @classmethod
    def of(cls, opened: Opened, sizes: Sizes) -> _Pairs:
        """Every pair that can meet the deadline."""
        terms = opened.groups.terms
        usable = sizes.plain[terms.kind] & (opened.groups.sizes > 0)[:, None] & ~terms.is_window[:, None]
        group, size = np.nonzero(usable)
        needed = sizes.needed_s[terms.kind[group], size]
        mean = sizes.mean_s(terms.kind[group], size, needed)
        held, _ = held_s(np.where(terms.held_on[group], mean, needed))
        factor = sizes.counts[size] * terms.billed_s(group, held) / 3600
        return cls(opened, group, size, np.asarray(factor, dtype=np.float64))

    def counts(self, ceiling_usd: float) -> Ints:
        """Number of offers [P] that cost at most ``ceiling_usd``."""
        return self.opened.groups.at_most(self.group, ceiling_usd / self.factor)

    def most_usd(self) -> float:
        """The highest cost of any candidate."""
        return float(self.factor.max() * self.opened.groups.prices[-1])

    def ceiling_usd(self, most: int) -> float:
        """A cost below which there are about ``most`` candidates; inf if there are not more."""
        groups = self.opened.groups
        if int(groups.sizes[self.group].sum()) <= most:
            return float("inf")
        low = high = float((self.factor * groups.least_usd(self.group)).min())
        while int(self.counts(high).sum()) < most:
            low, high = high, 1.5 * high + 0.01
        for _ in range(4):
            middle = (low + high) / 2
            low, high = (middle, high) if int(self.counts(middle).sum()) < most else (low, middle)
        return high


def _free_starts(
    problem: Problem, estimates: Estimates, run: Run, sizes: Sizes, pairs: _Pairs, ceiling_usd: float
) -> Ways:
    """Candidates outside windows up to a cost, started at the first possible second."""
    table = problem.table
    offer, which = pairs.opened.groups.cheapest(pairs.group, pairs.counts(ceiling_usd))
    size = pairs.size[which]
    fits = sizes.counts[size] <= limit_of(table, sizes.limit)[offer]
    offer, size = offer[fits], size[fits]
    needed = interrupted_s(problem, estimates, run, sizes, offer, size)
    starts = first_seconds(problem, run, offer)
    fits = needed <= last_second(problem, run) - starts
    offer, size, needed, starts = offer[fits], size[fits], needed[fits], starts[fits]
    held, length = held_s(needed)
    nodes = sizes.counts[size]
    cost = nodes * table.node_cost_usd(offer, sizes.billed_s(table, offer, size, needed))
    ways = Ways(offer, size, nodes, starts, starts + held, starts + length, cost, needed)
    return ways.where(ways.until_s <= table.gone_s[offer])


def _window_gate(opened: Opened, sizes: Sizes, at_windows: Ways, shorter: Ints, log: GateLog) -> None:
    """Removes windows that hold no interval for the run from the offers that meet the deadline. Offers
    ``shorter`` have one that suffices with a recourse.
    """
    groups = opened.groups
    usable = sizes.in_time(opened) & groups.terms.is_window[:, None]
    least = np.where(usable, sizes.counts[None, :], np.iinfo(np.int64).max).min(axis=1)
    windows = int(groups.with_nodes(sizes.limit, np.arange(len(least)), least).sum())
    here = len(np.unique(np.concatenate((at_windows.offer, shorter))))
    log.keep(Obstacle.WINDOW, min(log.left, max(0, log.left - windows) + here))
    log.kept += len(np.unique(at_windows.offer * len(sizes.counts) + at_windows.size))


def _at_windows(problem: Problem, estimates: Estimates, run: Run, opened: Opened, sizes: Sizes) -> Ways:
    """Every size on every window row that holds the run in time."""
    windows = window_rows(problem)
    rows = np.flatnonzero(opened.passing[windows.offer])
    usable, bought = _sold(problem, run, sizes, windows.offer[rows])
    at, size = np.nonzero(usable & (bought <= windows.nodes[rows][:, None]))
    r, nodes = rows[at], bought[at, size]
    needed = interrupted_s(problem, estimates, run, sizes, windows.offer[r], size)
    _, length = held_s(needed)
    ready = np.maximum(first_instant_s(problem, run), staged_s(problem, run)[windows.offer[r]])
    begin = np.maximum(windows.start_s[r], ready)
    wanted = _bought_until(windows, r, begin + length)
    fits = begin + length <= np.minimum(wanted - windows.teardown_s[r], last_second(problem, run))
    fits &= wanted <= np.minimum(windows.free_until_s[r], problem.table.gone_s[windows.offer[r]])
    return _bought(
        problem, windows, r[fits], _Stretch(size, nodes, begin + length, wanted, needed).where(fits)
    )


def _sold(problem: Problem, run: Run, sizes: Sizes, offers: Ints) -> tuple[Bools, Ints]:
    """Whether each size [len(offers), N] can run on a seller's windows, and the nodes to buy for it.

    A batch uses every node that is bought for it.
    """
    table = problem.table
    bought = bought_nodes(table, offers, sizes.counts)
    usable = sizes.plain[table.sku_of[offers]] & (bought <= table.stock_nodes[offers][:, None])
    usable &= sizes.counts[None, :] <= limit_of(table, sizes.limit)[offers][:, None]
    if not isinstance(run, Training):
        usable &= whole_only(bought, sizes.counts)
    return usable, bought


def _waiting(problem: Problem, estimates: Estimates, run: Run, opened: Opened, sizes: Sizes) -> Ways:
    """Sizes on windows that begin when capacity appears, at their first start; later starts cost no less."""
    passing = [int(o) for o in waiting_offers(problem) if opened.passing[o]]
    ready = first_seconds(problem, run, np.array(passing, dtype=np.int64))
    first = {o: waiting_start_s(problem, o, int(s)) for o, s in zip(passing, ready, strict=True)}
    offers = np.array([o for o in passing if first[o] is not None], dtype=np.int64)
    usable, bought = _sold(problem, run, sizes, offers)
    at, size = np.nonzero(usable)
    offer, nodes = offers[at], bought[at, size]
    start = np.array([first[int(o)] for o in offer], dtype=np.int64)
    needed = interrupted_s(problem, estimates, run, sizes, offer, size)
    _, length = held_s(needed)
    wanted = np.full(len(offer), np.inf)
    for each in offers:
        here = offer == each
        wanted[here] = waiting_duration_s(problem, int(each), length[here])
    fits = (start + length <= last_second(problem, run)) & np.isfinite(wanted)
    fits &= start + wanted <= problem.table.gone_s[offer]
    held = np.where(fits, wanted, 0).astype(np.int64)
    cost = nodes * problem.table.node_cost_usd(offer, held)
    return Ways(offer, size, nodes, start, start + held, start + length, cost, needed).where(fits)


def _bought_until(windows: WindowRows, rows: Ints, end_s: Floats) -> Floats:
    """The end of what is bought: of the whole listing, or of the shortest duration on sale that suffices."""
    until: Floats = windows.free_until_s[rows].astype(np.float64)
    cut = np.flatnonzero(~windows.whole[rows])
    if len(cut):
        at = rows[cut]
        least = end_s[cut] + windows.teardown_s[at] - windows.start_s[at]
        until[cut] = windows.start_s[at] + cut_duration_s(windows, at, least)
    return until


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """What is bought of a window row, and until when."""

    size: Ints
    nodes: Ints
    end_s: Floats
    until_s: Floats
    needed_s: Floats

    def where(self, mask: Bools) -> _Stretch:
        return _Stretch(*(getattr(self, name)[mask] for name in self.__slots__))


def _bought(problem: Problem, windows: WindowRows, rows: Ints, bought: _Stretch) -> Ways:
    offer, until = windows.offer[rows], bought.until_s.astype(np.int64)
    cut = problem.table.node_cost_usd(offer, until - windows.start_s[rows])
    each = np.where(windows.whole[rows], windows.node_cost_usd[rows], cut)
    cost = np.asarray(bought.nodes * each, dtype=np.float64)
    return Ways(
        offer, bought.size, bought.nodes, windows.start_s[rows], until, bought.end_s, cost, bought.needed_s
    )

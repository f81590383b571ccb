"""Where and when nodes may answer the requests of a batch, and what a request costs there at least.

A part of a batch holds n nodes of one offer. On each of them it costs a cold start and then a constant rate
for each request, so a request costs least on a node that works as long as it can. That cost, and the most
requests that each stretch, offer and pool of GPUs can answer, make a fractional cover of the batch: no plan
costs less, in however many parts. L stretches, K kinds of node, C configurations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np

from broker.domain.planning.batch_hours import LEAST_KEPT
from broker.domain.planning.workload import Batch
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.gates import open_gates
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem
from optimizer.placement.problem.windows import (
    cut_duration_s,
    longest_cut_s,
    waiting_duration_s,
    waiting_offers,
    waiting_start_s,
    window_rows,
)
from optimizer.placement.runs.candidates import deadline_s, first_instant_s, first_seconds
from optimizer.placement.runtime.tuning import TUNING

Instants = Mapping[int, Sequence[tuple[int, float]]]


@dataclass(frozen=True, slots=True, eq=False)
class Charges:
    """Dual prices: USD per node-hour by offer, and (second, USD per node) by offer for what is held then."""

    per_hour: Mapping[int, float]
    at_instants: Instants


NO_CHARGES = Charges({}, {})


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Stretches [L]: bought from ``start_s``, usable from ``begin_s`` to ``end_s``.

    ``row`` is the row of the window, or -1. A node answers ``rate`` requests per second once ``cold_s`` are
    over, both with interruptions and with the batch's confidence, and ``most`` of the batch. ``held_share``
    of the time of its requests is held on average. ``unit_usd`` is the least that a request costs
    in any configuration, ``reach`` the most requests of a node in any, and ``speed`` the most per second from
    ``begin_s`` to ``end_s``, cold start included. A node with x requests costs at least
    ``start_usd`` + x × ``further_usd`` in any. ``hour_usd`` and ``fixed_usd`` are dual prices, of a node-hour
    and of a node.
    """

    offer: Ints
    row: Ints
    start_s: Ints
    begin_s: Floats
    end_s: Floats
    nodes: Ints
    choice: Ints
    rate: Floats
    cold_s: Floats
    held_share: Floats
    most: Floats
    reach: Floats
    speed: Floats
    unit_usd: Floats
    start_usd: Floats
    further_usd: Floats
    hour_usd: Floats
    fixed_usd: Floats

    def __len__(self) -> int:
        return len(self.offer)

    def where(self, kept: Ints | Bools) -> Stretches:
        """The entries ``kept``, in the order given."""
        return Stretches(*(getattr(self, field.name)[kept] for field in fields(self)))

    def needed_s(self, at: Ints, nodes: Ints, requests: Floats | float) -> Floats:
        """Seconds that suffice for ``requests`` on ``nodes`` of the stretches ``at``."""
        needed: Floats = self.cold_s[at] + requests / (nodes * self.rate[at])
        return needed


def stretches_of(problem: Problem, estimates: Estimates, run: Batch, share: float = 1.0) -> Stretches:
    """The stretches of a batch that is to end within ``share`` of its time."""
    first = first_instant_s(problem, run)
    last_s = first + share * (deadline_s(problem, run) - first)

    def made() -> Stretches:
        return _made(problem, estimates, run, _spans(problem, run, last_s))

    if len(problem.runs()) > TUNING.runs.few_stretched:
        return made()
    return problem.once(("stretches", run, problem.request.policy, share), made)


def charged_stretches(problem: Problem, estimates: Estimates, run: Batch, charges: Charges) -> Stretches:
    """The stretches of a batch at dual prices.

    What is held at a priced instant pays for it, so offers with such instants are divided there: a part lies
    between two of them, or pays for those that it covers.
    """
    base = stretches_of(problem, estimates, run)
    hour = np.zeros(len(problem.table))
    hour[list(charges.per_hour)] = list(charges.per_hour.values())
    priced = np.zeros(len(problem.table), dtype=np.bool_)
    priced[list(charges.at_instants)] = True
    touched = priced[base.offer] | (hour[base.offer] > 0)
    if not touched.any():
        return base
    spans = _Spans(*(getattr(base, f.name)[touched] for f in fields(_Spans)))
    spans = replace(spans, hour_usd=hour[spans.offer])
    anew = _made(problem, estimates, run, _divided(problem, spans, charges.at_instants))
    return joined([base.where(~touched), anew])


def joined(parts: Sequence[Stretches]) -> Stretches:
    """All stretches of ``parts``, one after the other."""
    names = [field.name for field in fields(Stretches)]
    return Stretches(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Stretches [L] without rates."""

    offer: Ints
    row: Ints
    start_s: Ints
    begin_s: Floats
    end_s: Floats
    nodes: Ints
    hour_usd: Floats
    fixed_usd: Floats

    def where(self, kept: Ints | Bools) -> _Spans:
        return _Spans(*(getattr(self, field.name)[kept] for field in fields(self)))


def _spans(problem: Problem, run: Batch, last_s: float) -> _Spans:
    """Where nodes may be held: offers without windows, windows, and windows that begin when capacity
    appears.
    """
    table, passing = problem.table, open_gates(problem, run).passing
    free = np.flatnonzero(passing & ~table.is_window)
    windows = window_rows(problem)
    rows = np.flatnonzero(passing[windows.offer])
    ending = windows.free_until_s[rows] > table.gone_s[windows.offer[rows]]
    rows = rows[~(ending & windows.whole[rows])]
    waiting = np.array([o for o in waiting_offers(problem) if passing[o]], dtype=np.int64)
    starts = [
        waiting_start_s(problem, int(o), int(s))
        for o, s in zip(waiting, first_seconds(problem, run, waiting), strict=True)
    ]
    begun = np.array([start is not None for start in starts], dtype=np.bool_)
    waiting, late = waiting[begun], np.array([s for s in starts if s is not None], dtype=np.int64)
    offer = np.concatenate((free, windows.offer[rows], waiting))
    row = np.concatenate((np.full(len(free), -1), rows, np.full(len(waiting), -1))).astype(np.int64)
    start = np.concatenate((first_seconds(problem, run, free), windows.start_s[rows], late))
    until = np.concatenate((table.gone_s[free], windows.free_until_s[rows], table.gone_s[waiting]))
    until = np.minimum(until, table.gone_s[offer])
    teardown: Floats = np.concatenate(
        (np.zeros(len(free)), windows.teardown_s[rows].astype(np.float64), np.zeros(len(waiting)))
    )
    nodes = np.minimum(table.stock_nodes[offer], _pool_nodes(problem, offer))
    nodes[len(free) : len(free) + len(rows)] = np.minimum(
        nodes[len(free) : len(free) + len(rows)], windows.nodes[rows]
    )
    begin = np.maximum(start, first_instant_s(problem, run)).astype(np.float64)
    end = np.minimum(_sold_until_s(problem, row, start, until, last_s + teardown) - teardown, last_s)
    none = np.zeros(len(offer))
    found = _Spans(offer, row, start.astype(np.int64), begin, end, nodes, none, none)
    return _undominated(problem, found.where((end > begin) & (nodes > 0)))


def _sold_until_s(problem: Problem, row: Ints, start: Ints, until: Ints, enough_s: Floats) -> Floats:
    """The end of the longest duration on sale in windows that are cut, if it is sooner."""
    windows, found = window_rows(problem), until.astype(np.float64)
    cut = np.flatnonzero((row >= 0) & ~_is_whole(problem, row))
    if len(cut):
        room, enough = until[cut] - start[cut], np.maximum(enough_s[cut] - start[cut], 1.0)
        found[cut] = start[cut] + longest_cut_s(windows, row[cut], room.astype(np.float64), enough)
    return found


def _undominated(problem: Problem, spans: _Spans) -> _Spans:
    """Without windows to cut that end and idle as another of the offer with as many nodes that begins
    sooner.
    """
    idle = spans.begin_s - spans.start_s
    order = np.lexsort((spans.begin_s, idle, spans.end_s, spans.nodes, spans.offer))
    same = np.ones(len(order), dtype=np.bool_)
    for values in (spans.offer, spans.nodes, spans.end_s, idle > 0):
        same[1:] &= values[order][1:] == values[order][:-1]
    same[:1] = False
    apart = (spans.row < 0) | _is_whole(problem, spans.row)
    return spans.where(np.sort(order[~same | apart[order]]))


def _pool_nodes(problem: Problem, offers: Ints) -> Ints:
    """Nodes that the pools of GPUs of ``offers`` have at most."""
    table, nodes = problem.table, problem.table.stock_nodes[offers].copy()
    pools = table.pools.of[offers]
    pooled = np.flatnonzero(pools >= 0)
    nodes[pooled] = table.pools.gpus[pools[pooled]] // table.gpus_per_node[offers[pooled]]
    return nodes


def _divided(problem: Problem, spans: _Spans, instants: Instants) -> _Spans:
    """The stretches divided at the dearest priced instants of their offers."""
    made: list[tuple[int, float, float, float]] = []
    for index in range(len(spans.offer)):
        offer = int(spans.offer[index])
        dearest = sorted(instants.get(offer, ()), key=lambda one: -one[1])[: TUNING.runs.most_instants]
        begin, end = float(spans.begin_s[index]), float(spans.end_s[index])
        inside = sorted((second, usd) for second, usd in dearest if begin <= second < end)
        later = [] if problem.table.is_window[offer] else [float(second + 1) for second, _ in inside]
        for first, last in product((begin, *later), (*(float(second) for second, _ in inside), end)):
            if first < last:
                made.append((index, first, last, sum(usd for at, usd in inside if first <= at < last)))
    at = np.array([one[0] for one in made], dtype=np.int64)
    begin_s = np.array([one[1] for one in made], dtype=np.float64)
    later_s = np.where(problem.table.is_window[spans.offer[at]], spans.start_s[at], begin_s)
    found = spans.where(at)
    return replace(
        found,
        start_s=later_s.astype(np.int64),
        begin_s=begin_s,
        end_s=np.array([one[2] for one in made], dtype=np.float64),
        fixed_usd=np.array([one[3] for one in made], dtype=np.float64),
    )


def _made(problem: Problem, estimates: Estimates, run: Batch, spans: _Spans) -> Stretches:
    """Each stretch in the configuration in which a request costs least; those in which nothing fits are left
    out.
    """
    best = _Best(len(spans.offer))
    kinds = problem.table.sku_of[spans.offer]
    lost_s = problem.table.interruptions_per_hour[spans.offer] / 3600
    span_s = spans.end_s - spans.begin_s
    held_on = problem.table.is_held_on[spans.offer]
    for choice, rates, cold, means in _configurations(problem, estimates, run):
        at = np.flatnonzero(rates[kinds] > 0)
        kept = np.maximum(LEAST_KEPT, 1 - lost_s[at] * (60 * run.chunk_minutes + cold[kinds[at]]))
        rate, cold_s = rates[kinds[at]] * kept, cold[kinds[at]] / kept
        most = rate * (span_s[at] - cold_s)
        best.speed[at] = np.maximum(best.speed[at], most / span_s[at])
        some = most >= min(1.0, run.requests)
        at, rate, cold_s, most = at[some], rate[some], cold_s[some], np.minimum(most[some], run.requests)
        own, share = spans.where(at), np.where(held_on[at], means[kinds[at]], 1.0)
        unit_usd = _unit_usd(problem, own, rate / share, cold_s, most)
        best.take(at, choice, (rate, cold_s, share), most, unit_usd)
        best.bound(at, *_line_usd(problem, own, rate / share, cold_s))
    fits = best.choice >= 0
    at = np.flatnonzero(fits)
    held = {name.name: getattr(spans, name.name)[at] for name in fields(_Spans)}
    return Stretches(**held, **{name: values[at] for name, values in vars(best).items()})


class _Best:
    """The configuration of least cost per request so far, by stretch [L]."""

    def __init__(self, count: int) -> None:
        self.choice = np.full(count, -1, dtype=np.int64)
        self.rate, self.cold_s, self.held_share = np.zeros(count), np.zeros(count), np.ones(count)
        self.most, self.reach, self.speed = np.zeros(count), np.zeros(count), np.zeros(count)
        self.unit_usd = np.full(count, np.inf)
        self.start_usd, self.further_usd = np.full(count, np.inf), np.full(count, np.inf)

    def bound(self, at: Ints, start_usd: Floats, further_usd: Floats) -> None:
        """Takes what a node and a further request cost at least in a configuration."""
        self.start_usd[at] = np.minimum(self.start_usd[at], start_usd)
        self.further_usd[at] = np.minimum(self.further_usd[at], further_usd)

    def take(
        self, at: Ints, choice: int, pace: tuple[Floats, Floats, Floats], most: Floats, usd: Floats
    ) -> None:
        """Takes a configuration where a request costs less in it; ``pace``: its rate, its cold start, and the
        share of the time that is held.
        """
        self.reach[at] = np.maximum(self.reach[at], most)
        less = usd < self.unit_usd[at]
        where = at[less]
        self.choice[where] = choice
        self.rate[where], self.cold_s[where], self.held_share[where] = (values[less] for values in pace)
        self.most[where], self.unit_usd[where] = most[less], usd[less]


def _configurations(
    problem: Problem, estimates: Estimates, run: Batch
) -> Iterator[tuple[int, Floats, Floats, Floats]]:
    """Each configuration that fits somewhere: its index, the requests per second of a node that are sure,
    its cold start, and the mean share of the time that suffices for requests [K].

    A replica lies within one node.
    """
    row, table = estimates.row_of[run.name], estimates.serving
    per_node = np.array([sku.gpus_per_node for sku in problem.table.skus], dtype=np.int64)
    for choice, config in enumerate(table.configs):
        replicas = per_node // config.gpus_per_replica
        each = table.requests_per_s[row][:, choice]
        rates = np.where(table.fits[row][:, choice], replicas * each, 0.0)
        if (rates > 0).any():
            yield choice, rates, estimates.cold_s[row][:, choice], table.mean_share[row][:, choice]


def _unit_usd(problem: Problem, spans: _Spans, rate: Floats, cold_s: Floats, most: Floats) -> Floats:
    """The least that a request costs on a node that answers at most ``most``.

    Outside windows the cost of a node rises in steps, so its cost per request is least at its longest time,
    at the end of its minimum term, or at the last step before its longest time.
    """
    table, offers = problem.table, spans.offer
    longest = cold_s + most / rate
    usd = np.full(len(offers), np.inf)
    step = table.increment_s[offers]
    for held in (longest, np.minimum(longest, table.min_s[offers]), np.floor(longest / step) * step):
        answers = np.minimum(most, rate * (held - cold_s))
        some = np.flatnonzero(answers > 0)
        whole = np.ceil(np.round(held[some], 6)).astype(np.int64)
        cost = table.node_cost_usd(offers[some], whole) + spans.hour_usd[some] * held[some] / 3600
        usd[some] = np.minimum(usd[some], (cost + spans.fixed_usd[some]) / answers[some])
    windowed = np.flatnonzero(table.is_window[offers])
    if len(windowed):
        usd[windowed] = _window_unit_usd(problem, spans.where(windowed), longest[windowed], most[windowed])
    return usd


def _window_unit_usd(problem: Problem, spans: _Spans, longest: Floats, most: Floats) -> Floats:
    """As ``_unit_usd`` for windows: a listing whole, another at no more than the time that is needed."""
    windows, table = window_rows(problem), problem.table
    teardown = np.where(spans.row >= 0, windows.teardown_s[spans.row], 0) if len(windows) else 0.0
    hours = (spans.begin_s - spans.start_s + longest + teardown) / 3600
    usd = table.price_usd[spans.offer] * hours + table.upfront_usd[spans.offer]
    listed = np.flatnonzero(_is_whole(problem, spans.row))
    rows = spans.row[listed]
    usd[listed] = windows.node_cost_usd[rows]
    hours[listed] = (windows.free_until_s[rows] - windows.start_s[rows]) / 3600
    found: Floats = (usd + spans.hour_usd * hours + spans.fixed_usd) / most
    return found


def _line_usd(problem: Problem, spans: _Spans, rate: Floats, cold_s: Floats) -> tuple[Floats, Floats]:
    """What a node costs at least before its first request, and for each request."""
    table, windows = problem.table, window_rows(problem)
    hour = table.price_usd[spans.offer] + spans.hour_usd
    start = table.upfront_usd[spans.offer] + spans.fixed_usd + hour * cold_s / 3600
    further = hour / 3600 / rate
    idle = hour * (spans.begin_s - spans.start_s) / 3600
    start += np.where(table.is_window[spans.offer], idle, 0.0)
    listed = np.flatnonzero(_is_whole(problem, spans.row))
    start[listed] = windows.node_cost_usd[spans.row[listed]] + spans.fixed_usd[listed]
    further[listed] = 0.0
    return start, further


def _is_whole(problem: Problem, rows: Ints) -> Bools:
    windows = window_rows(problem)
    whole = np.zeros(len(rows), dtype=np.bool_)
    inside = rows >= 0
    whole[inside] = windows.whole[rows[inside]]
    return whole


def bought_until_s(problem: Problem, ways: Stretches, at: Ints, needed_s: Floats) -> Floats:
    """The end of what is bought for ``needed_s`` of work on the stretches ``at``; inf if that is not sold."""
    windows, table = window_rows(problem), problem.table
    until: Floats = ways.start_s[at].astype(np.float64) + np.ceil(np.round(needed_s, 6))
    is_window, rows = table.is_window[ways.offer[at]], ways.row[at]
    cut = np.flatnonzero(is_window & (rows >= 0) & ~_is_whole(problem, rows))
    if len(cut):
        start, teardown = ways.start_s[at[cut]], windows.teardown_s[rows[cut]]
        least = ways.begin_s[at[cut]] - start + needed_s[cut] + teardown
        until[cut] = start + cut_duration_s(windows, rows[cut], least)
        until[cut] = np.where(until[cut] <= windows.free_until_s[rows[cut]], until[cut], np.inf)
    listed = np.flatnonzero(_is_whole(problem, rows))
    until[listed] = windows.free_until_s[rows[listed]]
    for index in np.flatnonzero(is_window & (rows < 0)):
        one = at[index : index + 1]
        hours = waiting_duration_s(problem, int(ways.offer[one[0]]), needed_s[index : index + 1])
        until[index] = float(ways.start_s[one[0]] + hours[0])
    return until


def nodes_usd(
    problem: Problem, ways: Stretches, at: Ints, nodes: Ints, needed_s: Floats, *, charged: bool = True
) -> Floats:
    """The cost of ``nodes`` on the stretches ``at`` for ``needed_s`` of work, at the dual prices."""
    until = bought_until_s(problem, ways, at, needed_s)
    sold = np.isfinite(until)
    held = np.where(sold, until, ways.start_s[at]).astype(np.int64) - ways.start_s[at]
    mean_s = ways.cold_s[at] + (needed_s - ways.cold_s[at]) * ways.held_share[at]
    paid = np.where(ways.held_share[at] != 1.0, np.ceil(np.round(mean_s, 6)), held).astype(np.int64)
    usd = problem.table.node_cost_usd(ways.offer[at], paid)
    listed = np.flatnonzero(_is_whole(problem, ways.row[at]))
    usd[listed] = window_rows(problem).node_cost_usd[ways.row[at[listed]]]
    if charged:
        usd = usd + ways.hour_usd[at] * held / 3600 + ways.fixed_usd[at]
    total: Floats = np.where(sold, nodes * usd, np.inf)
    return total

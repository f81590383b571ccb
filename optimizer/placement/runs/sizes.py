"""Sizes of one run on every kind of node, and the gates that they pass.

K kinds of node, N node counts, S billing groups of offers. Offers are examined individually only where their
interruptions decide whether the run meets its deadline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from broker.domain.planning.batch_hours import LEAST_KEPT
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Batch, Training
from optimizer.placement.problem.billing_groups import NEVER, Limit, limit_of
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.gates import GateLog, Opened, fit_gates
from optimizer.placement.problem.problem import Bools, Floats, Ints, OfferTable, Problem
from optimizer.placement.problem.transfers import dataset_usd
from optimizer.placement.runs.candidates import Run, first_second, held_s, last_second
from optimizer.placement.runtime.tuning import TUNING


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """``needed_s`` [K, N]: seconds that suffice without interruptions; inf if the run does not fit or may not
    have the size. ``mean_share`` [K, N]: the mean of the seconds after the start-up (``startup_s``) divided
    by those that suffice.

    ``choice`` [K, N]: index of the node count or of the configuration; ``limit`` bounds its nodes. ``plain``
    and ``sure`` [K, N]: whether it meets the deadline without interruptions, and at the highest rate among
    its allowed offers.
    """

    counts: Ints
    choice: Ints
    needed_s: Floats
    limit: Limit
    plain: Bools
    sure: Bools
    mean_share: Floats
    startup_s: Floats

    def mean_s(self, kinds: Ints, size: Ints, needed_s: Floats) -> Floats:
        """The mean of seconds [M] of which ``needed_s`` suffice, on nodes of each of ``kinds``."""
        start = np.minimum(needed_s, self.startup_s[kinds, size])
        mean: Floats = start + (needed_s - start) * self.mean_share[kinds, size]
        return mean

    def billed_s(self, table: OfferTable, offers: Ints, size: Ints, needed_s: Floats) -> Ints:
        """Whole seconds [M] for which each of ``offers`` is held for work of ``needed_s``: their mean where
        capacity may be held until the work is done.
        """
        mean = self.mean_s(table.sku_of[offers], size, needed_s)
        return held_s(np.where(table.is_held_on[offers], mean, needed_s))[0]

    def in_time(self, opened: Opened) -> Bools:
        """Whether a size meets the deadline on every offer of a group [S, N]."""
        terms = opened.groups.terms
        found: Bools = np.where(terms.interrupted[:, None], self.sure[terms.kind], self.plain[terms.kind])
        return found


@dataclass(eq=False)
class SizedRun:
    """One run on nodes of every size: what prices it on capacity that ends, or in parts.

    A way is worth trying below ``worth_usd``; ``left_usd`` is the least cost of what was left out.
    """

    problem: Problem
    estimates: Estimates
    run: Training
    opened: Opened
    sizes: Sizes
    worth_usd: float
    left_usd: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        self.startup_s = self.estimates.startup_hours * 3600
        self.limit = limit_of(self.problem.table, self.sizes.limit)
        self.data_usd = dataset_usd(self.problem, self.run)


def build_sizes(problem: Problem, estimates: Estimates, run: Run, opened: Opened, log: GateLog) -> Sizes:
    """The sizes of a run; applies the gates of fit, size, fabric, stock and deadline."""
    row, kinds = estimates.row_of[run.name], range(len(problem.table.skus))
    obstacles: list[Obstacle | None]
    if isinstance(run, Training):
        hours = np.asarray(estimates.training.hours[row], dtype=np.float64)
        choice = np.broadcast_to(np.arange(hours.shape[1]), hours.shape)
        counts = np.asarray(estimates.node_counts, dtype=np.int64)
        asked = _asked(problem, run, counts)
        share = np.asarray(estimates.training.mean_share[row], dtype=np.float64)
        startup_s = np.full(hours.shape, estimates.startup_hours * 3600)
        obstacles = [_run_obstacle(problem, estimates, run, kind, asked[kind]) for kind in kinds]
    else:
        hours, choice = _batch_hours(problem, estimates, run)
        share = np.take_along_axis(estimates.serving.mean_share[row], choice, axis=1)
        startup_s = np.take_along_axis(estimates.cold_s[row], choice, axis=1)
        obstacles = [estimates.serving.obstacle(row, kind) for kind in kinds]
        counts = batch_counts(problem)
        asked = np.ones(hours.shape, dtype=np.bool_)
    log.evaluated = len(problem.table) * len(counts)
    needed_s = np.where(asked, hours * 3600, np.inf)
    fits_kind: Bools = np.any(np.isfinite(needed_s), axis=1)
    fit_gates(log, opened, obstacles, fits_kind)
    limit = Limit.BOTH if isinstance(run, Training) else Limit.STOCK
    if isinstance(run, Training):
        _size_gate(log, Obstacle.FABRIC, opened, np.isfinite(needed_s), counts, Limit.JOINED)
    _size_gate(log, Obstacle.STOCK, opened, np.isfinite(needed_s), counts, limit)
    span_s = float(last_second(problem, run) - first_second(problem, run))
    plain = needed_s <= span_s
    sure = plain & (_at_most_interrupted(problem, estimates, run, opened, needed_s, choice) <= span_s)
    sizes = Sizes(counts, choice, needed_s, limit, plain, sure, share, startup_s)
    _deadline_gate(problem, estimates, run, opened, sizes, log)
    return sizes


def interrupted_s(
    problem: Problem, estimates: Estimates, run: Run, sizes: Sizes, offers: Ints, size: Ints
) -> Floats:
    """Held seconds [M] of pairs of offer and size (index of the node count), with interruptions."""
    kinds, rates = problem.table.sku_of[offers], problem.table.interruptions_per_hour[offers]
    needed: Floats = sizes.needed_s[kinds, size]
    touched = np.flatnonzero((rates > 0) & np.isfinite(needed))
    if isinstance(run, Batch):
        choices = sizes.choice[kinds[touched], size[touched]]
        needed[touched] /= _kept_shares(estimates, run, kinds[touched], choices, rates[touched])
    elif len(touched):
        hours = estimates.training.hours_at_each(
            estimates.row_of[run.name], kinds[touched], size[touched], rates[touched]
        )
        needed[touched] = hours * 3600
    return needed


def _kept_shares(estimates: Estimates, run: Batch, kinds: Ints, choices: Ints, rates: Floats) -> Floats:
    """The share of held time [M] that interruptions leave a batch, as ``batch_hours.kept_share``."""
    lost_s = 60 * run.chunk_minutes + estimates.cold_s[estimates.row_of[run.name], kinds, choices]
    found: Floats = np.maximum(LEAST_KEPT, 1 - rates / 3600 * lost_s)
    return found


def _at_most_interrupted(
    problem: Problem, estimates: Estimates, run: Run, opened: Opened, needed_s: Floats, choice: Ints
) -> Floats:
    """Held seconds [K, N] at the highest rate of interruptions among the passing offers."""
    if not run.interruptible:
        return needed_s
    highest = float(problem.table.interruptions_per_hour[opened.passing].max(initial=0.0))
    found = needed_s.copy()
    kind, size = np.nonzero(np.isfinite(needed_s))
    if highest and len(kind) and isinstance(run, Batch):
        found[kind, size] /= _kept_shares(
            estimates, run, kind, choice[kind, size], np.full(len(kind), highest)
        )
    elif highest and len(kind):
        assert isinstance(run, Training)
        rates = np.full(len(kind), highest)
        hours = estimates.training.hours_at_each(estimates.row_of[run.name], kind, size, rates)
        found[kind, size] = hours * 3600
    return found


def _asked(problem: Problem, run: Training, counts: Ints) -> Bools:
    """Whether a size [K, N] has as many GPUs as the run asks for."""
    per_node = np.array([sku.gpus_per_node for sku in problem.table.skus], dtype=np.int64)
    gpus = per_node[:, None] * counts[None, :]
    most = run.gpus.max if run.gpus.max is not None else np.iinfo(np.int64).max
    asked: Bools = (gpus >= run.gpus.min) & (gpus <= most)
    return asked


def _run_obstacle(
    problem: Problem, estimates: Estimates, run: Training, kind: int, asked: Bools
) -> Obstacle | None:
    """Why none of the sizes [N] that a run asks for fits a kind of node; None if one does.

    A reason that holds for every size comes first. A requested size that was not estimated has more nodes
    than any offer connects or has.
    """
    found = estimates.training.obstacle(estimates.row_of[run.name], kind, asked)
    if found in (Obstacle.GPU_UNKNOWN, Obstacle.PRECISION) or asked.any():
        return found
    per_node = problem.table.skus[kind].gpus_per_node
    least = per_node * max(1, math.ceil(run.gpus.min / per_node))
    return Obstacle.FABRIC if run.gpus.max is None or least <= run.gpus.max else Obstacle.SIZE


def _least(allowed: Bools, counts: Ints) -> Ints:
    """The smallest allowed count of each row."""
    least: Ints = np.where(allowed, counts[None, :], NEVER).min(axis=1, initial=NEVER)
    return least


def _size_gate(
    log: GateLog, gate: Obstacle, opened: Opened, allowed: Bools, counts: Ints, limit: Limit
) -> None:
    """Keeps the offers whose limit admits the smallest allowed size of their kind."""
    groups = opened.groups
    least = _least(allowed, counts)[groups.terms.kind]
    log.keep(gate, int(groups.with_nodes(limit, np.arange(len(least)), least).sum()))


def _deadline_gate(
    problem: Problem, estimates: Estimates, run: Run, opened: Opened, sizes: Sizes, log: GateLog
) -> None:
    """Keeps the offers on which some size meets the deadline; also counts the candidates outside windows."""
    groups, sure = opened.groups, sizes.in_time(opened)
    numbers = np.arange(len(sure))
    least = _least(sure, sizes.counts)
    left = int(groups.with_nodes(sizes.limit, numbers, least).sum())
    free = np.where(sure & ~groups.terms.is_window[:, None], sizes.counts[None, :], NEVER)
    log.kept = int(groups.with_nodes(sizes.limit, numbers[:, None], free).sum())
    group, size = np.nonzero(sizes.plain[groups.terms.kind] & ~sure)
    if len(group):
        offers, which = groups.allowing(sizes.limit, group, sizes.counts[size])
        span_s = last_second(problem, run) - first_second(problem, run)
        ends = interrupted_s(problem, estimates, run, sizes, offers, size[which])
        good = ends <= span_s
        log.kept += int((good & ~problem.table.is_window[offers]).sum())
        late = limit_of(problem.table, sizes.limit)[offers] < least[group[which]]
        left += len(np.unique(offers[good & late]))
    log.keep(Obstacle.DEADLINE, left)


def batch_counts(problem: Problem) -> Ints:
    """The node counts that are planned of a batch."""
    most = min(TUNING.runs.most_batch_nodes, int(problem.table.stock_nodes.max(initial=1)))
    return np.arange(1, most + 1)


def _batch_hours(problem: Problem, estimates: Estimates, run: Batch) -> tuple[Floats, Ints]:
    """Hours [K, N] of the fastest configuration, and its index; a replica lies within one node."""
    row, table = estimates.row_of[run.name], estimates.serving
    sizes = np.array([config.gpus_per_replica for config in table.configs], dtype=np.int64)
    per_node = np.array([sku.gpus_per_node for sku in problem.table.skus], dtype=np.int64)
    replicas = per_node[:, None] // sizes[None, :]
    rate = np.where(table.fits[row], replicas * table.requests_per_s[row], 0.0)
    with np.errstate(divide="ignore"):
        alone_s = run.requests / rate
    counts = batch_counts(problem)
    hours = (estimates.cold_s[row][:, :, None] + alone_s[:, :, None] / counts) / 3600
    best = hours.argmin(axis=1)
    return np.take_along_axis(hours, best[:, None, :], axis=1)[:, 0, :], best.astype(np.int64)

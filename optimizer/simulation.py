"""Draws of what a plan does not know, through the plan, with the broker's reactions.

Drawn are step times and rates (one error for all parts of a workload, and for all replicas of one model, GPU
and engine), failures and interruptions (Poisson), and launches that fail at first (geometric). Prices stay
those of the plan. Reactions: capacity that may be held on is held until the work is done; the rest of a run
that outlasts its window goes on by the hour; a fleet that was measured for a day has the nodes that it needs.
D draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from broker.domain.basics.money import to_cents
from broker.domain.market.billing import Meter
from broker.domain.market.launch_chance import launch_chance_of
from broker.domain.market.launch_statistics import RETRY_HOURS
from broker.domain.market.offer import Offer, Tier, is_held_on
from broker.domain.moving.moving_costs import MovingTerms, checkpoint_gb
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.simulation import (
    CostQuantiles,
    CostShare,
    Reason,
    SimulatedWorkload,
    Simulation,
)
from broker.domain.planning.stages import MEASURED_HOURS, growth_share
from broker.domain.planning.transfer import Place
from broker.domain.planning.workload import Batch, PlanRequest, Serving, Training
from optimizer.performance.arrays import as_array, number
from optimizer.performance.estimator import Estimator
from optimizer.performance.intervals import at_deviation, rate_at
from optimizer.performance.serving.estimate import LEAST_SURE_SHARE
from optimizer.performance.training.goodput import failures_per_hour, saving
from optimizer.placement.rules.case import Case, Elsewhere, Known, interruptions_per_hour, usable_stretches
from optimizer.placement.rules.serving import counted_rate, supply_of

Draws = NDArray[np.float64]
HOUR, WEEK = timedelta(hours=1), timedelta(weeks=1)
RATE, COLD = "requests_per_s_per_replica", "cold_start_s"
"""After so long a fleet's rates are known, and its nodes follow them."""
MOST_REASONS = 10
MOST_STEPS = 20


def simulate(
    plan: Plan,
    request: PlanRequest,
    offers: Sequence[Offer],
    estimator: Estimator,
    terms: MovingTerms,
    draws: int,
    seed: int,
) -> Simulation:
    """The chances of each workload of a checked plan, its cost, and what went wrong most."""
    case = Case.of(plan, request, offers, estimator, terms)
    cost = np.zeros(draws)
    workloads: list[SimulatedWorkload] = []
    reasons: list[Reason] = []
    for name, found in _drawn(case, draws, seed):
        cost += found.cost_usd
        late = found.late_hours
        p50, p90 = (None, None) if late is None else map(float, np.quantile(late, (0.5, 0.9)))
        chance = float(found.met.mean())
        workloads.append(SimulatedWorkload(name, chance, p90, p50, quantiles_of(found.cost_usd)))
        shares = ((what, float(happened.mean())) for what, happened in found.causes.items())
        reasons += [Reason(f"{name}: {what}", share) for what, share in shares if share > 0]
    reasons.sort(key=lambda reason: (-reason.share, reason.what))
    most = tuple(reasons[:MOST_REASONS])
    return Simulation(draws, tuple(workloads), quantiles_of(cost), most, _histogram(cost))


def draw_costs(case: Case, draws: int, seed: int) -> Draws:
    """What is paid for a plan in each draw [D], in USD, as in ``simulate`` with this seed."""
    cost = np.zeros(draws)
    for _, found in _drawn(case, draws, seed, only_costs=True):
        cost += found.cost_usd
    return cost


def quantiles_of(cost_usd: Draws) -> CostQuantiles:
    """Quantiles and mean of costs, to the cent."""
    low, middle, high = (quantile_usd(cost_usd, chance) for chance in (0.1, 0.5, 0.9))
    return CostQuantiles(low, middle, high, _usd(float(cost_usd.mean())))


def quantile_usd(cost_usd: Draws, chance: float) -> Decimal:
    """The cost that is not exceeded with ``chance``, to the cent."""
    return _usd(float(np.quantile(cost_usd, chance)))


def _drawn(case: Case, draws: int, seed: int, *, only_costs: bool = False) -> Iterator[tuple[str, _Drawn]]:
    """Each placed workload over all draws. ``only_costs``: what went wrong is left out, which takes most of
    the time.
    """
    rng = np.random.default_rng(seed)
    errors: dict[tuple[str, str, str], Draws] = {}
    for name, rows in case.placed.items():
        workload = rows[0][2]
        if isinstance(workload, Serving):
            yield name, _Fleet(case, workload, rows, rng, errors).drawn(draws, only_costs=only_costs)
        else:
            yield name, _Run(case, workload, rows, rng).drawn(draws, only_costs=only_costs)


def _histogram(cost_usd: Draws) -> tuple[CostShare, ...]:
    """Shares of equal steps of the cost, up to ``MOST_STEPS``; none where nothing is paid."""
    low, high = float(cost_usd.min(initial=math.inf)), float(cost_usd.max(initial=0.0))
    if high <= 0:
        return ()
    steps = MOST_STEPS if high - low > MOST_STEPS * 0.01 else 1
    counts, edges = np.histogram(cost_usd, steps, (low, max(high, low + 0.01)))
    ends = [_usd(float(edge)) for edge in edges]
    return tuple(
        CostShare(*both, int(count) / len(cost_usd))
        for both, count in zip(pairwise(ends), counts, strict=True)
    )


def _usd(value: float) -> Decimal:
    return to_cents(Decimal(value))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One workload over all draws: whether it ``met`` its deadline or objective, what it cost, how late it
    was (None: a service), and the ``causes`` where it did not.
    """

    met: NDArray[np.bool_]
    cost_usd: Draws
    late_hours: Draws | None = None
    causes: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run or a batch: its parts one after another, or side by side."""

    case: Case
    workload: Training | Batch
    rows: Sequence[Known]
    rng: np.random.Generator

    def drawn(self, draws: int, *, only_costs: bool = False) -> _Drawn:
        """The run over all draws."""
        error = self.rng.standard_normal(draws)
        met, met_without_failures, met_without_delays = np.ones((3, draws), dtype=np.bool_)
        cost, ready, end = np.zeros(draws), np.full(draws, -np.inf), np.full(draws, -np.inf)
        before: Offer | None = None
        for _, placement, _, offer in self.rows:
            part = self._part(placement, offer, error)
            if isinstance(self.workload, Training) and before is not None:
                ready = end + self._copy_hours(self.workload, before, offer)
            planned = np.maximum(self._hours(self._begin(placement, offer)), ready)
            begun = np.maximum(planned, self._hours(self._begin(placement, offer)) + part.delay_hours)
            done = self._held(placement, offer, begun, part.hours)
            met &= self._in_time(done)
            if not only_costs:
                without = self._held(placement, offer, begun, part.hours - part.lost_hours)
                met_without_failures &= self._in_time(without)
                met_without_delays &= self._in_time(self._held(placement, offer, planned, part.hours))
            cost += done.cost_usd + float(placement.transfer_usd)
            end, before = np.maximum(end, done.end_hours), offer
        causes = {
            "failures cost the time that was left": ~met & met_without_failures,
            "a node was not to be had at once": ~met & ~met_without_failures & met_without_delays,
            "it took longer than it has": ~met & ~met_without_failures & ~met_without_delays,
        }
        late_hours = np.maximum(0.0, end - self._deadline)
        if isinstance(self.workload, Training):
            cost += late_hours * float(self.workload.late_usd_per_hour or 0)
        return _Drawn(met, cost, late_hours, causes)

    def _copy_hours(self, run: Training, before: Offer, offer: Offer) -> float:
        """Hours that the run's checkpoint takes from one part's place to the next."""
        return self.case.terms.staging(Place.of(before), Place.of(offer), checkpoint_gb(run)) / HOUR

    def _in_time(self, done: _Done) -> NDArray[np.bool_]:
        return done.is_held & (done.end_hours <= self._deadline + 1e-6)

    @property
    def _deadline(self) -> float:
        return self._hours(self.workload.deadline)

    def _hours(self, at: datetime) -> float:
        return (at - self.case.request.horizon.start) / HOUR

    def _begin(self, placement: Placement, offer: Offer) -> datetime:
        stretches = usable_stretches(placement, offer, self.case.not_before(self.workload, offer))
        return stretches[0][0] if stretches else placement.segments[0].start

    def _part(self, placement: Placement, offer: Offer, error: Draws) -> _Hours:
        """Hours of a part, and how many of them failures cost; and how late its nodes come. ``error``: of its
        hours, in standard deviations.
        """
        estimate = placement.estimate
        median = estimate["hours"]
        startup, failures_per_h, (mean_s, deviation_s) = self._failures(placement, offer)
        longer = at_deviation(median, estimate.low["hours"], estimate.high["hours"], error) / median
        work = max(median - startup, 0.0)
        base = work * max(0.0, 1.0 - failures_per_h * mean_s / 3600) * longer
        count = self.rng.poisson(failures_per_h * base)
        scatter_s = deviation_s * np.sqrt(count) * self.rng.standard_normal(len(base))
        lost = np.maximum(count * mean_s + scatter_s, 0.0) / 3600
        delay = np.zeros(len(base))
        if is_held_on(offer):
            share = launch_chance_of(offer)
            delay = as_array(self.rng.geometric(share, len(base)) - 1) * RETRY_HOURS
        return _Hours(startup + base + lost, lost, delay)

    def _failures(self, placement: Placement, offer: Offer) -> tuple[float, float, tuple[float, float]]:
        """Hours of the start-up, failures per hour, and the mean and deviation of the seconds that one
        costs.
        """
        rate = interruptions_per_hour(offer)
        if isinstance(self.workload, Batch):
            cold_s = placement.estimate[COLD]
            lost_s = 60 * self.workload.chunk_minutes + cold_s
            return cold_s / 3600, rate, (lost_s, 0.0)
        calibration = self.case.estimator.calibration
        nodes, gpus = number(placement.nodes), number(offer.sku.gpus_per_node)
        failures = failures_per_hour(nodes, gpus, number(rate), calibration)
        every = self.workload.checkpoint_every_minutes
        params = number(self.workload.model.total_params)
        plan = saving(params, nodes, gpus, every, failures, calibration)
        mean_s = float(plan.restart_s + plan.interval_s / 2)
        return (
            calibration.goodput.startup_s / 3600,
            float(failures),
            (mean_s, float(plan.interval_s) / math.sqrt(12)),
        )

    def _held(self, placement: Placement, offer: Offer, begun: Draws, hours: Draws) -> _Done:
        """The end of ``hours`` of work, and the bill of what they take."""
        if is_held_on(offer):
            end = begun + hours
            until = math.inf if offer.available_until is None else self._hours(offer.available_until)
            return _Done(end, _bill_usd(placement, offer, hours), end <= until)
        stretches = usable_stretches(placement, offer, self.case.not_before(self.workload, offer))
        other = self.case.elsewhere(placement, self.workload, offer)
        if other is not None:
            return self._on_recourse(placement, other, begun, hours)
        rest = np.maximum(0.0, hours - sum((end - begin) / HOUR for begin, end in stretches))
        until = self._hours(max(segment.end for segment in placement.segments))
        end = np.where(rest > 0, until + self._restart_hours + rest, begun + hours)
        cost = float(placement.capacity_usd) + rest * self._rest_usd_per_hour(placement, offer)
        return _Done(end, cost, rest <= 1e-9)

    def _on_recourse(self, placement: Placement, other: Elsewhere, begun: Draws, hours: Draws) -> _Done:
        """The end of ``hours`` of work, of which what the window leaves runs on the plan's recourse."""
        usable = other.usable_hours
        outlasts = hours > usable
        rest = other.again_hours + np.maximum(0.0, hours - usable) * other.work_ratio
        end = np.where(outlasts, self._hours(other.begins_at) + rest, begun + hours)
        bill = _bill_usd(placement, other.offer, rest) + float(other.copied_usd)
        cost = float(placement.capacity_usd) + np.where(outlasts, bill, 0.0)
        until = math.inf if other.offer.available_until is None else self._hours(other.offer.available_until)
        return _Done(end, cost, ~outlasts | (end <= until))

    @property
    def _restart_hours(self) -> float:
        return self.case.estimator.calibration.goodput.startup_s / 3600

    def _rest_usd_per_hour(self, placement: Placement, offer: Offer) -> float:
        """USD an hour of the cheapest capacity of the same GPU by the hour, else of the placement's own."""
        others = (
            one
            for one in self.case.offers.values()
            if is_held_on(one) and one.sku.gpu == offer.sku.gpu and one.tier is Tier.ON_DEMAND
        )
        each = [float(one.price_usd_per_node_hour) / one.sku.gpus_per_node for one in others]
        own = float(offer.price_usd_per_node_hour) / offer.sku.gpus_per_node
        return placement.gpus * min(each, default=own)


@dataclass(frozen=True, slots=True)
class _Hours:
    """Hours of a part, of which ``lost_hours`` by failures, and hours by which its nodes come late."""

    hours: Draws
    lost_hours: Draws
    delay_hours: Draws


@dataclass(frozen=True, slots=True)
class _Done:
    """When the work of a part ends, what its capacity costs, and whether what the plan holds sufficed."""

    end_hours: Draws
    cost_usd: Draws
    is_held: NDArray[np.bool_]


def _bill_usd(placement: Placement, offer: Offer, hours: Draws) -> Draws:
    """The bill of the placement's nodes, held for ``hours`` (in whole seconds): ``Meter.billed_us`` of each
    draw.
    """
    meter = Meter.of(offer)
    held_us = np.ceil(hours * 3600).astype(np.int64) * 1_000_000
    steps = -(-np.maximum(held_us, meter.least_us) // meter.step_us)
    each = float(offer.price_usd_per_node_hour) * (steps * meter.step_us / 3.6e9)
    return placement.nodes * (each + float(offer.upfront_usd or 0))


@dataclass(frozen=True, slots=True)
class _Fleet:
    """A service; ``errors`` are shared by all replicas of one model, GPU and engine."""

    case: Case
    service: Serving
    rows: Sequence[Known]
    rng: np.random.Generator
    errors: dict[tuple[str, str, str], Draws]

    def drawn(self, draws: int, *, only_costs: bool = False) -> _Drawn:
        """The service over all draws."""
        planned = float(sum((row[1].cost_usd for row in self.rows), Decimal(0)))
        supply = supply_of(self.case, self.service)
        if supply is None:
            return _Drawn(np.ones(draws, dtype=np.bool_), np.full(draws, planned))
        placed, confidence = [placement for _, placement, _, _ in self.rows], self.service.planned_confidence
        uncertainty = self.service.traffic.uncertainty
        level = growth = np.zeros(draws)
        if uncertainty.level:
            level = uncertainty.level_deviation * self.rng.standard_normal(draws)
        if uncertainty.growth:
            growth = uncertainty.weekly_deviation * self.rng.standard_normal(draws)
        errors = (self._error(one, draws) for one in placed)
        rates = [rate_at(one.estimate, confidence, error) for one, error in zip(placed, errors, strict=True)]
        cost_usd = self._cost_usd(rates, level, growth) + self._relaunches_usd(placed, draws)
        if only_costs:
            return _Drawn(np.ones(draws, dtype=np.bool_), cost_usd)
        rates = [one / np.exp(level) for one in rates]
        met = supply.carried(rates, self.service.redundancy.spare_replicas)
        cause = "its replicas are slower than planned"
        if uncertainty.level:
            cause = f"{cause}, or it has more traffic"
        causes = {cause: ~met}
        return _Drawn(met, cost_usd, None, causes)

    def _relaunches_usd(self, placed: Sequence[Placement], draws: int) -> Draws:
        """What the next best costs more, of each node that is ordered again and not to be had."""
        cost = np.zeros(draws)
        for relaunch in (one.relaunch for one in placed if one.relaunch is not None):
            failed = self.rng.binomial(relaunch.starts, 1.0 - relaunch.chance, draws)
            cost += failed * float(relaunch.more_usd)
        return cost

    def _error(self, placement: Placement, draws: int) -> Draws:
        """By how many standard deviations its times are longer than their medians in each draw."""
        key = self.service.model.name, placement.gpu, str(placement.engine)
        if key not in self.errors:
            self.errors[key] = self.rng.standard_normal(draws)
        return self.errors[key]

    def _cost_usd(self, rates: Sequence[Draws], level: Draws, growth: Draws) -> Draws:
        """The first day as planned; then what the measured rates need in each hour, where it may change, for
        traffic e^``level`` times that which is stated, and e^``growth`` times that of the week before.

        Each placement carries the share of an hour's traffic that it has of the planned capacity. Where it
        has a node more than that takes, other rules ask for it, and half a node is taken as needed of it.
        Fewer nodes are whole ones; what is needed beyond the planned ones is bought in sizes that fit, at the
        same price per request. A replica that carries less than ``LEAST_SURE_SHARE`` of its median is
        replaced by one that does not.
        """
        horizon, placed = self.case.request.horizon, [row[1] for row in self.rows]
        first = min(one.segments[0].start for one in placed)
        measured_h = (first - horizon.start) / HOUR + MEASURED_HOURS
        hours = np.arange(math.floor(measured_h), math.ceil(horizon.hours), dtype=np.float64)
        begins = [horizon.start + hour * HOUR for hour in hours.tolist()]
        weeks = np.maximum(0.0, hours + 0.5 - measured_h) / (WEEK / HOUR)
        held = [self._held(one, hours, measured_h) for one in placed]
        counted = [self._counted_rates(one, begins, weeks) for one in placed]
        capacity = np.zeros(len(hours))
        for one, (nodes, _), rate in zip(placed, held, counted, strict=True):
            capacity += nodes * rate * one.replicas / one.nodes
        demand = np.array([self.service.requests_per_s_at(begin, horizon.start) for begin in begins])
        share = np.minimum(1.0, np.divide(demand, capacity, out=np.zeros(len(hours)), where=capacity > 0))
        cost = np.zeros(len(level))
        for row, drawn, (nodes, spans), rate in zip(self.rows, rates, held, counted, strict=True):
            one, offer = row[1], row[3]
            planned_h = sum(segment.nodes * segment.hours for segment in one.segments)
            real = np.maximum(drawn, LEAST_SURE_SHARE * one.estimate[RATE])
            is_loaded = (nodes * share > nodes - 1) | (nodes == 1)
            load = np.where(is_loaded, nodes * share, nodes - 0.5) * rate
            # Hours that are alike are evaluated once.
            rows, of_hour = np.unique(
                np.stack((nodes, load, weeks * growth.any())), axis=1, return_inverse=True
            )
            lengths = np.bincount(of_hour.reshape(-1), spans, rows.shape[1])
            more_h = np.zeros(len(level))
            for (planned, wanted, week), length in zip(rows.T.tolist(), lengths.tolist(), strict=True):
                needed = wanted * np.exp(level + growth * week) / real
                fewer = np.maximum(1.0 if is_held_on(offer) else planned, np.ceil(needed - 1e-9))
                more_h += length * (np.where(needed > planned, needed, fewer) - planned)
            cost += float(one.cost_usd) * (1 + more_h / planned_h)
        return cost

    def _counted_rates(self, placement: Placement, begins: Sequence[datetime], weeks: Draws) -> Draws:
        """Requests/s of a replica that the plan counts on in each hour [H], ``weeks`` after it was
        measured.
        """
        sure = counted_rate(placement.estimate, self.service, len({row[1].gpu for row in self.rows}))
        until = placement.stages[0].until if placement.stages else self.case.request.horizon.end
        grown = [growth_share(self.service, week) for week in weeks.tolist()]
        rates = [
            sure if begin < until else placement.estimate[RATE] / share
            for begin, share in zip(begins, grown, strict=True)
        ]
        return np.array(rates)

    def _held(self, placement: Placement, hours: Draws, since_h: float) -> tuple[Draws, Draws]:
        """The nodes of a placement in each hour [H] of the horizon, and for how much of it, from ``since_h``
        on, they are held.
        """
        nodes, spans, origin = np.zeros(len(hours)), np.zeros(len(hours)), self.case.request.horizon.start
        for segment in placement.segments:
            begin_h, end_h = ((at - origin) / HOUR for at in (segment.start, segment.end))
            held = np.maximum(0.0, np.minimum(end_h, hours + 1) - np.maximum(max(begin_h, since_h), hours))
            nodes = np.maximum(nodes, np.where(held > 0, segment.nodes, 0))
            spans += held
        return nodes, spans

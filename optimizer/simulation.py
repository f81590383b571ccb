"""Draws of what a plan does not know, through the plan, with the broker's reactions.

Drawn are step times and rates (one error for all parts of a workload, and for all replicas of one model, GPU
and engine), failures and interruptions (Poisson), launches that fail at first (geometric), and prices of what
is bought later. Reactions: capacity that may be held on is held until the work is done; the rest of a run
that outlasts its window goes on by the hour; a fleet that was measured for a day has the nodes that it needs.
D draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from broker.domain.basics.confidence import EIGHTY_PERCENT, MEDIAN
from broker.domain.basics.estimate import Estimate
from broker.domain.basics.money import to_cents
from broker.domain.market.launch_statistics import LAUNCH_PRIOR, RETRY_HOURS
from broker.domain.market.offer import Offer, Tier, is_held_on
from broker.domain.moving.moving_costs import MovingTerms, checkpoint_gb
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.simulation import CostQuantiles, Reason, SimulatedWorkload, Simulation
from broker.domain.planning.transfer import Place
from broker.domain.planning.workload import Batch, PlanRequest, Serving, Training
from optimizer.performance.arrays import as_array, number
from optimizer.performance.estimator import Estimator
from optimizer.performance.training.goodput import failures_per_hour, saving
from optimizer.placement.rules.case import Case, Known, interruptions_per_hour, usable_stretches
from optimizer.placement.rules.serving import Supply, supply_of

Draws = NDArray[np.float64]
HOUR = timedelta(hours=1)
RATE, COLD = "requests_per_s_per_replica", "cold_start_s"
MEASURED_HOURS = 24.0
"""After so long a fleet's rates are known, and its nodes follow them."""
MOST_REASONS = 10


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
    rng = np.random.default_rng(seed)
    cost = np.zeros(draws)
    workloads: list[SimulatedWorkload] = []
    wrong: dict[str, float] = {}
    errors: dict[tuple[str, str, str], Draws] = {}
    for name, rows in case.placed.items():
        workload = rows[0][2]
        if isinstance(workload, Serving):
            found = _Fleet(case, workload, rows, rng, errors).drawn(draws)
        else:
            found = _Run(case, workload, rows, rng).drawn(draws)
        cost += found.cost_usd
        workloads.append(SimulatedWorkload(name, float(found.good.mean()), found.late_hours_p90))
        for what, happened in found.wrong.items():
            wrong[f"{name}: {what}"] = float(happened.mean())
    at = {placement.workload for placement in plan.placements} - set(case.placed)
    cost += float(sum((p.cost_usd for p in plan.placements if p.workload in at), Decimal(0)))
    low, middle, high = (_usd(float(value)) for value in np.quantile(cost, (0.1, 0.5, 0.9)))
    most = sorted((row for row in wrong.items() if row[1] > 0), key=lambda row: (-row[1], row[0]))
    return Simulation(
        draws,
        tuple(workloads),
        CostQuantiles(low, middle, high, _usd(float(cost.mean()))),
        tuple(Reason(what, share) for what, share in most[:MOST_REASONS]),
    )


def _usd(value: float) -> Decimal:
    return to_cents(Decimal(value))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One workload over all draws: whether it met its aim, what it cost, and what kept it from its aim."""

    good: NDArray[np.bool_]
    cost_usd: Draws
    late_hours_p90: float | None = None
    wrong: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run or a batch: its parts one after another, or side by side."""

    case: Case
    workload: Training | Batch
    rows: Sequence[Known]
    rng: np.random.Generator

    def drawn(self, draws: int) -> _Drawn:
        """The run over all draws."""
        slower = self.rng.standard_normal(draws)
        good, lost_time = np.ones(draws, dtype=np.bool_), np.ones(draws, dtype=np.bool_)
        no_delay = np.ones(draws, dtype=np.bool_)
        cost, ready = np.zeros(draws), np.full(draws, -np.inf)
        end = np.full(draws, -np.inf)
        left: Offer | None = None
        for _, placement, _, offer in self.rows:
            part = self._part(placement, offer, slower)
            begin = self._hours(self._begin(placement, offer))
            if isinstance(self.workload, Training) and left is not None:
                ready = (
                    end
                    + self.case.terms.staging(
                        Place.of(left), Place.of(offer), checkpoint_gb(self.workload.model)
                    )
                    / HOUR
                )
            started = np.maximum(begin + part.delay_hours, ready)
            ended, paid, fits = self._held(placement, offer, started, part.hours)
            cost += paid + float(placement.transfer_usd)
            good &= fits & (ended <= self._deadline + 1e-6)
            for kept, hours, late in (
                (lost_time, part.hours - part.lost_hours, started),
                (no_delay, part.hours, np.maximum(begin, ready)),
            ):
                other_end, _, other_fits = self._held(placement, offer, late, hours)
                kept &= other_fits & (other_end <= self._deadline + 1e-6)
            end = np.maximum(end, ended)
            left = offer
        late_hours = np.maximum(0.0, end - self._deadline)
        wrong = {
            "failures cost the time that was left": ~good & lost_time,
            "a node was not to be had at once": ~good & ~lost_time & no_delay,
            "it took longer than it has": ~good & ~lost_time & ~no_delay,
        }
        return _Drawn(good, cost, float(np.quantile(late_hours, 0.9)), wrong)

    @property
    def _deadline(self) -> float:
        return self._hours(self.workload.deadline)

    def _hours(self, at: datetime) -> float:
        return (at - self.case.request.horizon.start) / HOUR

    def _begin(self, placement: Placement, offer: Offer) -> datetime:
        stretches = usable_stretches(placement, offer, self.case.not_before(self.workload, offer))
        return stretches[0][0] if stretches else placement.segments[0].start

    def _part(self, placement: Placement, offer: Offer, slower: Draws) -> _Hours:
        """Hours of a part, and how many of them failures cost; and how late its nodes come."""
        estimate = placement.estimate
        median = estimate["hours"]
        startup, lost_per_hour, each_s = self._failures(placement, offer)
        sigma = _sigma(estimate, "hours" if isinstance(self.workload, Training) else RATE)
        work = max(median - startup, 0.0)
        base = work * max(0.0, 1.0 - lost_per_hour * each_s[0] / 3600) * np.exp(sigma * slower)
        count = self.rng.poisson(lost_per_hour * base)
        lost = (count * each_s[0] + each_s[1] * np.sqrt(count) * self.rng.standard_normal(len(base))) / 3600
        lost = np.maximum(lost, 0.0)
        delay = np.zeros(len(base))
        if is_held_on(offer):
            share = (offer.learned or LAUNCH_PRIOR).success_share
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

    def _held(
        self, placement: Placement, offer: Offer, started: Draws, hours: Draws
    ) -> tuple[Draws, Draws, NDArray[np.bool_]]:
        """When the work ends, what its capacity costs, and whether it ends on what the plan holds."""
        planned = float(placement.capacity_usd)
        if is_held_on(offer):
            until = math.inf if offer.available_until is None else self._hours(offer.available_until)
            return started + hours, _paid_usd(placement, offer, hours), started + hours <= until
        usable = sum(
            (end - begin) / HOUR
            for begin, end in usable_stretches(placement, offer, self.case.not_before(self.workload, offer))
        )
        rest = np.maximum(0.0, hours - usable)
        until = self._hours(max(segment.end for segment in placement.segments))
        further = np.where(rest > 0, until + self._restart_hours + rest, started + hours)
        usd = planned + rest * self._rest_usd_per_hour(placement, offer)
        return further, usd, rest <= 1e-9

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


def _paid_usd(placement: Placement, offer: Offer, hours: Draws) -> Draws:
    """The bill of nodes that are held for ``hours``, in the steps in which the seller bills."""
    step, least = max(1, offer.billing_increment_s), math.ceil(offer.min_hours * 3600)
    seconds = np.ceil(np.maximum(np.ceil(hours * 3600), least) / step) * step
    each = float(offer.price_usd_per_node_hour) * seconds / 3600 + float(offer.upfront_usd or 0)
    return placement.nodes * each


def _sigma(estimate: Estimate, metric: str) -> float:
    """Standard deviation of the logarithm of a metric, from the slow side of its interval."""
    if metric == "hours":
        return math.log(estimate.high[metric] / estimate[metric]) / EIGHTY_PERCENT
    return math.log(estimate[metric] / estimate.low[metric]) / EIGHTY_PERCENT


@dataclass(frozen=True, slots=True)
class _Fleet:
    """A service; ``errors`` are shared by all replicas of one model, GPU and engine."""

    case: Case
    service: Serving
    rows: Sequence[Known]
    rng: np.random.Generator
    errors: dict[tuple[str, str, str], Draws]

    def drawn(self, draws: int) -> _Drawn:
        """The service over all draws."""
        planned = float(sum((row[1].cost_usd for row in self.rows), Decimal(0)))
        supply = supply_of(self.case, self.service)
        if supply is None:
            return _Drawn(np.ones(draws, dtype=np.bool_), np.full(draws, planned))
        faster = [self._factor(placement, draws) for _, placement, _, _ in self.rows]
        good = np.ones(draws, dtype=np.bool_)
        spare = self.service.redundancy.spare_replicas
        for demand, replicas in _distinct(supply):
            rates = [one[1].estimate[RATE] * factor for one, factor in zip(self.rows, faster, strict=True)]
            carried = sum((n * rate for n, rate in zip(replicas, rates, strict=True)), np.zeros(draws))
            largest = np.max(
                [np.where(n > 0, rate, 0.0) for n, rate in zip(replicas, rates, strict=True)], axis=0
            )
            good &= carried - spare * largest >= demand * (1 - 1e-9)
        cost = self._cost_usd(faster)
        return _Drawn(good, cost, None, {"its replicas are slower than planned": ~good})

    def _factor(self, placement: Placement, draws: int) -> Draws:
        """Each draw's rate divided by the median."""
        key = self.service.model.name, placement.gpu, str(placement.engine)
        if key not in self.errors:
            self.errors[key] = self.rng.standard_normal(draws)
        estimate, confidence = placement.estimate, self.service.planned_confidence
        sigma = _sigma(estimate, RATE)
        if confidence != MEDIAN and estimate.at_confidence:
            spread = math.log(estimate[RATE] / estimate.sure_requests_per_s)
            sigma = spread / NormalDist().inv_cdf(confidence)
        return np.exp(-sigma * self.errors[key])

    def _cost_usd(self, faster: Sequence[Draws]) -> Draws:
        """The first day as planned; then as many nodes as the measured rates need, where they may change.

        Nodes that were planned for a rate carry at least what one less would not, so half a node is theirs
        to spare.
        """
        cost = np.zeros(len(faster[0]))
        known = min(row[1].segments[0].start for row in self.rows) + MEASURED_HOURS * HOUR
        for (_, placement, _, offer), factor in zip(self.rows, faster, strict=True):
            needed = placement.estimate.sure_requests_per_s / placement.estimate[RATE] / factor
            planned, held = 0.0, np.zeros(len(factor))
            for segment in placement.segments:
                later = max(timedelta(0), segment.end - max(segment.start, known)) / HOUR
                nodes = np.maximum(1.0, np.ceil((segment.nodes - 0.5) * needed))
                nodes = nodes if is_held_on(offer) else np.maximum(segment.nodes, nodes)
                planned += segment.nodes * segment.hours
                held += segment.nodes * (segment.hours - later) + nodes * later
            cost += float(placement.cost_usd) * held / planned
        return cost


def _distinct(supply: Supply) -> Iterator[tuple[float, Sequence[float]]]:
    """Each distinct demand with its replicas by placement."""
    rows = np.unique(np.column_stack((supply.demand, supply.replicas.T)), axis=0)
    return ((float(row[0]), [float(n) for n in row[1:]]) for row in rows if row[0] > 0)

"""The one-time cost of a move: overlap of old and new capacity, lost work, and egress. Pure.

The old capacity is held until the new is usable (make before break). That takes as long as a launch is
expected to take (``learned``), then the rest of a replica's cold start, then a pass of the reconciler. A run
continues from its last checkpoint and loses the work since then. The time of its restart is part of the hours
that the new plan gives it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.node_launch import COLD_START
from broker.domain.holding.cost_of_keeping import HeldCapacity
from broker.domain.market.launch_statistics import LAUNCH_PRIOR
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Placement
from broker.domain.planning.transfer import Place
from broker.domain.planning.workload import Batch, Precision, Serving, Training, Workload
from broker.domain.workloads.training_method import PLAIN

WEIGHT_BYTES = {
    Precision.BF16: 2,
    Precision.FP16: 2,
    Precision.FP8: 1,
    Precision.FP4: 0.5625,
    Precision.INT4: 0.5,
}
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class MovingTerms:
    """Assumptions about moving work and data.

    ``egress_usd_per_gb`` is by provider; ``other_egress_usd_per_gb`` applies to all others.
    ``between_regions_usd_per_gb`` applies between regions of one provider. ``staging_gbit_s`` is the rate of
    copies. ``handover`` is the time until the reconciler sees that new capacity is usable.
    ``checkpoint_every`` applies to runs that do not state it. ``resale_share`` is the expected resale price
    of a window as a share of its remaining value.
    """

    egress_usd_per_gb: Mapping[str, Decimal] = field(default_factory=dict, hash=False)
    other_egress_usd_per_gb: Decimal = ZERO
    between_regions_usd_per_gb: Mapping[str, Decimal] = field(default_factory=dict, hash=False)
    staging_gbit_s: float = 10.0
    handover: timedelta = timedelta(minutes=1)
    checkpoint_every: timedelta = timedelta(hours=1)
    resale_share: Decimal = ZERO

    def outward_usd_per_gb(self, provider: str) -> Decimal:
        """The price of a GB (10⁹ bytes) leaving ``provider``."""
        return self.egress_usd_per_gb.get(provider, self.other_egress_usd_per_gb)

    def inward_usd_per_gb(self, provider: str) -> Decimal:
        """The price of a GB going from one region of ``provider`` to another."""
        return self.between_regions_usd_per_gb.get(provider, ZERO)

    def egress_usd(self, provider: str, gb: float) -> Decimal:
        """The price of ``gb`` (10⁹ bytes) leaving ``provider``."""
        return to_cents(self.outward_usd_per_gb(provider) * Decimal(str(gb)))

    def transfer_usd(self, source: Place, to: Place, gb: float) -> Decimal:
        """The price of copying ``gb`` from one place to another, in whole cents."""
        if source.is_at(to):
            return ZERO
        if not source.is_run_with(to):
            return self.egress_usd(source.provider, gb)
        return to_cents(self.inward_usd_per_gb(source.provider) * Decimal(str(gb)))

    def is_free(self, source: Place) -> bool:
        """Whether copies from ``source`` are free to any destination."""
        return not self.outward_usd_per_gb(source.provider) and not self.inward_usd_per_gb(source.provider)

    def staging(self, source: Place, to: Place, gb: float) -> timedelta:
        """How long a copy takes, in whole seconds; zero if the data is there already."""
        return timedelta(0) if source.is_at(to) else self.copy_time(gb)

    def going_on(self, run: Training, source: Place, to: Place) -> tuple[timedelta, Decimal]:
        """How long a run's checkpoint and data set take to where it goes on, and their price."""
        gb, data = checkpoint_gb(run), run.dataset
        copied, usd = self.staging(source, to, gb), self.transfer_usd(source, to, gb)
        if data is None or source.is_at(to):
            return copied, usd
        return max(copied, self.staging(data.place, to, data.gb)), usd + self.transfer_usd(
            data.place, to, data.gb
        )

    def copy_time(self, gb: float) -> timedelta:
        """How long a copy of ``gb`` takes, in whole seconds."""
        return math.ceil(round(gb * 8 / self.staging_gbit_s, 6)) * SECOND


def usable_at(
    placements: Sequence[Placement], offers: Mapping[str, Offer], now: datetime, terms: MovingTerms
) -> datetime:
    """When the first capacity of all ``placements`` is expected to be usable and seen as such."""
    found = now
    for placement in placements:
        offer = offers.get(placement.offer_id)
        learned = LAUNCH_PRIOR if offer is None or offer.learned is None else offer.learned
        cold_s = placement.estimate.value.get(COLD_START, 0.0)
        if placement.cold_start is not None:
            cold_s -= placement.cold_start.launch_s
        wait = timedelta(hours=learned.wait_hours) + cold_s * SECOND
        start = min((segment.start for segment in placement.segments), default=now)
        found = max(found, max(now, start) + wait)
    return found + terms.handover


def since_checkpoint(
    run: Training | Batch, active_since: datetime, at: datetime, terms: MovingTerms
) -> timedelta:
    """The work at the instant ``at`` since the last checkpoint of a run or the last chunk of a batch."""
    minutes = run.chunk_minutes if isinstance(run, Batch) else run.checkpoint_every_minutes
    every = terms.checkpoint_every if minutes is None else timedelta(minutes=minutes)
    worked = max(timedelta(0), at - active_since)
    return worked % every if every > timedelta(0) else timedelta(0)


def rework_usd(lost: timedelta, placements: Sequence[Placement]) -> Decimal:
    """Cost of repeating ``lost`` work: its share of the cost of the new ``placements``."""
    hours = sum(segment.hours for placement in placements for segment in placement.segments)
    if hours <= 0:
        return ZERO
    share = min(1.0, lost / timedelta(hours=1) / hours)
    return to_cents(sum((p.capacity_usd for p in placements), ZERO) * Decimal(str(share)))


def finished_weights_gb(run: Workload) -> float:
    """Size of the weights that a finished run has trained in bf16, in GB (10⁹ bytes): adapters alone, or
    all.
    """
    method = run.training_method if isinstance(run, Training) else PLAIN
    return method.trained_params(run.model) * WEIGHT_BYTES[Precision.BF16] / 1e9


def checkpoint_gb(run: Training) -> float:
    """Size of a checkpoint of the run, in GB (10⁹ bytes): 14 B per trained parameter in mixed precision with
    AdamW.
    """
    method = run.training_method
    return method.trained_params(run.model) * method.kept_bytes / 1e9


def leaving_gb(workload: Workload, precision: Precision) -> float:
    """Size of a workload's own data that a move must copy, in GB (10⁹ bytes)."""
    params = workload.model.total_params
    if isinstance(workload, Serving):
        return float(params * WEIGHT_BYTES[precision] / 1e9)
    return checkpoint_gb(workload) if isinstance(workload, Training) else 0.0


def egress_usd(
    workload: Workload, held: Sequence[HeldCapacity], placements: Sequence[Placement], terms: MovingTerms
) -> Decimal:
    """Egress cost in USD of copies to providers at which the workload holds nothing yet.

    The most expensive of its current providers is assumed as the source. A run's data set is copied again to
    each new provider from its own location.
    """
    here = {one.offer.provider for one in held}
    new = {p.provider: p.precision for p in placements if p.provider not in here}
    if not here:
        return ZERO
    regions = {p.provider: p.region for p in placements}
    total = ZERO
    for provider, precision in new.items():
        gb = leaving_gb(workload, precision)
        total += max(terms.egress_usd(source, gb) for source in here)
        if isinstance(workload, Training) and workload.dataset is not None:
            dataset, to = workload.dataset, Place(provider, regions[provider])
            total += terms.transfer_usd(dataset.place, to, dataset.gb)
    return total

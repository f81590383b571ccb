"""The checked case: plan, request and offers, with lookups that the rules need."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import to_cents
from broker.domain.basics.window import Segment
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Offer, Tier, is_held_on
from broker.domain.market.sku import SoldAmount
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.batch_hours import kept_share
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.recourse import Rest, Work, rest_of
from broker.domain.planning.transfer import Place
from broker.domain.planning.workload import Batch, PlanRequest, Serving, Training, Workload
from optimizer.performance.estimator import Estimator

HOUR = timedelta(hours=1)
Known = tuple[str, Placement, Workload, Offer]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The rest of a run on an offer, after ``usable_hours`` in its window.

    ``work_ratio`` is its median there divided by that in the window, ``begins_at`` the instant at which its
    data is there, and ``ends_at`` its end with the run's confidence.
    """

    offer: Offer
    rest: Rest
    usable_hours: float
    again_hours: float
    work_ratio: float
    begins_at: datetime
    copied_usd: Decimal

    @property
    def ends_at(self) -> datetime:
        """The end with the run's confidence."""
        return self.begins_at + timedelta(hours=self.rest.sure_hours)

    def row(self, placement: Placement) -> Placement:
        """The rest as a placement, for the rules on offers and stock; its hosts have the default size."""
        return replace(
            placement,
            offer_id=self.offer.offer_id,
            segments=(Segment(self.begins_at, self.ends_at, placement.nodes),),
            disk_gb=None,
            memory_gb=None,
            estimate=replace(placement.estimate, at_confidence={}),
            recourse=None,
        )

    def usd(self, nodes: int) -> Decimal:
        """What the rest costs on average, if it has to run here."""
        held = timedelta(seconds=math.ceil(round(self.rest.mean_hours * 3600, 6)))
        segment = Segment(self.begins_at, self.begins_at + held, nodes)
        return to_cents(holding_cost_usd(self.offer, (segment,))) + self.copied_usd


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that a rule may use; ``earliest`` is the first instant at which anything may be held.

    ``placed``: the placements of each workload whose workload and offer exist, as ``known`` yields them.
    ``held``: workloads that held nodes before the plan, which may be live at once (None: not known).
    """

    plan: Plan
    request: PlanRequest
    offers: Mapping[str, Offer]
    workloads: Mapping[str, Workload]
    estimator: Estimator
    earliest: datetime
    terms: MovingTerms
    placed: Mapping[str, Sequence[Known]]
    held: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        plan: Plan,
        request: PlanRequest,
        offers: Sequence[Offer],
        estimator: Estimator,
        terms: MovingTerms,
        held: frozenset[str] | None = None,
    ) -> Case:
        """Prepares a plan over a market for checking."""
        by_id = {offer.offer_id: offer for offer in offers}
        workloads = {workload.name: workload for workload in request.workloads}
        placed: defaultdict[str, list[Known]] = defaultdict(list)
        for index, placement in enumerate(plan.placements):
            workload, offer = workloads.get(placement.workload), by_id.get(placement.offer_id)
            if workload is not None and offer is not None and placement.segments:
                offer = as_ordered(placement, offer)
                placed[workload.name].append((label(index, placement), placement, workload, offer))
        return cls(
            plan=plan,
            request=request,
            offers=by_id,
            workloads=workloads,
            estimator=estimator,
            earliest=max(request.horizon.start, plan.as_of),
            terms=terms,
            placed=placed,
            held=held,
        )

    def may_be_live(self, workload: str) -> bool:
        """Whether nodes of the workload may serve from the first instant on, as they were held before it.

        Where nobody knows, only a plan that was made after its horizon began may have such nodes.
        """
        if self.held is None:
            return self.earliest > self.request.horizon.start
        return workload in self.held

    def known(self) -> Iterator[Known]:
        """Placements whose workload and offer exist, with a label for messages."""
        for rows in self.placed.values():
            yield from rows

    def training(self) -> Iterator[tuple[str, Placement, Training, Offer]]:
        """Placements of training runs."""
        for where, placement, workload, offer in self.known():
            if isinstance(workload, Training):
                yield where, placement, workload, offer

    def run_end(self, name: str) -> datetime | None:
        """When a run ends, after the last of its parts; None if it is not placed."""
        ends = [
            self.end_of(placement, workload, offer)
            for _, placement, workload, offer in self.placed.get(name, ())
            if isinstance(workload, Training)
        ]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None

    def end_of(self, placement: Placement, run: Training, offer: Offer) -> datetime | None:
        """The end of a run or part with its confidence, on its recourse if it has one."""
        if placement.recourse is None:
            return run_end(placement, offer, self.not_before(run, offer))
        found = self.elsewhere(placement, run, offer)
        return None if found is None else found.ends_at

    def elsewhere(self, placement: Placement, workload: Workload, offer: Offer) -> Elsewhere | None:
        """The rest of a run on the offer of its recourse; None if it has none, or one that can do nothing."""
        told = placement.recourse
        other = None if told is None else self.offers.get(told.offer_id)
        if other is None or not isinstance(workload, Training):
            return None
        table = self.estimator.training((workload,), (other.sku,), (placement.nodes,))
        stretches = usable_stretches(placement, offer, self.not_before(workload, offer))
        if len(stretches) != 1 or not table.fits[0, 0, 0]:
            return None
        (begin, leaves), startup = stretches[0], table.startup_hours
        held = Work.of(placement.estimate, startup)
        there = Work.of(table.estimate(0, 0, 0, interruptions_per_hour(other)), startup)
        again = self.estimator.begun_again_hours(workload, placement.nodes, offer.sku.gpus_per_node)
        usable = (leaves - begin) / HOUR
        rest = rest_of(held, there, usable, again)
        if rest is None:
            return None
        copied, usd = self.terms.going_on(workload, Place.of(offer), Place.of(other))
        ratio = there.median_hours / held.median_hours
        return Elsewhere(other, rest, usable, again, ratio, leaves + copied, usd)

    def with_recourses(self) -> Iterator[Known]:
        """``known``, and the rest of each run that may have to go on elsewhere as a row of its own."""
        for where, placement, workload, offer in self.known():
            yield where, placement, workload, offer
            found = self.elsewhere(placement, workload, offer)
            if found is not None:
                yield f"{where}, recourse", found.row(placement), workload, found.offer

    def not_before(self, run: Training | Batch, offer: Offer) -> datetime:
        """The first instant at which a run may work on an offer, after its data has been copied there."""
        first = max(run.earliest_start, self.earliest)
        if isinstance(run, Batch) or run.dataset is None:
            return first
        data, to = run.dataset, Place.of(offer)
        return max(first, self.plan.as_of + self.terms.staging(data.place, to, data.gb))

    def service_start(self, service: Serving) -> datetime | None:
        """When a service's traffic begins; None if the run that it follows is not placed."""
        if service.starts_after is not None:
            end = self.run_end(service.starts_after)
            if end is None:
                return None
            return max(end, service.starts_at or end, self.earliest)
        return max(service.starts_at or self.request.horizon.start, self.earliest)

    def needs_nothing(self, workload: Workload) -> bool:
        """Whether a workload is a service without requests from its start to its end."""
        begin = self.service_start(workload) if isinstance(workload, Serving) else None
        if begin is None or not isinstance(workload, Serving):
            return False
        origin, end = self.request.horizon.start, workload.ends_by(self.request.horizon.end)
        if begin >= end or workload.min_replicas:
            return False  # it never starts, or it holds replicas without requests
        hour = origin + (begin - origin) // HOUR * HOUR
        hours = range(max(0, math.ceil((end - hour) / HOUR)))
        return not any(workload.requests_per_s_at(hour + n * HOUR, origin) for n in hours)


def as_ordered(placement: Placement, offer: Offer) -> Offer:
    """The offer with the disk and memory that a placement orders, at the price that they should have."""
    price, sku = offer.price_usd_per_node_hour, offer.sku
    if offer.disk is not None and placement.disk_gb is not None:
        price += _more_gb(placement.disk_gb, offer.disk) * offer.disk.usd_per_gb_hour
        sku = replace(sku, disk_gb=placement.disk_gb)
    if offer.memory is not None and placement.memory_gb is not None:
        price += _more_gb(placement.memory_gb, offer.memory) * offer.memory.usd_per_gb_hour
        sku = replace(sku, memory_gb=placement.memory_gb)
    return offer if sku == offer.sku else replace(offer, price_usd_per_node_hour=round(price, 6), sku=sku)


def _more_gb(ordered: float, sold: SoldAmount) -> Decimal:
    return Decimal(str(ordered)) - Decimal(str(sold.default_gb))


def requests_of(placement: Placement, batch: Batch) -> float:
    """The requests that a placement of a batch answers."""
    return batch.requests * placement.work_share if placement.requests is None else placement.requests


def held_hours(placement: Placement, batch: Batch, offer: Offer) -> float:
    """Hours of a part of a batch: a cold start, its requests, and what interruptions lose of the time."""
    cold_s, rate = (placement.estimate[name] for name in ("cold_start_s", "requests_per_s_per_replica"))
    working_s = cold_s + requests_of(placement, batch) / (placement.replicas * rate)
    return working_s / kept_share(batch, cold_s, interruptions_per_hour(offer)) / 3600


def interruptions_per_hour(offer: Offer) -> float:
    """Expected interruptions of a node of the offer; none outside spot."""
    return (offer.interruptions_per_hour or 0.0) if offer.tier is Tier.SPOT else 0.0


def label(index: int, placement: Placement) -> str:
    """A placement in messages: index, workload and offer."""
    return f"placements[{index}] ({placement.workload} on {placement.offer_id})"


def usable_stretches(
    placement: Placement, offer: Offer, not_before: datetime
) -> list[tuple[datetime, datetime]]:
    """Contiguous intervals of held, usable time: from ``not_before`` on, without the seller's teardown."""
    teardown = timedelta(seconds=offer.window.teardown_s if offer.window else 0)
    stretches: list[tuple[datetime, datetime]] = []
    for segment in sorted(placement.segments):
        start = max(segment.start, not_before)
        end = segment.end - teardown
        if end <= start:
            continue
        if stretches and stretches[-1][1] == start:
            stretches[-1] = (stretches[-1][0], end)
        else:
            stretches.append((start, end))
    return stretches


def reserved(placement: Placement, offer: Offer) -> tuple[Segment, ...]:
    """The segments for which capacity must be there: work that is held on average for less than suffices with
    its confidence may be held on for that long.
    """
    sure = placement.estimate.at_confidence.get("hours")
    if sure is None or not is_held_on(offer):
        return placement.segments
    *before, last = sorted(placement.segments)
    begun = min(segment.start for segment in placement.segments)
    until = begun + timedelta(seconds=math.ceil(round(sure * 3600, 6)))
    return (*before, replace(last, end=max(last.end, until)))


def run_end(placement: Placement, offer: Offer, not_before: datetime) -> datetime | None:
    """The end of the run with its confidence: the hours that suffice, of usable held time after its start.

    None if less is held: less than the mean hours where capacity may be held on.
    """
    left = timedelta(hours=placement.estimate.sure_hours)
    stretches = usable_stretches(placement, offer, not_before)
    if placement.estimate.at_confidence and is_held_on(offer) and stretches:
        held = sum((end - start for start, end in stretches), timedelta())
        enough = held >= timedelta(hours=placement.estimate.mean_hours)
        return stretches[0][0] + left if enough else None
    for start, end in stretches:
        if end - start >= left:
            return start + left
        left -= end - start
    return None

"""The comparison of plans: for each workload what it takes in each plan, and what differs; and variants, the
plans that answer "what if", made from another plan's document with one change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO, usd_words
from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.batch_hours import REQUEST_RATE
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import PlanRequest, Serving, Slo, Workload, WorkloadKind

HOUR = timedelta(hours=1)
LEAST_SHIFT = timedelta(minutes=1)
"""Times that differ by less are told as equal."""


@dataclass(frozen=True, slots=True)
class AssumedPrices:
    """Prices that a variant assumes: ``factor`` times today's, of ``provider`` (None: of every provider)."""

    factor: Decimal
    provider: str | None = None

    def applied(self, offers: Iterable[Offer]) -> tuple[Offer, ...]:
        """``offers`` at the assumed prices."""
        return tuple(self._at(offer) for offer in offers)

    def _at(self, offer: Offer) -> Offer:
        if self.provider not in (None, offer.provider):
            return offer
        upfront = None if offer.upfront_usd is None else offer.upfront_usd * self.factor
        price = offer.price_usd_per_node_hour * self.factor
        return replace(offer, price_usd_per_node_hour=price, upfront_usd=upfront)


@dataclass(frozen=True, slots=True)
class Variant:
    """The place of a plan in a comparison.

    ``based_on`` is the plan whose document was changed, ``name`` the name of the change, ``position`` its
    place in the comparison from 0. With ``prices`` the plan is hypothetical and cannot be bought.
    """

    comparison_id: str
    based_on: str
    name: str
    position: int
    prices: AssumedPrices | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """Capacity of one workload at one place: ``nodes`` at the peak, each with its GPUs."""

    provider: str
    place: str
    tier: str
    gpu: str
    nodes: int
    gpus: int

    @property
    def words(self) -> str:
        """``2 × 8 H200-SXM-141GB at verda in FIN-03``, with the tier unless it is on demand."""
        return f"{self.nodes} × {self._rest}"

    def words_after(self, nodes: int) -> str:
        """The same with the number of nodes before: ``2 to 3 × 8 H200-SXM-141GB at verda in FIN-03``."""
        return f"{nodes} to {self.nodes} × {self._rest}"

    @property
    def _rest(self) -> str:
        tier = "" if self.tier == Tier.ON_DEMAND else f" ({self.tier})"
        return f"{self.gpus // max(1, self.nodes)} {self.gpu} at {self.provider} in {self.place}{tier}"

    @property
    def kind(self) -> tuple[str, str, str, str, int]:
        """What two holdings must share to differ in nodes alone."""
        return self.provider, self.place, self.tier, self.gpu, self.gpus // max(1, self.nodes)


@dataclass(frozen=True, slots=True)
class WorkloadOutcome:
    """What a plan does with one workload. Nothing is held if it is not ``placed``; ``obstacle`` says why.

    ``gpus`` is the number at the peak and ``gpu_hours`` the sum over the horizon. ``margin`` is what is left
    of the objective: of the deadline in hours for runs and batches, of the tightest latency objective as a
    share for services. It is None if the document is not known.
    """

    workload: str
    kind: WorkloadKind | None
    placed: bool
    cost_usd: Decimal
    holdings: tuple[Holding, ...] = ()
    gpus: int = 0
    gpu_hours: float = 0.0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    margin: float | None = None
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class Objective:
    """The latency objective of a service of which a plan leaves least: ``metric`` of an estimate, its value
    and its limit."""

    metric: str
    value_ms: float
    limit_ms: float

    @property
    def spare(self) -> float:
        """What is left of the objective, as a share of its limit."""
        return 1 - self.value_ms / self.limit_ms


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs for one workload from the base to another plan, as text, and in cost."""

    workload: str
    says: str
    difference_usd: Decimal


def outcomes_of(plan: Plan, request: PlanRequest | None = None) -> tuple[WorkloadOutcome, ...]:
    """What ``plan`` does with each workload, in the order of the plan; ``request`` adds the margins."""
    names = dict.fromkeys((*(p.workload for p in plan.placements), *(u.workload for u in plan.unplaced)))
    asked: Mapping[str, Workload] = {w.name: w for w in request.workloads} if request is not None else {}
    return tuple(_outcome(plan, name, asked.get(name)) for name in names)


def _outcome(plan: Plan, name: str, asked: Workload | None) -> WorkloadOutcome:
    placements = plan.placements_of(name)
    if not placements:
        left = next(row for row in plan.unplaced if row.workload == name)
        kind = None if asked is None else asked.kind
        return WorkloadOutcome(name, kind, placed=False, cost_usd=ZERO, obstacle=str(left.reason))
    ends_at = max(p.segments[-1].end for p in placements)
    return WorkloadOutcome(
        name,
        placements[0].kind,
        placed=True,
        cost_usd=sum((p.cost_usd for p in placements), ZERO),
        holdings=tuple(_holdings(placements)),
        gpus=_peak_gpus(placements),
        gpu_hours=round(sum(_gpu_hours(p) for p in placements), 2),
        starts_at=min(p.segments[0].start for p in placements),
        ends_at=ends_at,
        margin=None if asked is None else _margin(placements, asked, ends_at),
    )


def late_time(placement: Placement) -> timedelta:
    """How much longer than expected a run or batch takes at the upper end of its 80 % interval.

    Zero for services, and where the estimate does not say.
    """
    value, low, high = placement.estimate.value, placement.estimate.low, placement.estimate.high
    if "hours" in value:
        return timedelta(hours=max(0.0, high.get("hours", 0.0) - value["hours"]))
    rate = low.get(REQUEST_RATE, 0.0)
    if placement.kind is not WorkloadKind.BATCH or rate <= 0 or REQUEST_RATE not in value:
        return timedelta()
    held = sum((segment.end - segment.start for segment in placement.segments), timedelta())
    return held * max(0.0, value[REQUEST_RATE] / rate - 1)


def _holdings(placements: Sequence[Placement]) -> Iterator[Holding]:
    """One holding for each provider, place, tier and node size, in the order of the placements."""
    nodes: dict[tuple[str, str, str, str, int], int] = {}
    for p in placements:
        key = (p.provider, p.zone or p.region, str(p.tier), p.gpu, p.gpus // max(1, p.nodes))
        nodes[key] = nodes.get(key, 0) + p.nodes
    for (provider, place, tier, gpu, each), count in nodes.items():
        yield Holding(provider, place, tier, gpu, count, count * each)


def _peak_gpus(placements: Sequence[Placement]) -> int:
    """Most GPUs held at one instant."""
    steps: list[tuple[datetime, int]] = []
    for p in placements:
        each = p.gpus // max(1, p.nodes)
        for segment in p.segments:
            steps += [(segment.start, segment.nodes * each), (segment.end, -segment.nodes * each)]
    held = most = 0
    for _, change in sorted(steps):  # at one instant what ends is counted before what starts
        held += change
        most = max(most, held)
    return most


def _gpu_hours(placement: Placement) -> float:
    each = placement.gpus // max(1, placement.nodes)
    return sum(each * s.nodes * ((s.end - s.start) / HOUR) for s in placement.segments)


def _margin(placements: Sequence[Placement], asked: Workload, ends_at: datetime) -> float | None:
    if not isinstance(asked, Serving):
        return round((asked.deadline - ends_at) / HOUR, 2)
    tightest = tightest_objective(placements, asked.slo)
    return None if tightest is None else round(tightest.spare, 4)


def tightest_objective(placements: Iterable[Placement], slo: Slo) -> Objective | None:
    """The objective of which ``placements`` leave least; None if no estimate names a latency."""
    limits = {"ttft_p95_ms": slo.ttft_p95_ms, "itl_p95_ms": slo.itl_p95_ms}
    found = (
        Objective(metric, p.estimate.value[metric], limit)
        for p in placements
        for metric, limit in limits.items()
        if limit and metric in p.estimate.value
    )
    return min(found, key=lambda one: one.spare, default=None)


def objectives_of(request: PlanRequest) -> dict[str, Slo]:
    """The latency objectives of the services of ``request``, by name."""
    return {asked.name: asked.slo for asked in request.workloads if isinstance(asked, Serving)}


def differences_between(
    base: Sequence[WorkloadOutcome], other: Sequence[WorkloadOutcome]
) -> tuple[Difference, ...]:
    """What differs, for each workload that differs: those of the base first, then those only in ``other``."""
    before, after = {o.workload: o for o in base}, {o.workload: o for o in other}
    found = (
        _difference(name, before.get(name), after.get(name)) for name in dict.fromkeys((*before, *after))
    )
    return tuple(one for one in found if one is not None)


def _difference(name: str, old: WorkloadOutcome | None, new: WorkloadOutcome | None) -> Difference | None:
    if old is None or new is None:
        if new is None:
            assert old is not None
            return Difference(name, "it is not in the document", -old.cost_usd)
        fate = f"takes {_places(new)}" if new.placed else f"is left out: {new.obstacle}"
        return Difference(name, f"it is new in the document and {fate}", new.cost_usd)
    cost = new.cost_usd - old.cost_usd
    if old.placed != new.placed:
        says = "it is placed" if new.placed else f"it is left out: {new.obstacle}"
        if new.placed:
            says += f" on {_places(new)}"
        return Difference(name, says, cost)
    says = "; ".join(_changes(old, new, cost))
    return Difference(name, says, cost) if says else None


def _changes(old: WorkloadOutcome, new: WorkloadOutcome, cost: Decimal) -> Iterator[str]:
    before, after = {h.kind: h for h in old.holdings}, {h.kind: h for h in new.holdings}
    taken = [h.words for kind, h in after.items() if kind not in before]
    given_up = [h.words for kind, h in before.items() if kind not in after]
    resized = [
        h.words_after(before[kind].nodes)
        for kind, h in after.items()
        if kind in before and before[kind].nodes != h.nodes
    ]
    for verb, which in (("takes", taken), ("gives up", given_up), ("goes from", resized)):
        if which:
            yield f"it {verb} {' and '.join(which)}"
    if not (taken or given_up or resized) and old.gpu_hours != new.gpu_hours:
        yield f"it holds {new.gpu_hours:,.0f} GPU-hours in place of {old.gpu_hours:,.0f}"
    for what, was, now in (("starts", old.starts_at, new.starts_at), ("ends", old.ends_at, new.ends_at)):
        if was is not None and now is not None and abs(now - was) >= LEAST_SHIFT:
            yield f"it {what} {_span(abs(now - was))} {'later' if now > was else 'earlier'}"
    if cost:
        yield f"it costs {usd_words(abs(cost))} {'more' if cost > 0 else 'less'}"


def _places(outcome: WorkloadOutcome) -> str:
    return " and ".join(holding.words for holding in outcome.holdings)


def _span(length: timedelta) -> str:
    hours = length / HOUR
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:.1f} h" if hours < 72 else f"{hours / 24:.1f} days"

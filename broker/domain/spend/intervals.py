"""What may move a projection: prices, durations, traffic; and the interval that comes of it.

What is owed does not move, nor what was bought at a fixed price. A plan's on-demand capacity is bought at its
start, at the price of that day; spot capacity, and fleets that come and go, follow the price. Runs take
longer or shorter by the interval of the performance core, and with them what is not bought ahead. Fleets
that are not bought ahead follow traffic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.estimate import Estimate
from broker.domain.basics.money import ZERO
from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.spend import BOUGHT_AHEAD, Charge, ChargeBasis

DAY = timedelta(days=1)
Strand = tuple[str | None, str | None, str, str]


class PriceRule(StrEnum):
    """Whether the price of a line is known, is set by the day of its start, or changes from day to day."""

    FIXED = "fixed"
    AT_START = "at_start"
    FLOATING = "floating"


@dataclass(frozen=True, slots=True)
class RiskLine:
    """Projected money of one workload on one offer, by day from today on.

    ``duration``: of a run, its length over the expected one at the ends of the 80 % interval. ``job`` is
    one for all lines of a run or service, so that they share its draw; ``done_usd`` was spent on the line
    before.
    """

    job: str
    offer_id: str
    first_day: int
    usd_by_day: tuple[float, ...]
    price: PriceRule
    duration: tuple[float, float] | None
    follows_traffic: bool
    done_usd: float = 0.0

    @property
    def last_day(self) -> int:
        """The last day that costs something, as expected."""
        return self.first_day + len(self.usd_by_day) - 1


@dataclass(frozen=True, slots=True)
class IntervalRules:
    """``traffic_growth``: expected growth of traffic in 30 days as a share; ``traffic_spread``: standard
    deviation of its logarithm. ``paths``: futures that are drawn."""

    traffic_growth: float = 0.0
    traffic_spread: float = 0.1
    paths: int = 500


@dataclass(frozen=True, slots=True)
class Quantiles:
    """USD that a sum is at most with probability 0.1, 0.5 and 0.9."""

    p10_usd: Decimal
    p50_usd: Decimal
    p90_usd: Decimal

    def plus(self, usd: Decimal) -> Quantiles:
        """The same with ``usd`` that is certain."""
        return Quantiles(self.p10_usd + usd, self.p50_usd + usd, self.p90_usd + usd)


CERTAIN = Quantiles(ZERO, ZERO, ZERO)


@dataclass(frozen=True, slots=True)
class Simulated:
    """Quantiles of each period, of the sum up to each period's end, and of all periods together."""

    by_period: tuple[Quantiles, ...]
    running: tuple[Quantiles, ...]
    total: Quantiles


def day_number(instant: datetime, now: datetime) -> int:
    """UTC days from today's to the one of ``instant``; what is past counts as today."""
    return max(0, (instant.date() - now.date()).days)


def risk_lines(charges: Iterable[Charge], plans: Mapping[str, Plan], now: datetime) -> tuple[RiskLine, ...]:
    """The projected part of ``charges`` as lines; ``plans`` tell how long their runs may take."""
    return lines_of(strands_of(charges, now), plans)


@dataclass(slots=True)
class StrandMoney:
    """What becomes a line: projected money by day, what was spent before, one of its projected charges (None:
    nothing is projected)."""

    usd_by_day: dict[int, Decimal] = field(default_factory=dict)
    done_usd: Decimal = ZERO
    sample: Charge | None = None

    def plus(self, other: StrandMoney) -> StrandMoney:
        """Both together."""
        days = dict(self.usd_by_day)
        for day, usd in other.usd_by_day.items():
            days[day] = days.get(day, ZERO) + usd
        return StrandMoney(days, self.done_usd + other.done_usd, self.sample or other.sample)


Strands = Mapping[Strand, StrandMoney]


def strands_of(charges: Iterable[Charge], now: datetime) -> Strands:
    """Charges by what they become a line of."""
    found: defaultdict[Strand, StrandMoney] = defaultdict(StrandMoney)
    for charge in charges:
        strand = found[charge.plan_id, charge.reservation_id, charge.workload, charge.offer_id]
        if charge.basis is ChargeBasis.ACTUAL:
            strand.done_usd += charge.usd
        else:
            day = day_number(charge.window.start, now)
            strand.usd_by_day[day] = strand.usd_by_day.get(day, ZERO) + charge.usd
            strand.sample = charge
    return found


def lines_of(strands: Strands, plans: Mapping[str, Plan]) -> tuple[RiskLine, ...]:
    """Of every strand with projected money, in the order of their names."""
    return tuple(
        _line(money.sample, money.usd_by_day, money.done_usd, plans)
        for _, money in sorted(strands.items(), key=lambda pair: tuple(map(str, pair[0])))
        if money.sample is not None
    )


def parted(steady: Strands, moving: Strands) -> tuple[Strands, Strands]:
    """Strands of projected money that have nothing of ``moving``, and the others whole."""
    still = {key: money for key, money in steady.items() if money.sample is not None and key not in moving}
    return still, {key: money.plus(steady.get(key, StrandMoney())) for key, money in moving.items()}


def _line(
    charge: Charge, daily: Mapping[int, Decimal], done_usd: Decimal, plans: Mapping[str, Plan]
) -> RiskLine:
    first, last = min(daily), max(daily)
    ahead = charge.tier in BOUGHT_AHEAD
    run = charge.kind in (WorkloadKind.TRAINING, WorkloadKind.BATCH)
    plan = plans.get(charge.plan_id or "")
    return RiskLine(
        job=f"{charge.plan_id or charge.reservation_id}/{charge.workload}",
        offer_id=charge.offer_id,
        first_day=first,
        usd_by_day=tuple(float(daily.get(day, ZERO)) for day in range(first, last + 1)),
        price=_price_rule(charge),
        duration=_duration(plan, charge) if run and not ahead and plan is not None else None,
        follows_traffic=charge.kind is WorkloadKind.SERVING and not ahead and not charge.is_egress,
        done_usd=float(done_usd),
    )


def _price_rule(charge: Charge) -> PriceRule:
    if charge.tier is Tier.SPOT:
        return PriceRule.FLOATING
    if charge.tier in BOUGHT_AHEAD or charge.reservation_id is not None or charge.is_egress:
        return PriceRule.FIXED
    return PriceRule.FLOATING if charge.kind is WorkloadKind.SERVING else PriceRule.AT_START


def _duration(plan: Plan, charge: Charge) -> tuple[float, float] | None:
    """Length at both ends of the interval over the expected one."""
    for placement in plan.placements_of(charge.workload):
        if placement.offer_id == charge.offer_id:
            return duration_range(placement.estimate)
    return None


def duration_range(estimate: Estimate) -> tuple[float, float] | None:
    """A run's length at both ends of its interval over the expected one; of a batch by its rate."""
    for name, inverse in (("hours", False), ("requests_per_s_per_replica", True)):
        value, low, high = (of.get(name, 0.0) for of in (estimate.value, estimate.low, estimate.high))
        if value > 0 and low > 0 and high > 0:
            return (value / high, value / low) if inverse else (low / value, high / value)
    return None

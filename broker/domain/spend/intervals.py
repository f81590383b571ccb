"""Uncertainty of a projection: which amounts depend on prices, durations and traffic.

Accrued cost and capacity that was bought at a fixed price are certain. On-demand capacity of a plan is bought
at its start, at the price of that day; spot capacity and serving fleets follow the price from day to day. The
duration of runs varies within the interval of the performance core, and so does the cost of capacity that is
not bought in advance. Fleets that are not bought in advance follow traffic.
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
LineKey = tuple[str | None, str | None, str, str]


class PriceRule(StrEnum):
    """Whether a line's price is known, is the price on the day of its start, or changes daily."""

    FIXED = "fixed"
    AT_START = "at_start"
    FLOATING = "floating"


@dataclass(frozen=True, slots=True)
class RiskLine:
    """Projected cost of one workload on one offer, by day from today on.

    ``duration`` is, for a run, the shortest and longest duration of the 80 % interval as shares of the
    expected one. All lines of a run or service have the same ``job``, so that they share its random draws.
    ``done_usd`` is the line's accrued cost.
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
        """The last day with expected cost."""
        return self.first_day + len(self.usd_by_day) - 1


@dataclass(frozen=True, slots=True)
class IntervalRules:
    """Parameters of the simulation.

    ``traffic_growth`` is the expected growth of traffic in 30 days as a share; ``traffic_spread`` is the
    standard deviation of its logarithm. ``paths`` is the number of simulated paths.
    """

    traffic_growth: float = 0.0
    traffic_spread: float = 0.1
    paths: int = 500


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The 10 %, 50 % and 90 % quantiles of an amount in USD."""

    p10_usd: Decimal
    p50_usd: Decimal
    p90_usd: Decimal

    def plus(self, usd: Decimal) -> Quantiles:
        """The quantiles after adding a certain amount ``usd``."""
        return Quantiles(self.p10_usd + usd, self.p50_usd + usd, self.p90_usd + usd)


CERTAIN = Quantiles(ZERO, ZERO, ZERO)


@dataclass(frozen=True, slots=True)
class Simulated:
    """Quantiles of each period, of the running total at each period's end, and of the total."""

    by_period: tuple[Quantiles, ...]
    running: tuple[Quantiles, ...]
    total: Quantiles


def day_number(instant: datetime, now: datetime) -> int:
    """Number of UTC days from today to the day of ``instant``; the past counts as today."""
    return max(0, (instant.date() - now.date()).days)


def risk_lines(charges: Iterable[Charge], plans: Mapping[str, Plan], now: datetime) -> tuple[RiskLine, ...]:
    """The projected part of ``charges`` as risk lines; ``plans`` give the intervals of durations."""
    return lines_of(amounts_by_line(charges, now), plans)


@dataclass(slots=True)
class LineAmounts:
    """The amounts of one line: projected cost by day, accrued cost, and a sample charge.

    ``sample`` is one of the projected charges; None if nothing is projected.
    """

    usd_by_day: dict[int, Decimal] = field(default_factory=dict)
    done_usd: Decimal = ZERO
    sample: Charge | None = None

    def plus(self, other: LineAmounts) -> LineAmounts:
        """The sum of both."""
        days = dict(self.usd_by_day)
        for day, usd in other.usd_by_day.items():
            days[day] = days.get(day, ZERO) + usd
        return LineAmounts(days, self.done_usd + other.done_usd, self.sample or other.sample)


AmountsByLine = Mapping[LineKey, LineAmounts]


def amounts_by_line(charges: Iterable[Charge], now: datetime) -> AmountsByLine:
    """``charges`` grouped into the lines that they become."""
    found: defaultdict[LineKey, LineAmounts] = defaultdict(LineAmounts)
    for charge in charges:
        amounts = found[charge.plan_id, charge.reservation_id, charge.workload, charge.offer_id]
        if charge.basis is ChargeBasis.ACTUAL:
            amounts.done_usd += charge.usd
        else:
            day = day_number(charge.window.start, now)
            amounts.usd_by_day[day] = amounts.usd_by_day.get(day, ZERO) + charge.usd
            amounts.sample = charge
    return found


def lines_of(by_line: AmountsByLine, plans: Mapping[str, Plan]) -> tuple[RiskLine, ...]:
    """A risk line for every key with projected cost, sorted by key."""
    return tuple(
        _line(money.sample, money.usd_by_day, money.done_usd, plans)
        for _, money in sorted(by_line.items(), key=lambda pair: tuple(map(str, pair[0])))
        if money.sample is not None
    )


def parted(steady: AmountsByLine, moving: AmountsByLine) -> tuple[AmountsByLine, AmountsByLine]:
    """The lines split in two: projected ones without any ``moving`` charge, and all
    others with all charges."""
    still = {key: money for key, money in steady.items() if money.sample is not None and key not in moving}
    return still, {key: money.plus(steady.get(key, LineAmounts())) for key, money in moving.items()}


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
    """The interval of the run's duration, as shares of the expected one; None if it is unknown."""
    for placement in plan.placements_of(charge.workload):
        if placement.offer_id == charge.offer_id:
            return duration_range(placement.estimate)
    return None


def duration_range(estimate: Estimate) -> tuple[float, float] | None:
    """The 80 % interval of a duration as shares of the expected one; for a batch from its request rate."""
    for name, inverse in (("hours", False), ("requests_per_s_per_replica", True)):
        value, low, high = (of.get(name, 0.0) for of in (estimate.value, estimate.low, estimate.high))
        if value > 0 and low > 0 and high > 0:
            return (value / high, value / low) if inverse else (low / value, high / value)
    return None

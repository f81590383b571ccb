"""Causes of change, unit costs, savings and energy as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, PlainSerializer

from api.schemas.base.forms import THE_END, Form, From, rounded, write
from api.schemas.base.parts import Cents, Money
from api.schemas.base.times import Instant
from broker.domain.basics.money import ZERO, format_usd
from broker.domain.moving.savings import MovedSaving, NotCompared, NotRun, Saving, Savings
from broker.domain.spend.energy import EnergyUse
from broker.domain.spend.intervals import Quantiles
from broker.domain.spend.month_close import ClosedMonth, MonthClose, Unconfirmed
from broker.domain.spend.spend import Interval
from broker.domain.spend.variance import ChangeLine, Changes, PlanChanges
from broker.services.spend.economics import Economics
from broker.services.spend.intervals import PeriodInterval, SpendInterval

SIX_PLACES = Decimal("0.000001")
ESTIMATE = "an estimate from rated powers and grid averages, not a measurement"
SmallUsd = Annotated[
    Money,
    PlainSerializer(lambda usd: format_usd(usd.quantize(SIX_PLACES)), return_type=str, when_used="json"),
]
"""A small amount in USD, rounded to six decimals."""
Hours = Annotated[float, PlainSerializer(float)]

CHANGE = Form(
    ChangeLine,
    name="ChangeForm",
    about="""
    Why one workload on one offer costs more or less; the three effects sum to ``change_usd``.

    ``unused_usd``: the part of them that pays for time that was given up or not wanted. ``has_begun`` and
    ``has_ended`` are of the whole workload, ``is_new`` and ``is_gone`` of this offer.
    """,
    adds={"change_usd": Money},
    order=("after_usd change_usd price_usd",),
    optional={"unused_usd": ZERO, "has_begun": False, "has_ended": False},
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The two months or plans that were compared. ``split`` is given for plans only."""

    changes: Changes
    before: str
    after: str
    split: PlanChanges | None = None

    @property
    def change_usd(self) -> Decimal:
        return self.changes.after_usd - self.changes.before_usd


class ChangesForm(BaseModel):
    """The answer of ``GET /v1/spend/changes``; the last three fields are given for plans only."""

    before: str
    after: str
    before_usd: Annotated[Money, From("changes.before_usd")]
    after_usd: Annotated[Money, From("changes.after_usd")]
    change_usd: Money
    price_usd: Annotated[Money, From("changes.price_usd")]
    volume_usd: Annotated[Money, From("changes.volume_usd")]
    mix_usd: Annotated[Money, From("changes.mix_usd")]
    unused_usd: Annotated[Money, From("changes.unused_usd")] = ZERO
    begun_usd: Annotated[Money, From("changes.begun_usd")] = ZERO
    ended_usd: Annotated[Money, From("changes.ended_usd")] = ZERO
    items: Annotated[list[Annotated[ChangeLine, CHANGE]], From("changes.lines")]
    next_cursor: Annotated[str | None, THE_END] = None
    market_usd: Annotated[Money | None, From("split?.market_usd", unless_none=True)] = None
    reoptimization_usd: Annotated[Money | None, From("split?.reoptimization_usd", unless_none=True)] = None
    unpriced: Annotated[list[str] | None, From("split?.unpriced", unless_none=True)] = None


Form(Quantiles, about="Quantiles of a sum in USD: it is at most this with probability 0.1, 0.5 and 0.9.")
PERIOD_INTERVAL = Form(
    PeriodInterval,
    name="PeriodIntervalForm",
    about="One period, and the cumulative sum up to its end (``running``).",
    inline=("quantiles",),
)


@dataclass(frozen=True, slots=True)
class _Bands:
    """The quantiles by day, week or month."""

    found: SpendInterval
    interval: Interval


class IntervalForm(BaseModel):
    """The answer of ``GET /v1/spend/interval``: for the whole time, and by period."""

    interval: Interval
    expected_usd: Annotated[Money, From("found.expected_usd")]
    p10_usd: Annotated[Money, From("found.total.p10_usd")]
    p50_usd: Annotated[Money, From("found.total.p50_usd")]
    p90_usd: Annotated[Money, From("found.total.p90_usd")]
    items: Annotated[list[Annotated[PeriodInterval, PERIOD_INTERVAL]], From("found.periods")]
    next_cursor: Annotated[str | None, THE_END] = None


ENERGY = Form(
    EnergyUse,
    name="EnergyForm",
    about="An estimate; see ``note``.",
    types=dict.fromkeys(
        ("kwh", "kg_co2e", "kwh_without_grid", "gpu_hours_without_power"), Annotated[float, rounded(3)]
    ),
    adds={"note": Annotated[str, From(lambda _: ESTIMATE)]},
)


class UnitsForm(BaseModel):
    """The answer of ``GET /v1/spend/units``; a ratio is null if its denominator is 0."""

    total_usd: Annotated[Money, From("units.total_usd")]
    committed_usd: Annotated[Money, From("units.committed_usd")]
    flexible_usd: Annotated[Money, From("units.flexible_usd")]
    runs: Annotated[int, From("units.runs")]
    training_usd: Annotated[Money, From("units.training_usd")]
    usd_per_run: Annotated[Cents | None, From("units.usd_per_run")]
    tokens_trained: Annotated[float, From("units.tokens_trained")]
    usd_per_trillion_tokens_trained: Annotated[Cents | None, From("units.usd_per_trillion_tokens_trained")]
    tokens_served: Annotated[float, From("units.tokens_served")]
    usd_per_million_tokens_served: Annotated[SmallUsd | None, From("units.usd_per_million_tokens_served")]
    used_gpu_hours: Annotated[Hours, From("units.used_gpu_hours")]
    idle_gpu_hours: Annotated[Hours, From("units.idle_gpu_hours")]
    idle_usd: Annotated[Money, From("units.idle_usd")]
    usd_per_used_gpu_hour: Annotated[SmallUsd | None, From("units.usd_per_used_gpu_hour")]
    usd_per_idle_gpu_hour: Annotated[SmallUsd | None, From("units.usd_per_idle_gpu_hour")]
    energy: Annotated[EnergyUse, ENERGY]


def _month(text: str) -> date:
    return date.fromisoformat(f"{text}-01")


CLOSED_MONTH = Form(
    ClosedMonth,
    about="""
    A month whose reports no longer change. For a key of one team ``usd`` is the cost of that team, and
    ``focus_rows`` is null.
    """,
    rename={"rows": "focus_rows"},
    types={"month": Annotated[str, AfterValidator(_month), PlainSerializer(lambda month: f"{month:%Y-%m}")]},
)
ClosedMonthForm = Annotated[ClosedMonth, CLOSED_MONTH]
UNCONFIRMED = Form(Unconfirmed, about="A seller that did not confirm its leases since the month was over.")


class MonthCloseForm(BaseModel):
    """The answer of ``POST /v1/spend/close``."""

    month: Annotated[str, From(lambda found: f"{found.closed.month:%Y-%m}")]
    closed_at: Annotated[Instant, From("closed.closed_at")]
    closed_by: Annotated[str, From("closed.closed_by")]
    comment: Annotated[str, From("closed.comment")]
    usd: Annotated[Money, From("closed.usd")]
    focus_rows: Annotated[int, From("closed.rows")]
    unconfirmed: list[Annotated[Unconfirmed, UNCONFIRMED]] = []


Form(
    Saving,
    about="What plans save against one simpler strategy, over the plans for which the strategy could run.",
    adds={"saved_usd": Money, "saved_share": Annotated[float, rounded(6)]},
)
Form(
    MovedSaving,
    about="What the moves of a re-optimization that are done save, as they were counted when proposed.",
    adds={"net_usd": Money},
)
Form(NotRun, about="A simpler strategy that could not run for a plan.")
Form(NotCompared, about="A current plan that is in no sum of savings.")
SAVINGS = Form(
    Savings,
    about="The answer of ``GET /v1/spend/savings``.",
    rename={"savings": "items"},
    adds={"next_cursor": Annotated[str | None, THE_END]},
    optional={"next_cursor": None, "not_compared": (), "reoptimizations": ()},
)
SavingsForm = Annotated[Savings, SAVINGS]


def interval_to_document(found: SpendInterval, interval: Interval) -> dict[str, Any]:
    """The JSON form of an interval."""
    return write(IntervalForm, _Bands(found, interval))


def changes_to_document(changes: Changes, before: str, after: str) -> dict[str, Any]:
    """The JSON form of the changes between two months."""
    return write(ChangesForm, _Asked(changes, before, after))


def plan_changes_to_document(found: PlanChanges, before: str, after: str) -> dict[str, Any]:
    """The JSON form of the changes between two plans."""
    return write(ChangesForm, _Asked(found.changes, before, after, found))


def economics_to_document(found: Economics) -> dict[str, Any]:
    """The JSON form of unit economics and energy."""
    return write(UnitsForm, found)


def month_close_to_document(found: MonthClose) -> dict[str, Any]:
    """The JSON form of what closing a month came to."""
    return write(MonthCloseForm, found)

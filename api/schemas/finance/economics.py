"""What changed, unit economics, savings and energy as JSON."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from api.schemas.base.parts import Money, PageForm
from api.schemas.base.times import Instant, format_time
from broker.domain.basics.money import format_usd, to_cents
from broker.domain.moving.savings import Savings
from broker.domain.spend.intervals import Quantiles
from broker.domain.spend.month_close import ClosedMonth
from broker.domain.spend.spend import Interval
from broker.domain.spend.variance import ChangeLine, Changes, PlanChanges
from broker.services.spend.economics import Economics
from broker.services.spend.intervals import SpendInterval

SIX_PLACES = Decimal("0.000001")
ESTIMATE = "an estimate from rated powers and grid averages, not a measurement"


class ChangeForm(BaseModel):
    """Why one workload on one offer costs more or less; the three effects sum to ``change_usd``."""

    workload: str
    offer_id: str
    provider: str
    tier: str
    before_usd: Money
    after_usd: Money
    change_usd: Money
    price_usd: Money
    volume_usd: Money
    mix_usd: Money
    is_new: bool
    is_gone: bool


class ChangesForm(BaseModel):
    """The answer of ``GET /v1/spend/changes``; the last three only between plans."""

    before: str
    after: str
    before_usd: Money
    after_usd: Money
    change_usd: Money
    price_usd: Money
    volume_usd: Money
    mix_usd: Money
    items: list[ChangeForm]
    next_cursor: str | None = None
    market_usd: Money | None = None
    reoptimization_usd: Money | None = None
    unpriced: list[str] | None = None


class QuantilesForm(BaseModel):
    """USD that a sum is at most with probability 0.1, 0.5 and 0.9."""

    p10_usd: Money
    p50_usd: Money
    p90_usd: Money


class PeriodIntervalForm(QuantilesForm):
    """One period, and the sum up to its end (``running``)."""

    period: Instant
    expected_usd: Money
    running: QuantilesForm


class IntervalForm(QuantilesForm):
    """The answer of ``GET /v1/spend/interval``: of the whole span, and by period."""

    interval: Interval
    expected_usd: Money
    items: list[PeriodIntervalForm]
    next_cursor: str | None = None


class EnergyForm(BaseModel):
    """An estimate; see ``note``."""

    kwh: float
    kg_co2e: float
    kwh_without_grid: float
    gpu_hours_without_power: float
    note: str


class UnitsForm(BaseModel):
    """The answer of ``GET /v1/spend/units``; a ratio is null where there is nothing to divide by."""

    total_usd: Money
    committed_usd: Money
    flexible_usd: Money
    runs: int
    training_usd: Money
    usd_per_run: Money | None
    tokens_trained: float
    usd_per_trillion_tokens_trained: Money | None
    tokens_served: float
    usd_per_million_tokens_served: Money | None
    used_gpu_hours: float
    idle_gpu_hours: float
    idle_usd: Money
    usd_per_used_gpu_hour: Money | None
    usd_per_idle_gpu_hour: Money | None
    energy: EnergyForm


class ClosedMonthForm(BaseModel):
    """A month whose reports never change again."""

    month: str
    closed_at: Instant
    closed_by: str
    comment: str
    usd: Money
    focus_rows: int


ClosedMonthPage = PageForm[ClosedMonthForm]


class SavingForm(BaseModel):
    """What plans save against one strategy, over the plans for which it could run."""

    name: str
    plans: int
    baseline_usd: Money
    plan_usd: Money
    saved_usd: Money
    saved_share: float


class NotRunForm(BaseModel):
    """A strategy that could not run for a plan."""

    name: str
    plan_id: str
    why: str


class SavingsForm(BaseModel):
    """The answer of ``GET /v1/spend/savings``."""

    items: list[SavingForm]
    not_run: list[NotRunForm]
    next_cursor: str | None = None


def interval_to_document(found: SpendInterval, interval: Interval) -> dict[str, Any]:
    """The JSON form of an interval."""
    return {
        "interval": str(interval),
        "expected_usd": format_usd(found.expected_usd),
        **_quantiles(found.total),
        "items": [
            {
                "period": format_time(one.period),
                "expected_usd": format_usd(one.expected_usd),
                **_quantiles(one.quantiles),
                "running": _quantiles(one.running),
            }
            for one in found.periods
        ],
        "next_cursor": None,
    }


def _quantiles(found: Quantiles) -> dict[str, str]:
    return {
        "p10_usd": format_usd(found.p10_usd),
        "p50_usd": format_usd(found.p50_usd),
        "p90_usd": format_usd(found.p90_usd),
    }


def changes_to_document(changes: Changes, before: str, after: str) -> dict[str, Any]:
    """The JSON form of what changed."""
    return {
        "before": before,
        "after": after,
        "before_usd": format_usd(changes.before_usd),
        "after_usd": format_usd(changes.after_usd),
        "change_usd": format_usd(changes.after_usd - changes.before_usd),
        "price_usd": format_usd(changes.price_usd),
        "volume_usd": format_usd(changes.volume_usd),
        "mix_usd": format_usd(changes.mix_usd),
        "items": [_line(line) for line in changes.lines],
        "next_cursor": None,
    }


def plan_changes_to_document(found: PlanChanges, before: str, after: str) -> dict[str, Any]:
    """The JSON form of what changed between two plans."""
    return {
        **changes_to_document(found.changes, before, after),
        "market_usd": format_usd(found.market_usd),
        "reoptimization_usd": format_usd(found.reoptimization_usd),
        "unpriced": list(found.unpriced),
    }


def _line(line: ChangeLine) -> dict[str, Any]:
    return {
        "workload": line.workload,
        "offer_id": line.offer_id,
        "provider": line.provider,
        "tier": line.tier,
        "before_usd": format_usd(line.before_usd),
        "after_usd": format_usd(line.after_usd),
        "change_usd": format_usd(line.change_usd),
        "price_usd": format_usd(line.price_usd),
        "volume_usd": format_usd(line.volume_usd),
        "mix_usd": format_usd(line.mix_usd),
        "is_new": line.is_new,
        "is_gone": line.is_gone,
    }


def economics_to_document(found: Economics) -> dict[str, Any]:
    """The JSON form of unit economics and energy."""
    units, energy = found.units, found.energy
    return {
        "total_usd": format_usd(units.total_usd),
        "committed_usd": format_usd(units.committed_usd),
        "flexible_usd": format_usd(units.flexible_usd),
        "runs": units.runs,
        "training_usd": format_usd(units.training_usd),
        "usd_per_run": _cents(units.usd_per_run),
        "tokens_trained": units.tokens_trained,
        "usd_per_trillion_tokens_trained": _cents(units.usd_per_trillion_tokens_trained),
        "tokens_served": units.tokens_served,
        "usd_per_million_tokens_served": _small(units.usd_per_million_tokens_served),
        "used_gpu_hours": float(units.used_gpu_hours),
        "idle_gpu_hours": float(units.idle_gpu_hours),
        "idle_usd": format_usd(units.idle_usd),
        "usd_per_used_gpu_hour": _small(units.usd_per_used_gpu_hour),
        "usd_per_idle_gpu_hour": _small(units.usd_per_idle_gpu_hour),
        "energy": {
            "kwh": round(energy.kwh, 3),
            "kg_co2e": round(energy.kg_co2e, 3),
            "kwh_without_grid": round(energy.kwh_without_grid, 3),
            "gpu_hours_without_power": round(energy.gpu_hours_without_power, 3),
            "note": ESTIMATE,
        },
    }


def closed_to_document(month: ClosedMonth) -> dict[str, Any]:
    """The JSON form of a closed month."""
    return {
        "month": f"{month.month:%Y-%m}",
        "closed_at": format_time(month.closed_at),
        "closed_by": month.closed_by,
        "comment": month.comment,
        "usd": format_usd(month.usd),
        "focus_rows": month.rows,
    }


def savings_to_document(found: Savings) -> dict[str, Any]:
    """The JSON form of savings."""
    return {
        "items": [
            {
                "name": one.name,
                "plans": one.plans,
                "baseline_usd": format_usd(one.baseline_usd),
                "plan_usd": format_usd(one.plan_usd),
                "saved_usd": format_usd(one.saved_usd),
                "saved_share": round(one.saved_share, 6),
            }
            for one in found.savings
        ],
        "not_run": [{"name": one.name, "plan_id": one.plan_id, "why": one.why} for one in found.not_run],
        "next_cursor": None,
    }


def _cents(usd: Decimal | None) -> str | None:
    return None if usd is None else format_usd(to_cents(usd))


def _small(usd: Decimal | None) -> str | None:
    return None if usd is None else format_usd(usd.quantize(SIX_PLACES))

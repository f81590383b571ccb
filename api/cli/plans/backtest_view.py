"""Outcomes of a backtest, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.figures import day, percent, plural, whole_usd
from api.schemas.base.times import format_time
from broker.domain.basics.money import ZERO, format_usd
from broker.domain.basics.window import Window
from broker.services.moving.all_knowing import AllKnowing
from broker.services.moving.backtest import LookPolicy, Outcome


@dataclass(frozen=True, slots=True)
class Compared:
    """What each policy cost over the same horizons, and what a planner with perfect foresight would have
    paid."""

    source: str
    offers: int
    points: int
    horizons: tuple[Window, ...]
    seed: int
    known: AllKnowing
    outcomes: Mapping[LookPolicy, Sequence[Outcome]]


@dataclass(frozen=True, slots=True)
class Sums:
    """A policy over all horizons, USD."""

    spend: Decimal
    egress: Decimal
    penalty: Decimal
    total: Decimal
    overlap: Decimal
    rework: Decimal
    switching: Decimal
    looks: int
    moves: int
    forced: int
    failed: int


def sums_of(many: Sequence[Outcome]) -> Sums:
    """The sums of a policy's outcomes."""
    return Sums(
        spend=sum((one.spend_usd for one in many), ZERO),
        egress=sum((one.egress_usd for one in many), ZERO),
        penalty=sum((one.penalty_usd for one in many), ZERO),
        total=sum((one.total_usd for one in many), ZERO),
        overlap=sum((one.overlap_usd for one in many), ZERO),
        rework=sum((one.rework_usd for one in many), ZERO),
        switching=sum((one.switching_usd for one in many), ZERO),
        looks=sum(one.looks for one in many),
        moves=sum(one.moves for one in many),
        forced=sum(one.forced for one in many),
        failed=sum(one.failed for one in many),
    )


def compared_to_document(compared: Compared) -> dict[str, Any]:
    """All figures. ``regret_usd`` is the cost above the plan with perfect foresight, ``over_bound_usd`` that
    above its proven bound."""
    never = compared.outcomes.get(LookPolicy.NEVER)
    return {
        "history": {"source": compared.source, "offers": compared.offers, "points": compared.points},
        "horizons": [{"start": format_time(w.start), "end": format_time(w.end)} for w in compared.horizons],
        "seed": compared.seed,
        "all_knowing": {
            "cost_usd": format_usd(compared.known.cost_usd),
            "bound_usd": format_usd(compared.known.bound_usd),
            "plans": compared.known.plans,
        },
        "policies": [
            _policy(policy, many, compared.known, None if never is None else sums_of(never))
            for policy, many in compared.outcomes.items()
        ],
    }


def _policy(
    policy: LookPolicy, many: Sequence[Outcome], known: AllKnowing, never: Sums | None
) -> dict[str, Any]:
    found = sums_of(many)
    return {
        "policy": str(policy),
        "total_usd": format_usd(found.total),
        "spend_usd": format_usd(found.spend),
        "egress_usd": format_usd(found.egress),
        "penalty_usd": format_usd(found.penalty),
        "switching_usd": format_usd(found.switching),
        "overlap_usd": format_usd(found.overlap),
        "rework_usd": format_usd(found.rework),
        "saves_against_never_usd": None if never is None else format_usd(never.total - found.total),
        "regret_usd": format_usd(found.total - known.cost_usd),
        "over_bound_usd": format_usd(found.total - known.bound_usd),
        "looks": found.looks,
        "moves": found.moves,
        "forced_moves": found.forced,
        "failed_looks": found.failed,
        "unplaced": sorted({name for one in many for name in one.unplaced}),
        "by_horizon_usd": [format_usd(one.total_usd) for one in many],
    }


def print_compared(console: Console, compared: Compared) -> None:
    """One row for each policy, then the plan with perfect foresight and its bound."""
    never = compared.outcomes.get(LookPolicy.NEVER)
    base = None if never is None else sums_of(never).total
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    sums = {policy: sums_of(many) for policy, many in compared.outcomes.items()}
    late, forced = any(s.penalty for s in sums.values()), any(s.forced for s in sums.values())
    table.add_column("policy", no_wrap=True)
    optional = (("late", late), ("looks", True), ("moves", True), ("forced", forced))
    columns = ("paid", "switching", "to never", "to bound", *(name for name, shown in optional if shown))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    bound = compared.known.bound_usd
    for policy, found in sums.items():
        table.add_row(
            str(policy),
            whole_usd(found.spend + found.egress),
            whole_usd(found.switching),
            _against(found.total, base),
            _against(found.total, bound),
            *([whole_usd(found.penalty)] if late else []),
            *(f"{count:,}" for count in (found.looks, found.moves, *([found.forced] if forced else []))),
        )
    cost = compared.known.cost_usd
    table.add_row("all-knowing", whole_usd(cost), "", _against(cost, base), _against(cost, bound))
    table.add_row("its bound", whole_usd(bound), "", _against(bound, base))
    console.print(table)
    first, last = compared.horizons[0], compared.horizons[-1]
    words = (
        f"{plural(len(compared.horizons), 'horizon')} of {first.hours / 24:g} days, {day(first.start)} to "
        f"{day(last.end)}, {compared.offers:,} offers, {compared.points:,} points, seed {compared.seed}"
    )
    console.print(Text(words, "dim"))


def _against(total: Decimal, base: Decimal | None) -> str:
    if base is None or base <= 0:
        return "–"
    share = float((total - base) / base)
    return "±0 %" if total == base else f"{'+' if share > 0 else '-'}{percent(abs(share))}"

"""Outcomes of a backtest, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.text import Text

from api.cli.tables import print_section
from api.figures import day, percent, plural, whole_usd
from api.schemas.base.times import format_time
from api.sections import Section
from broker.domain.basics.money import format_usd
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


def sums_of(many: Sequence[Outcome]) -> Outcome:
    """The outcomes of a policy over all horizons as one."""
    counts = {field.name for field in fields(Outcome)} - {"policy", "unplaced"}
    unplaced = tuple(sorted({name for one in many for name in one.unplaced}))
    sums = {name: sum(getattr(one, name) for one in many) for name in counts}
    return Outcome(many[0].policy, **sums, unplaced=unplaced)


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
            _policy(sums_of(many), many, compared.known, None if never is None else sums_of(never))
            for many in compared.outcomes.values()
        ],
    }


def _policy(
    found: Outcome, many: Sequence[Outcome], known: AllKnowing, never: Outcome | None
) -> dict[str, Any]:
    return {
        "policy": str(found.policy),
        "total_usd": format_usd(found.total_usd),
        "spend_usd": format_usd(found.spend_usd),
        "egress_usd": format_usd(found.egress_usd),
        "penalty_usd": format_usd(found.penalty_usd),
        "switching_usd": format_usd(found.switching_usd),
        "overlap_usd": format_usd(found.overlap_usd),
        "rework_usd": format_usd(found.rework_usd),
        "saves_against_never_usd": None if never is None else format_usd(never.total_usd - found.total_usd),
        "regret_usd": format_usd(found.total_usd - known.cost_usd),
        "over_bound_usd": format_usd(found.total_usd - known.bound_usd),
        "looks": found.looks,
        "moves": found.moves,
        "forced_moves": found.forced,
        "failed_looks": found.failed,
        "unplaced": list(found.unplaced),
        "by_horizon_usd": [format_usd(one.total_usd) for one in many],
    }


def print_compared(console: Console, compared: Compared) -> None:
    """One row for each policy, then the plan with perfect foresight and its bound."""
    never = compared.outcomes.get(LookPolicy.NEVER)
    base = None if never is None else sums_of(never).total_usd
    sums = {policy: sums_of(many) for policy, many in compared.outcomes.items()}
    bound, cost = compared.known.bound_usd, compared.known.cost_usd
    columns: dict[str, Callable[[Outcome], str]] = {
        ">paid": lambda found: whole_usd(found.spend_usd + found.egress_usd),
        ">switching": lambda found: whole_usd(found.switching_usd),
        ">to never": lambda found: _against(found.total_usd, base),
        ">to bound": lambda found: _against(found.total_usd, bound),
    }
    if any(found.penalty_usd for found in sums.values()):
        columns[">late"] = lambda found: whole_usd(found.penalty_usd)
    columns |= {">looks": lambda found: f"{found.looks:,}", ">moves": lambda found: f"{found.moves:,}"}
    if any(found.forced for found in sums.values()):
        columns[">forced"] = lambda found: f"{found.forced:,}"
    rows = [
        *((str(policy), *(cell(found) for cell in columns.values())) for policy, found in sums.items()),
        ("all-knowing", whole_usd(cost), "", _against(cost, base), _against(cost, bound)),
        ("its bound", whole_usd(bound), "", _against(bound, base)),
    ]
    print_section(Section(("=policy", *columns), rows), console)
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

"""The difference of two plans as a comment in Markdown."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from api.figures import usd
from api.sections import Value, escaped, markdown_of, section_of
from broker.domain.basics.money import ZERO
from broker.domain.planning.comparison import Difference, WorkloadOutcome, differences_between, outcomes_of
from broker.domain.planning.plan import Plan

MARKER = "<!-- gpu-capacity-broker cost-diff -->"
"""By which a job finds its comment again, to change it in place."""


def markdown(before: Plan, after: Plan) -> str:
    """A heading with the change, a row for each workload that differs, and what has no place."""
    first, second = before.cost_usd, after.cost_usd
    lines = [MARKER, f"### GPU cost: {usd(first)} → {usd(second)} ({_change(first, second)})", ""]
    old, new = outcomes_of(before), outcomes_of(after)
    changed = differences_between(old, new)
    if changed:
        old_of, new_of = {one.workload: one for one in old}, {one.workload: one for one in new}
        columns: dict[str, Callable[[Difference], Value]] = {
            "workload": lambda one: one.workload,
            ">before": lambda one: _cost(old_of.get(one.workload)),
            ">after": lambda one: _cost(new_of.get(one.workload)),
            ">change": lambda one: _change(
                _cost(old_of.get(one.workload)) or ZERO, _cost(new_of.get(one.workload)) or ZERO
            ),
            "what moves": lambda one: one.says,
        }
        lines.append(markdown_of(section_of(changed, columns)))
    else:
        lines.append("No workload changes its cost, its end or its place.")
    same = len({one.workload for one in (*old, *new)}) - len(changed)
    if changed and same:
        lines += ["", f"{same} more stay as they are."]
    for name, plan in (("before", before), ("after", after)):
        lines += [
            f"\n**Not placed {name}**: {escaped(one.workload)} ({one.reason}). {escaped(one.nearest_fix)}"
            for one in plan.unplaced
        ]
    gaps = " and ".join(f"{plan.gap:.1%}" for plan in (before, after) if plan.gap is not None)
    within = f"; the plans are within {gaps} of the best possible" if gaps else ""
    lines += ["", f"Prices as of {after.as_of:%Y-%m-%d %H:%M} UTC{within}."]
    return "\n".join(lines) + "\n"


def _cost(side: WorkloadOutcome | None) -> Decimal | None:
    return side.cost_usd if side is not None and side.placed else None


def _change(first: Decimal, second: Decimal) -> str:
    change = second - first
    share = f", {change / first:+.1%}" if first and change else ""
    sign = "+" if change > 0 else "-" if change < 0 else "±"
    return f"{sign}{usd(abs(change))}{share}"

"""The difference of two plans as a comment in Markdown."""

from __future__ import annotations

from decimal import Decimal

from api.cli.figures import usd
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
        lines += ["| workload | before | after | change | what moves |", "|---|---:|---:|---:|---|"]
        lines += [_row(one, old_of.get(one.workload), new_of.get(one.workload)) for one in changed]
    else:
        lines.append("No workload changes its cost, its end or its place.")
    same = len({one.workload for one in (*old, *new)}) - len(changed)
    if changed and same:
        lines += ["", f"{same} more stay as they are."]
    for name, plan in (("before", before), ("after", after)):
        lines += [
            f"\n**Not placed {name}**: {_cell(one.workload)} ({one.reason}). {_cell(one.nearest_fix)}"
            for one in plan.unplaced
        ]
    gaps = " and ".join(f"{plan.gap:.1%}" for plan in (before, after) if plan.gap is not None)
    within = f"; the plans are within {gaps} of the best possible" if gaps else ""
    lines += ["", f"Prices as of {after.as_of:%Y-%m-%d %H:%M} UTC{within}."]
    return "\n".join(lines) + "\n"


def _row(one: Difference, old: WorkloadOutcome | None, new: WorkloadOutcome | None) -> str:
    costs = " | ".join(usd(side.cost_usd) if side is not None and side.placed else "-" for side in (old, new))
    change = _change(ZERO if old is None else old.cost_usd, ZERO if new is None else new.cost_usd)
    return f"| {_cell(one.workload)} | {costs} | {change} | {_cell(one.says)} |"


def _change(first: Decimal, second: Decimal) -> str:
    change = second - first
    share = f", {change / first:+.1%}" if first and change else ""
    sign = "+" if change > 0 else "-" if change < 0 else "±"
    return f"{sign}{usd(abs(change))}{share}"


def _cell(text: str) -> str:
    """``text`` as text in a cell of a table."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())

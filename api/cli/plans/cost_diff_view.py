"""The difference of two plans as a comment in Markdown."""

from __future__ import annotations

from decimal import Decimal

from api.cli.figures import usd
from api.schemas.plans.cost_difference import CostDifferenceForm, WorkloadDifference
from broker.domain.planning.plan import Plan

MARKER = "<!-- gpu-capacity-broker cost-diff -->"
"""By which a job finds its comment again, to change it in place."""


def markdown(compared: CostDifferenceForm, before: Plan, after: Plan) -> str:
    """A heading with the change, a row for each workload that differs, and what has no place."""
    first, second = compared.cost_usd
    lines = [MARKER, f"### GPU cost: {usd(first)} → {usd(second)} ({_change(first, second)})", ""]
    changed = [one for one in compared.workloads if _differs(one)]
    if changed:
        lines += ["| workload | before | after | change | what moved |", "|---|---:|---:|---:|---|"]
        lines += [_row(one) for one in changed]
    else:
        lines.append("No workload changes its cost, its end or its place.")
    same = len(compared.workloads) - len(changed)
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


def _differs(one: WorkloadDifference) -> bool:
    return any(a != b for a, b in (one.cost_usd, one.until, one.gpus, one.places))


def _row(one: WorkloadDifference) -> str:
    first, second = one.cost_usd
    costs = ("-" if usd_ is None else usd(usd_) for usd_ in (first, second))
    change = _change(first or Decimal(0), second or Decimal(0))
    return f"| {_cell(one.workload)} | {' | '.join(costs)} | {change} | {_moved(one)} |"


def _moved(one: WorkloadDifference) -> str:
    first, second = one.cost_usd
    if first is None:
        return f"new: {_cell(f'{one.gpus[1]} at {one.places[1]}')}"
    if second is None:
        return f"gone: {_cell(f'{one.gpus[0]} at {one.places[0]}')}"
    told = [f"{_cell(str(a))} → {_cell(str(b))}" for a, b in (one.gpus, one.places) if a != b]
    start, end = one.until
    if start != end and start is not None and end is not None:
        told.append(f"held until {start:%d %b %H:%M} → {end:%d %b %H:%M}")
    return "; ".join(told)


def _change(first: Decimal, second: Decimal) -> str:
    change = second - first
    share = f", {change / first:+.1%}" if first and change else ""
    sign = "+" if change > 0 else "-" if change < 0 else "±"
    return f"{sign}{usd(abs(change))}{share}"


def _cell(text: str) -> str:
    """``text`` as text in a cell of a table."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())

"""Re-optimizations as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.figures import day_and_time, usd
from broker.domain.moving.reoptimization import Move, ProposalState, Reoptimization
from broker.domain.moving.reoptimization_result import retry_at

STYLES = {
    ProposalState.PROPOSED: "cyan",
    ProposalState.ACCEPTED: "cyan",
    ProposalState.APPLIED: "green",
    ProposalState.PARTLY: "yellow",
    ProposalState.UNFINISHED: "yellow",
    ProposalState.FAILED: "bold red",
    ProposalState.UNCHANGED: "dim",
    ProposalState.LAPSED: "dim",
}


def print_looks(console: Console, rows: Sequence[Reoptimization]) -> None:
    """A table, newest first; one line when there are none."""
    if not rows:
        console.print("no re-optimizations")
        return
    table = _table("re-optimization, plan", "state", "net saving", "why")
    table.columns[0].no_wrap = True
    for row in rows:
        net = "-" if row.net_usd is None or not row.moves else usd(row.net_usd)
        table.add_row(
            Text.assemble(row.reoptimization_id, "\n", (row.plan_id, "dim")),
            Text.assemble((str(row.state), STYLES.get(row.state, "")), "\n", (_until(row), "dim")),
            net,
            Text.assemble(row.trigger, "\n", (row.reason, "dim")),
        )
    console.print(table)


def print_look(console: Console, look: Reoptimization) -> None:
    """One re-optimization and its moves."""
    console.print(Text.assemble(look.reoptimization_id, "  ", (str(look.state), STYLES.get(look.state, ""))))
    console.print(f"plan {look.plan_id} → {look.new_plan_id or '-'}", markup=False)
    console.print(f"{look.trigger}: {look.reason}", markup=False)
    if not look.moves:
        return
    table = _table("workload", "from → to", "saving, cost,\nnet", "why, risks")
    for move in look.moves:
        risks = "".join(f"\n! {risk.text}" for risk in move.risks)
        table.add_row(
            Text.assemble(move.workload, "\n", (str(move.state), "dim")),
            "\n".join(("\n".join(move.from_offers) or "nowhere", "→", "\n".join(move.to_offers))),
            _money(move),
            Text.assemble(_why(move), (risks, "yellow")),
        )
    console.print(table)


def _money(move: Move) -> str:
    if move.stay_usd is None:
        return "cannot stay" + (f"\n-{usd(move.cost.total_usd)}" if move.cost.total_usd else "")
    return f"{usd(move.saving_usd)}\n-{usd(move.cost.total_usd)}\n{usd(move.net_usd)}"


def _why(move: Move) -> str:
    return f"{move.why}; {move.reason}" if move.reason else move.why


def _until(row: Reoptimization) -> str:
    if row.state is ProposalState.PROPOSED and row.lapses_at is not None:
        return f"until {day_and_time(row.lapses_at)}"
    again_at = retry_at(row)
    if again_at is not None:
        return f"again from {day_and_time(again_at)}"
    return day_and_time(row.decided_at or row.started_at)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table

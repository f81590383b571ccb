"""Re-optimizations as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from api.cli.tables import STYLES, print_section
from api.figures import day_and_time
from api.sections import Cell, Section, section_of, tone
from broker.domain.moving.reoptimization import Move, ProposalState, Reoptimization
from broker.domain.moving.reoptimization_result import retry_at


def looks_section(rows: Sequence[Reoptimization]) -> Section:
    """One row for each, newest first."""
    return section_of(
        rows,
        {
            "=re-optimization, plan": lambda row: Cell(row.reoptimization_id, (row.plan_id,)),
            "state": lambda row: Cell(str(row.state), (_until(row),), tone(row.state)),
            "net saving": lambda row: row.net_usd if row.moves else None,
            "why": lambda row: Cell(row.trigger, (row.reason,)),
        },
        empty="no re-optimizations",
    )


def print_look(console: Console, look: Reoptimization) -> None:
    """One re-optimization and its moves."""
    console.print(Text.assemble(look.reoptimization_id, "  ", (str(look.state), STYLES[tone(look.state)])))
    console.print(f"plan {look.plan_id} → {look.new_plan_id or '-'}")
    console.print(f"{look.trigger}: {look.reason}")
    if look.moves:
        print_section(section_of(look.moves, MOVE_COLUMNS), console)


def _where(move: Move) -> Cell:
    return Cell("\n".join(move.from_offers) or "nowhere", ("→", *move.to_offers))


def _money(move: Move) -> Cell:
    if move.stay_usd is None:
        return Cell("cannot stay", (-move.cost.total_usd,) if move.cost.total_usd else ())
    return Cell(move.saving_usd, (-move.cost.total_usd, move.net_usd))


def _why(move: Move) -> Cell:
    why = f"{move.why}; {move.reason}" if move.reason else move.why
    return Cell(why, [f"! {risk.text}" for risk in move.risks])


MOVE_COLUMNS: Mapping[str, Callable[[Move], Cell]] = {
    "workload": lambda move: Cell(move.workload, (str(move.state),)),
    "from → to": _where,
    "saving, cost,\nnet": _money,
    "why, risks": _why,
}


def _until(row: Reoptimization) -> str:
    if row.state is ProposalState.PROPOSED and row.lapses_at is not None:
        return f"until {day_and_time(row.lapses_at)}"
    again_at = retry_at(row)
    if again_at is not None:
        return f"again from {day_and_time(again_at)}"
    return day_and_time(row.decided_at or row.started_at)

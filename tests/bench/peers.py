"""Peers' optimizers and ours on the same problems: ``python -m tests.bench.peers [--quick]``.

Mélange's programme (``melange.py``) and SkyPilot's optimizer (``chains.py``) run in environments of their
own, which are made when there are none (``tests/peers_env.py``). Each row says both costs, ours over
theirs, CPU seconds of both, and theirs over ours. Ours are of the whole plan: estimates, bound, search and
check. Starting Python and importing count for neither.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from tests.bench import chains, melange

RATES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
TABLE_WIDTH = 160
QUICK_RATES = (4.0, 32.0)
QUICK_LENGTHS, QUICK_ROWS = (1, 10), 200


def main() -> int:
    """Prints both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rates, short chains, small catalogues")
    wish = parser.parse_args()
    console = Console(width=TABLE_WIDTH)
    console.print(chain_table(QUICK_LENGTHS, QUICK_ROWS) if wish.quick else chain_table())
    console.print(melange_table(QUICK_RATES if wish.quick else RATES, console))
    return 0


def chain_table(lengths: tuple[int, ...] = chains.LENGTHS, rows_each: int = chains.ROWS_EACH) -> Table:
    """SkyPilot's chains."""
    table = Table(
        "tasks", "rows", "SkyPilot $", "ours $", "ours / theirs", "their CPU s", "our CPU s", "theirs / ours"
    )
    for found in chains.compare(lengths, rows_each):
        costs = _costs(found.their_usd, found.our_usd)
        seconds = _seconds(found.their_cpu_s, found.our_cpu_s)
        table.add_row(str(found.tasks), f"{found.rows:,}", *costs, *seconds)
    return table


def melange_table(rates: tuple[float, ...], console: Console) -> Table:
    """Mélange's allocations; how we were asked when several ways were tried. Each problem is told at once."""
    estimator = melange.our_estimator()
    table = Table(
        "profile: sizes", "requests/s", "Mélange $/h", "ours $/h", "ours / theirs", "their CPU s",
        "our CPU s", "theirs / ours", "asked as",
    )  # fmt: skip
    for profile in melange.read_profiles(estimator):
        for found in melange.compare(list(melange.draw_problems(profile, rates)), estimator):
            rate = sum(found.problem.req_per_s.values())
            costs = _costs(found.their_usd, found.our_usd, found.proven)
            seconds = _seconds(found.their_cpu_s, found.our_cpu_s)
            table.add_row(found.problem.name, f"{rate:g}", *costs, *seconds, found.way)
            console.print(f"{found.problem.name}, {rate:g}/s: {costs[2]} of their cost")
    return table


def _costs(theirs: float, ours: float, proven: bool = True) -> tuple[str, str, str]:
    return f"{theirs:,.2f}{'' if proven else ' (not proven)'}", f"{ours:,.2f}", f"{ours / theirs:.4f}"


def _seconds(theirs: float, ours: float) -> tuple[str, str, str]:
    return f"{theirs:.3f}", f"{ours:.3f}", f"{theirs / ours:.2f}"


if __name__ == "__main__":
    sys.exit(main())

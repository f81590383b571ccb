"""The last look: no known way of a single workload that fits may be cheaper than the one printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import Column
from optimizer.placement.moves import fitting_runs, room_beside
from optimizer.placement.run_pool import RunPool


def settled(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    columns: Sequence[Column],
    chosen: Mapping[str, Column],
) -> dict[str, Column]:
    """``chosen`` after every single change among all run candidates and the known fleets; it ends, since
    each change makes the plan cheaper. A run that services wait for keeps its end."""
    now = dict(chosen)
    while True:
        better = next(
            (way for name in now if (way := _cheaper(candidates, pools, columns, now, name)) is not None),
            None,
        )
        if better is None:
            return now
        now[better.workload] = better


def _cheaper(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    columns: Sequence[Column],
    chosen: Mapping[str, Column],
    name: str,
) -> Column | None:
    mine = chosen[name]
    room = room_beside(candidates, chosen, (name,))
    if name in pools:
        if not candidates.problem.followers(name):
            return next(fitting_runs(candidates, pools[name], room, mine.total_cents), None)
        ways = fitting_runs(candidates, pools[name], room, mine.total_cents, mine.end_s)
        return next((column for column in ways if column.end_s == mine.end_s), None)
    known = (c for c in columns if c.workload == name and c.after_s == mine.after_s)
    cheaper = (c for c in known if c.total_cents < mine.total_cents and room.allows(c))
    return min(cheaper, key=lambda column: column.total_cents, default=None)

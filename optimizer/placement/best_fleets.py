"""The best fleets of one service: on the covers of its bound, as ladders, as paths, on other commitments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from optimizer.placement.columns import Column
from optimizer.placement.fleet_bases import better_based
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.fleet_covers import cover_columns
from optimizer.placement.fleet_dual import cheap_covers
from optimizer.placement.fleet_path import committed_bases, fleet_path, path_columns
from optimizer.placement.fleet_rules import is_modelled
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.ladders import BuiltLadder, best_ladders, build_service_column, shared_ladders
from optimizer.placement.problem import Ints, Problem
from optimizer.placement.units import FleetCase, beside, in_stock

MAX_BASES = 3

Ends = Sequence[float | None]


def fleets(
    problem: Problem, case: FleetCase, free: Ints, ends: Ends, nominal: float | None, ladders: int
) -> list[Column]:
    """Columns from ``free`` nodes for every end of the run before.

    The best ladders, and fleets on the covers of the bound; on fresh ones, too, where others hold some of
    their nodes; as paths where there is none; and on other commitments that look cheaper. ``nominal``: the
    end for which ladders, fresh covers and other commitments are chosen.
    """
    if is_modelled(problem, case.service):
        return model_fleets(problem, case, free, ends)
    columns = list(cover_columns(problem, case, free, ends))
    known = bool(columns) and bool(in_stock(case, case.covers, free).all())
    case = beside(case, free)
    built = [b for b in best_ladders(problem, case, free, nominal, ladders) if b.rungs]
    columns += _ladder_columns(problem, case, built, ends)
    if not known:
        columns += cover_columns(problem, _with_fresh_covers(problem, case, nominal), free, ends)
    if not columns:
        columns = list(_paths(problem, case, free, built, ends))
    if not columns:
        columns += _ladder_columns(problem, case, shared_ladders(problem, case, free, nominal), ends)
    columns += better_based(problem, case, free, columns, ends, nominal)
    return list(dict.fromkeys(columns))


def _with_fresh_covers(problem: Problem, case: FleetCase, nominal: float | None) -> FleetCase:
    """The case with covers of its own units."""
    first = time_of(problem, case, nominal).first_hour
    if not len(case.units) or first >= len(case.demand):
        return case
    return replace(case, covers=cheap_covers(problem, case, first))


def ladder_fleets(
    problem: Problem,
    case: FleetCase,
    free: Ints,
    ends: Ends,
    nominal: float | None,
    count: int,
    *,
    mixed: bool,
) -> list[Column]:
    """Columns of the best ladders from ``free`` nodes."""
    built = best_ladders(problem, case, free, nominal, count, mixed=mixed)
    return list(_ladder_columns(problem, case, [b for b in built if b.rungs], ends))


def _ladder_columns(
    problem: Problem, case: FleetCase, built: Sequence[BuiltLadder], ends: Ends
) -> Iterator[Column]:
    for end in ends:
        for ladder in built:
            column = build_service_column(problem, case, ladder, end)
            if column is not None:
                yield column


def _paths(
    problem: Problem, case: FleetCase, free: Ints, built: Sequence[BuiltLadder], ends: Ends
) -> Iterator[Column]:
    """Paths over flexible units alone, and over the commitments that the ladders stand on."""
    for fixed in [(), *committed_bases(problem, case, built)[:MAX_BASES]]:
        path = fleet_path(problem, case, free, fixed)
        if path is not None:
            yield from path_columns(problem, path, ends)

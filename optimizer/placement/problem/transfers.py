"""Data transfer to where work is placed: its cost, and when the data arrives.

A run's data set is copied once to each place where the run works, and its checkpoint between the places of
consecutive parts. Finished weights are copied once to each place with replicas. The provider that the data
leaves bills the copy. Data can be copied from the time of the plan on, and a run starts on an offer only
after that. Loading weights is part of a replica's cold start. O offers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import numpy as np

from broker.domain.moving.moving_costs import HOUR, MovingTerms, checkpoint_gb, finished_weights_gb
from broker.domain.planning.transfer import Place, Transfer, TransferKind
from broker.domain.planning.workload import Dataset, OwnData, Serving, Training, Workload
from optimizer.placement.problem.columns import Column, Piece, in_cents
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem


def place_of(problem: Problem, offer: int) -> Place:
    """The place of an offer."""
    return Place.of(problem.table.offers[offer])


def transfer_of(terms: MovingTerms, what: TransferKind, data: Dataset, to: Place) -> Transfer | None:
    """The copy of ``data`` to a place; None if it is already there."""
    if data.place.is_at(to):
        return None
    usd = terms.transfer_usd(data.place, to, data.gb)
    return Transfer(
        what, data.gb, data.provider, data.region, usd, terms.staging(data.place, to, data.gb) / HOUR
    )


def dataset_of(workload: Workload) -> Dataset | None:
    """The data set that a run needs where it works; None if it needs none."""
    return workload.dataset if isinstance(workload, Training) else None


def dataset_usd(problem: Problem, workload: Workload) -> Floats:
    """USD for copying a run's data set to each offer [O]."""
    data = dataset_of(workload)
    if data is None:
        return np.zeros(len(problem.table))

    def usd() -> Floats:
        return _by_place(problem, lambda to: float(problem.terms.transfer_usd(data.place, to, data.gb)))

    return problem.once_for_market(("dataset_usd", data), usd)


def staged_s(problem: Problem, workload: Workload) -> Floats:
    """The earliest second at which a run's data set can be at each offer [O]."""
    data, now_s = dataset_of(workload), problem.seconds(problem.as_of)
    if data is None:
        return np.full(len(problem.table), now_s)

    def ready() -> Floats:
        second = timedelta(seconds=1)
        return now_s + _by_place(problem, lambda to: problem.terms.staging(data.place, to, data.gb) / second)

    return problem.once_for_market(("staged_s", data), ready)


def _by_place(problem: Problem, value: Callable[[Place], float]) -> Floats:
    places, of_each = _places(problem)
    found: Floats = np.array([*(value(place) for place in places), 0.0])[of_each]
    return found


def _places(problem: Problem) -> tuple[tuple[Place, ...], Ints]:
    """Distinct places of the market, and the index of each offer's place [O]."""

    def found() -> tuple[tuple[Place, ...], Ints]:
        numbers: dict[Place, int] = {}
        of_each = [numbers.setdefault(Place.of(offer), len(numbers)) for offer in problem.table.offers]
        return tuple(numbers), np.array(of_each, dtype=np.int64)

    return problem.once_for_market(("places of data",), found)


def weights_place(problem: Problem, run: str, offer: int) -> Place | None:
    """Where a run's finished weights lie; None if no service follows the run or copies are free."""
    place = place_of(problem, offer)
    return place if problem.followers(run) and not problem.terms.is_free(place) else None


def weights_of(problem: Problem, service: Serving, after: Place | None) -> Dataset | None:
    """The finished weights that a service loads, with their place; None if nothing is known of them."""
    if after is None or service.starts_after is None:
        return service.weights
    run = problem.request.workload(service.starts_after)
    return OwnData(finished_weights_gb(run), after.provider, after.region, after.operator)


def handover_s(problem: Problem, run: Training, first: int, second: int) -> float:
    """Seconds to copy a run's checkpoint from one offer to another."""
    source, to = place_of(problem, first), place_of(problem, second)
    return problem.terms.staging(source, to, checkpoint_gb(run)) / timedelta(seconds=1)


def handovers(problem: Problem, run: Training, first: Ints, second: Ints) -> tuple[Floats, Floats]:
    """Seconds and USD to copy a checkpoint between each of M pairs of offers."""
    places, of_each = _places(problem)
    sellers, outward, inward = problem.once_for_market(("copies",), lambda: _copy_prices(problem, places))
    gb, a, b = checkpoint_gb(run), of_each[first], of_each[second]
    apart = a != b
    usd = np.round(np.where(sellers[a] == sellers[b], inward[a], outward[a]) * gb, 2) * apart
    seconds = problem.terms.copy_time(gb) / timedelta(seconds=1)
    return apart * seconds, usd


def recourse_copies(problem: Problem, run: Training, first: int, others: Ints) -> tuple[Floats, Floats]:
    """Seconds and USD to copy a run's checkpoint and its data set from one offer to each of E others."""
    _, of_each = _places(problem)
    seconds, usd = handovers(problem, run, np.full(len(others), first, dtype=np.int64), others)
    if dataset_of(run) is None:
        return seconds, usd
    apart = of_each[others] != of_each[first]
    staged = staged_s(problem, run)[others] - problem.seconds(problem.as_of)
    return np.maximum(seconds, apart * staged), usd + apart * dataset_usd(problem, run)[others]


def _copy_prices(problem: Problem, places: Sequence[Place]) -> tuple[Ints, Floats, Floats]:
    """For each place: an index of (provider, operator), the USD per GB out of the provider, and between its
    regions.
    """
    numbers: dict[tuple[str, str], int] = {}
    terms = problem.terms
    return (
        np.array(
            [numbers.setdefault((p.provider, p.operator), len(numbers)) for p in places], dtype=np.int64
        ),
        np.array([float(terms.outward_usd_per_gb(place.provider)) for place in places]),
        np.array([float(terms.inward_usd_per_gb(place.provider)) for place in places]),
    )


def where_data_lies(problem: Problem, data: Dataset | None) -> Bools | None:
    """Offers [O] at which the data lies or to which it is copied free of charge; None if every copy is
    free.
    """
    if data is None or problem.terms.is_free(data.place):
        return None
    free: Bools = (
        _by_place(problem, lambda to: float(problem.terms.transfer_usd(data.place, to, data.gb))) == 0
    )
    return free


def transfers_of(problem: Problem, column: Column) -> tuple[tuple[Transfer, ...], ...]:
    """The copies that each piece of a column needs; each place receives the data once."""
    workload = problem.request.workload(column.workload)
    if isinstance(workload, Serving):
        data, what = weights_of(problem, workload, column.after_place), TransferKind.WEIGHTS
    else:
        data, what = dataset_of(workload), TransferKind.DATASET
    seen: set[Place] = set()
    copies = [list(_to(problem, what, data, piece, seen)) for piece in column.pieces]
    if isinstance(workload, Training):
        for made, (before, after) in zip(copies[1:], pairwise(column.pieces), strict=True):
            made.extend(_checkpoint(problem, workload, before.offer, after.offer))
    return tuple(tuple(made) for made in copies)


def _checkpoint(problem: Problem, run: Training, first: int, second: int) -> Iterator[Transfer]:
    """The copy of a run's checkpoint to its next part."""
    source = place_of(problem, first)
    data = OwnData(checkpoint_gb(run), source.provider, source.region, source.operator)
    found = transfer_of(problem.terms, TransferKind.CHECKPOINT, data, place_of(problem, second))
    if found is not None:
        yield found


def _to(
    problem: Problem, what: TransferKind, data: Dataset | None, piece: Piece, seen: set[Place]
) -> Iterator[Transfer]:
    to = place_of(problem, piece.offer)
    if data is None or to in seen:
        return
    seen.add(to)
    found = transfer_of(problem.terms, what, data, to)
    if found is not None:
        yield found


def with_transfers(problem: Problem, column: Column) -> Column:
    """Sets the column's cost to the sum of its pieces and its transfers."""
    cents = sum(in_cents(one.usd) for each in transfers_of(problem, column) for one in each)
    held = sum(piece.cost_cents for piece in column.pieces)
    if (held + cents, cents) == (column.cost_cents, column.transfer_cents):
        return column
    return replace(column, cost_cents=held + cents, transfer_cents=cents)


def linked(problem: Problem, columns: Sequence[Column], runs: Iterable[Column]) -> list[Column]:
    """Gives each service column one variant for each place where its run's weights may lie at that end.

    ``runs``: known columns of all runs. Columns of services that follow no run are unchanged.
    """
    places: defaultdict[tuple[str, float], set[Place | None]] = defaultdict(set)
    for run in runs:
        places[run.workload, run.end_s].add(run.place)
    found: dict[Column, None] = {}
    for column in columns:
        service = problem.request.workload(column.workload)
        after = service.starts_after if isinstance(service, Serving) else None
        if after is None or column.after_s is None:
            found[column] = None
            continue
        for place in sorted(places[after, column.after_s], key=_order):
            found[placed_after(problem, column, place)] = None
    return list(found)


def placed_after(problem: Problem, column: Column, place: Place | None) -> Column:
    """A service's column for weights that lie at ``place`` (None: copies are free)."""
    if column.after_place == place:
        return column
    return with_transfers(problem, replace(column, after_place=place))


def _order(place: Place | None) -> Place:
    return Place("", "") if place is None else place

"""Data on its way to where work is placed: what it costs, and when it is there.

A run's data set is copied once to each place that the run works at, its checkpoint between the places of two
parts; finished weights once to each place at
which replicas stand. The provider that they leave bills it. A run begins on an offer no sooner than its data
can have been copied there, from the time of the plan on; the load of weights is in a replica's cold start.
O offers.
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
from broker.domain.planning.workload import Dataset, Serving, Training, Workload
from optimizer.placement.problem.columns import Column, Piece, in_cents
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem


def place_of(problem: Problem, offer: int) -> Place:
    """Where an offer is."""
    return Place.of(problem.table.offers[offer])


def transfer_of(terms: MovingTerms, what: TransferKind, data: Dataset, to: Place) -> Transfer | None:
    """The copy of ``data`` to a place; None where it lies already."""
    if data.place.is_at(to):
        return None
    usd = terms.transfer_usd(data.place, to, data.gb)
    return Transfer(
        what, data.gb, data.provider, data.region, usd, terms.staging(data.place, to, data.gb) / HOUR
    )


def dataset_of(workload: Workload) -> Dataset | None:
    """The data that a run must have where it works."""
    return workload.dataset if isinstance(workload, Training) else None


def dataset_usd(problem: Problem, workload: Workload) -> Floats:
    """What copying a run's data set to each offer [O] costs."""
    data = dataset_of(workload)
    if data is None:
        return np.zeros(len(problem.table))

    def usd() -> Floats:
        return _by_place(problem, lambda to: float(problem.terms.transfer_usd(data.place, to, data.gb)))

    return problem.once_for_market(("dataset_usd", data), usd)


def staged_s(problem: Problem, workload: Workload) -> Floats:
    """Seconds from the origin at which a run's data can be at each offer [O]."""
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
    """Distinct places of the market, and which of them each offer [O] is at."""

    def found() -> tuple[tuple[Place, ...], Ints]:
        numbers: dict[Place, int] = {}
        of_each = [numbers.setdefault(Place.of(offer), len(numbers)) for offer in problem.table.offers]
        return tuple(numbers), np.array(of_each, dtype=np.int64)

    return problem.once_for_market(("places of data",), found)


def weights_place(problem: Problem, run: str, offer: int) -> Place | None:
    """Where a run's finished weights lie, if services wait for them and copies cost anything."""
    place = place_of(problem, offer)
    return place if problem.followers(run) and not problem.terms.is_free(place) else None


def weights_of(problem: Problem, service: Serving, after: Place | None) -> Dataset | None:
    """The finished weights that a service needs, and where they lie; None: nothing is known of them."""
    if after is None or service.starts_after is None:
        return service.weights
    run = problem.request.workload(service.starts_after)
    return Dataset(finished_weights_gb(run.model), after.provider, after.region, after.operator)


def handover_s(problem: Problem, run: Training, first: int, second: int) -> float:
    """Seconds until a run's checkpoint is copied from one offer to another."""
    source, to = place_of(problem, first), place_of(problem, second)
    return problem.terms.staging(source, to, checkpoint_gb(run.model)) / timedelta(seconds=1)


def handovers(problem: Problem, run: Training, first: Ints, second: Ints) -> tuple[Floats, Floats]:
    """Seconds and USD of the copies of a checkpoint between pairs of offers [M]."""
    places, of_each = _places(problem)
    sellers, outward, inward = problem.once_for_market(("copies",), lambda: _copy_prices(problem, places))
    gb, a, b = checkpoint_gb(run.model), of_each[first], of_each[second]
    apart = a != b
    usd = np.round(np.where(sellers[a] == sellers[b], inward[a], outward[a]) * gb, 2) * apart
    seconds = problem.terms.copy_time(gb) / timedelta(seconds=1)
    return apart * seconds, usd


def _copy_prices(problem: Problem, places: Sequence[Place]) -> tuple[Ints, Floats, Floats]:
    """Of each place the number of its provider and operator, and USD per GB out of the provider and between
    its regions."""
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
    """Offers [O] to which data need not be copied, or free of charge; None: nothing costs anything."""
    if data is None or problem.terms.is_free(data.place):
        return None
    free: Bools = (
        _by_place(problem, lambda to: float(problem.terms.transfer_usd(data.place, to, data.gb))) == 0
    )
    return free


def transfers_of(problem: Problem, column: Column) -> tuple[tuple[Transfer, ...], ...]:
    """What is copied for each piece of a column: once for each place."""
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
    """What a run goes on from in its next part."""
    source = place_of(problem, first)
    data = Dataset(checkpoint_gb(run.model), source.provider, source.region, source.operator)
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
    """The column with what the data costs that it needs; of its pieces and transfers its cost is the sum."""
    cents = sum(in_cents(one.usd) for each in transfers_of(problem, column) for one in each)
    held = sum(piece.cost_cents for piece in column.pieces)
    if (held + cents, cents) == (column.cost_cents, column.transfer_cents):
        return column
    return replace(column, cost_cents=held + cents, transfer_cents=cents)


def linked(problem: Problem, columns: Sequence[Column], runs: Iterable[Column]) -> list[Column]:
    """Columns of services with the weights of the run that each follows, one for each place of its end.

    ``runs``: known columns of all runs. Columns that wait for nothing stay as they are.
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
    """A service's column for a run whose weights lie at ``place`` (None: copies of them are free)."""
    if column.after_place == place:
        return column
    return with_transfers(problem, replace(column, after_place=place))


def _order(place: Place | None) -> Place:
    return Place("", "") if place is None else place

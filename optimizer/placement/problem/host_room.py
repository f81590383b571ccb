"""The gate of host memory and disk: kinds of node whose host has too little for a workload, and the size of
an offer that a workload uses where the buyer chooses.

W workloads, K kinds of node, N node counts, C serving configurations, P number formats, O rows of offers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from broker.domain.market.sku import Sku
from broker.domain.planning.workload import Batch, Serving, Training, Workload
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.host_needs import HostNeeds, serving_needs, training_needs
from optimizer.performance.serving.estimate import ServingConfig
from optimizer.placement.problem.host_sizes import NODE_COUNTS
from optimizer.placement.problem.problem import Bools, Floats, Ints, OfferTable, Problem


def runs_without_room(runs: Sequence[Training], skus: Sequence[Sku], counts: Sequence[int]) -> Bools:
    """Node counts [W, K, N] at which a node would need more host memory or disk than it has."""
    found = np.zeros((len(runs), len(skus), len(counts)), dtype=np.bool_)
    if not found.size:
        return found
    sizes, size_of = _sizes(skus)
    for w, run in enumerate(runs):
        asked = [[training_needs(run, n, g, load_calibration()) for n in counts] for g in sizes]
        found[w] = _short(asked, skus, size_of)
    return found


def services_without_room(
    workloads: Sequence[Serving | Batch], skus: Sequence[Sku], configs: Sequence[ServingConfig]
) -> Bools:
    """Configurations [W, K, C] that need more than the node has; one copy of the weights serves all its
    GPUs.
    """
    found = np.zeros((len(workloads), len(skus), len(configs)), dtype=np.bool_)
    if not found.size:
        return found
    precisions = list(dict.fromkeys(config.precision for config in configs))
    of_config = np.array([precisions.index(config.precision) for config in configs], dtype=np.intp)
    sizes, size_of = _sizes(skus)
    for w, one in enumerate(workloads):
        asked = [[serving_needs(one.model, p, g, load_calibration()) for p in precisions] for g in sizes]
        found[w] = _short(asked, skus, size_of)[:, of_config]
    return found


def _sizes(skus: Sequence[Sku]) -> tuple[list[int], Ints]:
    """The distinct numbers of GPUs per node, and the index of each kind's number [K]."""
    sizes = sorted({sku.gpus_per_node for sku in skus})
    return sizes, np.array([sizes.index(sku.gpus_per_node) for sku in skus], dtype=np.int64)


def _short(asked: Sequence[Sequence[HostNeeds]], skus: Sequence[Sku], size_of: Ints) -> Bools:
    """Whether each kind [K] has too little for the needs [sizes, columns] of its number of GPUs."""
    disk = np.array([[needs.disk_gb for needs in row] for row in asked])[size_of]
    memory = np.array([[needs.memory_gb for needs in row] for row in asked])[size_of]
    short: Bools = (_stated([s.disk_gb for s in skus]) < disk) | (
        _stated([s.memory_gb for s in skus]) < memory
    )
    return short


def _stated(amounts: Sequence[float | None]) -> Floats:
    """Amounts [K, 1]; an amount that nobody states is taken to be enough."""
    return np.array([[math.inf if amount is None else amount] for amount in amounts], dtype=np.float64)


def needs_key(workload: Workload) -> tuple[object, ...]:
    """What the needs of a workload depend on."""
    return (workload.model, None if isinstance(workload, Training) else workload.precisions)


def rows_for(problem: Problem, workload: Workload) -> Bools:
    """The rows [O] that a workload uses: of each offer, the cheapest that suffices for each of its needs."""
    table = problem.table
    if not table.has_sizes:
        return np.ones(len(table), dtype=np.bool_)
    key = ("rows of sizes", *needs_key(workload))
    return problem.once_for_market(key, lambda: _rows_for(table, workload))


def _rows_for(table: OfferTable, workload: Workload) -> Bools:
    family, rows = table.stock_of, np.arange(len(table))
    single = np.bincount(family, minlength=len(table))[family] == 1
    disk = _stated([offer.sku.disk_gb for offer in table.offers])[:, 0]
    memory = _stated([offer.sku.memory_gb for offer in table.offers])[:, 0]
    wanted = single.copy()
    served = single.copy()
    for needs_disk, needs_memory, able in _needs_by_row(table, workload):
        enough = able & ~single & (disk >= needs_disk) & (memory >= needs_memory)
        order = rows[enough][np.argsort(table.price_usd[enough], kind="stable")]
        _, first = np.unique(family[order], return_index=True)
        wanted[order[first]] = True
        served[family[order[first]]] = True
    found: Bools = wanted | ((family == rows) & ~served)
    return found


def _needs_by_row(table: OfferTable, workload: Workload) -> Iterator[tuple[Floats, Floats, Bools]]:
    """Disk and memory [O] that a node needs, and where that is possible, for each format or node count."""
    calibration, sizes = load_calibration(), np.unique(table.gpus_per_node)
    at = np.searchsorted(sizes, table.gpus_per_node)
    cases: list[tuple[list[HostNeeds], Bools]]
    everywhere = np.ones(len(table), dtype=np.bool_)
    if isinstance(workload, Serving | Batch):
        cases = [
            ([serving_needs(workload.model, p, int(g), calibration) for g in sizes], everywhere)
            for p in workload.precisions
        ]
    else:
        most = int(table.joined_nodes.max(initial=1))
        cases = [
            ([training_needs(workload, n, int(g), calibration) for g in sizes], table.joined_nodes >= n)
            for n in NODE_COUNTS
            if n <= most
        ]
    for each, able in cases:
        yield np.array([n.disk_gb for n in each])[at], np.array([n.memory_gb for n in each])[at], able

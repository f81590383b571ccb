"""Rows of collective benchmarks (such as nccl-tests) compared with the functions that training uses.

C rows. A row gives the place (GPU, ranks, nodes, link and fabric), the operation, the bytes of the whole
buffer, and either the time or the bus bandwidth: bytes × 2(n−1)/n over the time for an all-reduce, bytes ×
(n−1)/n over the time otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.market.sku import Fabric, FabricKind, IntraNode, Sku
from broker.domain.workloads.model_shape import GpuSpec
from optimizer.calibration.tables.cells import Unreadable, needed, number
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.hardware.collectives import all_reduce_s, all_to_all_s, reduce_scatter_s
from optimizer.performance.hardware.sku_arrays import build_hardware, implied_link

ALL_REDUCE, ALL_TO_ALL = "all_reduce", "all_to_all"
LARGE_BYTES = 16 * 2**20
SMALL_WEIGHT = 0.2
FABRIC_WORDS = {
    "efa": FabricKind.EFA,
    "roce": FabricKind.ROCE,
    "ib": FabricKind.INFINIBAND,
    "infiniband": FabricKind.INFINIBAND,
    "ethernet": FabricKind.ETHERNET,
    "omnipath": FabricKind.ETHERNET,
}
RINGS = ("ring", "tree")
CHARGES_CALLS, CALL_S = ("stas00/ml-engineering", "vinjn/"), 25e-6
"""Tables whose script charged the host's time to every call, 20 to 30 us in PyTorch: 32 KB on 8 H200 take
18 us without it, as in nccl-tests, and 40 us with it (network/benchmarks/README of the first)."""


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One measured collective: ``size`` bytes over ``ranks`` in ``seconds`` as measured, of which ``call_s``
    is the overhead of the benchmark's own call.
    """

    source: str
    system: str
    operation: str
    sku: Sku
    ranks: float
    size: float
    seconds: float
    in_switch: bool
    call_s: float

    @property
    def large(self) -> bool:
        """Whether the bandwidth, not the latency, determines the time."""
        return self.size >= LARGE_BYTES

    @property
    def weight(self) -> float:
        """Less for small messages, because one constant cannot follow the latencies of all generations."""
        return 1.0 if self.large else SMALL_WEIGHT


def read_collectives(
    rows: Sequence[Mapping[str, str]], gpus: Mapping[str, GpuSpec], calibration: Calibration
) -> list[CollectiveRow]:
    """The rows that are complete; for example, a baseline without a number of nodes is left out."""
    found = []
    for row in rows:
        try:
            found.append(_read(row, gpus, calibration))
        except Unreadable:
            continue
    return [row for row in found if not _first_calls(row, found)]


def _first_calls(row: CollectiveRow, others: Sequence[CollectiveRow]) -> bool:
    """Whether a larger message of the same sweep took less than half as long, as connections were still being
    set up."""

    def sweep(one: CollectiveRow) -> tuple[object, ...]:
        return one.source, one.system, one.operation, one.sku, one.ranks, one.in_switch

    return any(o.size > row.size and o.seconds < row.seconds / 2.0 and sweep(o) == sweep(row) for o in others)


def _read(row: Mapping[str, str], gpus: Mapping[str, GpuSpec], calibration: Calibration) -> CollectiveRow:
    spec = gpus.get(row.get("gpu", ""))
    if spec is None:
        raise Unreadable(f"unknown GPU {row.get('gpu', '')!r}")
    ranks, nodes, size = needed(row, "gpus"), needed(row, "nodes"), needed(row, "bytes")
    operation = row.get("collective", "")
    micros = number(row, "time_us")
    moved = (2.0 if operation == ALL_REDUCE else 1.0) * (ranks - 1.0) / ranks * size
    seconds = micros / 1e6 if micros else moved / (needed(row, "busbw_gbytes_s") * 1e9)
    algorithm = row.get("algo", "").lower()
    return CollectiveRow(
        source=row.get("source", ""),
        system=row.get("system", ""),
        operation=operation,
        sku=_sku(row, spec, round(ranks / nodes), int(nodes), calibration),
        ranks=ranks,
        size=size,
        seconds=seconds,
        in_switch=operation == ALL_REDUCE and not algorithm.startswith(RINGS),
        call_s=_call_s(row.get("source", "")),
    )


def _call_s(source: str) -> float:
    """Host time that a table's benchmark adds to every call; 0 for nccl-tests."""
    return CALL_S if source.startswith(CHARGES_CALLS) else 0.0


def _sku(row: Mapping[str, str], spec: GpuSpec, per_node: int, nodes: int, calibration: Calibration) -> Sku:
    """The node that a row describes. A part of a node's GPUs still has all of the node's links."""
    kind = implied_link(spec, calibration.network.unknown_pcie_bytes_per_s).kind
    link = number(row, "intra_gbytes_s_per_gpu")
    whole = max(per_node, 8) if nodes == 1 else per_node
    rate = number(row, "inter_gbps_per_gpu")
    words = row.get("fabric", "").lower()
    fabric = next((kind for word, kind in FABRIC_WORDS.items() if word in words), FabricKind.INFINIBAND)
    measured = number(row, "inter_measured_gbps_per_gpu")
    return Sku(
        name="",
        gpu=spec.gpu,
        gpus_per_node=whole,
        gpu_memory_gb=spec.memory_gb,
        intra_node=IntraNode(kind, 2.0 * link) if link else None,
        fabric=Fabric(
            fabric,
            (rate or 400.0) * whole,
            nodes,
            measured_gbit_s_per_node=measured * whole if measured else None,
        )
        if nodes > 1
        else None,
    )


def predict_collectives(
    rows: Sequence[CollectiveRow], calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> Array:
    """Predicted seconds [C] of each row, by the functions of ``network``."""
    kinds = list(dict.fromkeys(row.sku for row in rows))
    place = {kind: index for index, kind in enumerate(kinds)}
    hw = build_hardware(kinds, gpus, calibration)
    out = np.full(len(rows), np.nan)
    groups: dict[tuple[str, bool], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row.operation, row.in_switch), []).append(index)
    for (operation, in_switch), members in groups.items():
        size, ranks = as_array([rows[i].size for i in members]), as_array([rows[i].ranks for i in members])
        mine = hw.take(np.asarray([place[rows[i].sku] for i in members]))
        one, network = np.ones_like(ranks), calibration.network
        if operation == ALL_REDUCE:
            out[members] = all_reduce_s(size, ranks, one, mine, network, in_switch)
        elif operation == ALL_TO_ALL:
            out[members] = all_to_all_s(size, ranks, mine, network)
        else:
            out[members] = reduce_scatter_s(size, ranks, one, mine, network)
    return out + as_array([row.call_s for row in rows])

from __future__ import annotations

import numpy as np

from broker.catalogue import load_gpus
from broker.domain.sku import Fabric, FabricKind
from optimizer.performance.arrays import as_array
from optimizer.performance.calibration import load_calibration
from optimizer.performance.hardware import Hardware, build_hardware
from optimizer.performance.network import all_reduce_s, all_to_all_s, reduce_scatter_s
from tests.performance.builders import rows_of, sku

CALIBRATION = load_calibration()
ONE = as_array(1.0)


def hardware(gpu: str, gbit_s_per_gpu: float = 400.0, nodes: int = 512) -> Hardware:
    fabric = Fabric(FabricKind.EFA, gbit_s_per_gpu * 8, nodes)
    return build_hardware([sku(gpu, fabric=fabric)], load_gpus(), CALIBRATION)


def test_one_rank_moves_nothing() -> None:
    hw = hardware("H100-SXM-80GB")
    for collective in (all_reduce_s, reduce_scatter_s):
        assert collective(as_array(1e9), ONE, ONE, hw, CALIBRATION.network)[0] == 0.0
    assert all_to_all_s(as_array(1e9), ONE, hw, CALIBRATION.network)[0] == 0.0


def bus_rate(row: dict[str, str]) -> float:
    """Predicted bus bandwidth of a measured collective, bytes/s."""
    hw = hardware(row["gpu"], float(row["inter_gbps_per_gpu"] or 400))
    ranks, size = float(row["gpus"]), float(row["bytes"])
    reduce = row["collective"] == "all_reduce"
    time = all_reduce_s if reduce else reduce_scatter_s
    seconds = time(as_array(size), as_array(ranks), ONE, hw, CALIBRATION.network)[0]
    return float((2 if reduce else 1) * (ranks - 1) / ranks * size / seconds)


def test_measured_collectives() -> None:
    rows = rows_of("collectives.csv")
    ratios = np.asarray([bus_rate(row) / (float(row["busbw_gbytes_s"]) * 1e9) for row in rows])
    large = np.asarray([float(row["bytes"]) >= 1e9 for row in rows])
    assert np.median(np.abs(ratios[large] - 1)) < 0.25
    assert np.median(np.abs(ratios - 1)) < 0.40


def test_a_pair_on_a_mesh_uses_one_of_its_links() -> None:
    hw = hardware("MI300X-192GB")
    size = as_array(1e9)
    pair = reduce_scatter_s(size, as_array(2.0), ONE, hw, CALIBRATION.network)[0]
    eight = reduce_scatter_s(size, as_array(8.0), ONE, hw, CALIBRATION.network)[0]
    assert pair > 2 * eight
    switched = hardware("H100-SXM-80GB")
    assert (
        reduce_scatter_s(size, as_array(2.0), ONE, switched, CALIBRATION.network)[0]
        < reduce_scatter_s(size, as_array(8.0), ONE, switched, CALIBRATION.network)[0]
    )


def test_neighbours_closer_than_the_group_push_it_out_of_the_node() -> None:
    hw = hardware("H100-SXM-80GB")
    inside = reduce_scatter_s(as_array(1e9), as_array(8.0), ONE, hw, CALIBRATION.network)[0]
    spread = reduce_scatter_s(as_array(1e9), as_array(8.0), as_array(8.0), hw, CALIBRATION.network)[0]
    assert spread > 3 * inside

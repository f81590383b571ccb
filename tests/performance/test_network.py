from __future__ import annotations

import numpy as np

from broker.catalogue import load_gpus
from broker.domain.market.sku import Fabric, FabricKind
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.hardware.collectives import (
    all_reduce_s,
    all_to_all_s,
    dispatch_once_s,
    reduce_scatter_s,
)
from optimizer.performance.hardware.sku_arrays import Hardware, build_hardware
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
    assert dispatch_once_s(as_array(1e9), as_array(8.0), ONE, hw)[0] == 0.0


def test_a_token_crosses_once_a_node_however_many_of_its_experts_live_there() -> None:
    hw, ranks, one_copy = hardware("H100-SXM-80GB"), as_array(32.0), 1e9
    experts = as_array([1.0, 2.0, 8.0, 64.0])
    seconds = dispatch_once_s(one_copy * experts, experts, ranks, hw)
    card_s = one_copy / hw.fabric_bytes_per_s[0]
    assert np.isclose(seconds[0], 3 / 4 * card_s, rtol=0.02)
    assert np.all(np.diff(seconds) > 0)
    assert seconds[2] < 3.0 * card_s < 8 * 3 / 4 * card_s
    copies_in_node_s = 7 / 8 * one_copy * 64 / hw.link_bytes_per_s[0]
    assert np.isclose(seconds[3], max(3.0 * card_s, copies_in_node_s), rtol=0.02)


def test_dispatch_inside_a_node_runs_at_the_rate_of_its_links() -> None:
    hw, size = hardware("H100-SXM-80GB"), as_array(1e9)
    seconds = dispatch_once_s(size, as_array(8.0), as_array(8.0), hw)[0]
    assert np.isclose(seconds, 7 / 8 * 1e9 / hw.link_bytes_per_s[0], rtol=0.02)
    assert seconds < all_to_all_s(size, as_array(8.0), hw, CALIBRATION.network)[0]


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

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from broker.catalogue import load_gpus
from broker.domain.market.sku import Fabric, FabricKind
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.hardware.collectives import (
    all_reduce_s,
    all_to_all_s,
    dispatch_once_s,
    local_ranks,
    mesh_factor,
    neighbour_s,
    ramped,
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


GIGABYTE = as_array([1e9])
LINK_START, FABRIC_START, HOP = 1e-5, 2e-5, 3e-6


def plain(**changes: float) -> Hardware:
    """Nodes of eight GPUs: 100 GB/s on the link, 50 GB/s on the fabric, and full rates at once."""
    rates = {
        "link_domain": 8.0,
        "link_bytes_per_s": 100e9,
        "link_raw_bytes_per_s": 200e9,
        "switch_share": 0.8,
        "fabric_bytes_per_s": 50e9,
        "link_start_s": LINK_START,
        "fabric_start_s": FABRIC_START,
        "fabric_hop_s": HOP,
        "link_ramp_s": 1e-15,
        "fabric_ramp_s": 1e-15,
        "mesh": 0.0,
    }
    arrays: dict[str, Any] = {name: as_array([value]) for name, value in (rates | changes).items()}
    return replace(hardware("H100-SXM-80GB"), **arrays)


@pytest.mark.parametrize(
    ("ranks", "inside_s", "outside_s", "latency_s"),
    [
        (8.0, 7 / 8 * 0.01, 0.0, 0.0),
        (16.0, 7 / 8 * 0.01, 1 / 2 * 0.02 / 8, FABRIC_START),
        (32.0, 7 / 8 * 0.01, 3 / 4 * 0.02 / 8, FABRIC_START + 2 * HOP),
    ],
)
def test_a_ring_crosses_both_tiers(ranks: float, inside_s: float, outside_s: float, latency_s: float) -> None:
    hw, network = plain(), CALIBRATION.network
    share = network.overlap_of_tiers
    once = reduce_scatter_s(GIGABYTE, as_array([ranks]), ONE, hw, network)[0]
    assert once == pytest.approx(inside_s + share * outside_s + latency_s + LINK_START)
    twice = all_reduce_s(GIGABYTE, as_array([ranks]), ONE, hw, network)[0]
    assert twice == pytest.approx(2 * (inside_s + share * outside_s) + latency_s + LINK_START)


def test_many_nodes_reduce_by_a_tree() -> None:
    """1,024 nodes: ten levels, each a start of the fabric; a ring would take 1,022 hops."""
    hw, network = plain(), CALIBRATION.network
    found = all_reduce_s(GIGABYTE, as_array([8192.0]), ONE, hw, network)[0]
    outside = 2 * 1023 / 1024 * 0.02 / 8
    assert found == pytest.approx(
        2 * 7 / 8 * 0.01 + network.overlap_of_tiers * outside + 10 * FABRIC_START + LINK_START
    )


@pytest.mark.parametrize(
    ("ranks", "share", "seconds"), [(1.0, 0.8, 0.0), (8.0, 0.8, 9 / 8 / 160), (2.0, 0.6, 0.01)]
)
def test_a_switch_adds_up_where_that_ends_first(ranks: float, share: float, seconds: float) -> None:
    """A rank sends (1 + 1/g) of its bytes at the switch's rate, or 2(g − 1)/g of them at the link's."""
    hw = plain(link_start_s=0.0, switch_share=share)
    found = all_reduce_s(GIGABYTE, as_array([ranks]), ONE, hw, CALIBRATION.network, in_switch=True)[0]
    assert found == pytest.approx(seconds)


def test_short_messages_go_at_half_rate() -> None:
    assert ramped(as_array([0.010]), as_array([0.005]))[0] == pytest.approx(0.010 + 0.010 / 3)
    assert ramped(as_array([1e-9]), as_array([1.0]))[0] == pytest.approx(2e-9)


@pytest.mark.parametrize(("local", "factor"), [(1.0, 7.0), (2.0, 7.0), (3.0, 3.5), (8.0, 1.0)])
def test_part_of_a_mesh_has_part_of_its_links(local: float, factor: float) -> None:
    """Seven links a GPU of eight, one to each other GPU."""
    assert mesh_factor(as_array([local]), plain(mesh=1.0))[0] == pytest.approx(factor)
    assert mesh_factor(as_array([local]), plain())[0] == 1.0


def test_neighbours_leave_the_node_where_the_stride_does() -> None:
    hw = plain()
    assert neighbour_s(GIGABYTE, as_array([7.0]), hw)[0] == pytest.approx(0.01 + LINK_START)
    assert neighbour_s(GIGABYTE, as_array([8.0]), hw)[0] == pytest.approx(0.02 + FABRIC_START)


def test_closer_neighbours_take_the_places_of_a_domain() -> None:
    inner = as_array([1.0, 2.0, 3.0, 16.0])
    assert local_ranks(as_array([16.0]), inner, plain()).tolist() == [8.0, 4.0, 2.0, 1.0]
    assert local_ranks(as_array([2.0]), inner, plain()).tolist() == [2.0, 2.0, 2.0, 1.0]


def test_an_exchange_sends_its_share_to_each_rank() -> None:
    """Of 16 ranks seven are beside, eight in the other node; of 8 ranks none is elsewhere."""
    hw, network = plain(), CALIBRATION.network
    share, factor = network.all_to_all_share, network.all_to_all_fabric_factor
    near = all_to_all_s(GIGABYTE, as_array([8.0]), hw, network)[0]
    assert near == pytest.approx(7 / 8 * 0.01 / share + LINK_START)
    far = all_to_all_s(GIGABYTE, as_array([16.0]), hw, network)[0]
    assert far == pytest.approx((7 / 16 * 0.01 + 8 / 16 * 0.02 * factor) / share + LINK_START + FABRIC_START)


def test_a_token_is_dispatched_once_to_each_other_node() -> None:
    """Two experts of 16 ranks in two nodes: one other node, reached with 1 − ½²; half of the bytes go."""
    hw = plain()
    found = dispatch_once_s(GIGABYTE, as_array([2.0]), as_array([16.0]), hw)[0]
    assert found == pytest.approx(max(0.02 / 2 * 3 / 4, 7 / 8 * 0.01) + LINK_START + FABRIC_START)
    few = dispatch_once_s(GIGABYTE, as_array([1.0]), as_array([32.0]), hw)[0]
    assert few == pytest.approx(0.02 * 3 * 1 / 4 + LINK_START + FABRIC_START)
    near = dispatch_once_s(GIGABYTE, as_array([2.0]), as_array([8.0]), hw)[0]
    assert near == pytest.approx(7 / 8 * 0.01 + LINK_START)

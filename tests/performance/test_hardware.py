from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.catalogue import load_gpus
from broker.domain.market.sku import IntraNode, LinkKind
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.hardware.sku_arrays import (
    GIB,
    build_hardware,
    implied_link,
    kind_of,
    powered_share,
    usable_memory_bytes,
)
from tests.performance.builders import INFINIBAND, sku

CALIBRATION = load_calibration()


def test_names_and_host_sizes_do_not_make_a_kind() -> None:
    one = sku("L40S", name="a", vcpus=8.0, fabric=replace(INFINIBAND, domain="x"))
    other = sku("L40S", name="b", vcpus=64.0, fabric=replace(INFINIBAND, domain="y"))
    assert kind_of(one) == kind_of(other)
    assert kind_of(one) != kind_of(replace(one, gpus_per_node=4))


def test_rates_are_per_gpu_and_direction() -> None:
    stated = sku("H100-SXM-80GB", intra_node=IntraNode(LinkKind.NVLINK, 900))
    hw = build_hardware([stated, sku("H100-SXM-80GB")], load_gpus(), CALIBRATION)
    assert hw.link_raw_bytes_per_s.tolist() == [450e9, 450e9]
    share = CALIBRATION.network.fabric_share["infiniband"]
    assert hw.fabric_bytes_per_s[0] == pytest.approx(50e9 * share)


def test_cards_without_a_switch_talk_over_pcie() -> None:
    for gpu in ("L40S", "A100-PCIe-80GB", "H100-NVL-94GB", "A40"):
        assert implied_link(load_gpus()[gpu], 16e9).kind is LinkKind.PCIE
    assert implied_link(load_gpus()["MI300X-192GB"], 16e9).kind is LinkKind.XGMI


def test_memory_follows_the_driver_and_not_the_brochure() -> None:
    gpus = load_gpus()
    h100, l4 = gpus["H100-SXM-80GB"], gpus["L4"]
    assert usable_memory_bytes(80, h100, CALIBRATION) / GIB == pytest.approx(79.6, abs=0.1)
    assert usable_memory_bytes(79.6, h100, CALIBRATION) == usable_memory_bytes(80, h100, CALIBRATION)
    assert usable_memory_bytes(40, h100, CALIBRATION) / GIB == pytest.approx(39.8, abs=0.1)
    assert usable_memory_bytes(24, l4, CALIBRATION) / GIB == pytest.approx(22.5, abs=0.2)


def test_every_gpu_of_the_table_becomes_hardware() -> None:
    hw = build_hardware([sku(gpu) for gpu in load_gpus()], load_gpus(), CALIBRATION)
    assert (hw.memory_bytes > 0).all()
    assert (hw.link_bytes_per_s > 0).all()
    for name, gemm in hw.gemm.items():
        assert ((gemm > 0) == (hw.peak[name] > 0)).all()
        assert (gemm <= hw.peak[name]).all()


def test_what_holds_16_bit_products_back_does_so_in_8_bits() -> None:
    """Published products reach 51 % of the peak on MI300X (750 W) and 60 % on MI325X (1,000 W)."""
    hw = build_hardware([sku("MI300X-192GB"), sku("MI325X-256GB")], load_gpus(), CALIBRATION)
    assert hw.peak["fp8"][0] == hw.peak["fp8"][1]
    assert hw.gemm["fp8"][1] / hw.gemm["fp8"][0] == pytest.approx(hw.gemm["bf16"][1] / hw.gemm["bf16"][0])


WATTS = st.floats(20.0, 3000.0)
SHARES = st.floats(0.2, 0.94)


@given(SHARES, WATTS, st.floats(1.0, 4.0), st.floats(20.0, 5000.0))
def test_more_power_never_lowers_a_rate_and_more_units_never_do(
    share: float, watts: float, factor: float, tflops: float
) -> None:
    compute, h100 = CALIBRATION.compute, load_gpus()["H100-SXM-80GB"]
    here = powered_share(share, replace(h100, tdp_w=watts), tflops, compute)
    powered = powered_share(share, replace(h100, tdp_w=watts * factor), tflops, compute)
    wider = powered_share(share, replace(h100, tdp_w=watts), tflops * factor, compute)
    assert 0.0 < here <= powered * (1 + 1e-12) <= compute.units_share * (1 + 1e-12)
    assert here * tflops <= wider * tflops * factor * (1 + 1e-12)


def test_a_share_stands_for_its_own_board_and_where_watts_are_unknown() -> None:
    compute, gpus = CALIBRATION.compute, load_gpus()
    for gpu in ("V100-SXM2-16GB", "L40S", "H100-SXM-80GB", "B200-SXM-180GB", "A100-SXM-80GB"):
        spec = gpus[gpu]
        wide = spec.bf16_tflops or spec.fp16_tflops or 0.0
        assert powered_share(0.7, spec, wide, compute) == pytest.approx(0.7, rel=5e-3)
        assert powered_share(0.7, replace(spec, tdp_w=None), wide, compute) == 0.7


def test_boards_of_little_power_lose_and_cut_down_ones_gain() -> None:
    names = ("L4", "L40S", "RTX-4090", "H100-PCIe-80GB", "H200-SXM-141GB", "H20-141GB", "A100-PCIe-80GB")
    hw = build_hardware([sku(gpu) for gpu in names], load_gpus(), CALIBRATION)
    found = dict(zip(names, (hw.gemm["bf16"] / hw.peak["bf16"]).tolist(), strict=True))
    assert found["L4"] < 0.55 < found["L40S"] < 0.9 < found["RTX-4090"]
    assert found["H100-PCIe-80GB"] < 0.65 < found["H200-SXM-141GB"] < 0.9 < found["H20-141GB"]
    assert found["A100-PCIe-80GB"] == pytest.approx(252.9 / 312)  # measured: stands as it is


def test_cards_of_one_die_reach_what_older_ones_do() -> None:
    hw = build_hardware([sku("RTX-5090"), sku("B200-SXM-180GB")], load_gpus(), CALIBRATION)
    assert hw.product_reach[0] == hw.hbm_reach[0] == 1.0
    assert hw.product_reach[1] < 1.0 > hw.hbm_reach[1]


def test_matrix_rates_that_others_measured_under_a_boards_power() -> None:
    """T4: NVIDIA's developer forum, thread 264462; L20: cuBLAS in CUDA-Learn-Notes. No row of a fit."""
    hw = build_hardware([sku("T4"), sku("L20")], load_gpus(), CALIBRATION)
    t4, l20 = (hw.gemm["fp16"] / 1e12).tolist()
    assert t4 == pytest.approx(24.0, rel=0.1)
    assert 105.0 < l20 < 115.0

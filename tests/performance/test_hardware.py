from __future__ import annotations

from dataclasses import replace

import pytest

from broker.catalogue import load_gpus
from broker.domain.sku import IntraNode, LinkKind
from optimizer.performance.calibration import load_calibration
from optimizer.performance.hardware import GIB, build_hardware, implied_link, kind_of, usable_memory_bytes
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

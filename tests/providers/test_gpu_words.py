"""Words of sellers that name one card, and words that leave one open."""

from __future__ import annotations

import pytest

from broker.catalogue import load_gpus
from providers.gpu_words import UnknownCard, read_card


@pytest.mark.parametrize(
    ("word", "memory_gb", "card"),
    [
        ("A100-80G-SXM4", None, "A100-SXM-80GB"),
        ("a100 sxm4", 40.0, "A100-SXM-40GB"),
        ("H100-80G-PCIe-NVLink", 80.0, "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", None, "H100-NVL-94GB"),
        ("H100_nvl pcie", 94.0, "H100-NVL-94GB"),
        ("H200", None, "H200-SXM-141GB"),
        ("H200 pcie", None, "H200-NVL-141GB"),
        ("B200-SXM", 192.0, "B200-SXM-180GB"),
        ("gh200", None, "GH200-96GB"),
        ("AMD Instinct MI300X OAM", 192.0, "MI300X-192GB"),
        ("A6000", 48.0, "RTX-A6000"),
        ("RTX6000Ada", None, "RTX-6000-Ada"),
        ("Tesla V100-SXM2-32GB", None, "V100-SXM3-32GB"),
        ("Tesla V100-PCIE-16GB", None, "V100-PCIe-16GB"),
        ("NVIDIA L40", 48.0, "L40"),
        ("A30", 24.0, "A30"),
        ("NVIDIA_A16", 16.0, "A16"),
        ("RTX 3090 Ti", 24.0, "RTX-3090-Ti"),
        ("RTX3090Ti", None, "RTX-3090-Ti"),
        ("RTX-A4000", 16.0, "RTX-A4000"),
        ("Quadro RTX A4500", 20.0, "RTX-A4500"),
        ("RTX A5000", 24.0, "RTX-A5000"),
        ("A800 PCIE", 80.0, "A800-PCIe-80GB"),
        ("RTX PRO 6000 WS", 96.0, "RTX-PRO-6000-Workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", None, "RTX-PRO-6000-Workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", None, "RTX-PRO-6000-Max-Q"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, "RTX-PRO-6000-Server"),
    ],
)
def test_one_card_has_many_spellings(word: str, memory_gb: float | None, card: str) -> None:
    assert read_card(word, memory_gb) == card


@pytest.mark.parametrize(
    ("word", "memory_gb", "left_open"),
    [
        ("NVIDIA H100", 80.0, "form"),
        ("A100", 40.0, "form"),
        ("V100", 16.0, "form"),
        ("A100 SXM4", None, "memory size is not stated"),
        ("H100 SXM5", 96.0, "no card has this form"),
        ("H100 SXM5 PCIe", None, "several"),
        ("GH200", 144.0, "no card has this form"),
        ("V100 PCIe", None, "memory size is not stated"),
        ("A800", 80.0, "form"),
        ("RTX PRO 6000", 96.0, "edition"),
        ("NVIDIA RTX PRO 6000 Blackwell", None, "edition"),
        ("RTX 3080 Ti", 12.0, "^$"),
        ("RTX A2000", 12.0, "^$"),
        ("H200x8 MIG", None, "a fraction of a GPU"),
        ("A100 1g.10gb", None, "a fraction of a GPU"),
        ("1/8 NVIDIA RTX PRO 6000", None, "a fraction of a GPU"),
        ("NVIDIA A16 vGPU", None, "a fraction of a GPU"),
        ("H100 SXM5", 20.0, "20 GB a GPU, a whole card has 80"),
        ("L40S", 24.0, "24 GB a GPU, a whole card has 48"),
        ("", None, "^$"),
    ],
)
def test_nothing_is_guessed(word: str, memory_gb: float | None, left_open: str) -> None:
    with pytest.raises(UnknownCard, match=left_open):
        read_card(word, memory_gb)


def test_every_canonical_name_names_itself() -> None:
    assert {name: read_card(name) for name in load_gpus()} == {name: name for name in load_gpus()}

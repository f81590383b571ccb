"""RunPod: the least CUDA version that a host must run, read out of the image's name."""

from __future__ import annotations

import pytest

from providers.registry import SPECS
from providers.runpod.adapter import cuda_of


@pytest.mark.parametrize(
    ("image", "least"),
    [
        (SPECS["runpod"].options["image"], "12.8"),
        ("runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404", "12.8"),
        ("runpod/pytorch:1.0.2-cu130-torch290", "13.0"),
        ("vllm/vllm-openai:v0.11", ""),
        ("docker.io/acucumber:12.8", ""),
    ],
)
def test_an_image_says_which_cuda_it_needs(image: str, least: str) -> None:
    assert cuda_of(image) == least

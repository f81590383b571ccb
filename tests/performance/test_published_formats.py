"""Models are served in the format in which they are published, with weights as large as their files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.estimate import Parallelism
from broker.domain.market.sku import IntraNode, LinkKind, Sku
from broker.domain.planning.workload import Precision, Slo
from broker.domain.workloads.model_shape import MixedWeights
from broker.domain.workloads.traffic import Traffic, TrafficShape
from broker.models.config import model_from_hf_config
from optimizer.performance.arrays import number
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.hardware.sku_arrays import build_hardware
from optimizer.performance.serving.estimate import ServingCore, format_of
from optimizer.performance.serving.served_model import Replica, ServedModel, weight_bytes
from optimizer.performance.shapes import build_shape
from tests.placement.market import serving

CALIBRATION = load_calibration()
CORE = ServingCore(load_gpus(), CALIBRATION)


def published_gb(model: str, precision: str) -> float:
    """Weights, 10⁹ bytes."""
    shape = load_models()[model]
    form = format_of(Precision(precision), CALIBRATION, shape.packed_in(precision))
    hw = build_hardware([Sku("n", "H200-SXM-141GB", 8, 141.0)], load_gpus(), CALIBRATION)
    served = ServedModel(
        build_shape(shape), form, Replica(number(8.0), number(1.0), number(1.0)), hw, CALIBRATION
    )
    return float(sum(weight_bytes(served))) / 1e9


@pytest.mark.parametrize(
    ("model", "precision", "gb"),
    [
        ("Kimi-K2", "int4", 594.0),  # moonshotai/Kimi-K2-Thinking
        ("Kimi-K2.6", "int4", 594.0),
        ("gpt-oss-120b", "fp4", 65.2),  # 60.8 GiB, arXiv 2508.10925 table 1
        ("gpt-oss-20b", "fp4", 13.7),  # 12.8 GiB
        ("DeepSeek-R1", "fp8", 673.0),
        ("Llama-3.1-8B", "bf16", 16.1),
    ],
)
def test_weights_are_as_large_as_the_published_files(model: str, precision: str, gb: float) -> None:
    assert published_gb(model, precision) == pytest.approx(gb, rel=0.01)


def sku(gpu: str, gpus: int) -> Sku:
    link = IntraNode(LinkKind.NVLINK, 900.0) if gpus > 1 else None
    return Sku(f"{gpu}-x{gpus}", gpu, gpus, load_gpus()[gpu].memory_gb, intra_node=link)


def fits(model: str, precision: str, gpu: str, gpus: int) -> bool:
    """Whether it answers 8,000 tokens with 800."""
    traffic = Traffic(8000, 800, TrafficShape.FLAT, 1.0)
    form = Precision(precision)
    asked = serving(model=load_models()[model], precisions=(form,), slo=Slo(90_000, 2000), traffic=traffic)
    layout = Parallelism(tp=gpus)
    return CORE.estimate(asked, sku(gpu, gpus), Precision(precision), layout, 10.0) is not None


@pytest.mark.parametrize(
    ("model", "precision", "gpu", "gpus", "expected"),
    [
        ("Kimi-K2", "int4", "H100-SXM-80GB", 8, False),
        ("Kimi-K2", "int4", "H200-SXM-141GB", 8, True),
        ("gpt-oss-120b", "fp4", "H100-SXM-80GB", 2, True),
        ("gpt-oss-120b", "fp4", "A100-SXM-80GB", 2, True),
        ("gpt-oss-120b", "fp4", "MI300X-192GB", 1, True),
        ("gpt-oss-120b", "fp4", "B200-SXM-180GB", 1, True),
        ("gpt-oss-20b", "fp4", "T4", 1, False),
        ("Llama-3.1-8B", "fp4", "H100-SXM-80GB", 1, False),
        ("Llama-3.1-8B", "int4", "V100-SXM3-32GB", 1, False),
        ("Llama-3.1-8B", "int4", "L4", 1, True),
    ],
)
def test_formats_run_where_kernels_and_memory_are(
    model: str, precision: str, gpu: str, gpus: int, expected: bool
) -> None:
    assert fits(model, precision, gpu, gpus) is expected


def test_every_named_model_says_its_format() -> None:
    for name, shape in load_models().items():
        assert Precision(shape.published_precision), name
        if shape.packed is not None:
            assert shape.is_moe or shape.packed.wide_params
            assert Precision(shape.packed.precision)
            assert Precision(shape.packed.rest)


CONFIG: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
}
INT4 = {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}}


@pytest.mark.parametrize(
    ("said", "precision", "packed"),
    [
        ({"torch_dtype": "bfloat16"}, "bf16", None),
        ({"dtype": "float16"}, "fp16", None),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8", None),
        (
            {
                "quantization_config": {
                    "quant_method": "mxfp4",
                    "modules_to_not_convert": ["model.layers.*.self_attn"],
                }
            },
            "fp4",
            MixedWeights("fp4", 0.53125, "bf16"),
        ),
        (
            {
                "quantization_config": INT4
                | {"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*"]}
            },
            "int4",
            MixedWeights("int4", 0.5625, "bf16"),
        ),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}, "int4", None),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "fp4", None),
    ],
)
def test_a_config_file_says_the_format(
    said: dict[str, Any], precision: str, packed: MixedWeights | None
) -> None:
    shape = model_from_hf_config(json.loads(json.dumps(CONFIG | said)), "m")
    assert (shape.published_precision, shape.packed) == (precision, packed)


def test_yarn_extends_the_context_of_a_config_file() -> None:
    scaling = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}
    assert model_from_hf_config(CONFIG, "m").context == 4096
    assert model_from_hf_config(CONFIG | scaling, "m").context == 16_384

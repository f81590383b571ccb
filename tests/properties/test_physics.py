"""What physics says whatever the constants: more of anything never hurts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.estimate import Parallelism
from broker.domain.market.sku import Fabric, FabricKind, IntraNode, LinkKind
from broker.domain.planning.workload import Precision
from broker.domain.workloads.model_shape import GpuSpec
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.performance.hardware.sku_arrays import build_hardware
from optimizer.performance.serving.served_model import Format, Replica, ServedModel, cache_tokens
from optimizer.performance.serving.steps import decode_step
from optimizer.performance.shapes import build_shape
from optimizer.performance.training.activations import activation_bytes
from optimizer.performance.training.memory import state_bytes
from optimizer.performance.training.scenario import Run, Scenario
from optimizer.performance.training.step import step
from tests.depth import examples
from tests.performance.builders import INFINIBAND, estimator, layouts_of, serving, sku, training

FEW = settings(max_examples=examples(10), derandomize=True, deadline=None)
GPUS = st.sampled_from(["H100-SXM-80GB", "A100-SXM-80GB", "L40S", "MI300X-192GB", "B200-SXM-180GB"])
MODELS = st.sampled_from(["Llama-3.1-8B", "Llama-3.1-70B", "Mixtral-8x7B", "Qwen3-32B"])
SLACK = 1 + 1e-9


def with_gpu(gpu: str, **changes: object) -> Estimator:
    spec: GpuSpec = replace(load_gpus()[gpu], **changes)  # type: ignore[arg-type]
    return Estimator({**load_gpus(), gpu: spec}, load_calibration())


def scenario(gpu: str, model: str, layout: Parallelism, tokens: int) -> Scenario:
    calibration = load_calibration()
    hw = build_hardware([sku(gpu, 1, fabric=None)], load_gpus(), calibration)
    run = Run(as_array(tokens), as_array(4), "bf16")
    shapes = build_shape(load_models()[model])
    return Scenario(shapes, run, layouts_of(layout), hw, calibration.software["tuned"], calibration)


@FEW
@given(gpu=GPUS, model=MODELS, factor=st.floats(1.0, 4.0))
def test_more_memory_bandwidth_never_lowers_the_rate(gpu: str, model: str, factor: float) -> None:
    work = [serving(model, precisions=(Precision.BF16,))]
    base = estimator().serving(work, [sku(gpu)])
    more = with_gpu(gpu, hbm_gbyte_s=load_gpus()[gpu].hbm_gbyte_s * factor).serving(work, [sku(gpu)])
    assert (more.requests_per_s * SLACK >= base.requests_per_s).all()


@FEW
@given(
    gpu=GPUS, model=MODELS, factor=st.floats(1.0, 4.0), batch=st.floats(1, 500), context=st.floats(1, 30000)
)
def test_more_memory_bandwidth_never_slows_a_decode_step(
    gpu: str, model: str, factor: float, batch: float, context: float
) -> None:
    times = []
    for gbyte_s in (load_gpus()[gpu].hbm_gbyte_s, load_gpus()[gpu].hbm_gbyte_s * factor):
        spec = replace(load_gpus()[gpu], hbm_gbyte_s=gbyte_s)
        hw = build_hardware([sku(gpu)], {gpu: spec}, load_calibration())
        model_on = ServedModel(
            build_shape(load_models()[model]),
            Format("bf16", "bf16", as_array(2.0), "bf16"),
            Replica(as_array([4.0]), as_array([1.0]), as_array([1.0])),
            hw,
            load_calibration(),
        )
        times.append(decode_step(model_on, as_array([batch]), as_array([context])).total[0])
    assert times[1] <= times[0] * SLACK


@FEW
@given(gpu=GPUS, model=MODELS, gbit_s=st.floats(50, 1600), factor=st.floats(1, 8))
def test_a_slower_fabric_never_shortens_a_run(gpu: str, model: str, gbit_s: float, factor: float) -> None:
    kinds = [sku(gpu, fabric=Fabric(FabricKind.ROCE, gbit_s * f, 64)) for f in (1.0, factor)]
    hours = estimator().training([training(model)], kinds, [1, 2, 8, 32]).hours[0]
    assert (hours[1] <= hours[0] * SLACK).all()


@FEW
@given(gpu=GPUS, model=MODELS, gbyte_s=st.floats(20, 500), factor=st.floats(1, 8))
def test_a_slower_link_never_shortens_a_run(gpu: str, model: str, gbyte_s: float, factor: float) -> None:
    kinds = [sku(gpu, intra_node=IntraNode(LinkKind.NVLINK, gbyte_s * f)) for f in (1.0, factor)]
    hours = estimator().training([training(model)], kinds, [1, 4, 16]).hours[0]
    assert (hours[1] <= hours[0] * SLACK).all()
    rates = estimator().serving([serving(model)], kinds).requests_per_s[0]
    assert (rates[1] * SLACK >= rates[0]).all()


@FEW
@given(
    model=MODELS,
    length=st.integers(256, 30000),
    longer=st.integers(0, 60000),
    recompute=st.sampled_from(["none", "full"]),
)
def test_longer_context_never_lowers_memory(model: str, length: int, longer: int, recompute: str) -> None:
    layout = Parallelism(tp=2, pp=2, dp=2, recompute=recompute)
    kept = [
        activation_bytes(
            scenario("H100-SXM-80GB", model, layout, tokens), as_array(8), as_array(1), as_array(1e11)
        )[0][0]
        for tokens in (length, length + longer)
    ]
    assert kept[0] <= kept[1]


@FEW
@given(gpu=GPUS, model=MODELS, gb=st.floats(10, 400), more=st.floats(0, 400))
def test_more_memory_never_makes_something_unfit(gpu: str, model: str, gb: float, more: float) -> None:
    kinds = [sku(gpu, gpu_memory_gb=size) for size in (gb, gb + more)]
    table = estimator().training([training(model)], kinds, [1, 4])
    assert (table.fits[0, 1] | ~table.fits[0, 0]).all()
    served = estimator().serving([serving(model)], kinds)
    single = [c for c, config in enumerate(served.configs) if config.pp == 1]
    assert (served.fits[0, 1, single] | ~served.fits[0, 0, single]).all()
    assert (served.requests_per_s[0, 1, single] * SLACK >= served.requests_per_s[0, 0, single]).all()


@FEW
@given(gpu=GPUS, model=MODELS)
def test_one_gpu_has_no_communication(gpu: str, model: str) -> None:
    found = step(scenario(gpu, model, Parallelism(), 4096), as_array(1))
    assert (found.communication == 0).all()
    assert (found.bubble == 0).all()


@FEW
@given(gpu=GPUS, model=st.sampled_from(["Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-32B"]))
def test_no_fabric_no_second_node(gpu: str, model: str) -> None:
    counts = [1, 2, 16]
    table = estimator().training([training(model)], [sku(gpu, fabric=None), sku(gpu)], counts)
    assert not table.fits[0, 0, 1:].any()
    assert table.fits[0, 0, 0] == table.fits[0, 1, 0]


@FEW
@given(gpu=GPUS, model=MODELS, tp=st.sampled_from([1, 2, 4, 8]))
def test_fewer_bytes_a_weight_leave_more_cache(gpu: str, model: str, tp: int) -> None:
    room = []
    for precision in ("bf16", "fp8", "int4"):
        products = "bf16" if precision == "int4" else precision
        hw = build_hardware([sku(gpu)], load_gpus(), load_calibration())
        replica = Replica(as_array([tp]), as_array([1.0]), as_array([1.0]))
        form = Format(precision, precision, as_array(2.0), products)
        shapes = build_shape(load_models()[model])
        room.append(float(cache_tokens(ServedModel(shapes, form, replica, hw, load_calibration()))[0]))
    assert room[0] < room[1] < room[2]


@FEW
@given(model=MODELS, dp=st.integers(1, 64), more=st.integers(1, 64))
def test_more_ranks_never_hold_more_state(model: str, dp: int, more: int) -> None:
    given_layout = scenario("H100-SXM-80GB", model, Parallelism(), 4096)
    few, many = (state_bytes(given_layout, as_array(ranks)) for ranks in (dp, dp + more))
    assert (many <= few).all()


@FEW
@given(rate=st.floats(0, 0.5), more=st.floats(0, 0.5), nodes=st.sampled_from([0, 1, 2]))
def test_more_interruptions_never_shorten_a_run(rate: float, more: float, nodes: int) -> None:
    table = estimator().training(
        [training("Llama-3.1-8B")], [sku("H100-SXM-80GB", fabric=INFINIBAND)], [1, 4, 16]
    )
    hours = table.hours_at(0, 0, nodes, np.asarray([rate, rate + more]))
    assert hours[0] <= hours[1] * SLACK

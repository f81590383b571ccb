"""Training: what holds whatever the constants. Monotone in every resource, exact in the limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.estimate import Parallelism
from broker.domain.market.sku import Fabric, FabricKind, IntraNode, LinkKind
from broker.domain.planning.workload import Precision
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.hardware.sku_arrays import build_hardware
from optimizer.performance.shapes import build_shape
from optimizer.performance.training.layouts import stack_layouts
from optimizer.performance.training.scenario import Run, Scenario
from optimizer.performance.training.step import Step, step
from tests.performance.builders import INFINIBAND, estimator, sku, training
from tests.properties.asking import (
    CARDS,
    DENSE,
    FEW,
    MEMORY,
    SLACK,
    STEP,
    asked,
    never_falls,
    never_rises,
    run_row,
)

GPUS, MODELS = st.sampled_from(CARDS), st.sampled_from(DENSE)
LAYOUTS = st.sampled_from([(8, 1, 4), (1, 8, 4), (2, 4, 4), (4, 1, 8), (2, 1, 16), (8, 4, 1)])
SHARDING = st.sampled_from(["0", "1", "FSDP"])
FACTOR = st.floats(1.0, 8.0)
FASTER = {
    "bf16_tflops": ("bf16_tflops", "fp16_tflops", "matmul_best_bf16_tflops"),
    "hbm_gbyte_s": ("hbm_gbyte_s",),
    "scaleup_gbyte_s_per_dir": ("scaleup_gbyte_s_per_dir", "pcie_gbyte_s_per_dir"),
}
FAST_LINK, SLOW_LINK = 450.0, 32.0


def laid_out(layout: tuple[int, int, int], **changes: object) -> dict[str, str]:
    tp, pp, dp = layout
    return run_row(**({"tp": tp, "pp": pp, "dp": dp} | changes))


def parts(layout: Parallelism, gpus: int, sharding: float = 1.0, gbit_s: float = 3200, **run: float) -> Step:
    """The parts of a step of a 70B on H100 nodes."""
    calibration = load_calibration()
    kind = sku("H100-SXM-80GB", fabric=Fabric(FabricKind.INFINIBAND, gbit_s, 64))
    hw = build_hardware([kind], load_gpus(), calibration)
    recompute = ("none", "selective", "full").index(layout.recompute)
    tp, pp, cp, ep = (float(d) for d in (layout.tp, layout.pp, layout.cp, layout.ep))
    chunks = run.get("interleave", 1.0)
    made = stack_layouts([(tp, pp, cp, ep, float(layout.micro_batch), float(recompute), sharding, chunks)])
    shapes = build_shape(load_models()["Llama-3.1-70B"])
    asked_for = Run(as_array(run.get("tokens", 4096)), as_array(run.get("sequences", 64)), "bf16")
    scenario = Scenario(shapes, asked_for, made, hw, calibration.software["tuned"], calibration)
    return step(scenario, as_array(gpus))


@FEW
@given(
    gpu=GPUS, model=MODELS, layout=LAYOUTS, sharding=SHARDING, rate=st.sampled_from(list(FASTER)), by=FACTOR
)
def test_a_faster_card_never_slows_a_step(
    gpu: str, model: str, layout: tuple[int, int, int], sharding: str, rate: str, by: float
) -> None:
    spec = load_gpus()[gpu]
    quicker = {name: getattr(spec, name) and getattr(spec, name) * by for name in FASTER[rate]}
    row = laid_out(layout, gpu=gpu, model=model, zero_fsdp=sharding)
    (now,), (then,) = asked(STEP, row), asked(STEP, row, gpus={gpu: replace(spec, **quicker)})
    assert then <= now * SLACK


@FEW
@given(
    gpu=GPUS,
    layout=LAYOUTS,
    sharding=SHARDING,
    name=st.sampled_from(["inter_node_gbps_per_gpu", "intra_node_gbps"]),
    gbit_s=st.floats(20, 4000),
    by=FACTOR,
)
def test_a_faster_wire_never_slows_a_step(
    gpu: str, layout: tuple[int, int, int], sharding: str, name: str, gbit_s: float, by: float
) -> None:
    rows = [laid_out(layout, gpu=gpu, zero_fsdp=sharding, **{name: gbit_s / f}) for f in (1.0, by)]
    assert never_falls(asked(STEP, *rows))


@FEW
@given(
    model=MODELS,
    layout=LAYOUTS,
    sharding=SHARDING,
    recompute=st.sampled_from(["none", "full"]),
    name=st.sampled_from(["global_batch", "seq_len", "micro_batch"]),
)
def test_more_work_takes_longer_and_more_memory(
    model: str, layout: tuple[int, int, int], sharding: str, recompute: str, name: str
) -> None:
    least = float(run_row()[name])
    rows = [
        laid_out(layout, model=model, zero_fsdp=sharding, recompute=recompute, **{name: int(least * by)})
        for by in (1, 2, 4, 8)
    ]
    if name != "micro_batch":
        assert never_falls(asked(STEP, *rows))
    assert never_falls(asked(MEMORY, *rows))


@pytest.mark.parametrize(
    "family",
    [
        ("Qwen2.5-1.5B", "Qwen2.5-7B", "Qwen2.5-32B", "Qwen2.5-72B"),
        ("Llama-3.2-1B", "Llama-3.1-8B", "Llama-3.1-70B", "Llama-3.1-405B"),
        ("Llama-3.1-8B", "Mixtral-8x7B", "Mixtral-8x22B"),
    ],
)
@pytest.mark.parametrize("precision", ["BF16", "FP8"])
def test_a_larger_model_takes_longer_and_more_memory(family: tuple[str, ...], precision: str) -> None:
    rows = [run_row(model=model, precision=precision) for model in family]
    assert never_falls(asked(STEP, *rows))
    assert never_falls(asked(MEMORY, *rows))


@FEW
@given(model=MODELS, sharding=SHARDING, tp=st.sampled_from([1, 4, 8]))
def test_more_copies_shorten_a_step_and_hold_no_more(model: str, sharding: str, tp: int) -> None:
    """The batch stays the same. Twice the ranks give less than twice the speed: strong scaling falls."""
    counts = [16, 32, 64, 128]
    rows = [laid_out((tp, 1, n // tp), model=model, zero_fsdp=sharding, gpus_total=n) for n in counts]
    times = asked(STEP, *rows)
    assert (np.diff(times) < 0).all()
    assert never_falls(times * counts)
    assert never_rises(asked(MEMORY, *rows))


@FEW
@given(layout=LAYOUTS, model=MODELS, tokens=st.sampled_from([2048, 8192, 32768]))
def test_sharding_and_recomputation_buy_memory(layout: tuple[int, int, int], model: str, tokens: int) -> None:
    """ZeRO-1 <= none, FSDP <= ZeRO-1 over two ranks or more; full recompute <= selective <= none."""
    _, pp, dp = layout
    ways = ["0", "1", "FSDP"] if dp > 1 and pp == 1 else ["0", "1"]
    rows = [laid_out(layout, model=model, seq_len=tokens, zero_fsdp=way) for way in ways]
    assert never_rises(asked(MEMORY, *rows))
    for framework in ("NeMo", "Megatron-LM 2022"):
        kept = [
            laid_out(layout, model=model, seq_len=tokens, recompute=word, framework=framework)
            for word in ("none", "selective", "full")
        ]
        assert never_rises(asked(MEMORY, *kept))
    plain, again = asked(STEP, *(laid_out(layout, model=model, recompute=w) for w in ("none", "full")))
    assert again >= plain


@FEW
@given(model=MODELS, pp=st.sampled_from([2, 4, 8]))
def test_slices_and_stages_share_the_states(model: str, pp: int) -> None:
    rows = [laid_out((tp, 1, 1), model=model, gpus_total=tp) for tp in (1, 2, 4, 8)]
    assert never_rises(asked(MEMORY, *rows))
    deep = [laid_out((1, p, 1), model=model, gpus_total=p, recompute="full") for p in (1, pp)]
    assert never_rises(asked(MEMORY, *deep))


@FEW
@given(gbit_s=st.floats(1, 3200), sequences=st.sampled_from([8, 64, 512]))
def test_what_is_not_split_does_not_talk(gbit_s: float, sequences: int) -> None:
    """One slice: no tensor traffic. One copy: no data traffic. One stage: no hand-over and no bubble."""
    copies = parts(Parallelism(dp=8), 8, gbit_s=gbit_s, sequences=sequences)
    assert copies.tensor == copies.pipeline == copies.bubble == copies.expert == 0
    assert (copies.data > 0).all()
    slices = parts(Parallelism(tp=8), 8, gbit_s=gbit_s, sequences=sequences)
    assert slices.data == slices.pipeline == slices.bubble == slices.expert == 0
    assert (slices.tensor > 0).all()
    stages = parts(Parallelism(pp=8), 8, gbit_s=gbit_s, sequences=sequences)
    assert stages.tensor == stages.data == stages.expert == 0
    assert (stages.bubble > 0).all()
    assert (stages.pipeline > 0).all()


@FEW
@given(
    degrees=st.sampled_from([(8, 1, 1), (2, 4, 1), (4, 2, 2), (1, 8, 1)]),
    sequences=st.sampled_from([32, 256]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_the_parts_of_a_step_add_up(degrees: tuple[int, int, int], sequences: int, recompute: str) -> None:
    """But for stragglers: 64 GPUs in 8 nodes lose about a percent, never ten."""
    tp, pp, cp = degrees
    found = parts(Parallelism(tp=tp, pp=pp, cp=cp, recompute=recompute), 64, sequences=sequences)
    named = found.compute + found.memory_bound + found.communication + found.bubble
    assert 1.0 <= found.total[0] / named[0] < 1.1
    assert all(
        part[0] >= 0 for part in (found.tensor, found.data, found.pipeline, found.expert, found.bubble)
    )


def test_one_node_does_not_feel_the_fabric() -> None:
    for layout in ((8, 1, 1), (1, 8, 1), (2, 1, 4)):
        rows = [laid_out(layout, gpus_total=8, inter_node_gbps_per_gpu=rate) for rate in (1, 10, 400)]
        assert len(set(asked(STEP, *rows))) == 1


def test_one_gpu_does_not_feel_its_links() -> None:
    rows = [laid_out((1, 1, 1), gpus_total=1, gpus_per_node=1, intra_node_gbps=rate) for rate in (10, 3600)]
    assert len(set(asked(STEP, *rows))) == 1


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_the_bubble_is_that_of_1f1b(stages: int) -> None:
    """(p - 1)/(v m) of the time that m micro-batches take: halves with twice of either (Narayanan 2021)."""
    few, many = (parts(Parallelism(pp=stages), stages, sequences=m) for m in (16.0, 160.0))
    assert few.bubble[0] == pytest.approx(many.bubble[0])
    busy = few.compute + few.memory_bound
    assert few.bubble[0] / busy[0] == pytest.approx((stages - 1) / 16, rel=0.15)
    chunked = parts(Parallelism(pp=stages), stages, sequences=16, interleave=2.0)
    assert chunked.bubble[0] == pytest.approx(few.bubble[0] / 2)


@FEW
@given(model=MODELS, gpu=GPUS, precision=st.sampled_from(["BF16", "FP8"]), micro=st.sampled_from([1, 4, 32]))
def test_no_step_beats_the_datasheet(model: str, gpu: str, precision: str, micro: int) -> None:
    """6 N tokens FLOPs at least, at the dense peak of the products' format at most."""
    spec = load_gpus()[gpu]
    peak = (spec.fp8_tflops if precision == "FP8" else spec.bf16_tflops) or 0.0
    if not peak:
        return
    row = laid_out((1, 1, 8), gpu=gpu, model=model, gpus_total=8, micro_batch=micro, precision=precision)
    shape = load_models()[model]
    embedding = shape.vocab * shape.hidden * (1 if not shape.tie_embeddings else 0)
    flops = 6 * (shape.active_params - embedding) * 4096 * 256
    assert asked(STEP, row)[0] > flops / (8 * peak * 1e12)


def test_long_rows_of_a_wide_model_come_near_the_measured_ceiling() -> None:
    """Nothing to wait for: one card, large batch. Products then take most of the step."""
    alone = parts(Parallelism(micro_batch=8), 1, tokens=4096.0, sequences=64.0)
    assert alone.communication[0] == 0
    assert alone.compute[0] > 0.85 * alone.total[0]
    flops = 6 * load_models()["Llama-3.1-70B"].active_params * 4096 * 64
    ceiling = (load_gpus()["H100-SXM-80GB"].matmul_best_bf16_tflops or 791.0) * 1e12
    assert 0.7 < flops / ceiling / alone.compute[0] < 1.0


@FEW
@given(gpu=GPUS, model=MODELS, gb=st.floats(40, 300), more=st.floats(0, 300))
def test_more_memory_never_lengthens_a_run(gpu: str, model: str, gb: float, more: float) -> None:
    kinds = [sku(gpu, gpu_memory_gb=size) for size in (gb, gb + more)]
    hours = estimator().training([training(model)], kinds, [1, 4, 16]).hours[0]
    assert (hours[1] <= hours[0] * SLACK).all()


@FEW
@given(order=st.permutations(range(4)), model=MODELS)
def test_hours_do_not_depend_on_the_order_of_the_market(order: list[int], model: str) -> None:
    kinds = [
        sku("H100-SXM-80GB"),
        sku("A100-SXM-40GB", fabric=Fabric(FabricKind.EFA, 400, 64)),
        sku("L40S", 4, fabric=None),
        sku("H100-SXM-80GB", intra_node=IntraNode(LinkKind.PCIE, 64)),
    ]
    works = [training(model), training("Mixtral-8x7B", precision=Precision.FP8)]
    straight = estimator().training(works, kinds, [1, 2, 8])
    turned = estimator().training(works, [kinds[i] for i in order], [8, 1, 2])
    assert (turned.hours[:, :, [1, 2, 0]] == straight.hours[:, order]).all()


def test_intervals_hold_their_value_on_every_card() -> None:
    kinds = [sku(gpu, fabric=INFINIBAND) for gpu in load_gpus()]
    table = estimator().training([training("Llama-3.1-8B"), training("Mixtral-8x7B")], kinds, [4])
    shown = [table.estimate(w, s, n, 0.001) for w, s, n in np.argwhere(table.fits)]
    assert len(shown) > 40
    for estimate in shown:
        for name, value in estimate.value.items():
            assert 0 <= estimate.low[name] <= value <= estimate.high[name]
        for share in ("goodput", "mfu", "communication_share", "checkpoint_share"):
            assert estimate.high[share] <= 1

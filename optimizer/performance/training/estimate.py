"""From a step to held hours: goodput, headroom, start-up and the user's own figures; the estimate of
one run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broker.domain.basics.confidence import MEDIAN, memory_margin, work_factors
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.market.sku import Sku
from broker.domain.planning.workload import Measurement, Precision, Training, TrainingStack
from broker.domain.workloads.model_shape import GpuSpec
from broker.domain.workloads.training_method import Objective, Offload
from optimizer.performance.arrays import Array, Mask, as_array, number
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.groups import Software
from optimizer.performance.constants.spread import TRAINING, Question, Sides, load_spread, question_words
from optimizer.performance.hardware.sku_arrays import Hardware, SingleHardware
from optimizer.performance.intervals import (
    NO_ROWS,
    Closeness,
    memory_regime,
    provenance_of,
    step_regime,
    training_sides,
    with_interval,
)
from optimizer.performance.training.compute import model_flops_per_token
from optimizer.performance.training.goodput import checkpoint_share, failures_per_hour, goodput_share, saving
from optimizer.performance.training.layouts import RECOMPUTE, Layouts, enumerate_layouts, ways_of
from optimizer.performance.training.scenario import Run, Scenario, trained_model
from optimizer.performance.training.step import Step, steps_by_sharding

TRAINABLE = frozenset({Precision.BF16, Precision.FP16, Precision.FP8, Precision.FP4})


@dataclass(frozen=True, slots=True)
class Case:
    """One run on one SKU at one node count in one layout: its modelled step, and its step time after
    corrections.
    """

    workload: Training
    gpu: str
    hw: Hardware
    nodes: int
    step: Step
    step_s: float
    measured: bool
    closeness: Closeness = NO_ROWS


class StepShift(Protocol):
    """Corrections of training steps in plans; degrees are tp, pp, dp, cp, ep, micro-batch, recomputation."""

    def moves(self, workload: Training) -> bool:
        """Whether there are any measurements."""
        ...

    def log_shift(
        self, workload: Training, gpus: Sequence[str], counts: Array, degrees: NDArray[np.int64]
    ) -> Array:
        """Log of the factor on the step time [M], on ``counts`` of ``gpus`` [M] in layouts ``degrees`` [M,
        7].
        """
        ...

    def closeness(self, workload: Training, gpu: str, count: float, degrees: NDArray[np.int64]) -> Closeness:
        """How close the measurements are to one run; ``degrees`` [1, 7]."""
        ...


def run_of(workload: Training) -> Run:
    """The batch of a step in whole sequences, at least one, or pairs of them."""
    method = workload.training_method
    least = 2 if method.objective is Objective.DPO else 1
    each = least * (method.mean_tokens or workload.sequence_length)
    sequences = least * max(1, round(workload.global_batch_tokens / each))
    return Run(number(workload.sequence_length), number(sequences), workload.precision.value, method)


def can_train(hw: Hardware, workload: Training) -> Mask:
    """Whether the GPU has units for the run's format and, for FP4, a published recipe: NVFP4 on Blackwell."""
    if workload.precision not in TRAINABLE:
        return np.zeros_like(hw.gpus_per_node, dtype=np.bool_)
    able: Mask = np.asarray(hw.peak[workload.precision.value]) > 0.0
    return able & (np.asarray(hw.trains_fp4) > 0.0) if workload.precision is Precision.FP4 else able


def software_of(workload: Training) -> str:
    """The class of constants of a workload's stack; ZeRO counts as sharding, as in its published rows."""
    sharded = workload.software is TrainingStack.DEEPSPEED
    return (TrainingStack.FSDP if sharded else workload.software).value


def has_layout(workload: Training, tp: ArrayLike, pp: ArrayLike) -> Mask:
    """Which tensor and pipeline degrees the stack supports.

    DeepSpeed's ZeRO shards only states and data; tensor and pipeline parallelism with it belong to
    Megatron-DeepSpeed. Quantised weights and offload come with sharded data alone.
    """
    alone: Mask = (np.asarray(tp) == 1) & (np.asarray(pp) == 1)
    method = workload.training_method
    shards_alone = method.is_quantised or method.optimizer.offload is not Offload.NONE
    return alone | (not shards_alone and workload.software is not TrainingStack.DEEPSPEED)


def layouts_for(workload: Training, gpus_per_node: int) -> Layouts:
    """The layouts that are compared, and that a plan may state, on nodes of that many GPUs."""
    model = workload.model
    experts = model.experts if model.is_moe else 0
    every = enumerate_layouts(gpus_per_node, model.layers, model.heads, experts, workload.sequence_length)
    return every.take(np.flatnonzero(has_layout(workload, every.tp, every.pp)))


def step_tokens(workload: Training) -> float:
    """Tokens of one optimizer step, without padding."""
    run = run_of(workload)
    return float(run.sequences * (run.method.mean_tokens or run.sequence_length))


def saved_params(workload: Training) -> float:
    """Parameters of a full run in mixed precision with AdamW whose checkpoint is as large as the run's."""
    return workload.model.total_params * workload.training_method.checkpoint_share(workload.model)


def measurement_for(workload: Training, gpu: str, gpus: int) -> Measurement | None:
    """The user's measurement on that GPU with the closest GPU count; None if there is none."""
    known = [m for m in workload.measured if m.gpu == gpu and m.tokens_per_s]
    return min(known, key=lambda m: (abs(math.log(gpus / m.gpus)), m.gpus), default=None)


def held_hours(
    workload: Training,
    step_s: Array,
    nodes: Array,
    gpus_per_node: Array,
    interruptions: Array,
    calibration: Calibration,
) -> Array:
    """Hours for which nodes are held, start-up included:

    tokens·(1 + headroom)/(tokens/s·goodput)
    """
    goodput = _goodput(workload, nodes, gpus_per_node, interruptions, calibration)[0]
    rate = step_tokens(workload) / step_s * goodput
    with np.errstate(divide="ignore"):
        running = workload.tokens * (1.0 + workload.headroom) / rate
    return (running + calibration.goodput.startup_s) / 3600.0


def _goodput(
    workload: Training, nodes: Array, gpus_per_node: Array, interruptions: Array, calibration: Calibration
) -> tuple[Array, Array]:
    """Goodput, and the share of time for which checkpoints block."""
    failures = failures_per_hour(nodes, gpus_per_node, interruptions, calibration)
    plan = saving(
        number(saved_params(workload)),
        nodes,
        gpus_per_node,
        workload.checkpoint_every_minutes,
        failures,
        calibration,
    )
    return goodput_share(plan, failures), checkpoint_share(plan)


class TrainingCore:
    """The training model with its GPU table and constants."""

    def __init__(
        self, gpus: Mapping[str, GpuSpec], calibration: Calibration, own: StepShift | None = None
    ) -> None:
        self.gpus, self.calibration, self.own = gpus, calibration, own
        self._hardware = SingleHardware(gpus, calibration)

    def software(self, workload: Training) -> Software:
        """The class of stack that the workload runs."""
        return self.calibration.software[software_of(workload)]

    def scenario(self, workload: Training, layouts: Layouts, hw: Hardware) -> Scenario:
        """The workload's steps in ``layouts`` on ``hw``, whose memory must hold what the run needs with its
        confidence.
        """
        run = run_of(workload)
        trained = trained_model(workload.model, run.method)
        regime = memory_regime(software_of(workload), workload.adapter is not None)
        half_width = self.calibration.intervals.training_memory[regime]
        margin = memory_margin(half_width, workload.planned_confidence)
        stack, parts = self.software(workload), (trained.adapters, trained.forward)
        return Scenario(trained.shapes, run, layouts, hw, stack, self.calibration, margin, *parts)

    def case(self, workload: Training, sku: Sku, nodes: int, layout: Parallelism) -> Case | None:
        """The best way to run ``layout``; None if GPU, format, fabric, batch or memory forbid it, or if it is
        none of those that are compared."""
        if sku.gpu not in self.gpus:
            return None
        hw = self._hardware.of(sku)
        gpus = nodes * sku.gpus_per_node
        degrees = layout.tp * layout.pp * layout.cp * layout.dp
        if nodes > hw.nodes_most or degrees != gpus or not can_train(hw, workload):
            return None
        layouts = ways_of(layout)
        if not layouts_for(workload, sku.gpus_per_node).have(layouts[0]):
            return None
        one = self.scenario(workload, layouts[0], hw)
        others = [replace(one, layouts=way) for way in layouts[1:]]
        ways = steps_by_sharding([one, *others], number(gpus))
        measured = measurement_for(workload, sku.gpu, gpus)
        trusted = measured is not None and gpus >= measured.gpus
        able = [way for way in ways if way.divides and (way.fits or trusted)]
        best = min(able or ways[:1], key=lambda way: float(way.total))
        if measured is not None and (trusted or able):
            rate = (measured.tokens_per_s or 0.0) / measured.gpus * gpus
            step_s = step_tokens(workload) / rate
            return Case(workload, sku.gpu, hw, nodes, best, step_s, measured=True)
        if not able:
            return None
        step_s, closeness = self._shifted(workload, sku.gpu, gpus, layout, float(best.total))
        return Case(workload, sku.gpu, hw, nodes, best, step_s, False, closeness)

    def _shifted(
        self, workload: Training, gpu: str, gpus: int, layout: Parallelism, step_s: float
    ) -> tuple[float, Closeness]:
        """The step time corrected by own measurements nearby, and how close these are."""
        if self.own is None or not self.own.moves(workload):
            return step_s, NO_ROWS
        degrees = degrees_of(layout)
        shift = self.own.log_shift(workload, [gpu], as_array([gpus]), degrees)
        return float(step_s * np.exp(shift)[0]), self.own.closeness(workload, gpu, float(gpus), degrees)

    def estimate(self, case: Case, interruptions_per_hour: float) -> Estimate:
        """The contract's metrics of one case."""
        workload, calibration, hw = case.workload, self.calibration, case.hw
        nodes, per_node = number(case.nodes), hw.gpus_per_node
        interruptions = number(interruptions_per_hour)
        goodput, blocked = _goodput(workload, nodes, per_node, interruptions, calibration)
        tokens_per_s = step_tokens(workload) / case.step_s
        peak = float(hw.peak[workload.precision.value] * nodes * per_node)
        method = workload.training_method
        length = number(method.mean_tokens or workload.sequence_length)
        flops = float(model_flops_per_token(trained_model(workload.model, method), length))
        hours = held_hours(workload, number(case.step_s), nodes, per_node, interruptions, calibration)
        value = {
            "step_s": case.step_s,
            "mfu": tokens_per_s * flops / peak,
            "tokens_per_s": tokens_per_s,
            "hours": float(hours),
            "memory_gb_per_gpu": float(case.step.held_bytes) / 1e9,
            "communication_share": float(case.step.communication / case.step.total),
            "checkpoint_share": float(blocked),
            "goodput": float(goodput),
        }
        known, near = bool(hw.calibrated), case.closeness
        gpus = case.nodes * float(hw.gpus_per_node)
        sides = self.sides(workload, case.gpu, gpus, case.measured, near)
        found = with_interval(value, sides, provenance_of(case.measured, known, near))
        if workload.planned_confidence == MEDIAN:
            return found
        startup, hours_sides = calibration.goodput.startup_s / 3600.0, sides["hours"]
        sure, mean = (
            startup + (value["hours"] - startup) * factor
            for factor in work_factors(hours_sides.over, hours_sides.under, workload.planned_confidence)
        )
        return replace(found, at_confidence={"hours": sure}, expected_hours=mean)

    def sides(
        self, workload: Training, gpu: str, gpus: float, measured: bool, near: Closeness
    ) -> dict[str, Sides]:
        """Sides of the interval of each metric of a workload on ``gpus``."""
        model, software = workload.model, software_of(workload)
        architecture, number_format = self.gpus[gpu].arch, workload.precision.value
        words = question_words(gpu, architecture, model.name, software, number_format)
        numbers = {
            "size": model.active_params / 1e9,
            "gpus": gpus,
            "input": float(workload.sequence_length),
        }
        question = Question(TRAINING, words, numbers, experts=model.is_moe)
        adapters = workload.adapter is not None
        regimes = step_regime(software, model.is_moe, adapters), memory_regime(software, adapters)
        return training_sides(question, regimes, measured, self.calibration.intervals, load_spread(), near)


def degrees_of(layout: Parallelism) -> NDArray[np.int64]:
    """The layout's degrees [1, 7], as ``StepShift`` takes them."""
    recompute = RECOMPUTE.index(layout.recompute)
    row = (layout.tp, layout.pp, layout.dp, layout.cp, layout.ep, layout.micro_batch, recompute)
    return np.asarray([row], dtype=np.int64)


def breakdown_of(case: Case) -> dict[str, float]:
    """Seconds of a modelled step by cause; they sum to its total.

    Blocking checkpoints are not part of a step; see ``checkpoint_share`` of the estimate.
    """
    found, fabric = case.step, "fabric" if case.nodes > 1 else "links inside the node"
    parts = {
        "compute": found.compute,
        "HBM bandwidth": found.memory_bound,
        "tensor-parallel links": found.tensor,
        "expert dispatch": found.expert,
        "pipeline hand-over": found.pipeline,
        fabric: found.data,
        "pipeline bubble": found.bubble,
        "optimizer": found.optimizer,
        "host memory": found.host,
        "input and synchronisation": found.between,
    }
    seconds = {name: float(part) for name, part in parts.items()}
    return seconds | {"slow nodes and virtualisation": float(found.total) - sum(seconds.values())}


def bottleneck_of(case: Case) -> str:
    """The cause that takes most of the step."""
    parts = breakdown_of(case)
    return max(parts, key=parts.__getitem__)

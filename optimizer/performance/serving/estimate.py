"""The highest rate of a replica, and the estimate of one configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from broker.domain.basics.confidence import MEDIAN, memory_margin, quantile_factor, work_factors
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.market.sku import Sku
from broker.domain.planning.workload import Batch, Precision, Serving, ServingEngine
from broker.domain.workloads.model_shape import GpuSpec, MixedWeights
from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, number
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.serving import ServingRates, engine_on
from optimizer.performance.constants.spread import SERVING, Question, Sides, load_spread, question_words
from optimizer.performance.hardware.sku_arrays import Hardware, SingleHardware
from optimizer.performance.intervals import (
    NO_ROWS,
    Closeness,
    provenance_of,
    serving_sides,
    with_interval,
)
from optimizer.performance.serving.cold_start import cold_start_s
from optimizer.performance.serving.queueing import (
    Lengths,
    Load,
    Objective,
    batch_limit,
    client_overhead,
    load_at_rate,
    most_under,
)
from optimizer.performance.serving.served_model import (
    Format,
    Replica,
    ServedModel,
    Speculation,
    cache_tokens,
    holds_one,
    sequences_most,
    weight_bytes,
)
from optimizer.performance.shapes import build_shape

UNMEASURED = 1.55
"""By so much the interval of a training step is wider whose GPU, stack, family and format nobody measured
(``config/performance_spread.toml``); for drafts of tokens there are no rows to learn it from."""
LEAST_SURE_SHARE = 0.25
"""A replica whose rate falls below this share of its median with the confidence stands at the edge of its
objective: it meets it at next to no load, and is not counted on."""
DRAFTED = frozenset({"requests_per_s_per_replica", "itl_p95_ms", "tokens_per_s", "usd_per_million_tokens"})
RATE, LATENCIES = "requests_per_s_per_replica", ("itl_p95_ms", "ttft_p95_ms")
LOW_CONFIDENCE = 0.9
"""The rate that holds with this confidence is its P10."""
TENSOR = (1, 2, 4, 8)
PIPELINE = (1, 2, 4)
DEGREES = tuple((tp, pp) for pp in PIPELINE for tp in TENSOR)
WAYS = (*((tp, pp, 1) for tp, pp in DEGREES), *((tp, 1, tp) for tp in TENSOR if tp > 1))


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """A configuration of one replica: ``gpus_per_replica`` = ``tp`` × ``pp``.

    ``dp``: attention data-parallel ranks inside the tensor group, which have separate requests and share the
    experts.
    """

    precision: Precision
    gpus_per_replica: int
    tp: int
    pp: int
    dp: int = 1

    @property
    def layout(self) -> Parallelism:
        """The parallel degrees; with attention ranks each holds whole experts."""
        return Parallelism(tp=self.tp, pp=self.pp, dp=self.dp, ep=expert_ranks(self.tp, self.dp))


def expert_ranks(tp: int, dp: int) -> int:
    """Ranks over which whole experts are spread; without attention ranks each expert is cut instead."""
    return tp if dp > 1 else 1


def replica_of(layout: Parallelism) -> Replica:
    """A layout of a plan, which counts attention ranks inside the tensor group, as degrees of a replica."""
    return Replica(number(layout.tp // layout.dp), number(layout.pp), number(layout.dp), number(layout.ep))


@dataclass(frozen=True, slots=True)
class Most:
    """The highest rate of a replica, one entry per case; ``requests_per_s`` is 0 if memory or latency forbid
    the case.
    """

    requests_per_s: Array
    cold_start_s: Array
    cache_tokens: Array
    batch_most: Array
    load: Load


def lengths_of(workload: Serving | Batch) -> Lengths:
    """Tokens in and out of a mean request, and the share of its prompt in the prefix cache."""
    source = workload.traffic if isinstance(workload, Serving) else workload
    cached = number(workload.prefix_cache_hit_share)
    return Lengths(number(source.input_tokens), number(max(source.output_tokens, 1)), cached_share=cached)


def speculation_of(workload: Serving | Batch) -> Speculation | None:
    """The speculative decoding of a workload; None for plain decoding."""
    draft = workload.speculation
    if draft is None:
        return None
    return Speculation(number(draft.drafted_tokens), number(draft.acceptance), number(draft.draft_cost))


def objective_of(workload: Serving | Batch) -> Objective:
    """The latency objective in seconds; infinite for batch work, and between tokens if answers have one
    token.
    """
    if isinstance(workload, Batch):
        return Objective(number(math.inf), number(math.inf))
    between = math.inf if has_one_token(workload) else workload.slo.itl_p95_ms / 1e3
    return Objective(number(workload.slo.ttft_p95_ms / 1e3), number(between))


def has_one_token(workload: Serving | Batch) -> bool:
    """Whether every answer is one token, so that there is no inter-token latency."""
    return float(lengths_of(workload).output_tokens) <= 1.0


def format_of(precision: Precision, calibration: Calibration, packed: MixedWeights | None = None) -> Format:
    """Weights in ``precision``, cache in 16 bits; INT4 weights are widened to 16 bits in products.

    ``packed``: a checkpoint of which a part has another format; its products use the format of the rest.
    """
    cache = number(calibration.serving.kv_bytes)
    if packed is not None:
        products = "bf16" if packed.rest == Precision.INT4 else packed.rest
        return Format(packed.rest, packed.precision, cache, products, packed.bytes_each, packed.wide_params)
    products = Precision.BF16 if precision is Precision.INT4 else precision
    return Format(precision.value, precision.value, cache, products.value)


def runs_engine(spec: GpuSpec | None, engine: ServingEngine) -> bool:
    """Whether the engine supports the GPU."""
    return engine is not ServingEngine.TENSORRT_LLM or spec is None or spec.vendor == "NVIDIA"


def has_format(
    spec: GpuSpec | None, precision: Precision, rates: ServingRates, packed: MixedWeights | None = None
) -> bool:
    """Whether kernels for ``precision`` exist on the GPU.

    INT4 needs some 16-bit format, and engines that unpack it there. MXFP4 experts (``packed``) need such
    engines or FP4 units, and support for the format of the other weights.
    """
    if spec is None:
        return False
    if packed is not None and precision is Precision.FP4:
        has_kernels = spec.arch in rates.mxfp4_kernels or bool(spec.fp4_tflops)
        return has_kernels and has_format(spec, Precision(packed.rest), rates)
    if precision is Precision.INT4 and spec.arch in rates.without_int4:
        return False
    peaks = {
        Precision.BF16: spec.bf16_tflops,
        Precision.FP16: spec.fp16_tflops,
        Precision.FP8: spec.fp8_tflops,
        Precision.FP4: spec.fp4_tflops,
        Precision.INT4: spec.bf16_tflops or spec.fp16_tflops,
    }
    return bool(peaks[precision])


def can_serve(
    spec: GpuSpec | None, workload: Serving | Batch, precision: Precision, rates: ServingRates
) -> bool:
    """Whether the workload allows the precision, and its engine supports it on the GPU."""
    packed = workload.model.packed_in(precision)
    allowed = precision in workload.precisions and has_format(spec, precision, rates, packed)
    return allowed and runs_engine(spec, workload.engine)


def allowed_degrees(sku: Sku, tp: int, pp: int, dp: int = 1) -> bool:
    """Whether degrees are possible on a SKU.

    Tensor groups divide a node. Pipelines span whole nodes over the fabric (or groups of eight in a larger
    node). Attention ranks are the GPUs of a whole node.
    """
    node = sku.gpus_per_node
    if node % tp:
        return False
    if dp > 1:
        return pp == 1 and dp == tp == node
    if pp == 1:
        return True
    if tp != min(node, max(TENSOR)):
        return False
    gpus = tp * pp
    if gpus <= node:
        return node % gpus == 0
    nodes = -(-gpus // node)
    return sku.fabric is not None and nodes <= sku.fabric.max_nodes


def measurement_for(workload: Serving | Batch, gpu: str, gpus: int) -> float | None:
    """The user's measured requests/s of a replica of ``gpus`` such GPUs; None if there is none."""
    output = float(lengths_of(workload).output_tokens)
    for measured in workload.measured:
        if measured.gpu == gpu and measured.gpus == gpus:
            if measured.requests_per_s:
                return measured.requests_per_s
            if measured.tokens_per_s:
                return measured.tokens_per_s / output
    return None


class RateShift(Protocol):
    """Corrections of replicas in plans from own measurements, M cases."""

    def moves(self, workload: Serving | Batch) -> bool:
        """Whether there are any measurements."""
        ...

    def log_shifts(
        self,
        workload: Serving | Batch,
        precision: Precision,
        gpus: Sequence[str],
        replica: Replica,
        batch: Array,
    ) -> tuple[Array, Array]:
        """Logs of the factors on inter-token latency and time to first token [M], at ``batch`` in flight."""
        ...

    def closeness(
        self, workload: Serving | Batch, precision: Precision, gpu: str, replica: Replica, batch: Array
    ) -> Closeness:
        """How close the measurements are to one replica."""
        ...


class ServingCore:
    """The serving model with its GPU table and constants."""

    def __init__(
        self, gpus: Mapping[str, GpuSpec], calibration: Calibration, own: RateShift | None = None
    ) -> None:
        self.gpus, self.calibration, self.own = gpus, calibration, own
        self._hardware = SingleHardware(gpus, calibration)

    def most(
        self,
        workload: Serving | Batch,
        precision: Precision,
        replica: Replica,
        hw: Hardware,
        gpu: str,
        slower: tuple[float, float] = (1.0, 1.0),
    ) -> Most:
        """The highest rate of one replica within the objective; ``gpu`` is its name. ``slower``: factors on
        the times of tokens and of first tokens.

        Own measurements nearby scale the times: the model is evaluated for the objective divided by these
        factors, and its rates are divided by the factor on tokens.
        """
        served, lengths = self._served(workload, precision, replica, hw, gpu), lengths_of(workload)
        batch, wanted = isinstance(workload, Batch), objective_of(workload)
        limit = self.limit(served, lengths, number(self.margin(workload)))
        found = self.most_of(served, lengths, wanted, limit, batch)
        token, first = slower
        if self.own is not None and self.own.moves(workload):
            logs = self.own.log_shifts(workload, precision, [gpu], replica, found.load.batch)
            token, first = (factor * math.exp(log[0]) for factor, log in zip(slower, logs, strict=True))
        if (token, first) == (1.0, 1.0):
            return found
        times = number(token), number(first)
        tighter = self.most_of(served, lengths, within(wanted, *times), limit, batch)
        return _stretched(tighter, *times)

    def sequences_told(self, engine: str, batch: bool) -> Array:
        """Sequences in flight per rank with which a replica is started: few for a service, and the engine's
        limit if latency does not matter.
        """
        most = self.calibration.engines[engine].batch_most
        return number(most if batch else self.calibration.serving.batch_most)

    def margin(self, workload: Serving | Batch) -> float:
        """Factor on predicted memory with which a replica fits with the workload's confidence."""
        return memory_margin(self.calibration.intervals.kv, workload.planned_confidence)

    def limit(self, served: ServedModel, lengths: Lengths, margin: Array) -> Array:
        """Limit of sequences in flight; below 1 if memory, ``margin`` times as full, cannot hold even one."""
        held = holds_one(served, lengths.input_tokens + lengths.output_tokens, margin)
        return xp.where(held, batch_limit(served, lengths, sequences_most(served)), 0.0)

    def most_of(
        self, served: ServedModel, lengths: Lengths, objective: Objective, limit: Array, batch: bool
    ) -> Most:
        """The highest rate for cases with common formats; ``limit``: of sequences in flight."""
        rates = self.calibration.serving
        share = rates.batch_load_most if batch else rates.load_most
        load, possible = most_under(served, lengths, objective, limit, share, client_overhead(served))
        ceiling = rates.offline_requests_per_s if batch else rates.front_end_requests_per_s
        rate = xp.where(possible, xp.minimum(load.requests_per_s, ceiling), 0.0)
        return Most(rate, self.cold_start(served), cache_tokens(served), limit, load)

    def cold_start(self, served: ServedModel) -> Array:
        """Seconds from a new node to its first token."""
        dense, experts = weight_bytes(served)
        depth = served.shapes.layers / served.replica.pp
        return cold_start_s(dense + experts, served.replica.gpus, self.calibration.coldstart, depth)

    def engine_class(self, workload: Serving | Batch, gpu: str) -> str:
        """The class of constants of a workload's engine on a GPU."""
        return engine_on(self.gpus.get(gpu), workload.engine.value)

    def _served(
        self, workload: Serving | Batch, precision: Precision, replica: Replica, hw: Hardware, gpu: str
    ) -> ServedModel:
        shapes = build_shape(workload.model)
        form = format_of(precision, self.calibration, workload.model.packed_in(precision))
        engine, draft = self.engine_class(workload, gpu), speculation_of(workload)
        told = self.sequences_told(engine, isinstance(workload, Batch))
        return ServedModel(shapes, form, replica, hw, self.calibration, engine, draft, sequences_told=told)

    def estimate(
        self,
        workload: Serving | Batch,
        sku: Sku,
        precision: Precision,
        layout: Parallelism,
        usd_per_replica_hour: float,
    ) -> Estimate | None:
        """The contract's metrics of one replica; None if it does not fit."""
        tp, pp, dp = layout.tp, layout.pp, layout.dp
        able = can_serve(self.gpus.get(sku.gpu), workload, precision, self.calibration.serving)
        shares = (dp == 1 or workload.model.is_moe) and layout.ep == expert_ranks(tp, dp)
        if not (able and shares and allowed_degrees(sku, tp, pp, dp)):
            return None
        hw, replica = self._hardware.of(sku), replica_of(layout)
        most = self.most(workload, precision, replica, hw, sku.gpu)
        measured = measurement_for(workload, sku.gpu, tp * pp)
        rate = measured if measured is not None else float(most.requests_per_s)
        if rate <= 0:
            return None
        load = most.load
        if measured is not None:
            served = self._served(workload, precision, replica, hw, sku.gpu)
            load = _measured_load(served, lengths_of(workload), most, measured)
        value = self._metrics(workload, most, load, rate, hw, sku.gpu, usd_per_replica_hour)
        near = NO_ROWS
        if self.own is not None and self.own.moves(workload):
            near = self.own.closeness(workload, precision, sku.gpu, replica, most.load.batch)
        # No published row states acceptance rates, so the effect of speculative decoding is only modelled.
        known, is_own = bool(hw.calibrated) and workload.speculation is None, measured is not None
        sides = self.sides(workload, precision, sku.gpu, tp * pp, is_own, near)
        found = with_interval(value, sides, provenance_of(is_own, known, near))
        if isinstance(workload, Batch):
            return found

        def sure_at(confidence: float) -> dict[str, float] | None:
            return self._sure(workload, precision, replica, hw, sku.gpu, (near, measured), confidence)

        slow = sure_at(LOW_CONFIDENCE) or {}
        found = _with_low_rate(found, max(slow.get(RATE, 0.0), LEAST_SURE_SHARE * rate))
        if workload.planned_confidence == MEDIAN:
            return found
        sure = sure_at(workload.planned_confidence)
        return None if sure is None else replace(found, at_confidence=sure)

    def _sure(
        self,
        workload: Serving,
        precision: Precision,
        replica: Replica,
        hw: Hardware,
        gpu: str,
        evidence: tuple[Closeness, float | None],
        confidence: float,
    ) -> dict[str, float] | None:
        """The rate and the latencies of a replica that hold with ``confidence``; None if the objective does
        not.
        """
        near, measured = evidence
        if measured is not None:
            factor = quantile_factor(self.calibration.intervals.measured, confidence)
            served = self._served(workload, precision, replica, hw, gpu)
            most = self.most(workload, precision, replica, hw, gpu)
            load = _measured_load(served, lengths_of(workload), most, measured / factor)
            return self._sure_metrics(workload, measured / factor, load)
        gpus = float(replica.tp * replica.pp * replica.dp)
        sides = self.sides(workload, precision, gpu, gpus, False, near)
        token, first = (quantile_factor(sides[name].over, confidence) for name in LATENCIES)
        most = self.most(workload, precision, replica, hw, gpu, (token, first))
        rate = float(most.requests_per_s)
        return self._sure_metrics(workload, rate, most.load) if rate > 0.0 else None

    def _sure_metrics(self, workload: Serving, rate: float, load: Load) -> dict[str, float]:
        objective = objective_of(workload)
        between = 1e3 * float(xp.minimum(load.itl_p95_s, objective.itl_p95_s))
        return {
            "requests_per_s_per_replica": rate,
            "ttft_p95_ms": 1e3 * float(xp.minimum(load.ttft_p95_s, objective.ttft_p95_s)),
            **({} if has_one_token(workload) else {"itl_p95_ms": between}),
        }

    def sides(
        self,
        workload: Serving | Batch,
        precision: Precision,
        gpu: str,
        gpus: float,
        measured: bool,
        near: Closeness,
    ) -> dict[str, Sides]:
        """Sides of the interval of each metric of a replica of ``gpus``; wider with speculative decoding, of
        which no published row tells the effect.
        """
        model, lengths = workload.model, lengths_of(workload)
        form = format_of(precision, self.calibration, model.packed_in(precision))
        engine = self.engine_class(workload, gpu)
        architecture = self.gpus[gpu].arch
        words = question_words(gpu, architecture, model.name, engine, f"{form.dense}/{form.experts}")
        numbers = {
            "size": model.active_params / 1e9,
            "gpus": gpus,
            "input": float(lengths.input_tokens),
            "output": float(lengths.output_tokens),
        }
        question = Question(SERVING, words, numbers, experts=model.is_moe)
        batch, constants = isinstance(workload, Batch), self.calibration.intervals
        found = serving_sides(question, batch, measured, constants, load_spread(), near)
        if workload.speculation is None or measured:
            return found
        return {name: one.times(UNMEASURED) if name in DRAFTED else one for name, one in found.items()}

    def factors(
        self,
        workload: Serving | Batch,
        precision: Precision,
        gpu: str,
        gpus: float,
        near: Closeness,
        confidence: float,
    ) -> tuple[float, float, float]:
        """Factors on the times of tokens and of first tokens that hold with ``confidence``, and the mean time
        of a batch's requests divided by the time that suffices.
        """
        sides = self.sides(workload, precision, gpu, gpus, False, near)
        if isinstance(workload, Batch):
            time = sides["requests_per_s_per_replica"].inverse
            sure, mean = work_factors(time.over, time.under, confidence)
            return sure, 1.0, mean / sure
        token, first = (quantile_factor(sides[name].over, confidence) for name in LATENCIES)
        return token, first, 1.0

    def measured_factors(self, workload: Serving | Batch) -> tuple[float, float]:
        """The time that suffices and the mean time, divided by the median, at a rate that was measured."""
        width = self.calibration.intervals.measured
        return work_factors(width, width, workload.planned_confidence)

    def _metrics(
        self,
        workload: Serving | Batch,
        most: Most,
        load: Load,
        rate: float,
        hw: Hardware,
        gpu: str,
        usd: float,
    ) -> dict[str, float]:
        tokens_per_s = rate * float(lengths_of(workload).output_tokens)
        objective = objective_of(workload)
        engine = self.calibration.engines[self.engine_class(workload, gpu)]
        between = 1e3 * float(xp.minimum(load.itl_p95_s, objective.itl_p95_s))
        return {
            "requests_per_s_per_replica": rate,
            "ttft_p95_ms": 1e3 * float(xp.minimum(load.ttft_p95_s, objective.ttft_p95_s)),
            **({} if has_one_token(workload) else {"itl_p95_ms": between}),
            "tokens_per_s": tokens_per_s,
            "memory_gb_per_gpu": engine.memory_share * float(hw.memory_bytes) / 1e9,
            "kv_tokens": max(float(xp.floor(most.cache_tokens)), 0.0),
            "usd_per_million_tokens": usd / (3600.0 * tokens_per_s) * 1e6,
            "cold_start_s": float(most.cold_start_s),
        }

    def bottleneck(self, workload: Serving | Batch, sku: Sku, precision: Precision, replica: Replica) -> str:
        """What limits the rate: front end, memory, first tokens, or the longest part of a step."""
        most = self.most(workload, precision, replica, self._hardware.of(sku), sku.gpu)
        load, rates = most.load, self.calibration.serving
        if 0.0 < float(most.requests_per_s) < float(load.requests_per_s):
            return "the engine's front end"
        share = rates.batch_load_most if isinstance(workload, Batch) else rates.load_most
        ran_out = float(load.batch) >= float(most.batch_most) * share * 0.999
        if ran_out and float(most.batch_most) < rates.batch_most:
            return "cache memory"
        if float(load.ttft_p95_s) >= 0.999 * float(objective_of(workload).ttft_p95_s):
            return "time to first token"
        part = load.step
        parts = {
            "HBM bandwidth": part.weights + part.cache,
            "compute": part.compute,
            "tensor-parallel links": part.links,
            "launch overhead": part.overhead,
            "prefill interference": load.itl_mean_s - part.total,
        }
        return max(parts, key=lambda name: float(parts[name]))


def _with_low_rate(estimate: Estimate, rate: float) -> Estimate:
    """The estimate of a service with the P10 of its rate, and what follows from it."""
    less = rate / estimate[RATE]
    low = {**estimate.low, RATE: rate, "tokens_per_s": estimate["tokens_per_s"] * less}
    usd = "usd_per_million_tokens"
    return replace(estimate, low=low, high={**estimate.high, usd: estimate[usd] / less})


def within(wanted: Objective, token: Array, first: Array) -> Objective:
    """The objective that the model must meet if tokens take ``token`` and first tokens ``first`` times as
    long.
    """
    return Objective(wanted.ttft_p95_s / first, wanted.itl_p95_s / token)


def _measured_load(served: ServedModel, lengths: Lengths, most: Most, rate: float) -> Load:
    """The model's latencies at the measured rate, as far as the model can sustain it."""
    limit = xp.maximum(most.batch_most, 1.0)
    return load_at_rate(served, lengths, number(rate), limit, client_overhead(served))[0]


def _stretched(found: Most, token: Array, first: Array) -> Most:
    """The same replica if tokens take ``token`` and first tokens ``first`` times as long."""
    load = replace(
        found.load,
        requests_per_s=found.load.requests_per_s / token,
        itl=found.load.itl.times(token),
        ttft=found.load.ttft.times(first),
    )
    return replace(found, requests_per_s=found.requests_per_s / token, load=load)

"""Rows of published training tables → predictions (contract, section 5)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np

from broker.domain.basics.confidence import chance_below
from broker.domain.market.sku import Sku
from broker.domain.workloads.model_shape import Attention, GpuSpec, ModelShape
from broker.domain.workloads.training_method import TrainingMethod
from optimizer.calibration.table_constants import load_table_constants
from optimizer.calibration.tables.cells import Prediction, Unreadable, assumptions_in, needed, number
from optimizer.calibration.tables.names import find_gpu, find_model, known_model
from optimizer.calibration.tables.training_layouts import TRAINERS, LayoutSpec, row_layouts
from optimizer.calibration.tables.training_methods import adapter_of, method_of
from optimizer.calibration.tables.training_nodes import row_sku
from optimizer.calibration.tables.unread import require_predictable
from optimizer.performance.arrays import Array, Places, as_array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.spread import TRAINING, Question, Sides, load_spread, question_words
from optimizer.performance.hardware.sku_arrays import GIB, Hardware, build_hardware
from optimizer.performance.intervals import memory_regime, step_regime
from optimizer.performance.training.compute import model_flops_per_token
from optimizer.performance.training.layouts import Layouts, Row, stack_layouts
from optimizer.performance.training.scenario import Run, Scenario, trained_models
from optimizer.performance.training.step import Step, step

STEP_TIME, PEAK = "pred_step_time_s", "pred_mem_gib"
METRICS = (STEP_TIME, "pred_tokens_per_s_per_gpu", "pred_mfu", PEAK)
RAN_TOLERANCE = 0.15
NOT_SURE = 0.02
LAST = 1e9
USUAL_LENGTH, USUAL_TOKENS = 4096.0, 16384.0
BEFORE_SEQUENCE_PARALLEL = re.compile(r"20(1\d|2[01])\b")
BEFORE_FLASH_ATTENTION = re.compile(r"20(1\d|2[0-2])\b")
BEFORE_SECOND_FLASH_ATTENTION = re.compile(r"20(1\d|2[0-2]|23-0[1-6])\b")
FLASH_ATTENTION_HEAD, SECOND_FLASH_GAINS = 128, "Ampere"
FUSED_DISPATCH = re.compile(r"v?(20)?(26[.-](0[6-9]|1[0-2])|2[7-9][.-])")
TUNED, FUSED_TUNED = "tuned", "tuned_2026"
SHARDED, OLD_SHARDED, FIRST_FLASH = "fsdp", "fsdp_2022", "fsdp_2023"
COMPILED, COMPILES, TORCHTITAN = "fsdp_compiled", "compile", "torchtitan"
NOT_COMPILED = re.compile(r"eager|\b(no|not|without|w/o) (torch\.)?compile")
FIRST_FLASH_STACKS = ("llm-foundry", "composer", "mosaic")
SUBMISSIONS = ("mlcommons", "mlperf")
GPU_VENDORS = frozenset({"NVIDIA", "AMD"})
FIRST_MEGATRON, OLD_MEGATRON = "megatron_2021", "megatron_2022"
USED_MEGATRON, PLAIN_MEGATRON = "megatron_lm", "megatron_2023"
BEFORE_OVERLAP = frozenset({"Volta", "Turing", "Ampere"})
FULL_WIDTH = ("FP32", "TF32")
NO_WORDS = frozenset({"no", "0", "false", "off"})
ZERO_BUBBLE_WORDS = ("zero-bubble", "zero bubble", "zerobubble", "dualpipe")
HIDDEN_DISPATCH_WORDS = ("dualpipe", "a2a overlap", "all-to-all overlap")
SINGLE_DISPATCH_WORDS = ("deepep", "hybridep", "hai-llm")


class Recipe(NamedTuple):
    """How the steps of a row are computed: the fields of ``Run`` other than lengths, in its order."""

    number_format: str
    method: TrainingMethod
    zero_bubble: bool
    hides_dispatch: bool
    dispatches_once: bool


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One row, read: model, node, recipe, and the assumptions made."""

    model: ModelShape
    sku: Sku
    gpus: int
    sequence_length: float
    sequences: float
    software: str
    recipe: Recipe
    layouts: tuple[Row, ...]
    layout_given: bool
    notes: tuple[str, ...]


def read_row(
    row: Mapping[str, str],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> TrainingRow:
    """A CSV row, read. Raises Unreadable."""
    require_predictable(row, serving=False)
    spec, gpu_note = find_gpu(row.get("gpu", ""), gpus, number(row, "gpu_mem_gb"))
    model, model_notes = _model(row, models)
    number_format, format_notes = _format(row.get("precision", ""), spec)
    total = int(needed(row, "gpus_total"))
    sku, sku_notes = row_sku(row, spec, total, calibration)
    software = _software(row, spec, model)
    length, sequences, load_notes = _load(row, total)
    domain = calibration.network.link_domain.get(spec.gpu, 0.0) if total > sku.gpus_per_node else 0.0
    domain = max(int(domain), sku.gpus_per_node)
    asked = LayoutSpec(model, total, domain, length, sequences, software)
    notes = ((gpu_note,) if gpu_note else ()) + model_notes + load_notes
    return TrainingRow(
        model=model,
        sku=sku,
        gpus=total,
        sequence_length=length,
        sequences=sequences,
        software=software,
        recipe=Recipe(
            number_format,
            method=method_of(row, models),
            zero_bubble=_mentions(row, ZERO_BUBBLE_WORDS),
            hides_dispatch=_mentions(row, HIDDEN_DISPATCH_WORDS),
            dispatches_once=_mentions(row, SINGLE_DISPATCH_WORDS),
        ),
        layouts=row_layouts(row, asked),
        layout_given=number(row, "tp") is not None and number(row, "pp") is not None,
        notes=notes + format_notes + sku_notes,
    )


def predict_training(
    rows: Sequence[TrainingRow], calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> list[Prediction]:
    """Predictions in the order of ``rows``; rows with equal recipe and software class
    are computed together."""
    out = [Prediction()] * len(rows)
    groups: dict[tuple[str, Recipe], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row.software, row.recipe), []).append(index)
    for members in groups.values():
        for index, result in zip(
            members, _predict_group([rows[i] for i in members], calibration, gpus), strict=True
        ):
            out[index] = result
    return out


def _predict_group(
    rows: Sequence[TrainingRow], calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> list[Prediction]:
    counts = [len(row.layouts) for row in rows]
    owner: Places = np.repeat(np.arange(len(rows), dtype=np.intp), counts)
    ends = np.cumsum(counts)
    owners = owner.tolist()
    kinds = list(dict.fromkeys(row.sku for row in rows))
    place = {kind: index for index, kind in enumerate(kinds)}
    hw = build_hardware(kinds, gpus, calibration).take(np.asarray([place[row.sku] for row in rows])[owner])
    method = rows[0].recipe.method
    trained = trained_models([rows[i].model for i in owners], method)
    run = Run(
        as_array([rows[i].sequence_length for i in owners]),
        as_array([rows[i].sequences for i in owners]),
        *rows[0].recipe,
    )
    layouts = stack_layouts(layout for row in rows for layout in row.layouts)
    total = as_array([rows[i].gpus for i in owners])
    software = calibration.software[rows[0].software]
    scenario = Scenario(
        trained.shapes,
        run,
        layouts,
        hw,
        software,
        calibration,
        adapters=trained.adapters,
        forward=trained.forward,
    )
    found = step(scenario, total)
    length = run.sequence_length if method.mean_tokens is None else as_array(method.mean_tokens)
    tokens = length * run.sequences
    flops = model_flops_per_token(trained, length) * tokens
    rank = _rank(rows, owner, layouts, found, hw)
    able = found.fits & found.divides
    results = []
    for index, row in enumerate(rows):
        mine = np.arange(ends[index] - counts[index], ends[index])
        best = int(mine[np.argmin(rank[mine])])
        if not np.isfinite(rank[best]):
            results.append(Prediction(fits=False, note="no layout divides GPUs and batch"))
            continue
        step_s = float(found.total[best]) * (1.0 + _shortfall(row, calibration))
        peak = float(hw.peak[row.recipe.number_format][best]) * row.gpus
        values = {
            "pred_step_time_s": step_s,
            "pred_tokens_per_s_per_gpu": row.sequences
            * (method.mean_tokens or row.sequence_length)
            / step_s
            / row.gpus,
            "pred_mfu": float(flops[best]) / step_s / peak,
            "pred_mem_gib": float(found.peak_bytes[best]) / GIB,
        }
        fits = bool(able[mine].any())
        card = (float(found.held_bytes[best]), float(hw.memory_bytes[best]))
        results.append(_prediction(row, values, fits, card, gpus))
    return results


def _shortfall(row: TrainingRow, calibration: Calibration) -> float:
    """Extra time of a published step over the fastest of its row's layouts, as a share; 0 if the layout is
    given."""
    compute = calibration.compute
    untuned = compute.search_shortfall_moe if row.model.is_moe else compute.search_shortfall
    return 0.0 if row.layout_given else untuned


def _rank(rows: Sequence[TrainingRow], owners: Places, layouts: Layouts, found: Step, hw: Hardware) -> Array:
    """Sort key of the layouts [L] of each row (its place in ``owners``), the least first; inf if they do not
    divide.

    A layout that is given in the row did run, so it is the fastest within ``RAN_TOLERANCE`` of the GPU's
    memory, whatever the memory model says. Among the others it is the fastest that fits, or the smallest if
    none does.
    """
    ran = as_array([row.layout_given for row in rows])[owners] > 0
    least = as_array([min(layout[4] for layout in row.layouts) for row in rows])[owners]
    told = ran & (layouts.micro_batch == least)
    holds = np.where(told, found.peak_bytes <= (1.0 + RAN_TOLERANCE) * hw.memory_bytes, found.fits)
    beyond = LAST + np.where(told, found.total, found.held_bytes)
    return np.where(found.divides, np.where(holds, found.total, beyond), np.inf)


def _prediction(
    row: TrainingRow,
    values: Mapping[str, float],
    fits: bool,
    card: tuple[float, float],
    gpus: Mapping[str, GpuSpec],
) -> Prediction:
    """``card``: bytes held on the fullest GPU, and the bytes that it has."""
    keys, spread, question = keys_of(row), load_spread(), question_of(row, gpus)
    step_s, peak = (spread.of(*keys[name], question) for name in (STEP_TIME, PEAK))
    sides = {name: step_s.inverse for name in METRICS} | {STEP_TIME: step_s, PEAK: peak}
    sure = fit_probability(*card, peak)
    close = (f"memory suffices with {sure:.0%} probability",) if NOT_SURE < sure < 1.0 - NOT_SURE else ()
    return Prediction(values, sides, fits, "; ".join(row.notes + close))


def keys_of(row: TrainingRow) -> dict[str, tuple[str, str]]:
    """Block and regime of the intervals of step time and memory."""
    adapters = row.recipe.method.adapter is not None
    return {
        STEP_TIME: ("step", step_regime(row.software, row.model.is_moe, adapters)),
        PEAK: ("memory", memory_regime(row.software, adapters)),
    }


def question_of(row: TrainingRow, gpus: Mapping[str, GpuSpec]) -> Question:
    """What the row is asked for."""
    gpu, model = row.sku.gpu, row.model
    words = question_words(gpu, gpus[gpu].arch, model.name, row.software, row.recipe.number_format)
    numbers = {
        "size": model.active_params / 1e9,
        "gpus": float(row.gpus),
        "batch": float(row.layouts[0][4]),
        "input": row.sequence_length,
    }
    assumed = assumptions_in("; ".join(row.notes)) + (not row.layout_given)
    return Question(TRAINING, words, numbers, assumed, model.is_moe)


def _load(row: Mapping[str, str], gpus: int) -> tuple[float, float, tuple[str, ...]]:
    """Tokens per sequence and sequences per step; usual values if the row does not give them."""
    length, sequences = number(row, "seq_len"), number(row, "global_batch")
    notes: tuple[str, ...] = ()
    if not length:
        length, notes = USUAL_LENGTH, (f"seq_len not given, {USUAL_LENGTH:.0f} assumed",)
    if not sequences:
        parts = [number(row, name) for name in ("micro_batch", "grad_accum", "dp")]
        usual = max(1.0, USUAL_TOKENS // length) * gpus
        sequences = prod(part for part in parts if part) if all(parts) else usual
        told = "from micro-batches" if all(parts) else f"{usual / gpus:.0f} sequences a GPU assumed"
        notes += (f"global_batch not given, {told}",)
    return length, sequences, notes


def _model(row: Mapping[str, str], models: Mapping[str, ModelShape]) -> tuple[ModelShape, tuple[str, ...]]:
    if number(row, "layers") is None or number(row, "hidden") is None:
        counts = number(row, "params_b"), number(row, "active_params_b")
        known, note = find_model(row.get("model", ""), models, *counts)
        return known, (note,) if note else ()
    named = known_model(row.get("model", ""), models, number(row, "params_b"))
    if named is not None and named.states.count:
        return named, (f"layers of {named.name}: no column tells which keep a state",)
    notes: tuple[str, ...] = ()
    if "hybrid" in row.get("arch", ""):
        notes = ("hybrid layers counted by their parameters",)
    return _with_stated_params(_counted(row), row), notes


def _counted(row: Mapping[str, str]) -> ModelShape:
    hidden, layers = int(needed(row, "hidden")), int(needed(row, "layers"))
    heads = int(number(row, "heads") or max(1, hidden // 128))
    kv_heads = int(number(row, "kv_heads") or heads)
    experts = int(number(row, "experts") or 0)
    gated = number(row, "gated_mlp")
    ffn = number(row, "ffn_hidden") or number(row, "moe_ffn") or 4 * hidden
    return ModelShape(
        name=row.get("model", ""),
        attention=Attention.MHA if heads == kv_heads else Attention.GQA,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=int(number(row, "head_dim") or hidden // heads),
        ffn=int(ffn),
        vocab=int(number(row, "vocab") or 50304),
        total_params=0.0,
        active_params=0.0,
        kv_elements_per_token=0,
        mlp_mats=2 if gated == 0 else 3,
        experts=experts,
        active_experts=int(number(row, "topk") or 1) if experts else 0,
        moe_ffn=int(number(row, "moe_ffn") or ffn) if experts else 0,
        tie_embeddings=number(row, "tied_embeddings") == 1,
    ).with_counted_params()


def _with_stated_params(shape: ModelShape, row: Mapping[str, str]) -> ModelShape:
    """The shape with stated parameter counts if those counted from its sizes differ by more than 15 % (shared
    experts, other layers)."""
    total, active = number(row, "params_b"), number(row, "active_params_b")
    if total and abs(shape.total_params / (total * 1e9) - 1) > 0.15:
        shape = replace(shape, total_params=total * 1e9)
    active = active or total
    if active and abs(shape.active_params / (active * 1e9) - 1) > 0.15:
        shape = replace(shape, active_params=min(active * 1e9, shape.total_params))
    return shape


def _format(text: str, spec: GpuSpec) -> tuple[str, tuple[str, ...]]:
    """The format of matrix products. Names of scaling recipes mean FP8; "or" means that the format is not
    known."""
    word = text.upper()
    notes: tuple[str, ...] = ("INT8 products predicted as FP8 ones",) if "INT8" in word else ()
    wanted = "fp16" if word.startswith("FP16") else "bf16"
    if "FP8" in word or "INT8" in word:
        wanted = "fp8"
    if "FP4" in word:
        wanted = "fp8" if " OR " in word else "fp4"
        notes = ("four-bit or eight-bit products: eight assumed",) if " OR " in word else ()
    if any(name in word for name in FULL_WIDTH):
        notes = (f"{text.strip()} products predicted as 16-bit ones: twice as long or more in truth",)
    peaks = {
        "bf16": spec.bf16_tflops,
        "fp16": spec.fp16_tflops,
        "fp8": spec.fp8_tflops,
        "fp4": spec.fp4_tflops,
    }
    if peaks[wanted]:
        return wanted, notes
    if wanted == "bf16" and not text.strip() and peaks["fp16"]:
        return "fp16", notes
    raise Unreadable(f"{spec.gpu} has no {wanted}")


def _grid_framework(row: Mapping[str, str]) -> str:
    return "nanotron" if "nanotron" in row.get("model", "") + row.get("source", "") else ""


def _software(row: Mapping[str, str], spec: GpuSpec, model: ModelShape) -> str:
    """The class of the row's software.

    Benchmark submissions are tuned, except those that run the reference code for adapters, Hugging Face's
    trainer with DeepSpeed. Megatron had no FlashAttention before 2023, no sequence parallelism before 2022,
    and overlaps nothing on GPUs before Hopper; its fork with DeepSpeed, which got FlashAttention in the
    summer of 2023, never overlaps. Heads wider than 128 had to wait for FlashAttention 2 (July 2023) in
    sharded frameworks too, which made attention on Ampere faster by half. NVIDIA's containers fuse the
    routing of tokens on Blackwell from June 2026 on.
    """
    framework = (row.get("framework", "") or _grid_framework(row)).lower()
    date = row.get("date", "")
    if any(name in row.get("source", "").lower() for name in SUBMISSIONS):
        return TRAINERS if _is_reference(row, framework, spec) else TUNED
    if "megatron" in framework and "deepspeed" not in framework:
        if BEFORE_SEQUENCE_PARALLEL.match(date):
            return FIRST_MEGATRON
        if BEFORE_FLASH_ATTENTION.match(date):
            return OLD_MEGATRON
    elif "megatron" in framework and date and not BEFORE_SECOND_FLASH_ATTENTION.match(date):
        return PLAIN_MEGATRON
    found = load_table_constants().software_of(framework)
    if found == SHARDED:
        return _sharded(row, framework, spec, model)
    if found == TUNED and model.is_moe and "Blackwell" in spec.arch and FUSED_DISPATCH.match(date):
        return FUSED_TUNED
    told = (row.get("tp_overlap") or "").strip().lower()
    plain = spec.arch in BEFORE_OVERLAP or told in NO_WORDS
    return PLAIN_MEGATRON if found == USED_MEGATRON and plain else found


def _is_reference(row: Mapping[str, str], framework: str, spec: GpuSpec) -> bool:
    """Whether a submission trains adapters with DeepSpeed with separate kernels, as GPUs do; Gaudi runs
    graphs."""
    plain = "deepspeed" in framework and "megatron" not in framework
    return adapter_of(row) is not None and plain and spec.vendor in GPU_VENDORS


def _sharded(row: Mapping[str, str], framework: str, spec: GpuSpec, model: ModelShape) -> str:
    """The class of a sharded framework: compiled if the row says so, and in torchtitan's 8-bit runs, whose
    casts are slow otherwise; else by its version of attention."""
    date = row.get("date", "")
    eight_bit = TORCHTITAN in framework and "8" in (row.get("precision") or "")
    told = _free_text(row)
    if (COMPILES in told or eight_bit) and not NOT_COMPILED.search(told):
        return COMPILED
    wide = model.head_dim > FLASH_ATTENTION_HEAD
    if (BEFORE_SECOND_FLASH_ATTENTION if wide else BEFORE_FLASH_ATTENTION).match(date):
        return OLD_SHARDED
    first = BEFORE_SECOND_FLASH_ATTENTION.match(date) or any(name in framework for name in FIRST_FLASH_STACKS)
    return FIRST_FLASH if first and spec.arch == SECOND_FLASH_GAINS else SHARDED


def _mentions(row: Mapping[str, str], words: Sequence[str]) -> bool:
    """Whether the row names one of ``words``."""
    told = _free_text(row)
    return any(word in told for word in words)


def _free_text(row: Mapping[str, str]) -> str:
    """The row's schedule, framework and other text, in lower case."""
    return " ".join(row.get(name) or "" for name in ("schedule", "framework", "notes")).lower()


def fit_probability(held_bytes: float, card_bytes: float, sides: Sides) -> float:
    """Probability that a GPU of ``card_bytes`` holds ``held_bytes``, whose interval has ``sides``."""
    used = sides if card_bytes > held_bytes else sides.inverse
    return chance_below(card_bytes / held_bytes, used.over)

"""Training steps of small models on one GPU, as rows of ``fixtures/performance/measured_one_gpu.csv``.

``python tests/bench/measured_steps.py GPU STEPS.csv`` runs on a machine with a GPU, PyTorch and transformers;
it imports nothing else of this project. ``GPU`` is the catalogue's name, such as ``H100-SXM-80GB``. Weights
are random, FP32 with BF16 autocast and fused AdamW, as Hugging Face's trainer keeps them. A row is written as
soon as it is measured: the median of eight steps, and the peak of what is allocated.
"""

from __future__ import annotations

import csv
import gc
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

WARM_STEPS, STEPS = 3, 8
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Size:
    """A published model: its class in transformers and its sizes."""

    family: str
    params_b: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int


@dataclass(frozen=True, slots=True)
class Case:
    """One run: tokens of a sequence, sequences of a step, and how it is computed."""

    model: str
    sequence: int
    sequences: int
    recomputes: bool = False
    compiles: bool = False


SIZES = {
    "Qwen3-0.6B": Size("Qwen3", 0.596, 28, 1024, 16, 8, 128, 3072, 151936),
    "Llama-3.2-1B": Size("Llama", 1.236, 16, 2048, 32, 8, 64, 8192, 128256),
    "Qwen2.5-1.5B": Size("Qwen2", 1.544, 28, 1536, 12, 2, 128, 8960, 151936),
    "Llama-3.2-3B": Size("Llama", 3.213, 28, 3072, 24, 8, 128, 8192, 128256),
    "Qwen3-4B": Size("Qwen3", 4.022, 36, 2560, 32, 8, 128, 9728, 151936),
}
CASES = (
    Case("Llama-3.2-1B", 2048, 4),
    Case("Llama-3.2-1B", 4096, 4),
    Case("Llama-3.2-1B", 8192, 1),
    Case("Llama-3.2-1B", 4096, 8, recomputes=True),
    Case("Qwen3-0.6B", 2048, 8),
    Case("Qwen3-0.6B", 8192, 2),
    Case("Qwen2.5-1.5B", 2048, 4),
    Case("Qwen2.5-1.5B", 4096, 4, recomputes=True),
    Case("Llama-3.2-3B", 2048, 2),
    Case("Llama-3.2-3B", 4096, 1),
    Case("Llama-3.2-3B", 4096, 4, recomputes=True),
    Case("Llama-3.2-3B", 8192, 2, recomputes=True),
    Case("Qwen3-4B", 4096, 1),
    Case("Qwen3-4B", 4096, 4, recomputes=True),
    Case("Llama-3.2-1B", 4096, 4, compiles=True),
    Case("Llama-3.2-3B", 4096, 1, compiles=True),
    Case("Qwen3-0.6B", 2048, 8, compiles=True),
)
COLUMNS = (
    *("id", "kind", "source", "source_detail", "model", "arch", "workload", "params_b", "active_params_b"),
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "gated_mlp", "vocab", "experts"),
    *("topk", "moe_ffn", "seq_len", "global_batch", "micro_batch", "grad_accum", "gpu", "gpu_mem_gb"),
    *("gpus_total", "gpus_per_node", "intra_node_gbps", "inter_node_gbps_per_gpu", "fabric", "virt"),
    *("precision", "tp", "pp", "dp", "cp", "ep", "interleave", "recompute", "zero_fsdp", "framework", "date"),
    *("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "mem_gib", "notes"),
)
torch, transformers = (import_module(name) for name in ("torch", "transformers"))


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of a step, and GiB that the allocator reserved and allocated at the peak."""

    step_s: float
    reserved_gib: float
    allocated_gib: float


def main() -> int:
    """Measures every case and writes its row."""
    if len(sys.argv) != 3:
        print("usage: python tests/bench/measured_steps.py GPU STEPS.csv", file=sys.stderr)
        return 2
    gpu, out = sys.argv[1], Path(sys.argv[2])
    with out.open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        rows.writeheader()
        for number, case in enumerate(CASES):
            began_s = time.monotonic()
            try:
                row = row_of(case, gpu, number)
            except torch.OutOfMemoryError:
                print(case, "does not fit", flush=True)
                continue
            print(case, row["step_time_s"], row["mem_gib"], f"{time.monotonic() - began_s:.0f} s", flush=True)
            rows.writerow(row)
            file.flush()
    return 0


def measured(case: Case, size: Size) -> Measured:
    """Runs a case; what it allocates is free again when it returns."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{size.family}Config")(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.ffn,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device("cuda"):
        model = getattr(transformers, f"{size.family}ForCausalLM")(config)
    model.train()
    if case.recomputes:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    run = torch.compile(model) if case.compiles else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(0, size.vocab, (case.sequences, case.sequence), device="cuda")

    def step_s() -> float:
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return time.perf_counter() - began_s

    for _ in range(WARM_STEPS):
        step_s()
    torch.cuda.reset_peak_memory_stats()
    median_s = statistics.median(step_s() for _ in range(STEPS))
    reserved, allocated = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
    return Measured(median_s, reserved / GIB, allocated / GIB)


def row_of(case: Case, gpu: str, number: int) -> dict[str, Any]:
    """The row of a case."""
    size = SIZES[case.model]
    found = measured(case, size)
    gc.collect()
    torch.cuda.empty_cache()
    torch.compiler.reset()
    compiled = " with torch.compile" if case.compiles else ""
    return {
        "id": f"one-gpu-{gpu.split('-')[0].lower()}-{number:03d}",
        "kind": "training",
        "source": "one-gpu-steps",
        "source_detail": "tests/bench/measured_steps.py",
        "model": case.model,
        "arch": "dense",
        "workload": "pretrain",
        "params_b": size.params_b,
        "layers": size.layers,
        "hidden": size.hidden,
        "heads": size.heads,
        "kv_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "ffn_hidden": size.ffn,
        "gated_mlp": 1,
        "vocab": size.vocab,
        "seq_len": case.sequence,
        "global_batch": case.sequences,
        "micro_batch": case.sequences,
        "grad_accum": 1,
        "gpu": gpu,
        "gpu_mem_gb": round(torch.cuda.get_device_properties(0).total_memory / 1e9),
        "gpus_total": 1,
        "gpus_per_node": 1,
        "precision": "BF16",
        **dict.fromkeys(("tp", "pp", "dp", "cp", "interleave"), 1),
        "recompute": "full" if case.recomputes else "none",
        "framework": f"Hugging Face transformers {transformers.__version__}{compiled}",
        "date": f"{datetime.now(UTC):%Y-%m}",
        "step_time_s": round(found.step_s, 5),
        "tokens_per_s_per_gpu": round(case.sequence * case.sequences / found.step_s, 1),
        "mem_gib": round(found.allocated_gib, 2),
        "notes": f"PyTorch {torch.__version__}; FP32 weights, BF16 autocast, fused AdamW; "
        f"{found.reserved_gib:.2f} GiB reserved",
    }


if __name__ == "__main__":
    sys.exit(main())

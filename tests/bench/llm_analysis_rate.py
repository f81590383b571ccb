"""How many estimates a second llm-analysis gives: ``PYTHON llm_analysis_rate.py`` where it is installed.

A script of its own, for an environment of its own: the product does not depend on llm-analysis. Prints JSON.
"""

from __future__ import annotations

import json
import logging
import time
from importlib.metadata import version

from llm_analysis.analysis import ActivationRecomputation, LLMAnalysis  # type: ignore[import-not-found]
from llm_analysis.config import GPUConfig, ModelConfig, ParallelismConfig  # type: ignore[import-not-found]

SECONDS = 1.0
H100 = GPUConfig(
    name="h100",
    mem_per_GPU_in_GB=80,
    hbm_bandwidth_in_GB_per_sec=3350,
    intra_node_bandwidth_in_GB_per_sec=450,
    intra_node_min_message_latency=8e-6,
    peak_fp16_TFLOPS=989,
    inter_node_bandwidth_in_GB_per_sec=50,
)
DENSE_8B = ModelConfig(
    name="dense-8b",
    num_layers=32,
    n_head=32,
    hidden_dim=4096,
    vocab_size=128256,
    max_seq_len=8192,
    num_key_value_heads=8,
    ffn_embed_dim=16384,  # it asks for a multiple of the hidden size
)


def train() -> None:
    """One run of 32 GPUs in a given layout."""
    layout = ParallelismConfig(tp_size=2, pp_size=1, dp_size=16)
    analysis = LLMAnalysis(DENSE_8B, H100, parallelism_config=layout, flops_efficiency=0.45)
    analysis.training(
        batch_size_per_gpu=1,
        global_batch_size=512,
        seq_len=8192,
        total_num_tokens=int(2e11),
        activation_recomputation=ActivationRecomputation.NONE,
    )


def serve() -> None:
    """One replica at a given batch: prefill and decode, no queue and no search for the most it serves."""
    analysis = LLMAnalysis(
        DENSE_8B,
        H100,
        parallelism_config=ParallelismConfig(tp_size=1, pp_size=1),
        flops_efficiency=0.5,
        hbm_memory_efficiency=0.8,
    )
    analysis.inference(batch_size_per_gpu=32, seq_len=1500, num_tokens_to_generate=300)


def rate(estimate) -> float:  # type: ignore[no-untyped-def]
    """Estimates per CPU second."""
    estimate()
    count, began = 0, time.process_time()
    while time.process_time() - began < SECONDS:
        estimate()
        count += 1
    return count / (time.process_time() - began)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    found = {"version": version("llm-analysis"), "training": rate(train), "serving": rate(serve)}
    print(json.dumps(found))

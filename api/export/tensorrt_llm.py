"""Serving placements as TensorRT-LLM command lines.

Options: those of ``trtllm-serve``, as documented under its commands. A server has one replica, and takes the
number format from the checkpoint.
"""

from __future__ import annotations

from api.export.servers import PORT, Settings, options, sequences_most
from api.export.targets import load_engine_words
from api.export.workload_facts import WorkloadFacts, model_settings
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import ServingEngine

INSTALL = f"pip install --quiet tensorrt-llm=={load_engine_words(ServingEngine.TENSORRT_LLM).version}"
ATTENTION_RANKS = "attention_ranks.yaml"
GATHERED = (
    "{enable_attention_dp: true,"
    " attention_dp_config: {enable_balance: true, batching_wait_iters: 0, timeout_iters: 60}}"
)


def serve_command(placement: Placement, facts: WorkloadFacts) -> str:
    """``trtllm-serve`` with the placement's options; the model is ``$MODEL``.

    Attention ranks have no command-line option, so their options are written to a file. They wait to batch
    prompts together, as the estimate assumes.
    """
    layout = placement.parallelism
    settings: Settings = {
        "served_model_name": placement.workload,
        "tp_size": layout.tp,
        "pp_size": layout.pp,
        "host": "0.0.0.0",  # noqa: S104  a server in its own node, behind the tool's balancer
        "port": PORT,
        **model_settings(placement, facts, length="max_seq_len", own_code="trust_remote_code"),
        "max_batch_size": sequences_most(placement, ServingEngine.TENSORRT_LLM),
    }
    if layout.ep > 1:
        settings["ep_size"] = layout.ep
    if layout.dp == 1:
        return " ".join(['trtllm-serve "$MODEL"', *options(settings)])
    settings["extra_llm_api_options"] = ATTENTION_RANKS
    ask = f"echo '{GATHERED}' > {ATTENTION_RANKS}"
    return " ".join([f'{ask} && trtllm-serve "$MODEL"', *options(settings)])

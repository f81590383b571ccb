"""Serving placements as TensorRT-LLM's command line.

Options: those of ``trtllm-serve``, as its page of commands names them. It runs one replica a server, and
takes the format from the checkpoint.
"""

from __future__ import annotations

from api.export.options import Settings, options
from api.export.servers import PORT, sequences_most
from broker.domain.plan import Placement
from broker.domain.workload import ServingEngine

INSTALL = "pip install --quiet tensorrt-llm"


def serve_command(placement: Placement) -> str:
    """``trtllm-serve`` with the placement's options; the model is ``$MODEL``."""
    layout = placement.parallelism
    settings: Settings = {
        "served_model_name": placement.workload,
        "tp_size": layout.tp,
        "pp_size": layout.pp,
        "host": "0.0.0.0",  # noqa: S104  a server in its own node, behind the tool's balancer
        "port": PORT,
        "max_batch_size": sequences_most(placement, ServingEngine.TENSORRT_LLM),
    }
    if layout.ep > 1:
        settings["ep_size"] = layout.ep
    return " ".join(['trtllm-serve "$MODEL"', *options(settings)])

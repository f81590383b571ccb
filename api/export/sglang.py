"""Serving placements as SGLang command lines.

Options: those of ``python -m sglang.launch_server``, as documented under its server arguments.
"""

from __future__ import annotations

from api.export.servers import PORT, Settings, options, replicas_per_server, sequences_most
from api.export.targets import load_engine_words
from api.export.workload_facts import WorkloadFacts, model_settings
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import ServingEngine

INSTALL = f"pip install --quiet 'sglang[all]=={load_engine_words(ServingEngine.SGLANG).version}'"


def serve_command(placement: Placement, facts: WorkloadFacts) -> str:
    """``sglang.launch_server`` with the placement's options; the model is ``$MODEL``."""
    layout = placement.parallelism
    settings: Settings = {
        "served-model-name": placement.workload,
        "tp-size": layout.tp,
        "pp-size": layout.pp,
        "dp-size": layout.dp * replicas_per_server(placement),
        **model_settings(placement, facts, length="context-length"),
        "host": "0.0.0.0",  # noqa: S104  a server in its own node, behind the tool's balancer
        "port": PORT,
        "max-running-requests": layout.dp * sequences_most(placement, ServingEngine.SGLANG),
    }
    if layout.dp > 1:
        settings["enable-dp-attention"] = True
    if layout.ep > 1:
        settings["ep-size"] = layout.ep
    return " ".join(['python -m sglang.launch_server --model-path "$MODEL"', *options(settings)])

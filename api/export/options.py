"""Options of a server's command line."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import ServingEngine

Settings = dict[str, str | int | bool]


def engine_of(placement: Placement) -> ServingEngine:
    """What serves the placement; vLLM where the plan does not say."""
    return placement.engine or ServingEngine.VLLM


def options(settings: Mapping[str, str | int | bool]) -> list[str]:
    """``--name value`` each; ``--name`` alone where the value is True."""
    return [
        f"--{name}" if value is True else f"--{name} {quote(str(value))}" for name, value in settings.items()
    ]

"""Command-line options of a server."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import ServingEngine

Settings = dict[str, str | int | bool]


def engine_of(placement: Placement) -> ServingEngine:
    """The serving engine of the placement; vLLM if the plan names none."""
    return placement.engine or ServingEngine.VLLM


def options(settings: Mapping[str, str | int | bool]) -> list[str]:
    """``--name value`` for each setting; ``--name`` alone if the value is True."""
    return [
        f"--{name}" if value is True else f"--{name} {quote(str(value))}" for name, value in settings.items()
    ]

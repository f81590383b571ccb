"""What a plan is compared with, in the words that people read."""

from __future__ import annotations

from collections.abc import Mapping

from broker.domain.plan import Baseline

STRATEGIES: Mapping[str, str] = {
    "single_shape": "one node type for all",
    "single_provider": "one provider for all",
    "cheapest_gpu_hour": "cheapest GPU-hour each",
    "converged": "one always-on pool",
}


def without_cost(baseline: Baseline) -> str:
    """What stands where the cost of a baseline is not told."""
    return "cannot run" if baseline.completed else "not completed"


def strategy(name: str) -> str:
    """A baseline of a plan by its name: ``converged`` → ``one always-on pool``."""
    return STRATEGIES.get(name, name)

"""What new workloads would take, told by the server that BROKER_URL names or over a market file.

``broker init`` imports this module only where it has one of them: the planner takes seconds to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from api.cli.market_source import find_market, named_server
from api.cli.output import say
from api.planning.planning_call import build_planner
from api.schemas.market.market import Market
from broker.domain.basics.errors import BrokerError
from broker.domain.planning.cost_estimate import WorkloadEstimate
from broker.domain.planning.workload import PlanRequest


def open_market(path: Path) -> Market:
    """The market of a file. Raises InputError."""
    return find_market(path)


def estimate(request: PlanRequest, text: str, market: Market | None) -> Sequence[WorkloadEstimate]:
    """A first estimate of each workload over ``market``, else of the server; none if it cannot be asked."""
    if market is not None:
        return build_planner().estimate(request, market.offers, market.as_of).workloads
    server = named_server()
    if server is None:
        return ()
    try:
        with server:
            return server.estimate(text).workloads
    except BrokerError as error:
        say(f"no estimate: {error}")
        return ()

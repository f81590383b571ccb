"""The Python client of a running broker: ``BrokerClient``, ``AsyncBrokerClient`` and what they return.

It imports schemas and the domain, and neither the server nor the planner. ``calls`` says what is asked.
"""

from api.client.answers import MadePlan, PlanFailed, ServerTimedOut
from api.client.asynchronous import AsyncBrokerClient, connect_async
from api.client.bodies import Workloads
from api.client.synchronous import BrokerClient, connect

__all__ = [
    "AsyncBrokerClient",
    "BrokerClient",
    "MadePlan",
    "PlanFailed",
    "ServerTimedOut",
    "Workloads",
    "connect",
    "connect_async",
]

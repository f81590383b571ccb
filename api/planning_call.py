"""The planner as a function that another process can be sent by name."""

from __future__ import annotations

from datetime import datetime
from functools import cache

from api.relay import Sender
from broker.catalogue import load_gpus
from broker.domain.offer import Offer
from broker.domain.plan import Plan
from broker.domain.workload import PlanRequest
from broker.ports import PlanOptions
from optimizer.performance.calibration import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.planner import JointPlanner

_senders: list[Sender] = []


@cache
def build_estimator() -> Estimator:
    """The performance core on the installed hardware table and calibration; one a process."""
    return Estimator(load_gpus(), load_calibration())


@cache
def build_planner() -> JointPlanner:
    """The planner; one a process."""
    return JointPlanner(build_estimator())


def plan_call(request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions) -> Plan:
    """A checked plan: what the planning service hands to its executor. Labelled runs tell their progress."""
    sink = _senders[-1].sink(options.label) if _senders and options.label else None
    return build_planner().plan(request, offers, as_of, options, sink)


def send_progress_with(sender: Sender) -> None:
    """In a worker process: where the progress of its runs goes from now on."""
    _senders.append(sender)

"""The planner as functions that can be sent to another process by name."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from api.given_settings import read_settings
from api.planning.relay import Sender
from broker.catalogue import load_gpus, load_models, load_moving_terms
from broker.domain.market.offer import Offer
from broker.domain.planning.cost_estimate import CostEstimate
from broker.domain.planning.plan import ConfidencePrice, Plan
from broker.domain.planning.simulation import Simulation
from broker.domain.planning.workload import PlanRequest, Quota
from broker.ports.planning import InForce, PlannedAgain, PlanOptions, ProgressSink
from broker.settings import Settings
from optimizer.calibration.own.evidence import evidence_of
from optimizer.calibration.own.rows import completed, load_own_rows
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.performance.own.shift import OwnShift, load_kernels
from optimizer.placement.columns.carried import Past
from optimizer.placement.replan.warm import WarmStart
from optimizer.planner import JointPlanner
from optimizer.simulation import simulate

_sender: ContextVar[Sender | None] = ContextVar("sender", default=None)


def build_estimator() -> Estimator:
    """The performance core with the installed hardware table, calibration and the user's own rows."""
    return _estimator(*_own_rows())


def _own_rows() -> tuple[Path, int]:
    """The file of own rows and the time of its last change in ns (0: no file)."""
    file = read_settings().calibration_file
    return file, file.stat().st_mtime_ns if file.is_file() else 0


@lru_cache(maxsize=1)
def _estimator(file: Path, _changed_at_ns: int) -> Estimator:
    """One per process, until the file of own rows changes."""
    return Estimator(load_gpus(), load_calibration(), load_own_shift(file))


def load_own_shift(file: Path) -> OwnShift:
    """The correction from the user's stored rows; none without a file."""
    rows = completed(load_own_rows(file))
    evidence = evidence_of(rows, load_calibration(), load_gpus(), load_models())
    return OwnShift(evidence, load_kernels())


def installed_quotas(settings: Settings) -> tuple[Quota, ...]:
    """``provider_quotas`` of the settings as the planner's quotas."""
    rows = sorted(settings.provider_quotas.items())
    return tuple(Quota(provider, row.gpus, row.nodes) for provider, row in rows)


def build_planner() -> JointPlanner:
    """The planner on that core. Each process keeps one, so that its caches are reused."""
    return _planner(*_own_rows())


@lru_cache(maxsize=1)
def _planner(file: Path, changed_at_ns: int) -> JointPlanner:
    return JointPlanner(_estimator(file, changed_at_ns), load_moving_terms())


@lru_cache(maxsize=1)
def _estimating_planner(file: Path, changed_at_ns: int) -> JointPlanner:
    """A planner of its own, as its caches are not for several threads."""
    return JointPlanner(_estimator(file, changed_at_ns), load_moving_terms())


def warm_up() -> None:
    """Loads the tables that every plan needs, so that the first re-optimization does not wait for them."""
    build_planner()


def plan_call(request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions) -> Plan:
    """A checked plan, as the planning service requests it from its executor. Labelled runs send their
    progress.
    """
    return build_planner().plan(request, offers, as_of, options, progress_sink(options.label))


def estimate_call(request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime) -> CostEstimate:
    """What each workload would cost alone, without a search; for one thread at a time."""
    return _estimating_planner(*_own_rows()).estimate(request, offers, as_of)


def check_call(plan: Plan, request: PlanRequest, offers: tuple[Offer, ...]) -> tuple[str, ...]:
    """Every rule that a plan breaks; for one thread at a time."""
    return _estimating_planner(*_own_rows()).check(plan, request, offers)


def simulate_call(
    plan: Plan, request: PlanRequest, offers: tuple[Offer, ...], draws: int, seed: int
) -> Simulation:
    """What may happen to a plan that was checked when it was made."""
    return simulate(plan, request, offers, build_estimator(), load_moving_terms(), draws, seed)


def price_call(
    plan: Plan,
    request: PlanRequest,
    offers: tuple[Offer, ...],
    as_of: datetime,
    options: PlanOptions,
    is_same_market: bool,
) -> tuple[ConfidencePrice, ...]:
    """What the document of a plan costs at other confidences."""
    return build_planner().price_confidence(
        plan, request, offers, as_of, options, is_same_market=is_same_market
    )


def replan_call(
    request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions, in_force: InForce
) -> PlannedAgain:
    """A checked plan that starts from the one in force, or continues its search, as the services request it.
    Labelled runs send their progress.
    """
    warm = WarmStart(
        in_force.plan,
        past=Past(request, offers) if in_force.same_market else None,
        is_continued=in_force.is_continued,
        leaving_usd=in_force.leaving_usd,
        frozen_before=in_force.frozen_before,
        frozen=in_force.frozen,
    )
    found = build_planner().replan(request, offers, as_of, options, warm, progress_sink(options.label))
    return PlannedAgain(found.plan, found.unfinished)


def send_progress_with(sender: Sender) -> None:
    """In a worker: sets the sender for the progress of this thread's runs."""
    _sender.set(sender)


def progress_sink(label: str) -> ProgressSink | None:
    """The progress sink of the run ``label``; None if nobody listens or there is no label."""
    sender = _sender.get()
    return sender.sink(label) if sender is not None and label else None

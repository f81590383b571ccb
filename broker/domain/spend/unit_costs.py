"""Unit costs: per training run, per token, per GPU-hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import Batch, PlanRequest, Serving, Training, WorkloadKind
from broker.domain.spend.spend import Charge, Commitment

HOUR = timedelta(hours=1)
SECONDS_PER_HOUR = 3600
TRILLION = Decimal(10) ** 12
MILLION = Decimal(10) ** 6

Job = tuple[str | None, str]
"""Plan id and workload."""


@dataclass(frozen=True, slots=True)
class Work:
    """The output of a workload.

    ``tokens`` is the total of a run or batch, which takes ``gpu_seconds``. It is 0 for a service, of
    which each hour's tokens follow from the demand in ``request``.
    """

    kind: WorkloadKind
    tokens: float
    gpu_seconds: int
    request: PlanRequest
    name: str

    def tokens_served_in(self, charges: Iterable[Charge]) -> float:
        """Tokens of a service's demand while ``charges`` pay for used capacity; 0 for a run or batch."""
        workload = self.request.workload(self.name)
        if not isinstance(workload, Serving):
            return 0.0
        windows = [charge.window for charge in charges if _is_used(charge)]
        return _served(workload, self.request.horizon.start, windows)


@dataclass(frozen=True, slots=True)
class DayWork:
    """What the charges of one workload of a plan paid for on a day.

    ``tokens``: of a run or batch all that it makes with ``planned_gpu_seconds``, of a service (which has 0 of
    them) the demand of the day while it was held; None if the plan's document cannot be read.
    """

    day: date
    team: str
    plan_id: str | None
    workload: str
    kind: WorkloadKind | None
    usd: Decimal
    used_gpu_seconds: int
    planned_gpu_seconds: int
    tokens: float | None
    is_used: bool


def day_work_of(charges: Iterable[Charge], work: Mapping[Job, Work]) -> tuple[DayWork, ...]:
    """The work that ``charges``, which name their plan, pay for, by day and job."""
    by_day: defaultdict[tuple[date, Job], list[Charge]] = defaultdict(list)
    for charge in charges:
        by_day[charge.window.start.date(), (charge.plan_id, charge.workload)].append(charge)
    found = []
    for (day, job), mine in by_day.items():
        done = work.get(job)
        served = None if done is None else done.tokens or done.tokens_served_in(mine)
        found.append(
            DayWork(
                day,
                mine[0].team,
                *job,
                mine[0].kind if done is None else done.kind,
                _sum(mine),
                sum(charge.gpu_seconds - charge.idle_gpu_seconds for charge in mine),
                done.gpu_seconds if done is not None and done.tokens else 0,
                served,
                any(map(_is_used, mine)),
            )
        )
    return tuple(found)


def work_of(plan: Plan, request: PlanRequest) -> dict[str, Work]:
    """The work of every workload of ``request`` that ``plan`` places, by name."""
    planned: defaultdict[str, int] = defaultdict(int)
    for placement in plan.placements:
        per_node = placement.gpus // placement.nodes
        held = sum(s.nodes * ((s.end - s.start) // timedelta(seconds=1)) for s in placement.segments)
        planned[placement.workload] += held * per_node
    found = {}
    for workload in request.workloads:
        name, gpu_seconds = workload.name, planned.get(workload.name)
        if gpu_seconds is None:
            continue
        tokens = 0.0
        if isinstance(workload, Training):
            tokens = workload.tokens
        elif isinstance(workload, Batch):
            tokens = workload.requests * (workload.input_tokens + workload.output_tokens)
        found[name] = Work(workload.kind, tokens, gpu_seconds, request, name)
    return found


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Cost and output. A ratio is None if its divisor is zero.

    Tokens are those of planned workloads. Served tokens are prompt and answer tokens of services and batches.
    ``runs`` are training runs with used GPU-hours. What a run cost that never began is in ``training_usd``.
    """

    total_usd: Decimal
    committed_usd: Decimal
    runs: int
    training_usd: Decimal
    tokens_trained: float
    tokens_trained_usd: Decimal
    tokens_served: float
    tokens_served_usd: Decimal
    used_gpu_hours: Decimal
    idle_gpu_hours: Decimal
    idle_usd: Decimal

    @property
    def flexible_usd(self) -> Decimal:
        """The cost that is not committed."""
        return self.total_usd - self.committed_usd

    @property
    def usd_per_run(self) -> Decimal | None:
        """Average cost of a training run."""
        return _ratio(self.training_usd, Decimal(self.runs))

    @property
    def usd_per_trillion_tokens_trained(self) -> Decimal | None:
        """Cost per 10¹² trained tokens."""
        return _ratio(self.tokens_trained_usd * TRILLION, Decimal(self.tokens_trained))

    @property
    def usd_per_million_tokens_served(self) -> Decimal | None:
        """Cost per 10⁶ served tokens."""
        return _ratio(self.tokens_served_usd * MILLION, Decimal(self.tokens_served))

    @property
    def usd_per_used_gpu_hour(self) -> Decimal | None:
        """Total cost, including idle time, per used GPU-hour."""
        return _ratio(self.total_usd, self.used_gpu_hours)

    @property
    def usd_per_idle_gpu_hour(self) -> Decimal | None:
        """Average cost of an idle GPU-hour."""
        return _ratio(self.idle_usd, self.idle_gpu_hours)


def unit_costs(charges: Iterable[Charge], work: Iterable[DayWork]) -> UnitCosts:
    """Unit costs of ``charges``, with the work of the same time."""
    every = tuple(charges)
    by_job: defaultdict[Job, list[DayWork]] = defaultdict(list)
    for one in work:
        by_job[one.plan_id, one.workload].append(one)
    trained, trained_usd, served, served_usd, runs = 0.0, ZERO, 0.0, ZERO, 0
    for days in by_job.values():
        is_run = days[0].kind is WorkloadKind.TRAINING
        runs += is_run and any(day.is_used for day in days)
        if days[0].tokens is None:
            continue
        usd, tokens = sum((day.usd for day in days), ZERO), _tokens_of(days)
        if is_run:
            trained, trained_usd = trained + tokens, trained_usd + usd
        else:
            served, served_usd = served + tokens, served_usd + usd
    billed, idle = sum(c.gpu_seconds for c in every), sum(c.idle_gpu_seconds for c in every)
    return UnitCosts(
        total_usd=_sum(every),
        committed_usd=_sum(c for c in every if c.commitment is Commitment.COMMITTED),
        runs=runs,
        training_usd=_sum(c for c in every if c.kind is WorkloadKind.TRAINING),
        tokens_trained=trained,
        tokens_trained_usd=trained_usd,
        tokens_served=served,
        tokens_served_usd=served_usd,
        used_gpu_hours=Decimal(billed - idle) / SECONDS_PER_HOUR,
        idle_gpu_hours=Decimal(idle) / SECONDS_PER_HOUR,
        idle_usd=sum((c.idle_usd for c in every), ZERO),
    )


def _tokens_of(days: Sequence[DayWork]) -> float:
    """The tokens of a job: of a run or batch in proportion to what was used, of a service of all its days."""
    planned = days[0].planned_gpu_seconds
    if planned:
        return (days[0].tokens or 0.0) * min(1.0, sum(day.used_gpu_seconds for day in days) / planned)
    return sum(day.tokens or 0.0 for day in days)


def _served(workload: Serving, horizon_start: datetime, windows: list[Window]) -> float:
    """Tokens of a service's demand during ``windows``; overlapping windows count once."""
    tokens_each = workload.traffic.input_tokens + workload.traffic.output_tokens
    tokens, done = 0.0, datetime.min.replace(tzinfo=horizon_start.tzinfo)
    for window in sorted(windows):
        at = max(window.start, done)
        while at < window.end:
            hour = at.replace(minute=0, second=0, microsecond=0)
            until = min(hour + HOUR, window.end)
            rate = workload.mean_requests_per_s_at(hour, horizon_start)
            tokens += rate * tokens_each * (until - at).total_seconds()
            at = until
        done = max(done, window.end)
    return tokens


def _is_used(charge: Charge) -> bool:
    return charge.gpu_seconds > charge.idle_gpu_seconds


def _sum(charges: Iterable[Charge]) -> Decimal:
    return sum((charge.usd for charge in charges), ZERO)


def _ratio(usd: Decimal, count: Decimal) -> Decimal | None:
    return usd / count if count else None

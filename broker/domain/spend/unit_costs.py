"""Unit costs: per training run, per token, per GPU-hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
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

    ``tokens`` is the total of a run or batch, which takes ``gpu_seconds``. For a service the tokens of each
    hour follow from the demand in ``request``.
    """

    kind: WorkloadKind
    tokens: float
    gpu_seconds: int
    request: PlanRequest
    name: str

    def tokens_in(self, charges: Iterable[Charge]) -> float:
        """Tokens in the part of the work that ``charges`` pay for; capacity that is not used makes none."""
        workload = self.request.workload(self.name)
        if isinstance(workload, Serving):
            return _served(
                workload,
                self.request.horizon.start,
                [charge.window for charge in charges if _is_used(charge)],
            )
        used = sum(charge.gpu_seconds - charge.idle_gpu_seconds for charge in charges)
        return self.tokens * min(1.0, used / self.gpu_seconds) if self.gpu_seconds else 0.0


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


def unit_costs(
    charges: Iterable[Charge], work: Mapping[Job, Work], planned: Iterable[Charge] | None = None
) -> UnitCosts:
    """Unit costs of ``charges``. ``work`` is the work by plan and workload.

    ``planned`` are the charges with their plans, if ``charges`` are sums that do not name the plan.
    """
    every = tuple(charges)
    by_job: defaultdict[Job, list[Charge]] = defaultdict(list)
    for charge in every if planned is None else planned:
        by_job[charge.plan_id, charge.workload].append(charge)
    trained, trained_usd, served, served_usd = 0.0, ZERO, 0.0, ZERO
    for job, mine in by_job.items():
        if job not in work:
            continue
        tokens = work[job].tokens_in(mine)
        if work[job].kind is WorkloadKind.TRAINING:
            trained, trained_usd = trained + tokens, trained_usd + _sum(mine)
        else:
            served, served_usd = served + tokens, served_usd + _sum(mine)
    runs = [
        job
        for job, mine in by_job.items()
        if mine[0].kind is WorkloadKind.TRAINING and any(map(_is_used, mine))
    ]
    billed, idle = sum(c.gpu_seconds for c in every), sum(c.idle_gpu_seconds for c in every)
    return UnitCosts(
        total_usd=_sum(every),
        committed_usd=_sum(c for c in every if c.commitment is Commitment.COMMITTED),
        runs=len(runs),
        training_usd=_sum(c for c in every if c.kind is WorkloadKind.TRAINING),
        tokens_trained=trained,
        tokens_trained_usd=trained_usd,
        tokens_served=served,
        tokens_served_usd=served_usd,
        used_gpu_hours=Decimal(billed - idle) / SECONDS_PER_HOUR,
        idle_gpu_hours=Decimal(idle) / SECONDS_PER_HOUR,
        idle_usd=sum((c.idle_usd for c in every), ZERO),
    )


def _served(workload: Serving, horizon_start: datetime, windows: list[Window]) -> float:
    """Tokens of a service's demand during ``windows``; overlapping windows count once."""
    tokens_each = workload.traffic.input_tokens + workload.traffic.output_tokens
    tokens, done = 0.0, datetime.min.replace(tzinfo=horizon_start.tzinfo)
    for window in sorted(windows):
        at = max(window.start, done)
        while at < window.end:
            hour = at.replace(minute=0, second=0, microsecond=0)
            until = min(hour + HOUR, window.end)
            rate = workload.traffic.requests_per_s_at(hour, horizon_start)
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

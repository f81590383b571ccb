"""Quotas: the capacity that already counts against them, and the check of new orders. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from broker.domain.basics.errors import FieldProblem, OverQuota
from broker.domain.basics.window import Window
from broker.domain.holding.holding_orders import FOREVER, Intent
from broker.domain.holding.reservation import Reservation, UnitState
from broker.domain.planning.workload import HeldNodes, PlanRequest, Quota

_Span = tuple[datetime, datetime, int]


@dataclass(frozen=True, slots=True)
class QuotaScope:
    """Quotas and the reservations that count towards them.

    ``team`` None means all teams; ``workload`` None means all workloads of the team.
    """

    quotas: tuple[Quota, ...]
    team: str | None = None
    workload: str | None = None

    def __str__(self) -> str:
        if self.workload is not None:
            return f"the quota of workload {self.workload}"
        return "the installation's quota" if self.team is None else f"the quota of team {self.team}"

    def counts(self, team: str, workload: str | None) -> bool:
        """Whether capacity of ``workload`` of ``team`` counts towards these quotas."""
        return self.team in (None, team) and self.workload in (None, workload)


def scopes_of(installed: tuple[Quota, ...], request: PlanRequest | None) -> tuple[QuotaScope, ...]:
    """The installation's quotas, and with ``request`` those of its team and of each workload."""
    found = [QuotaScope(installed)]
    if request is not None:
        found.append(QuotaScope(request.policy.quotas, request.team))
        found += [QuotaScope(w.policy.quotas, request.team, w.name) for w in request.workloads]
    return tuple(scope for scope in found if scope.quotas)


def limited_providers(scopes: Iterable[QuotaScope], intents: Sequence[Intent]) -> frozenset[str]:
    """Providers of ``intents`` that some quota limits."""
    limited = {quota.provider for scope in scopes for quota in scope.quotas}
    return frozenset(intent.offer.provider for intent in intents) & limited


def require_within_quotas(
    scopes: Iterable[QuotaScope], team: str, intents: Sequence[Intent], known: Sequence[Reservation]
) -> None:
    """Raises OverQuota if ``intents`` of ``team`` and the open reservations in ``known`` exceed a quota.

    Every instant of the intents is checked. A reservation that is about to be replaced still counts.
    """
    for scope in scopes:
        for quota in scope.quotas:
            for unit, limit in (("GPUs", quota.gpus), ("nodes", quota.nodes)):
                if limit is not None:
                    _require_one(scope, quota.provider, unit, limit, team, intents, known)


def _require_one(
    scope: QuotaScope,
    provider: str,
    unit: str,
    limit: int,
    team: str,
    intents: Sequence[Intent],
    known: Sequence[Reservation],
) -> None:
    wanted = [
        (intent.start, intent.end or FOREVER, intent.nodes * _per_node(intent.offer.sku.gpus_per_node, unit))
        for intent in intents
        if intent.offer.provider == provider and scope.counts(team, intent.workload)
    ]
    held = list(_held(scope, provider, unit, known))
    instants = {start for start, _, _ in (*wanted, *held)}
    most = max(((_at(wanted, at) and _at(wanted, at) + _at(held, at), at) for at in instants), default=None)
    if most is None or most[0] <= limit:
        return
    found, at = most
    there, more = _at(held, at), _at(wanted, at)
    left = max(0, limit - there)
    raise OverQuota(
        provider,
        unit,
        found,
        limit,
        f"{provider}: {more} more {unit} beside the {there} held at {at:%Y-%m-%d %H:%M} UTC would make "
        f"{found}, but {scope} allows {limit}; order at most {left}, or release some first",
    ).naming(FieldProblem("/nodes", f"{more} {unit} of {provider}", f"at most {left} {unit} of {provider}"))


def _held(scope: QuotaScope, provider: str, unit: str, known: Iterable[Reservation]) -> Iterator[_Span]:
    for row in known:
        if row.is_open and row.offer.provider == provider and scope.counts(row.team, row.workload):
            nodes = sum(part.nodes for part in row.units if part.state is not UnitState.GONE)
            yield row.start, row.ends_at or FOREVER, nodes * _per_node(row.offer.sku.gpus_per_node, unit)


def _per_node(gpus_per_node: int, unit: str) -> int:
    return gpus_per_node if unit == "GPUs" else 1


def _at(spans: Iterable[_Span], at: datetime) -> int:
    return sum(count for start, end, count in spans if start <= at < end)


def held_beside(request: PlanRequest, reservations: Iterable[Reservation]) -> tuple[HeldNodes, ...]:
    """The open ``reservations`` of all teams that count against a request's quotas within its horizon.

    Those of the request's own workloads do not count, because these workloads are planned again.
    """
    names = {workload.name for workload in request.workloads}
    return tuple(
        HeldNodes(
            provider=row.offer.provider,
            window=window,
            nodes=row.nodes,
            gpus=row.nodes * row.offer.sku.gpus_per_node,
            is_own=row.team == request.team,
        )
        for row in reservations
        if row.is_open and not (row.team == request.team and row.workload in names)
        if (window := _within(row, request.horizon)) is not None
    )


def _within(row: Reservation, horizon: Window) -> Window | None:
    end = row.ends_at or horizon.end
    return Window(row.start, end).intersection(horizon) if end > row.start else None

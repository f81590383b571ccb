"""Which quotas count for what is about to be reserved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.quotas import limited_providers, require_within_quotas, scopes_of
from broker.domain.holding.reservation import Reservation
from broker.domain.planning.workload import Quota
from broker.ports.planning import RequestReader
from broker.ports.unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True)
class QuotaGate:
    """``installed``: over all teams. ``read_request`` reads a plan's document, whose policy has the team's
    quotas and the workloads' own; None, and for what is held without a plan: the installation's alone."""

    installed: tuple[Quota, ...] = ()
    read_request: RequestReader | None = None

    async def find_competing(
        self,
        uow: UnitOfWork,
        intents: Sequence[Intent],
        team: str,
        plan_id: str | None,
        *,
        check: bool = True,
    ) -> list[Reservation]:
        """Open reservations beside ``intents``: of their offers, and of providers that a quota limits.

        Raises OverQuota. From here to the end of the transaction nobody else takes from either.
        ``check`` False: what takes the place of something that was within the quotas.
        """
        request = None
        if check and self.read_request is not None and plan_id is not None:
            request = self.read_request((await uow.plans.find(plan_id)).document)
        scopes = scopes_of(self.installed, request) if check else ()
        providers = limited_providers(scopes, intents)
        known = await uow.reservations.find_competing((intent.offer for intent in intents), providers)
        require_within_quotas(scopes, team, intents, known)
        return list(known)

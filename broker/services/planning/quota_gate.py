"""Check of quotas before a reservation."""

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
    """Checks quotas. ``installed``: quotas of the installation, over all teams.

    ``read_request`` reads a plan's document, whose policy has the quotas of the team and of the workloads. If
    it is None, and for reservations without a plan, only ``installed`` count.
    """

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
        """Open reservations of the offers of ``intents``, and of providers with a quota.

        It locks both until the end of the transaction. ``check`` False: the intents replace reservations that
        were within the quotas. Raises OverQuota.
        """
        request = None
        if check and self.read_request is not None and plan_id is not None:
            request = self.read_request((await uow.plans.find(plan_id)).document)
        scopes = scopes_of(self.installed, request) if check else ()
        providers = limited_providers(scopes, intents)
        known = await uow.reservations.find_competing((intent.offer for intent in intents), providers)
        require_within_quotas(scopes, team, intents, known)
        return list(known)

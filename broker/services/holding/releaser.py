"""Ending leases: the request, and two checks that the lease is gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from broker import crash_points
from broker.domain.basics.errors import LeaseNotFound, ProviderError, ProviderUnavailable, RateLimited
from broker.domain.holding.reservation import Lease, LeaseState
from broker.domain.reconciling.reconciling import DEAD
from broker.ports.holding import Reserver
from broker.ports.unit_of_work import Clock

log = logging.getLogger(__name__)


class Releaser:
    """Asks providers to end leases. ``reserver`` by provider key."""

    def __init__(self, reserver: Callable[[str], Reserver], clock: Clock) -> None:
        self._reserver = reserver
        self._clock = clock

    async def end(self, lease: Lease) -> Lease | None:
        """Asks the provider to end ``lease``; returns its last state if it is gone, else None.

        It is gone if the provider finds it neither by its id nor in its list. If the provider does not say
        when it ended, that is the time of the request. After a refusal or a failure the reconciler asks
        again.
        """
        try:
            reserver, asked_at = self._reserver(lease.provider), self._clock.now()
            crash_points.here("call.release.before")
            await reserver.release(lease)
            crash_points.here("call.release.after")
            seen = await self._look_for(lease)
            if seen is not None and seen.state not in DEAD:
                return None
            crash_points.here("call.list.before")
            listed = await reserver.list_leases()
            crash_points.here("call.list.after")
        except ProviderError:
            return None
        if any(other.reference == lease.reference and other.state not in DEAD for other in listed):
            return None
        last = seen or replace(lease, state=LeaseState.ENDED)
        return replace(last, ended_at=last.ended_at or asked_at)

    async def end_failed(self, leases: Iterable[Lease]) -> bool:
        """Asks providers to end leases that they still show as failed, as such a machine may be billed.

        False if a provider could not be reached, so that it is asked again. A refusal changes nothing.
        """
        for lease in leases:
            try:
                reserver = self._reserver(lease.provider)
                crash_points.here("call.release.before")
                await reserver.release(lease)
                crash_points.here("call.release.after")
            except LeaseNotFound:
                continue
            except (ProviderUnavailable, RateLimited):
                return False
            except ProviderError as error:
                log.warning("%s failed and stays at %s: %s", lease.reference, lease.provider, error)
        return True

    async def _look_for(self, lease: Lease) -> Lease | None:
        try:
            crash_points.here("call.look.before")
            found = await self._reserver(lease.provider).find_lease(lease.reference, lease.region)
            crash_points.here("call.look.after")
        except LeaseNotFound:
            return None
        return found

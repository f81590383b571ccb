"""Start scripts at sellers that store them apart from their machines: one for each order, under its tag.

A script may hold secrets, so it is removed when its machine no longer needs it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from broker.domain.basics.errors import LeaseNotFound
from broker.domain.holding.reservation import Lease, LeaseState

ORDER_LASTS_S = 600.0
"""A script without a machine belongs to an order that is being sent, for at most so many seconds."""


@dataclass(frozen=True, slots=True)
class StoredScript:
    """A script at a seller. ``tag``: the name of its order."""

    script_id: str
    tag: str


class StoredScripts:
    """Remembers since when scripts have no machine. ``prefix``: of our tags; ``seconds``: a clock."""

    def __init__(self, prefix: str, seconds: Callable[[], float] = time.monotonic) -> None:
        self._prefix, self._seconds = f"{prefix}-", seconds
        self._alone_since: dict[str, float] = {}

    async def sweep(
        self,
        stored: Iterable[StoredScript],
        leases: Iterable[Lease],
        remove: Callable[[str], Awaitable[object]],
    ) -> None:
        """Calls ``remove`` for each script that is needless; one that is gone already counts as removed."""
        for script_id in self.needless(stored, leases):
            with contextlib.suppress(LeaseNotFound):
                await remove(script_id)

    def needless(self, stored: Iterable[StoredScript], leases: Iterable[Lease]) -> list[str]:
        """Ids of our scripts whose machine has started or is over, or whose order made none."""
        states = {lease.tag: lease.state for lease in leases}
        ours = [script for script in stored if script.tag.startswith(self._prefix)]
        now, before = self._seconds(), self._alone_since
        alone = [script.script_id for script in ours if script.tag not in states]
        self._alone_since = {script_id: before.get(script_id, now) for script_id in alone}
        done = [
            script.script_id
            for script in ours
            if states.get(script.tag, LeaseState.PROVISIONING) is not LeaseState.PROVISIONING
        ]
        return done + [one for one, since in self._alone_since.items() if now - since > ORDER_LASTS_S]

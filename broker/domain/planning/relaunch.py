"""The expected cost of orders that a service makes while it runs, above all of nodes that it gave back. Pure.

An order at a later moment may fail, because others have the nodes by then. The next best is ordered instead:
it costs more as long as it is held, and until it answers the service lacks what the node would have carried.
An hour of that is worth twice what it costs, as an hour of a delayed service is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import to_cents
from broker.domain.basics.window import Segment

WORTH = 2
"""What an hour of capacity that is missing costs, in hours of its price."""


@dataclass(frozen=True, slots=True)
class Relaunch:
    """``starts`` nodes are ordered later than the service begins, and each order succeeds with ``chance``.

    Of a node that is not to be had, ``offer_id`` is ordered in its place (None: there is nothing else), which
    costs ``more_usd`` more while it is held, and ``missing_usd`` is the worth of what is not carried
    meanwhile; both in whole cents.
    """

    starts: int
    chance: float
    offer_id: str | None
    more_usd: Decimal
    missing_usd: Decimal

    @property
    def expected_usd(self) -> Decimal:
        """Expected cost of all its orders: what counts in a plan's objective, in whole cents."""
        return self.starts * expected_usd(self.chance, self.more_usd + self.missing_usd)

    def expected_usd_after(self, segments: Iterable[Segment], now: datetime) -> Decimal:
        """Expected cost of those orders of a placement held for ``segments`` that are made after ``now``."""
        left = min(self.starts, starts_after(segments, now))
        return left * expected_usd(self.chance, self.more_usd + self.missing_usd)


def starts_after(segments: Iterable[Segment], now: datetime) -> int:
    """Nodes of consecutive ``segments`` that begin to be held after ``now``."""
    count, held, until = 0, 0, None
    for segment in segments:
        before = held if segment.start == until else 0
        if segment.start > now:
            count += max(0, segment.nodes - before)
        held, until = segment.nodes, segment.end
    return count


def expected_usd(chance: float, failure_usd: Decimal) -> Decimal:
    """Expected cost of one order that succeeds with ``chance``, in whole cents."""
    return to_cents((1 - Decimal(str(chance))) * failure_usd)

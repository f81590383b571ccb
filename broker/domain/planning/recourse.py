"""The recourse of a run whose window may be too short: the rest runs on capacity by the hour. Pure.

The work of a run takes X times its median, and its errors are common to all kinds of node. A window holds x
medians of it. With the chance P(X > x) it does not suffice. Then the run goes on elsewhere from its last
checkpoint, for E[X - x | X > x] medians of the work there on average, and for q - x at most with the
confidence whose quantile of X is q.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from broker.domain.basics.confidence import deviation_of, overrun
from broker.domain.basics.estimate import Estimate
from broker.domain.basics.money import to_cents

DIGITS = 6
NEAR = 1e-9


@dataclass(frozen=True, slots=True)
class Recourse:
    """With ``chance`` the window does not suffice, and the rest runs on the nodes of ``offer_id``.

    ``hours``: how long they are then held on average. ``usd``: what that costs, with copies of data to there.
    """

    chance: float
    offer_id: str
    hours: float
    usd: Decimal

    @property
    def expected_usd(self) -> Decimal:
        """Chance times cost, in whole cents: what counts in a plan's objective."""
        return to_cents(Decimal(str(self.chance)) * self.usd)


@dataclass(frozen=True, slots=True)
class Rest:
    """What a window may leave of a run: with which chance, and for how many hours it then holds nodes
    elsewhere, on average and at most with the run's confidence.
    """

    chance: float
    mean_hours: float
    sure_hours: float


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a whole run on one kind of node: ``median_hours`` after its ``startup_hours``, how many
    medians suffice with its confidence, and the deviation of the logarithm.
    """

    median_hours: float
    startup_hours: float
    sure_factor: float
    deviation: float

    @classmethod
    def of(cls, estimate: Estimate, startup_hours: float) -> Work:
        """The work of a run according to its estimate."""
        median = estimate["hours"] - startup_hours
        deviation = deviation_of(estimate.high["hours"] / estimate["hours"] - 1.0)
        return cls(median, startup_hours, (estimate.sure_hours - startup_hours) / median, deviation)


def rest_of(held: Work, elsewhere: Work, usable_hours: float, again_hours: float) -> Rest | None:
    """What ``usable_hours`` of a window leave of a run to other nodes; None if they suffice with the run's
    confidence, or do not suffice for the median.

    ``again_hours``: start-up elsewhere, loading of the last checkpoint, and the work since then.
    """
    share = (usable_hours - held.startup_hours) / held.median_hours
    if held.deviation <= 0.0 or not 1.0 - NEAR <= share < held.sure_factor:
        return None
    share = max(share, 1.0)
    chance, excess = overrun(share, held.deviation)
    return Rest(
        chance=round(chance, DIGITS),
        mean_hours=again_hours + elsewhere.median_hours * excess,
        sure_hours=again_hours + elsewhere.median_hours * (held.sure_factor - share),
    )

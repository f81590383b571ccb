"""Ports of finance: what the store sums, and simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import NamedTuple, Protocol, TypeVar

from broker.domain.spend.intervals import IntervalRules, RiskLine, Simulated


class DaySum(NamedTuple):
    """Settled spend of a day and group in whole cents: amortized, and as billed (cash)."""

    day: date
    group: str
    cents: int
    cash_cents: int


class LedgerMark(NamedTuple):
    """A version of the ledger that changes with every write on which spend depends.

    ``generation`` counts writes of the roll-up. ``unsettled`` is the number of reservations that are not
    rolled up and the sum of their versions; ``plans`` is the same for plans.
    """

    generation: int
    unsettled: tuple[int, int]
    plans: tuple[int, int]


class FocusCosts(NamedTuple):
    """Sums of FOCUS rows, in whole cents."""

    billed_cents: int
    effective_cents: int


Drawn = TypeVar("Drawn")
"""Cost in USD by simulated path and day, in the simulator's own form."""


class SpendSimulator(Protocol[Drawn]):
    """Simulates projected spend. Pure: equal seeds give equal results."""

    def simulate(
        self,
        lines: Sequence[RiskLine],
        futures: Mapping[str, Sequence[Sequence[float]]],
        periods: Sequence[int],
        rules: IntervalRules,
        seed: int,
    ) -> Simulated:
        """Quantiles of the cost of ``lines``, in USD.

        ``futures`` are simulated price paths by offer: factors of today's price after 0, 1, … days. An offer
        without paths keeps its price. ``periods`` has for each day from today on the index of its period; -1
        excludes a day.
        """
        ...

    def draw(
        self,
        lines: Sequence[RiskLine],
        futures: Mapping[str, Sequence[Sequence[float]]],
        days: int,
        rules: IntervalRules,
        seed: int,
    ) -> Drawn:
        """Cost of ``lines`` in each simulated path on each of ``days`` days from today on."""
        ...

    def summarise(self, drawn: Sequence[Drawn], periods: Sequence[int]) -> Simulated:
        """Quantiles of the sum of several draws; ``periods`` as in ``simulate``."""
        ...

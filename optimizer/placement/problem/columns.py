"""A column is one complete way to place one workload, with its exact cost. The master chooses one of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

from broker.domain.basics.money import CENT, to_cents
from broker.domain.basics.window import Segment
from broker.domain.market.billing import holding_cost_usd
from broker.domain.planning.recourse import Recourse
from broker.domain.planning.transfer import Place
from optimizer.placement.problem.problem import Problem

Span = tuple[int, int, int]
End = tuple[float, Place | None]


@dataclass(frozen=True, slots=True)
class Piece:
    """Nodes of one offer over time: ``spans`` are (start_s, end_s, nodes).

    ``choice`` is the index of the node count (training) or of the serving configuration; ``share`` of the
    run's work is done there. ``spans`` are what stock must allow; ``held_s`` is how long the piece is held on
    average, for which ``cost_cents`` pays (None: throughout its spans). ``risk_cents`` is what may be paid
    beyond that, with the chance with which the budget holds. ``starts_again`` counts the nodes of a service
    that are ordered after it began (``relaunches``).
    """

    offer: int
    choice: int
    spans: tuple[Span, ...]
    cost_cents: int
    share: float = 1.0
    held_s: int | None = None
    risk_cents: int = 0
    starts_again: int = 0

    @property
    def held(self) -> tuple[Span, ...]:
        """The spans that the plan holds and pays for."""
        return self.spans if self.held_s is None else held_spans(self.spans, self.held_s)


@dataclass(frozen=True, slots=True)
class Fallback:
    """Where a run goes on whose window does not suffice: the piece for which stock must be there, and what
    the plan says of it.
    """

    piece: Piece
    recourse: Recourse


@dataclass(frozen=True, slots=True)
class Column:
    """One way to place ``workload``; ``end_s`` is when a run ends (0 for services).

    - ``after_s``: this column of a service is valid only if the run that it follows ends at this second.
    - ``budget_cents``: what counts against the budget, if it differs from the cost (dummy columns of a
      relaxation).
    - ``switching_cents``: cost of leaving what is held (``problem.Held``); it steers the search and is on no
      bill.
    - ``risk_cents``: that of its pieces, which counts against the budget beside the cost.
    - ``delay_cents``: cost of the service's late start (``delays``).
    - ``transfer_cents``: the part of ``cost_cents`` that pays for copies of data (``transfers``).
    - ``place``: where a run's finished weights lie, if copying them costs anything.
    - ``after_place``: the place from which a service's column pays to copy the weights.
    - ``fallback``: where a run goes on whose window does not suffice; ``fallback_cents``: its expected cost.
    - ``relaunch_cents``: expected cost of the nodes that start again, as some may not be had by then.
    """

    workload: str
    pieces: tuple[Piece, ...]
    cost_cents: int
    penalty_cents: int = 0
    end_s: float = 0.0
    after_s: float | None = None
    budget_cents: int | None = None
    switching_cents: int = 0
    transfer_cents: int = 0
    place: Place | None = None
    after_place: Place | None = None
    delay_cents: int = 0
    risk_cents: int = 0
    fallback: Fallback | None = None
    fallback_cents: int = 0
    relaunch_cents: int = 0

    @property
    def taken(self) -> tuple[Piece, ...]:
        """The pieces for which stock must be there: those held, and the one to fall back on."""
        return self.pieces if self.fallback is None else (*self.pieces, self.fallback.piece)

    @property
    def end(self) -> End:
        """When a run ends, and where its weights must be paid for."""
        return self.end_s, self.place

    @property
    def after(self) -> tuple[float | None, Place | None]:
        """The end of the run for which a service's column was made."""
        return self.after_s, self.after_place

    @property
    def counted_cents(self) -> int:
        """What counts against the budget."""
        return (self.cost_cents if self.budget_cents is None else self.budget_cents) + self.risk_cents

    @property
    def total_cents(self) -> int:
        """Objective coefficient: cost, lateness, what is expected beside it, and leaving what is held."""
        return self.cost_cents + self.penalty_cents + self.expected_cents + self.switching_cents

    @property
    def expected_cents(self) -> int:
        """What counts in the objective though nobody bills it: delay, and expected costs."""
        return self.delay_cents + self.fallback_cents + self.relaunch_cents


def held_spans(spans: tuple[Span, ...], held_s: int) -> tuple[Span, ...]:
    """One span cut to its first ``held_s`` seconds."""
    ((start, end, nodes),) = spans
    return ((start, min(end, start + held_s), nodes),)


def with_switching(problem: Problem, column: Column) -> Column:
    """Sets the column's switching cost: what it costs to leave what the workload holds."""
    held = problem.held.get(column.workload)
    if held is None:
        return column
    kept = held.pieces <= {(piece.offer, piece.choice) for piece in column.pieces}
    if held.start_s is not None:
        kept = kept and column.pieces[0].spans[0][0] == held.start_s
    return replace(column, switching_cents=0 if kept else held.leaving_cents)


def build_segments(problem: Problem, spans: tuple[Span, ...]) -> tuple[Segment, ...]:
    """The spans as segments of real time."""
    return tuple(Segment(problem.instant(a), problem.instant(b), n) for a, b, n in spans)


def price_cents(problem: Problem, offer: int, spans: tuple[Span, ...]) -> int:
    """Exact cost of holding ``spans`` on an offer, in whole cents as a bill shows it."""
    cost = holding_cost_usd(problem.table.offers[offer], build_segments(problem, spans))
    return in_cents(to_cents(cost))


def late_cents(problem: Problem, end_s: float, deadline_s: float, late_usd_per_hour: Decimal | None) -> int:
    """Lateness penalty of a run in whole cents; lateness is measured in whole microseconds."""
    if late_usd_per_hour is None or end_s <= deadline_s:
        return 0
    late = problem.instant(end_s) - problem.instant(deadline_s)
    hours = Decimal(max(timedelta(0), late) // timedelta(microseconds=1)) / 3_600_000_000
    return in_cents(to_cents(hours * late_usd_per_hour))


def in_cents(usd: Decimal) -> int:
    """Whole cents of an amount, rounded half-even."""
    return int(to_cents(usd) / CENT)


def in_usd(cents: int) -> Decimal:
    """Cents as an amount in USD."""
    return Decimal(cents) * CENT

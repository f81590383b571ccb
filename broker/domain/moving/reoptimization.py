"""A re-optimization of a plan: its proposal, its moves, and their outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.money import ZERO
from broker.domain.workloads.reoptimize_policy import ReoptimizeMode


class ProposalState(StrEnum):
    """State of a re-optimization.

    ``unchanged``: the complete search found nothing better. ``unfinished``: the search was stopped by its
    time limit, and it is tried again with more time. ``rejected``: the saving is below the threshold, or a
    person rejected it. ``proposed``: it waits for a decision. ``accepted``: its moves are under way.
    ``applied``, ``partly``: all or some of its moves are done. ``lapsed``: it expired, or the market changed.
    ``failed``: the search failed, or every move did.
    """

    PROPOSED = "proposed"
    ACCEPTED = "accepted"
    APPLIED = "applied"
    PARTLY = "partly"
    REJECTED = "rejected"
    LAPSED = "lapsed"
    UNCHANGED = "unchanged"
    UNFINISHED = "unfinished"
    FAILED = "failed"


OPEN_PROPOSALS = frozenset({ProposalState.PROPOSED, ProposalState.ACCEPTED})
"""States in which a person or a later pass still has to act."""
MOVED = frozenset({ProposalState.ACCEPTED, ProposalState.APPLIED, ProposalState.PARTLY})


class MoveState(StrEnum):
    """State of one move; ``moving`` while both the old and the new capacity are held."""

    PROPOSED = "proposed"
    MOVING = "moving"
    DONE = "done"
    FAILED = "failed"


class RiskKind(StrEnum):
    """Kind of a move's risk."""

    SPOT = "spot"
    UNPROVEN_SELLER = "unproven_seller"
    LAUNCH = "launch"
    SINGLE_ZONE = "single_zone"
    OLD_PRICE = "old_price"


@dataclass(frozen=True, slots=True)
class Risk:
    """One risk of a move, as text with its figure."""

    kind: RiskKind
    text: str


@dataclass(frozen=True, slots=True)
class PriceMove:
    """An offer's price in USD per node-hour when the plan was made and now; None: not on sale."""

    offer_id: str
    before_usd: Decimal | None
    after_usd: Decimal | None

    @property
    def moved(self) -> bool:
        """Whether the price changed."""
        return self.before_usd != self.after_usd


@dataclass(frozen=True, slots=True)
class MovingCost:
    """The one-time cost of a move, in USD.

    ``overlap_usd`` is the cost of holding the old capacity until the new is usable; an expected resale of the
    old makes it negative. ``rework_usd`` is the cost of repeating work since the last checkpoint.
    ``egress_usd`` is for copying weights, checkpoint and data.
    """

    overlap_usd: Decimal = ZERO
    rework_usd: Decimal = ZERO
    egress_usd: Decimal = ZERO

    @property
    def total_usd(self) -> Decimal:
        """The sum of the three parts."""
        return self.overlap_usd + self.rework_usd + self.egress_usd


@dataclass(frozen=True, slots=True)
class Move:
    """A move of one workload.

    ``stay_usd`` is the cost of staying from now on (None: it cannot stay). ``saving_usd`` is that minus the
    cost at the new place; both include lateness. ``cost`` is the one-time cost of the move. ``leaves`` are
    the reservations that are released once the new capacity is usable; ``keeps`` are those that stay.
    """

    workload: str
    from_offers: tuple[str, ...]
    to_offers: tuple[str, ...]
    saving_usd: Decimal
    why: str
    stay_usd: Decimal | None = None
    cost: MovingCost = MovingCost()
    prices: tuple[PriceMove, ...] = ()
    risks: tuple[Risk, ...] = ()
    leaves: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    state: MoveState = MoveState.PROPOSED
    reason: str = ""

    @property
    def net_usd(self) -> Decimal:
        """The saving minus the one-time cost of the move."""
        return self.saving_usd - self.cost.total_usd


@dataclass(frozen=True, slots=True)
class Reoptimization:
    """One re-optimization of one plan, and its proposal if there is one.

    ``before_usd`` is the plan's cost from now on (None: it can no longer be kept as it is); ``after_usd`` is
    the cost with the moves, without their one-time cost. ``new_plan_id`` names the plan with the moves, if
    one was stored. ``mode`` says whether it needs a decision, and ``lapses_at`` when it expires. ``guard_s``
    is the time limit in seconds within which the search did not finish; None if it finished.
    """

    reoptimization_id: str
    team: str
    plan_id: str
    trigger: str
    started_at: datetime
    state: ProposalState
    before_usd: Decimal | None = None
    after_usd: Decimal | None = None
    new_plan_id: str | None = None
    moves: tuple[Move, ...] = ()
    reason: str = ""
    mode: ReoptimizeMode = ReoptimizeMode.PROPOSE
    lapses_at: datetime | None = None
    decided_at: datetime | None = None
    decided_by: str | None = None
    version: int = 0
    guard_s: float | None = None

    @property
    def saving_usd(self) -> Decimal | None:
        """The saving of the new plan, without the one-time cost of its moves."""
        if self.before_usd is None or self.after_usd is None:
            return None
        return self.before_usd - self.after_usd

    @property
    def cost_usd(self) -> Decimal:
        """The one-time cost of all moves."""
        return sum((move.cost.total_usd for move in self.moves), ZERO)

    @property
    def net_usd(self) -> Decimal | None:
        """The saving minus the one-time cost of all moves."""
        return None if self.saving_usd is None else self.saving_usd - self.cost_usd

    @property
    def is_open(self) -> bool:
        """Whether it waits for a decision, or its moves are under way."""
        return self.state in OPEN_PROPOSALS

    def with_move(self, move: Move) -> Reoptimization:
        """The re-optimization with the move of that workload replaced."""
        moves = tuple(move if old.workload == move.workload else old for old in self.moves)
        return replace(self, moves=moves)

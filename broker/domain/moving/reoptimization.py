"""A re-optimization: a new look at a plan, the moves that it proposes, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.money import ZERO
from broker.domain.planning.reoptimize_policy import ReoptimizeMode


class ProposalState(StrEnum):
    """Where a look stands.

    ``unchanged``: nothing better was found by all of its counted work; ``unfinished``: a guard cut it off
    before, and it is tried again with more time;
    ``rejected``: better, but under the threshold, or somebody said
    no; ``proposed``: waits for a word; ``accepted``: its moves are under way; ``applied``, ``partly``: all or
    some of them came to be; ``lapsed``: its time was over, or the market moved on; ``failed``: the look
    itself, or every move.
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
"""What somebody, or a later pass, still has to act on."""
MOVED = frozenset({ProposalState.ACCEPTED, ProposalState.APPLIED, ProposalState.PARTLY})


class MoveState(StrEnum):
    """Where one move stands: ``moving`` while both old and new are held."""

    PROPOSED = "proposed"
    MOVING = "moving"
    DONE = "done"
    FAILED = "failed"


class RiskKind(StrEnum):
    """What may go wrong with a move."""

    SPOT = "spot"
    UNPROVEN_SELLER = "unproven_seller"
    LAUNCH = "launch"
    SINGLE_ZONE = "single_zone"
    OLD_PRICE = "old_price"


@dataclass(frozen=True, slots=True)
class Risk:
    """One thing that may go wrong, in words that carry its figure."""

    kind: RiskKind
    text: str


@dataclass(frozen=True, slots=True)
class PriceMove:
    """An offer's price per node-hour when the plan was made and now; None: not on sale."""

    offer_id: str
    before_usd: Decimal | None
    after_usd: Decimal | None

    @property
    def moved(self) -> bool:
        """Whether it changed."""
        return self.before_usd != self.after_usd


@dataclass(frozen=True, slots=True)
class MovingCost:
    """What a move costs once, in USD.

    ``overlap_usd``: the old is held until the new is usable (below zero: what a buyer pays for the rest).
    ``rework_usd``: work since the last checkpoint, done again. ``egress_usd``: weights, checkpoint and data
    leaving their provider.
    """

    overlap_usd: Decimal = ZERO
    rework_usd: Decimal = ZERO
    egress_usd: Decimal = ZERO

    @property
    def total_usd(self) -> Decimal:
        """All of it."""
        return self.overlap_usd + self.rework_usd + self.egress_usd


@dataclass(frozen=True, slots=True)
class Move:
    """One workload that goes elsewhere.

    ``stay_usd``: what staying costs from now on (None: it cannot stay); ``saving_usd``: that, less what the
    new place costs, lateness on both sides; ``cost``: what moving costs once. ``leaves``: the reservations
    that go when the new is usable.
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
    state: MoveState = MoveState.PROPOSED
    reason: str = ""

    @property
    def net_usd(self) -> Decimal:
        """What is left of the saving once the move is paid."""
        return self.saving_usd - self.cost.total_usd


@dataclass(frozen=True, slots=True)
class Reoptimization:
    """One look at one plan, and its proposal where there is one.

    ``before_usd``: what the plan costs from now on (None when it can no longer be had as it is);
    ``after_usd``: the same with the moves, what moving costs apart; ``new_plan_id`` names the plan with
    them when one was stored. ``mode``: whether it acts by itself; ``lapses_at``: until when it stands.
    ``guard_s``: the seconds of the wall within which it was not finished; None where it was.
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
        """What the new plan saves against the old one, before what moving costs."""
        if self.before_usd is None or self.after_usd is None:
            return None
        return self.before_usd - self.after_usd

    @property
    def cost_usd(self) -> Decimal:
        """What all moves cost once."""
        return sum((move.cost.total_usd for move in self.moves), ZERO)

    @property
    def net_usd(self) -> Decimal | None:
        """What is left of the saving once the moves are paid."""
        return None if self.saving_usd is None else self.saving_usd - self.cost_usd

    @property
    def is_open(self) -> bool:
        """Whether it waits for a word, or its moves for their end."""
        return self.state in OPEN_PROPOSALS

    def with_move(self, move: Move) -> Reoptimization:
        """The same with the move of that workload replaced."""
        moves = tuple(move if old.workload == move.workload else old for old in self.moves)
        return replace(self, moves=moves)

"""What accepted re-optimizations saved, against the bill that staying would have had."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

from broker.domain.moving.reoptimization import MoveState, ProposalState
from broker.domain.moving.savings import moved_savings
from broker.domain.spend.charging import owed_usd
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE
from tests.services.test_proposals import Desk

HOUR = timedelta(hours=1)


async def test_the_saving_that_is_told_is_the_difference_of_the_bills() -> None:
    """A service at $10 an hour until its end; from 14:00 another seller takes $5, billed by the hour."""
    desk = await Desk().hold()
    (held,) = desk.house.rows()
    assert held.end is not None
    stayed_usd = held.nodes * Decimal(10) * int((held.end - NOON) / HOUR)
    desk.price("new", "5")
    look = await desk.once()
    await desk.proposals.accept(ALICE, look.reoptimization_id)
    moved = await desk.passes()
    assert moved.state is ProposalState.APPLIED
    (saving,) = moved_savings(desk.house.tables.reoptimizations)
    assert (saving.moves, saving.plan_id) == (1, "plan-1")
    desk.house.clock.advance(hours=(held.end - desk.house.clock.now()) / HOUR)
    billed_usd = owed_usd(desk.house.rows(), held.end)
    assert stayed_usd - billed_usd == saving.net_usd, (stayed_usd, billed_usd, saving)


async def test_a_move_that_failed_saves_nothing() -> None:
    desk = await Desk().hold()
    desk.price("new", "5")
    look = await desk.once()
    (move,) = look.moves
    failed = replace(look, moves=(replace(move, state=MoveState.FAILED),))
    done = replace(look, moves=(replace(move, state=MoveState.DONE), *failed.moves))
    assert moved_savings([failed]) == ()
    (told,) = moved_savings([done])
    assert (told.moves, told.net_usd) == (1, move.saving_usd - move.cost.total_usd)

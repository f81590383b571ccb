"""Proposals: decisions on them, and their moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM, TeamScope, require_scope, scope_of
from broker.domain.basics.account import Caller, IdempotencyKey, Scope
from broker.domain.basics.errors import (
    BrokerError,
    ConcurrentChange,
    Conflict,
    FieldProblem,
    ProviderError,
)
from broker.domain.basics.money import format_usd
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.moving.merging import merged
from broker.domain.moving.reoptimization import Move, MoveState, ProposalState, Reoptimization
from broker.domain.moving.reoptimization_result import ACTOR, entry_of
from broker.domain.planning.plan import Plan
from broker.domain.spend.approvals import ApprovalState
from broker.domain.workloads.reoptimize_policy import ReoptimizeMode
from broker.ports.holding import Mover
from broker.ports.planning import BudgetWatch, PlanRecord, PlanState, RequestReader
from broker.ports.unit_of_work import Clock, Notifier, UnitOfWorkFactory
from broker.services.spend.approving import Approving, require_approved
from broker.services.spend.ledger import find_reservations

log = logging.getLogger(__name__)

_Step = Callable[[Reoptimization], Awaitable[Reoptimization | None]]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Reservations of one move: open ones to be replaced, and their replacements."""

    old: tuple[Reservation, ...]
    new: tuple[Reservation, ...]


class ProposalsService:
    """Use cases of proposals. Decisions are only stored; ``act`` carries them out, in passes.

    After a crash the reservations show which moves were begun, so that none begins twice.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        mover: Mover,
        clock: Clock,
        notifier: Notifier,
        *,
        read_request: RequestReader,
        budgets: BudgetWatch | None = None,
    ) -> None:
        self._uow_factory = uow_factory
        self._mover = mover
        self._clock = clock
        self._notifier = notifier
        self._read_request = read_request
        self._budgets = budgets
        self._approving = Approving(uow_factory, clock)
        self._acting = asyncio.Lock()

    async def accept(self, caller: Caller, reoptimization_id: str) -> Reoptimization:
        """Accepts a proposal: its plan is in force, and its moves begin with the next pass.

        Accepting it twice is no error. Raises Conflict if it has ended, ApprovalRequired, and OrdersBarred or
        OverCap if its new capacity may not be ordered.
        """
        require_scope(caller, Scope.RESERVATIONS_WRITE)
        look = await self._seen_by(caller, reoptimization_id)
        if look.state in (ProposalState.ACCEPTED, ProposalState.APPLIED, ProposalState.PARTLY):
            return look
        self._require_standing(look)
        return await self._accept(scope_of(caller), look, caller.key_id, caller.claim)

    async def reject(self, caller: Caller, reoptimization_id: str) -> Reoptimization:
        """Rejects a proposal. Rejecting it twice is no error. Raises Conflict if it is no longer open."""
        require_scope(caller, Scope.PLANS_WRITE)
        look = await self._seen_by(caller, reoptimization_id)
        if look.state is ProposalState.REJECTED:
            return look
        self._require_standing(look)
        return await self._end(
            scope_of(caller), look, ProposalState.REJECTED, f"rejected by {caller.key_id}", caller
        )

    async def act(self) -> tuple[Reoptimization, ...]:
        """One pass: ends lapsed proposals, begins moves that need no decision, and continues begun ones.

        A failure of one proposal does not stop the others.
        """
        async with self._acting:
            async with self._uow_factory(EVERY_TEAM) as uow:
                standing = await uow.reoptimizations.find_in({ProposalState.PROPOSED})
            done = [await self._try(look, self._begin) for look in _in_turn(standing)]
            async with self._uow_factory(EVERY_TEAM) as uow:
                moving = await uow.reoptimizations.find_in({ProposalState.ACCEPTED})
            done += [await self._try(look, self._follow) for look in reversed(moving)]
        return tuple(look for look in done if look is not None)

    async def _try(self, look: Reoptimization, step: _Step) -> Reoptimization | None:
        try:
            return await step(look)
        except BrokerError as error:
            log.warning("%s: %s", look.reoptimization_id, error)
        except Exception:  # a failure of one proposal must not stop the others
            log.exception("acting on %s failed unexpectedly", look.reoptimization_id)
        return None

    async def _seen_by(self, caller: Caller, reoptimization_id: str) -> Reoptimization:
        async with self._uow_factory(scope_of(caller)) as uow:
            return await uow.reoptimizations.find(reoptimization_id)

    def _require_standing(self, look: Reoptimization) -> None:
        over = look.lapses_at is not None and look.lapses_at <= self._clock.now()
        if look.state is not ProposalState.PROPOSED or over:
            state = ProposalState.LAPSED if over else look.state
            raise Conflict(
                f"re-optimization {look.reoptimization_id} is {state}; only an open proposal can be decided"
            ).naming(FieldProblem("/state", str(state), str(ProposalState.PROPOSED)))

    async def _begin(self, look: Reoptimization) -> Reoptimization | None:
        """Ends or accepts an open proposal, if no decision is needed.

        It lapses after its time, and if its plan is no longer in force. It ends if finance rejected its plan.
        It is accepted if the policy says so, and its plan needs no approval or has it.
        """
        now = self._clock.now()
        async with self._uow_factory(EVERY_TEAM) as uow:
            in_force = await uow.plans.find_current(look.team)
            record = None if look.new_plan_id is None else await uow.plans.find(look.new_plan_id)
        if look.lapses_at is not None and look.lapses_at <= now:
            return await self._end(EVERY_TEAM, look, ProposalState.LAPSED, "it expired")
        if look.plan_id not in {one.plan_id for one in in_force}:
            return await self._end(
                EVERY_TEAM, look, ProposalState.LAPSED, f"plan {look.plan_id} is not in force any more"
            )
        if record is None:
            return None
        if record.approval is ApprovalState.REJECTED:
            return await self._end(
                EVERY_TEAM, look, ProposalState.REJECTED, f"finance rejected plan {record.plan_id}"
            )
        if look.mode is not ReoptimizeMode.AUTO or record.approval is ApprovalState.WAITING:
            return None
        return await self._accept(EVERY_TEAM, look, ACTOR, None)

    async def _accept(
        self, scope: TeamScope, look: Reoptimization, actor: str, claim: IdempotencyKey | None
    ) -> Reoptimization:
        """Stores the decision, the plan in force and the audit entry, in one transaction."""
        if look.new_plan_id is None:
            raise Conflict(f"re-optimization {look.reoptimization_id} has no plan; re-optimize again")
        now = self._clock.now()
        await self._require_settled(scope, look)
        await self._require_orderable(scope, look, look.new_plan_id)
        await self._ask_budgets(scope, look, look.new_plan_id)
        moves = tuple(
            replace(move, state=MoveState.MOVING if move.leaves or move.keeps else MoveState.DONE)
            for move in look.moves
        )
        over = all(move.state is MoveState.DONE for move in moves)
        async with self._uow_factory(scope) as uow:
            record = await uow.plans.find(look.new_plan_id)
            if record.plan is not None:
                require_approved(record, record.plan)
            if look.plan_id not in {one.plan_id for one in await uow.plans.find_current(look.team)}:
                raise Conflict(f"plan {look.plan_id} is not in force any more; re-optimize again")
            accepted = await uow.reoptimizations.update(
                replace(
                    look,
                    state=ProposalState.APPLIED if over else ProposalState.ACCEPTED,
                    moves=moves,
                    decided_at=now,
                    decided_by=actor,
                )
            )
            old = await uow.plans.find(look.plan_id)
            await uow.plans.update(
                replace(
                    record,
                    state=PlanState.DONE,
                    supersedes=look.plan_id,
                    intended_by=old.intended_by,
                    reserved_at=old.reserved_at,
                )
            )
            await uow.accounts.add_audit(entry_of(accepted, now, actor))
            await uow.accounts.bind(claim, [look.reoptimization_id])
            crash_points.here("proposal.accept.before")
            await uow.commit()
            crash_points.here("proposal.accept.after")
        await self._tell(accepted)
        return accepted

    async def _ask_budgets(self, scope: TeamScope, look: Reoptimization, plan_id: str) -> None:
        """Requires approval of moves that would exceed a budget now."""
        if self._budgets is None:
            return
        async with self._uow_factory(scope) as uow:
            record = await uow.plans.find(plan_id)
        if record.plan is None or record.needs_approval:
            return
        why = await self._budgets.find_overruns_of_moves(look, record.plan)
        if why:
            await self._approving.require_for(plan_id, "; ".join(why))

    async def _require_orderable(self, scope: TeamScope, look: Reoptimization, plan_id: str) -> None:
        """Raises OrdersBarred or OverCap if the new capacity of all moves together may not be ordered."""
        async with self._uow_factory(scope) as uow:
            record = await uow.plans.find(plan_id)
        moving = [move for move in look.moves if move.leaves or move.keeps]
        leaving = {row.reservation_id for move in moving for row in (await self._rows(look, move)).old}
        if record.plan is not None and leaving:
            await self._mover.require_orderable(record.plan, leaving)

    async def _require_settled(self, scope: TeamScope, look: Reoptimization) -> None:
        """Raises Conflict while moves that lead to this proposal's plan in force are in progress."""
        async with self._uow_factory(scope) as uow:
            moving = await uow.reoptimizations.find_in({ProposalState.ACCEPTED})
        before = next((one for one in moving if one.new_plan_id == look.plan_id), None)
        if before is not None:
            raise Conflict(
                f"moves of {before.reoptimization_id} are in progress; try again when they are done"
            )

    async def _end(
        self,
        scope: TeamScope,
        look: Reoptimization,
        state: ProposalState,
        reason: str,
        caller: Caller | None = None,
    ) -> Reoptimization:
        now, actor = self._clock.now(), ACTOR if caller is None else caller.key_id
        words = f"{look.reason}; {reason}" if look.reason else reason
        ended = replace(look, state=state, reason=words, decided_at=now, decided_by=actor)
        async with self._uow_factory(scope) as uow:
            ended = await uow.reoptimizations.update(ended)
            await uow.accounts.add_audit(entry_of(ended, now, actor))
            await uow.accounts.bind(None if caller is None else caller.claim, [look.reoptimization_id])
            crash_points.here("proposal.end.before")
            await uow.commit()
            crash_points.here("proposal.end.after")
        await self._tell(ended)
        return ended

    async def _follow(self, look: Reoptimization) -> Reoptimization | None:
        """Begins moves that are not begun, updates the others, and concludes when all have ended."""
        assert look.new_plan_id is not None
        async with self._uow_factory(EVERY_TEAM) as uow:
            record = await uow.plans.find(look.new_plan_id)
        assert record.plan is not None
        now = look
        for move in look.moves:
            if move.state is MoveState.MOVING:
                now = now.with_move(await self._step(look, move, record.plan))
        if any(move.state is MoveState.MOVING for move in now.moves):
            return await self._note(now) if now != look else None
        return await self._conclude(now, record)

    async def _step(self, look: Reoptimization, move: Move, plan: Plan) -> Move:
        rows = await self._rows(look, move)
        if not rows.new:
            return await self._start(move, plan, rows.old)
        alive = [r for r in rows.new if r.is_open and r.state is not ReservationState.RELEASING]
        if not rows.old and (alive or move.leaves):
            return replace(move, state=MoveState.DONE)
        if alive:
            return move
        why = next((r.reason for r in reversed(rows.new) if r.reason), "its replacement is gone")
        return replace(move, state=MoveState.FAILED, reason=why)

    async def _start(self, move: Move, plan: Plan, old: Sequence[Reservation]) -> Move:
        """Buys the new capacity; the reconciler releases the old. After a refusal the old stays."""
        if not old:
            return replace(move, state=MoveState.FAILED, reason="its reservations have ended")
        try:
            bought = await self._mover.move(ACTOR, plan, [row.reservation_id for row in old])
        except ConcurrentChange:
            return move
        except (Conflict, ProviderError) as error:
            return replace(move, state=MoveState.FAILED, reason=str(error))
        return move if bought else replace(move, state=MoveState.DONE, reason="it is held as planned")

    async def _rows(self, look: Reoptimization, move: Move) -> _Rows:
        """``old``: reservations of the workload from the previous plan; ``new``: the replacements."""
        assert look.new_plan_id is not None
        async with self._uow_factory(EVERY_TEAM) as uow:
            lineage = await uow.plans.find_lineage(look.plan_id)
            opened = await uow.reservations.find_open()
            intended = await find_reservations(uow, look.new_plan_id)
        mine = [row for row in opened if row.plan_id in lineage and row.workload == move.workload]
        new = [row for row in intended if row.workload == move.workload]
        leaving = {key for row in new for key in row.replaces} or set(move.leaves)
        old = [row for row in mine if row.state is not ReservationState.RELEASING]
        going = [row for row in mine if row.reservation_id in leaving] if new else old
        return _Rows(tuple(going), tuple(new))

    async def _note(self, look: Reoptimization) -> Reoptimization:
        async with self._uow_factory(EVERY_TEAM) as uow:
            noted = await uow.reoptimizations.update(look)
            crash_points.here("proposal.note.before")
            await uow.commit()
            crash_points.here("proposal.note.after")
        return noted

    async def _conclude(self, look: Reoptimization, record: PlanRecord) -> Reoptimization:
        """Stores the result of the moves as the plan in force; if all failed, the previous plan stays."""
        now = self._clock.now()
        done = {move.workload for move in look.moves if move.state is MoveState.DONE}
        failed = [move for move in look.moves if move.state is MoveState.FAILED]
        state = ProposalState.APPLIED if not failed else ProposalState.PARTLY
        state = state if done else ProposalState.FAILED
        words = "; ".join((look.reason, *(f"{m.workload} stays: {m.reason}" for m in failed)))
        ended = replace(look, state=state, reason=words)
        async with self._uow_factory(EVERY_TEAM) as uow:
            if failed:
                old = await uow.plans.find(look.plan_id)
                await uow.plans.update(self._as_it_came(record, old, done))
            ended = await uow.reoptimizations.update(ended)
            await uow.accounts.add_audit(entry_of(ended, now, ACTOR))
            crash_points.here("proposal.conclude.before")
            await uow.commit()
            crash_points.here("proposal.conclude.after")
        await self._tell(ended)
        return ended

    def _as_it_came(self, record: PlanRecord, old: PlanRecord, done: set[str]) -> PlanRecord:
        if not done:
            return replace(
                record, state=PlanState.PROPOSED, supersedes=None, intended_by=None, reserved_at=None
            )
        assert record.plan is not None
        assert old.plan is not None
        plan = merged(old.plan, record.plan, done, self._read_request(record.document))
        return replace(record, plan=plan)

    async def _tell(self, look: Reoptimization) -> None:
        net = look.net_usd
        body: dict[str, object] = {
            "reoptimization_id": look.reoptimization_id,
            "plan_id": look.plan_id,
            "new_plan_id": look.new_plan_id,
            "net_usd": None if net is None else format_usd(net),
            "reason": look.reason,
        }
        await self._notifier.notify(f"reoptimization.{look.state}", look.team, body)


def _in_turn(standing: Sequence[Reoptimization]) -> list[Reoptimization]:
    """Oldest first; a proposal comes after the one that leads to its plan."""
    leads_to = {look.new_plan_id for look in standing}
    return sorted(reversed(standing), key=lambda look: look.plan_id in leads_to)

"""The reservation protocol as a small world that is searched whole, with the product's own decisions.

One reservation of one node. A buyer, a user who may release, and a reconciler take single steps in every
order; time passes anywhere; the buyer and the reconciler may die anywhere; a call may land after its
caller's death. Rows change by the product's pure functions, and ``decide`` and ``find_strays`` are the
product's. Strays have no grace here: safety must come from open intents, not from waiting. A released
lease may linger; what is held and not shown must be missed twice by the same reconciler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from broker.domain.holding.reservation import (
    Idempotency,
    Lease,
    LeaseState,
    Reservation,
    ReservationState,
    UnitState,
)
from broker.domain.moving.moving import handover
from broker.domain.reconciling import reconciling
from broker.domain.reconciling.lease_steps import without
from broker.domain.reconciling.reconciling import (
    decide,
    find_orphaned_leases,
    let_go,
    missing_units,
    replanned,
    settled_state,
)
from broker.domain.reconciling.reconciling_actions import (
    Abandon,
    Action,
    Adopt,
    Book,
    Buy,
    Lost,
    MoveTo,
    ReconcileInput,
    Release,
    Resend,
    Retry,
    Wait,
)
from tests.fakes.clock import NOON
from tests.faults.world import (
    DONE,
    IDLE,
    INSTALL,
    SECOND_LOOK_TICKS,
    SETTLE_TICKS,
    TICK,
    Design,
    Instance,
    Local,
    Reply,
    Row,
    Scenario,
    World,
    lease_of_instance,
    reservation_of,
    row_of,
    tag_of,
)


@lru_cache(None)
def _decide(
    row: Row, leases: tuple[Lease, ...], now: int, idempotency: Idempotency, missed: int | None
) -> Action:
    reservation = reservation_of(row)
    sight = ReconcileInput(
        now=NOON + now * TICK,
        leases=leases,
        idempotency=idempotency,
        order_grace=SETTLE_TICKS * TICK,
        quiet_since=reconciling.quiet_since(reservation, ()),
        missed={} if missed is None else {0: NOON + missed * TICK},
        second_look=SECOND_LOOK_TICKS * TICK,
    )
    return handover(reservation, (), (), sight.now) or decide(reservation, sight)


class Protocol:
    """The single steps of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._s = scenario
        self._fenced = scenario.design is not Design.NO_FENCE

    def opening(self) -> World:
        """Before the buyer's first step."""
        s = self._s
        first = ("call", 1, False) if s.design is Design.NO_INTENT else ("intend",)
        user = ("wish",) if s.releases else DONE
        return World(0, None, (), s.replies, False, first, user, IDLE, None, s.passes, s.deaths)

    def following(self, world: World) -> Iterator[World]:
        """Every world that can come next."""
        for actor in ("buyer", "user", "reconciler"):
            local = getattr(world, actor)
            if local == DONE or (actor == "user" and local == ("wish",) and world.row is None):
                continue
            if local == IDLE and world.passes == 0:
                continue
            yield self.step(world, actor)
            if world.deaths and local not in (IDLE, ("wish",)):
                yield from self._dying(world, actor, local)
        if world.now < self._s.ticks:
            yield world._replace(now=world.now + 1)

    def _dying(self, world: World, actor: str, local: Local) -> Iterator[World]:
        after = world._replace(deaths=world.deaths - 1)
        if actor == "reconciler":
            yield _at(after._replace(missed=None), actor, IDLE)
        else:
            yield _at(after, actor, DONE)
        if local[0] == "call" and actor == "buyer":  # it lands all the same, and nobody hears the answer
            yield after._replace(buyer=("land", local[1]))

    def step(self, world: World, actor: str) -> World:
        """``world`` after the next step of ``actor``."""
        local = getattr(world, actor)
        after, then = getattr(self, f"_{local[0]}")(world, *local[1:])
        if then == DONE and actor == "reconciler":
            then = ("sweep", local[-1]) if local[0] not in ("sweep", "kill") else IDLE
        return _at(after, actor, then)

    # What every actor does. A step gives the world and the actor's next step; ``seen`` is the list of leases
    # of the reconciler's pass, None for others.

    def _intend(self, world: World) -> tuple[World, Local]:
        row = Row(ReservationState.PENDING, UnitState.PLANNED, 1, None, None, 0)
        return world._replace(row=row), ("claim", row, None)

    def _written(self, world: World, base: Row, changed: Reservation) -> World | None:
        """The row changed from ``base``; None when somebody was faster."""
        if world.row is None or (self._fenced and world.row.version != base.version):
            return None
        return world._replace(row=row_of(changed, world.row))

    def _claim(self, world: World, base: Row, seen: Any) -> tuple[World, Local]:
        row = reservation_of(base)
        (unit,) = row.units
        claimed = replace(unit, state=UnitState.ORDERING, ordered_at=NOON + world.now * TICK)
        after = self._written(world, base, self._moved(row, ReservationState.PENDING).with_unit(claimed))
        return (world, DONE) if after is None else (after, ("call", base.attempt, False, seen))

    def _land(self, world: World, attempt: int) -> tuple[World, Local]:
        after, _, _ = self._ordered(world, attempt)
        return after, DONE

    def _call(self, world: World, attempt: int, again: bool, seen: Any = None) -> tuple[World, Local]:
        after, reply, reference = self._ordered(world, attempt)
        return after, ("answer", attempt, again, reply, reference, seen)

    def _ordered(self, world: World, attempt: int) -> tuple[World, Reply, int | None]:
        """What the provider makes of an order."""
        reply = world.replies[0] if world.replies else Reply.OK
        world = world._replace(replies=world.replies[1:])
        if reply in (Reply.NOT_MADE, Reply.REFUSED):
            return world, reply, None
        known = [n for n, i in enumerate(world.cloud) if i.attempt == attempt]
        if known and self._s.idempotency is Idempotency.TOKEN:
            lease = lease_of_instance(known[0], world.cloud[known[0]], world.now)
            dead = lease.state in reconciling.DEAD and reply is not Reply.LOST
            return world, Reply.REFUSED if dead else reply, known[0]
        visible_at = world.now + self._s.visible_after
        made = Instance(attempt, world.now, visible_at, reply is Reply.FAILS_LATER, None)
        return world._replace(cloud=(*world.cloud, made)), reply, len(world.cloud)

    def _answer(
        self, world: World, attempt: int, again: bool, reply: Reply, reference: int | None, seen: Any
    ) -> tuple[World, Local]:
        if world.row is None:  # only where no intent was stored
            row = Row(ReservationState.PENDING, UnitState.ORDERING, attempt, None, world.now, 0)
            world = world._replace(row=row)
        assert world.row is not None
        if reply in (Reply.LOST, Reply.NOT_MADE):
            return self._in_doubt(world, attempt, again, seen)
        if reply is Reply.REFUSED:
            refused, after = reservation_of(world.row), world
            if self._is_mine(world.row, attempt):
                planned = refused.with_unit(replanned(refused.units[0]))
                after = world._replace(row=row_of(planned, world.row))
            return after, ("give_up", seen)
        assert reference is not None
        return self._adopted(world, attempt, reference, (), seen)

    def _is_mine(self, row: Row, attempt: int) -> bool:
        return not self._fenced or (row.attempt == attempt and row.unit is UnitState.ORDERING)

    def _moved(self, row: Reservation, state: ReservationState) -> Reservation:
        return row.moved_to(state) if self._fenced else replace(row, state=state)

    def _in_doubt(self, world: World, attempt: int, again: bool, seen: Any) -> tuple[World, Local]:
        assert world.row is not None
        row, after = reservation_of(world.row), world
        if self._is_mine(world.row, attempt) and row.state is not ReservationState.RELEASING and row.is_open:
            after = world._replace(row=row_of(self._moved(row, ReservationState.UNKNOWN), world.row))
        safe = self._s.idempotency is Idempotency.TOKEN and not again
        return after, ("call", attempt, True, seen) if safe else DONE

    def _adopted(
        self, world: World, attempt: int, reference: int, extras: tuple[int, ...], seen: Any
    ) -> tuple[World, Local]:
        assert world.row is not None
        after = world
        if self._is_mine(world.row, attempt):
            row = reservation_of(world.row)
            held = replace(row.units[0], state=UnitState.HELD, reference=str(reference), tag=tag_of(attempt))
            row = row.with_unit(held)
            if row.state is not ReservationState.RELEASING:
                leases = (lease_of_instance(reference, world.cloud[reference], world.now),)
                target = settled_state(row, leases, NOON + world.now * TICK)
                row = self._moved(row, target)
            after = world._replace(row=row_of(row, world.row))
        assert after.row is not None
        ends = extras if after.row.reference == reference else (reference, *extras)
        return after, ("end", ends, seen) if ends else DONE

    def _end(self, world: World, references: tuple[int, ...], seen: Any) -> tuple[World, Local]:
        rest = references[1:]
        return self._killed(world, references[0]), ("end", rest, seen) if rest else DONE

    def _killed(self, world: World, reference: int) -> World:
        if world.cloud[reference].ends_at is not None:
            return world
        cloud = list(world.cloud)
        cloud[reference] = cloud[reference]._replace(ends_at=world.now + self._s.ends_after)
        return world._replace(cloud=tuple(cloud))

    def _give_up(self, world: World, seen: Any) -> tuple[World, Local]:
        """One transaction that reads and writes; then what is held is released."""
        assert world.row is not None
        row = reservation_of(world.row)
        if row.is_open and row.state is not ReservationState.RELEASING:
            gone = let_go(row, "refused", NOON + world.now * TICK, wanted=False)
            world = world._replace(row=row_of(gone, world.row))
        assert world.row is not None
        return world, self._release_next(world.row, seen)

    def _release_next(self, row: Row, seen: Any) -> Local:
        held = row.state is ReservationState.RELEASING and row.unit is UnitState.HELD
        return ("release", row, seen) if held else DONE

    def _release(self, world: World, base: Row, seen: Any) -> tuple[World, Local]:
        assert base.reference is not None
        return self._killed(world, base.reference), ("look", base, seen)

    def _look(self, world: World, base: Row, seen: Any) -> tuple[World, Local]:
        """By its id, before the list: both must show it gone."""
        assert base.reference is not None
        found = lease_of_instance(base.reference, world.cloud[base.reference], world.now)
        return world, ("list", base, seen) if found.state in reconciling.DEAD else DONE

    def _list(self, world: World, base: Row, seen: Any) -> tuple[World, Local]:
        listed = [n for n, lease in self._listed(world) if lease.state not in reconciling.DEAD]
        return world, DONE if base.reference in listed else ("lose", base, seen)

    def _lose(self, world: World, base: Row, seen: Any) -> tuple[World, Local]:
        gone = without(reservation_of(base), (0,), "", NOON + world.now * TICK)
        return self._written(world, base, gone) or world, DONE

    def _wish(self, world: World) -> tuple[World, Local]:
        """The user asks until the wish is stored."""
        assert world.row is not None
        row = reservation_of(world.row)
        if row.is_open and row.state is not ReservationState.RELEASING:
            leaving = let_go(row, "released", NOON + world.now * TICK, wanted=True)
            world = world._replace(row=row_of(leaving, world.row))
        assert world.row is not None
        return world._replace(asked=True), self._release_next(world.row, None)

    # The reconciler: list, read and decide, act, sweep.

    def _listed(self, world: World) -> tuple[tuple[int, Lease], ...]:
        return tuple(
            (n, lease_of_instance(n, i, world.now))
            for n, i in enumerate(world.cloud)
            if not i.is_dead(world.now) and i.visible_at <= world.now
        )

    def _idle(self, world: World) -> tuple[World, Local]:
        return world._replace(passes=max(0, world.passes - 1)), ("decide", self._listed(world))

    def _decide(self, world: World, seen: Any) -> tuple[World, Local]:
        row = world.row
        if row is None or row.state in (ReservationState.RELEASED, ReservationState.FAILED):
            return world, DONE
        leases = [lease for _, lease in seen]
        if row.unit is UnitState.HELD and row.reference not in [n for n, _ in seen]:
            assert row.reference is not None
            second = lease_of_instance(row.reference, world.cloud[row.reference], world.now)
            leases.extend([second] if second.state is not LeaseState.ENDED else [])
        missing = missing_units(reservation_of(row), leases)
        since = world.now if world.missed is None else world.missed
        world = world._replace(missed=since if missing else None)
        action = _decide(row, tuple(leases), world.now, self._s.idempotency, world.missed)
        return self._acting(world, row, action, seen)

    def _acting(self, world: World, row: Row, action: Action, seen: Any) -> tuple[World, Local]:
        match action:
            case Buy():
                return world, ("claim", row, seen)
            case Resend():
                return world, ("call", row.attempt, True, seen)
            case Adopt(_, lease, extras):
                return world, ("adopt", row.attempt, int(lease.reference), _numbers(extras), seen)
            case Abandon():
                return world, ("give_up", seen)
            case Release(leases):
                return world, ("end", _numbers(leases), seen)
            case Retry() | Lost() | MoveTo() | Book():
                return world, ("note", row, action, seen)
            case Wait():
                return world, DONE
            case _:
                raise AssertionError(f"{action} is for windows and ends, which are not in this world")

    def _adopt(
        self, world: World, attempt: int, reference: int, extras: tuple[int, ...], seen: Any
    ) -> tuple[World, Local]:
        return self._adopted(world, attempt, reference, extras, seen)

    def _note(self, world: World, base: Row, action: Action, seen: Any) -> tuple[World, Local]:
        row = reservation_of(base)
        match action:
            case Retry():
                row = row.with_unit(replanned(row.units[0]))
            case Lost(ordinals, reason, at):
                row = without(row, ordinals, reason, NOON + world.now * TICK, dict(at))
            case MoveTo(state):
                row = self._moved(row, state)
        return self._written(world, base, row) or world, DONE

    def _sweep(self, world: World, seen: Any) -> tuple[World, Local]:
        strays = self._orphans(world, [lease for _, lease in seen])
        return (world, ("kill", strays)) if strays else (world, DONE)

    def _orphans(self, world: World, leases: list[Lease]) -> tuple[int, ...]:
        rows = [] if world.row is None else [reservation_of(world.row)]
        rows = [row for row in rows if row.is_open]
        if self._s.design is Design.AGE_ONLY_SWEEP:
            rows = [row for row in rows if row.units[0].reference is not None]
        return _numbers(find_orphaned_leases(leases, rows, INSTALL))

    def _kill(self, world: World, references: tuple[int, ...]) -> tuple[World, Local]:
        rest = references[1:]
        return self._killed(world, references[0]), ("kill", rest) if rest else DONE


def _at(world: World, actor: str, local: Local) -> World:
    changed: dict[str, Any] = {actor: local}
    return world._replace(**changed)


def _numbers(leases: Any) -> tuple[int, ...]:
    return tuple(int(lease.reference) for lease in leases)

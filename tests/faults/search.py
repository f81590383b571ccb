"""Searching the world of ``protocol`` whole: how many runs there are, and how many end wrong.

A run is one complete order of steps, deaths and passing time, and then the passes of a reconciler that
nobody disturbs. Runs that meet in the same world share their future, so it is searched once and counted
for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.domain.holding.reservation import Idempotency, ReservationState
from tests.faults.protocol import Protocol
from tests.faults.world import DONE, IDLE, Reply, Scenario, World

CLOSING_PASSES = 12
EXCUSES = {Reply.REFUSED, Reply.FAILS_LATER}


@dataclass(frozen=True)
class Verdict:
    """Runs, those of them that end wrong, and what is wrong with one of these."""

    runs: int
    wrong: int
    states: int = 0
    example: str = ""


class Search:
    """All runs of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._protocol = Protocol(scenario)
        self._counts: dict[World, tuple[int, int]] = {}
        self._ends: dict[World, str] = {}
        self._example = ""

    def verdict(self) -> Verdict:
        """The whole search."""
        runs, wrong = self._explore(self._protocol.opening())
        return Verdict(runs, wrong, len(self._counts), self._example)

    def _explore(self, world: World) -> tuple[int, int]:
        known = self._counts.get(world)
        if known is not None:
            return known
        runs = wrong = 0
        if world.buyer == DONE and world.user in (DONE, ("wish",)) and world.reconciler == IDLE:
            fault = self._closed(world)
            runs, wrong = 1, int(bool(fault))
            self._example = self._example or fault
        for after in self._protocol.following(world):
            more, worse = self._explore(after)
            runs, wrong = runs + more, wrong + worse
        self._counts[world] = runs, wrong
        return runs, wrong

    def _closed(self, world: World) -> str:
        """What is wrong once the reconciler has had its quiet passes; empty when nothing is."""
        start = world._replace(passes=1, deaths=0, user=DONE)
        if start not in self._ends:
            at_rest = start
            for _ in range(CLOSING_PASSES):
                at_rest = at_rest._replace(now=at_rest.now + 1, passes=1)
                at_rest = self._protocol.step(at_rest, "reconciler")
                while at_rest.reconciler != IDLE:
                    at_rest = self._protocol.step(at_rest, "reconciler")
            fault = self._fault_of(at_rest)
            self._ends[start] = f"{fault}: {at_rest}" if fault else ""
        return self._ends[start]

    def _fault_of(self, world: World) -> str:
        live = [n for n, i in enumerate(world.cloud) if not i.is_dead(world.now) and not i.fails]
        row = world.row
        if row is None:
            return "orphan" if live else ""
        over = row.state in (ReservationState.RELEASED, ReservationState.FAILED)
        if world.asked or over:
            if live or not over:
                return "not released" if world.asked else "orphan"
            return "" if world.asked or self._is_excused() else "given up without cause"
        if row.state is not ReservationState.ACTIVE:
            return f"no end in {row.state}"
        return "" if live == [row.reference] else "double" if len(live) > 1 else "held, and nothing is there"

    def _is_excused(self) -> bool:
        """A refusal is a reason to give up; so is doubt where nobody can be asked."""
        fails_closed = self._scenario.idempotency is Idempotency.NEITHER
        return fails_closed or bool(EXCUSES & set(self._scenario.replies))

"""Runs the start of machines over SSH, at sellers whose orders take no script.

A machine runs the start of its unit once, however often it is asked: the claim lies on the machine. What it
says is stored with the reservation's version, so that of two brokers one stores it, with its event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import ConcurrentChange
from broker.domain.basics.machines import KeyPair, Machine, with_keys
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.holding.starting import StartReport, Unreached, after_reports, is_due
from broker.domain.holding.startup_run import StartupRun
from broker.domain.workloads.startup import Startup, StartupSecrets, startup_script
from broker.ports.holding import MachineStarting, Start
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory
from broker.redaction import MARK, redacted
from broker.services.holding.lease_service import LeaseService

log = logging.getLogger(__name__)

ACTOR = "machines"
AT_ONCE = 16
MOST_SHOWN = 2_000
"""Characters of a script's last lines that are stored."""
Due = tuple[Reservation, Unit, StartupRun]


class MachineStarts:
    """Begins starts that wait for their machines, and learns how they ended.

    ``secrets``: those of the installation, looked up when a machine is asked.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        lease_service: LeaseService,
        starter: MachineStarting,
        clock: Clock,
        secrets: StartupSecrets | None = None,
    ) -> None:
        self._uow_factory = uow_factory
        self._lease_service = lease_service
        self._starter = starter
        self._clock = clock
        self._secrets = secrets or StartupSecrets()
        self._looked_at: dict[str, datetime] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run_once(self, rows: Iterable[Reservation]) -> None:
        """One pass over open reservations."""
        waiting = [(row, unit) for row in rows for unit in row.units if awaits_start(row, unit)]
        self._looked_at = {unit.tag: at for _, unit in waiting if (at := self._looked_at.get(unit.tag))}
        now = self._clock.now()
        due: defaultdict[str, list[Due]] = defaultdict(list)
        for row, unit in waiting:
            run, looked_at = unit.startup, self._looked_at.get(unit.tag)
            if run is not None and unit.reachable_at is not None and is_due(run, looked_at, now):
                due[row.reservation_id].append((row, unit, run))
        if not due:
            return
        async with self._uow_factory(EVERY_TEAM) as uow:
            own = await uow.accounts.find_own_key()
        if own is not None:
            await asyncio.gather(*(self._advance(units, own) for units in due.values()))

    async def _advance(self, due: Sequence[Due], own: KeyPair) -> None:
        """Asks the machines of a reservation, and stores what became of each unit, one after the other."""
        found = await asyncio.gather(*(self._outcome(*one, own) for one in due))
        for (row, unit, run), after in zip(due, found, strict=True):
            if after != run:
                with suppress(ConcurrentChange):  # the next pass asks again
                    await self._store(row, unit, after)

    async def _outcome(self, row: Reservation, unit: Unit, run: StartupRun, own: KeyPair) -> StartupRun:
        startup = row.setup.startup
        assert startup is not None
        reports = [self._told(one, startup) for one in await self._ask(row, unit, startup, own)]
        now = self._looked_at[unit.tag] = self._clock.now()
        return after_reports(run, reports, now)

    async def _ask(
        self, row: Reservation, unit: Unit, startup: Startup, own: KeyPair
    ) -> Sequence[StartReport | Unreached]:
        """What each machine of the unit says, in their order."""
        for name in startup.secret_names:
            if why := self._secrets.why_not(name, row.team):
                return (Unreached(f"nothing was started: {why}", is_final=True),)
        guests = [key for key in row.setup.keys if key.line != own.public.line]
        script = with_keys(startup_script(startup, self._secrets.of_team(row.team)), guests)
        asked = (self._ask_one(machine, unit.tag, script, own) for machine in unit.machines)
        return await asyncio.gather(*asked)

    async def _ask_one(
        self, machine: Machine, name: str, script: str, own: KeyPair
    ) -> StartReport | Unreached:
        host_key = machine.expected_host_key
        assert host_key is not None
        start = Start(name, machine.access, host_key, own.private, script)
        async with self._slots:
            crash_points.here("call.start.before")
            report = await self._starter.start(start)
            crash_points.here("call.start.after")
        return report

    def _told(self, report: StartReport | Unreached, startup: Startup) -> StartReport | Unreached:
        """``report`` without secrets; its text is cut after that, so that no part of one is left."""

        def shown(text: str) -> str:
            for name in startup.secret_names:
                if value := self._secrets.values.get(name):
                    text = text.replace(value, MARK)
            return redacted(text)[-MOST_SHOWN:].strip()

        if isinstance(report, Unreached):
            return replace(report, why=shown(report.why))
        return replace(report, output=shown(report.output))

    async def _store(self, asked: Reservation, unit: Unit, run: StartupRun) -> None:
        """Stores ``run``, unless the unit changed since its machines were asked."""
        row = await self._lease_service.reload(asked)
        now = row.units[unit.ordinal]
        if (now.tag, now.startup) == (unit.tag, unit.startup) and awaits_start(row, now):
            await self._lease_service.note_start(row, unit.ordinal, run, ACTOR)
            log.info("the start of %s, unit %d: %s", row.reservation_id, unit.ordinal, run.state)


def awaits_start(row: Reservation, unit: Unit) -> bool:
    """Whether the broker still has to start the unit's machines, or to learn how that ended."""
    return (
        row.state is ReservationState.ACTIVE
        and unit.state is UnitState.HELD
        and unit.startup is not None
        and unit.startup.is_the_brokers
    )

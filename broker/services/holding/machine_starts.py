"""Runs the start of machines over SSH, at sellers whose orders take no script.

A machine runs the start of its unit once, however often it is asked: the claim lies on the machine. What it
says is stored with the reservation's version, so that of two brokers one stores it, with its event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.errors import ConcurrentChange
from broker.domain.basics.machines import KeyPair, Machine, with_keys
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.holding.starting import StartReport, Unreached, after_reports, is_due
from broker.domain.holding.startup_run import StartupRun, StartupState
from broker.domain.planning.startup import Startup, startup_script
from broker.ports.holding import MachineStarting, Start
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory
from broker.redaction import MARK, redacted

log = logging.getLogger(__name__)

ACTOR = "machines"
AT_ONCE = 16
MOST_SHOWN = 2_000
"""Characters of a script's last lines that are stored."""
DONE, FAILED = "reservation.start_done", "reservation.start_failed"
NO_SECRETS: Mapping[str, str] = MappingProxyType({})


class MachineStarts:
    """Begins starts that wait for their machines, and learns how they ended.

    ``secrets``: those of the installation by name, looked up when a machine is asked.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        starter: MachineStarting,
        clock: Clock,
        secrets: Mapping[str, str] = NO_SECRETS,
    ) -> None:
        self._uow_factory = uow_factory
        self._starter = starter
        self._clock = clock
        self._secrets = secrets
        self._looked_at: dict[str, datetime] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run_once(self, rows: Iterable[Reservation]) -> None:
        """One pass over open reservations."""
        waiting = [(row, unit) for row in rows for unit in row.units if awaits_start(row, unit)]
        self._looked_at = {unit.tag: at for _, unit in waiting if (at := self._looked_at.get(unit.tag))}
        now = self._clock.now()
        due = [
            (row, unit, unit.startup)
            for row, unit in waiting
            if unit.startup is not None
            and unit.reachable_at is not None
            and is_due(unit.startup, self._looked_at.get(unit.tag), now)
        ]
        if not due:
            return
        async with self._uow_factory(EVERY_TEAM) as uow:
            own = await uow.accounts.find_own_key()
        if own is not None:
            await asyncio.gather(*(self._advance(row, unit, run, own) for row, unit, run in due))

    async def _advance(self, row: Reservation, unit: Unit, run: StartupRun, own: KeyPair) -> None:
        startup = row.setup.startup
        assert startup is not None
        reports = [self._told(one, startup) for one in await self._ask(row, unit, startup, own)]
        self._looked_at[unit.tag] = self._clock.now()
        after = after_reports(run, reports, self._clock.now())
        if after != run:
            with suppress(ConcurrentChange):  # the next pass asks again
                await self._store(row.reservation_id, unit, after)

    async def _ask(
        self, row: Reservation, unit: Unit, startup: Startup, own: KeyPair
    ) -> Sequence[StartReport | Unreached]:
        """What each machine of the unit says, in their order."""
        missing = [name for name in startup.secret_names if name not in self._secrets]
        if missing:
            lacks = ", ".join(f"BROKER_SECRET_{name}" for name in missing)
            return (Unreached(f"nothing was started: {lacks} is no longer set", is_final=True),)
        guests = [key for key in row.setup.keys if key.line != own.public.line]
        script = with_keys(startup_script(startup, self._secrets), guests)
        crash_points.here("call.start.before")
        reports = await asyncio.gather(
            *(self._ask_one(machine, unit.tag, script, own) for machine in unit.machines)
        )
        crash_points.here("call.start.after")
        return reports

    async def _ask_one(
        self, machine: Machine, name: str, script: str, own: KeyPair
    ) -> StartReport | Unreached:
        host_key = machine.expected_host_key
        assert host_key is not None
        async with self._slots:
            return await self._starter.start(Start(name, machine.access, host_key, own.private, script))

    def _told(self, report: StartReport | Unreached, startup: Startup) -> StartReport | Unreached:
        """``report`` without secrets; its text is cut after that, so that no part of one is left."""

        def shown(text: str) -> str:
            for name in startup.secret_names:
                if value := self._secrets.get(name):
                    text = text.replace(value, MARK)
            return redacted(text)[-MOST_SHOWN:].strip()

        if isinstance(report, Unreached):
            return replace(report, why=shown(report.why))
        return replace(report, output=shown(report.output))

    async def _store(self, reservation_id: str, asked: Unit, run: StartupRun) -> None:
        """Stores ``run``, with its event if it is over, unless the unit changed since it was asked."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            row = await uow.reservations.find(reservation_id)
            unit = row.units[asked.ordinal]
            if (unit.tag, unit.startup) != (asked.tag, asked.startup) or not awaits_start(row, unit):
                return
            await uow.reservations.update(row.with_unit(replace(unit, startup=run)))
            if run.is_over:
                await uow.accounts.add_audit(self._entry(row, unit, run))
            crash_points.here("reservation.startup.before")
            await uow.commit()
            crash_points.here("reservation.startup.after")
        log.info("the start of %s, unit %d: %s", reservation_id, unit.ordinal, run.state)

    def _entry(self, row: Reservation, unit: Unit, run: StartupRun) -> AuditEntry:
        failed = run.state is StartupState.FAILED
        code = f"exit code {run.exit_code}" if run.exit_code is not None else "it was not run to its end"
        said = f"unit {unit.ordinal}: {code}" + (f": {run.error}" if run.error else "")
        return AuditEntry(
            at=run.at,
            actor=ACTOR,
            action=FAILED if failed else DONE,
            object_kind="reservation",
            object_id=row.reservation_id,
            team=row.team,
            detail=said,
        )


def awaits_start(row: Reservation, unit: Unit) -> bool:
    """Whether the broker still has to start the unit's machines, or to learn how that ended."""
    return (
        row.state is ReservationState.ACTIVE
        and unit.state is UnitState.HELD
        and unit.startup is not None
        and unit.startup.is_the_brokers
    )

"""Looks after held machines: whether they can be reached, their start, and which keys their sellers have."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import ProviderError
from broker.domain.basics.machines import AccessWish, Machine
from broker.domain.holding.machine_setup import MachineSetup
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.ports.holding import MachineProbing, Reserver
from broker.ports.unit_of_work import Clock, Notifier, UnitOfWorkFactory
from broker.services.holding.machine_starts import MachineStarts, awaits_start

log = logging.getLogger(__name__)

AT_ONCE = 16
SILENT_LOOKS = 3
"""A server stays ready until it has not answered in time so often in a row, as a busy machine, or a busy
broker, is late now and then. One that refuses, or answers with an error, is not ready at once."""
REACHABLE = "reservation.reachable"
"""The event that every machine of a reservation has answered on its SSH port."""


class MachinesService:
    """Asks machines of active reservations whether they answer, and removes public keys that nobody needs.

    ``reservers`` by provider key. ``starts`` None: no machine is started over SSH.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        reservers: Mapping[str, Reserver],
        probe: MachineProbing,
        clock: Clock,
        notifier: Notifier,
        starts: MachineStarts | None = None,
    ) -> None:
        self._starts = starts
        self._uow_factory = uow_factory
        self._reservers = reservers
        self._probe = probe
        self._clock = clock
        self._notifier = notifier
        self._kept: dict[str, frozenset[str]] = {}
        self._silent: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run_once(self) -> None:
        """One pass over all open reservations."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            rows = await uow.reservations.find_open()
        await self._reach(rows)
        if self._starts is not None and any(awaits_start(row, unit) for row in rows for unit in row.units):
            async with self._uow_factory(EVERY_TEAM) as uow:
                rows = await uow.reservations.find_open()
            await self._starts.run_once(rows)
        await self._tidy(rows)

    async def _reach(self, rows: Sequence[Reservation]) -> None:
        """Asks the machines that have not answered yet, and stores which did."""
        active = (row for row in rows if row.state is ReservationState.ACTIVE)
        waiting = [(row, unit) for row in active for unit in row.units if unit.state is UnitState.HELD]
        found = await asyncio.gather(*(self._seen(row, unit) for row, unit in waiting))
        changed = {
            (row.reservation_id, unit.ordinal): (machines, unit.access_note)
            for (row, unit), machines in zip(waiting, found, strict=True)
            if machines != unit.machines
        }
        if not changed:
            return
        async with self._uow_factory(EVERY_TEAM) as uow:
            await uow.reservations.note_machines(changed)
            crash_points.here("reservation.reachable.before")
            await uow.commit()
            crash_points.here("reservation.reachable.after")
        for row in {row.reservation_id: row for row, unit in waiting if unit.reachable_at is None}.values():
            now = [
                changed.get((row.reservation_id, unit.ordinal), (unit.machines, ""))[0] for unit in row.units
            ]
            if all(machines and all(one.reachable_at for one in machines) for machines in now):
                body: dict[str, object] = {"reservation_id": row.reservation_id, "plan_id": row.plan_id}
                await self._notifier.notify(REACHABLE, row.team, body)

    async def _seen(self, row: Reservation, unit: Unit) -> tuple[Machine, ...]:
        is_entered = row.setup.access is AccessWish.SSH or awaits_start(row, unit)
        return tuple(
            await asyncio.gather(
                *(self._ask(row.setup, machine, is_entered=is_entered) for machine in unit.machines)
            )
        )

    async def _ask(self, setup: MachineSetup, machine: Machine, *, is_entered: bool) -> Machine:
        """``machine`` as it is now: whether it can be entered, and whether its server is healthy."""
        if is_entered and machine.access.is_entered and machine.reachable_at is None:
            async with self._slots:
                key = await self._probe.host_key(machine.access)
            if key is not None:
                machine = replace(machine, reachable_at=self._clock.now(), host_key=key)
        if setup.served is not None:
            port = machine.access.server_port or setup.served.port
            url = f"http://{machine.access.host}:{port}{setup.served.health_path}"
            async with self._slots:
                is_healthy = await self._probe.is_healthy(url)
            if is_healthy is None:
                self._silent[url] += 1
            else:
                self._silent.pop(url, None)
            if is_healthy:
                machine = replace(machine, ready_at=machine.ready_at or self._clock.now())
            elif is_healthy is not None or self._silent[url] >= SILENT_LOOKS:
                machine = replace(machine, ready_at=None)
        return machine

    async def _tidy(self, rows: Sequence[Reservation]) -> None:
        """Removes the broker's public keys at each seller where fewer are needed than at the last look.

        The first look of a process asks every seller, since another process may have left keys behind.
        """
        for name, reserver in self._reservers.items():
            needed = _lines(row for row in rows if row.offer.provider == name)
            before = self._kept.get(name)
            if before is not None and before <= needed:
                self._kept[name] = needed
                continue

            async def find_needed(name: str = name) -> Collection[str]:
                async with self._uow_factory(EVERY_TEAM) as uow:
                    open_rows = await uow.reservations.find_open()
                return _lines(row for row in open_rows if row.offer.provider == name)

            try:
                crash_points.here("call.keys.before")
                await reserver.drop_keys(find_needed)
                crash_points.here("call.keys.after")
            except ProviderError as error:
                log.info("the public keys at %s are looked at again later: %s", name, error)
                continue
            self._kept[name] = needed


def _lines(rows: Iterable[Reservation]) -> frozenset[str]:
    return frozenset(key.line for row in rows for key in row.setup.keys)

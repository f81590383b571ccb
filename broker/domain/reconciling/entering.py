"""Which stored ways into machines differ from what their providers list now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from broker.domain.basics.machines import SSH_PORT, Access, Machine
from broker.domain.holding.reservation import Lease, Reservation, UnitState

MachinesByUnit = Mapping[tuple[str, int], tuple[tuple[Machine, ...], str]]
"""By reservation id and ordinal: the machines of a unit, and the note of its provider."""


def changed_machines(
    rows: Iterable[Reservation], clouds: Mapping[str, Iterable[Lease]], ports: Mapping[str, int]
) -> MachinesByUnit:
    """The held units whose machines or note differ from the leases of ``clouds`` (by provider).

    ``ports``: the SSH port, by provider, of machines for which the provider names none.
    A unit whose provider says nothing any more keeps what it said. A machine at another address counts as not
    reached yet.
    """
    shown = {
        (provider, lease.reference): lease
        for provider, leases in clouds.items()
        for lease in leases
        if lease.machines or lease.access_note
    }
    changed = {}
    for row in rows:
        for unit in row.units:
            lease = shown.get((row.offer.provider, unit.reference or ""))
            if lease is None or unit.state is not UnitState.HELD:
                continue
            machines = (
                as_machines(_with_port(lease.machines, ports[lease.provider]), unit.machines)
                if lease.machines
                else unit.machines
            )
            if (machines, lease.access_note) != (unit.machines, unit.access_note):
                changed[row.reservation_id, unit.ordinal] = machines, lease.access_note
    return changed


def _with_port(machines: Iterable[Access], port: int) -> Iterable[Access]:
    return (replace(one, port=port) if one.port == SSH_PORT else one for one in machines)


def as_machines(shown: Iterable[Access], before: Iterable[Machine]) -> tuple[Machine, ...]:
    """``shown`` as machines; one with the address of a machine of ``before`` keeps what was seen of it."""
    seen = {(one.access.host, one.access.port): one for one in before}
    machines = []
    for access in shown:
        same = seen.get((access.host, access.port))
        machines.append(Machine(access) if same is None else replace(same, access=access))
    return tuple(machines)

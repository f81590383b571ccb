"""The machines that are held now, in the forms of the tools that use them. Pure."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from api.schemas.holding.reservation import AccessForm, ReservationForm
from broker.domain.holding.reservation import ReservationState, UnitState

RENDEZVOUS_PORT = 29_500
GPU_METRICS_PORT = 9_400
"""The port on which NVIDIA's DCGM exporter serves metrics by default."""


class HostsFormat(StrEnum):
    """The tools whose form a list of hosts may take."""

    JSON = "json"
    SSH_CONFIG = "ssh-config"
    ANSIBLE = "ansible"
    TORCHRUN = "torchrun"
    SLURM = "slurm"
    DSTACK = "dstack"
    SKYPILOT = "skypilot"
    PROMETHEUS = "prometheus"


@dataclass(frozen=True, slots=True)
class Host:
    """One machine that is held. ``rank``: its place among the machines of its workload, from 0."""

    name: str
    group: str
    rank: int
    access: AccessForm
    reservation_id: str
    ordinal: int
    node: int
    gpu: str
    gpus: int
    provider: str
    region: str

    @property
    def inner(self) -> str:
        """The address for traffic between machines: the private one where the seller says it."""
        return self.access.private_host or self.access.host


def hosts_of(rows: Iterable[ReservationForm]) -> tuple[Host, ...]:
    """The machines of active reservations whose way in is known, by workload and rank.

    The rank follows the reservations' start, and within one the seller's order.
    """
    groups: defaultdict[str, list[tuple[ReservationForm, int, int, AccessForm]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.start, row.reservation_id)):
        if row.state is not ReservationState.ACTIVE:
            continue
        for unit in row.units:
            for node, access in enumerate(unit.machines):
                if unit.state is UnitState.HELD:
                    groups[row.workload or row.reservation_id].append((row, unit.ordinal, node, access))
    return tuple(
        Host(
            name=f"{pool_name(group)}-{rank}",
            group=group,
            rank=rank,
            access=access,
            reservation_id=row.reservation_id,
            ordinal=ordinal,
            node=node,
            gpu=row.gpu or row.sku,
            gpus=row.gpus_per_node or 0,
            provider=row.provider,
            region=row.region,
        )
        for group, members in groups.items()
        for rank, (row, ordinal, node, access) in enumerate(members)
    )


def alias_of(reservation_id: str, ordinal: int, node: int) -> str:
    """The name under which OpenSSH keeps the host key of a machine: addresses are used again, this is not."""
    return f"{reservation_id}-{ordinal}-{node}"


def hosts_text(hosts: Sequence[Host], form: HostsFormat) -> str:
    """``hosts`` as text in one of the forms."""
    return _WRITERS[form](hosts)


def _json(hosts: Sequence[Host]) -> str:
    rows = [
        {
            "name": host.name,
            "workload": host.group,
            "rank": host.rank,
            "reservation_id": host.reservation_id,
            "unit": host.ordinal,
            "provider": host.provider,
            "region": host.region,
            "gpu": host.gpu,
            "gpus": host.gpus,
            **host.access.model_dump(mode="json"),
        }
        for host in hosts
    ]
    return json.dumps({"hosts": rows}, indent=2) + "\n"


def _ssh_config(hosts: Sequence[Host]) -> str:
    blocks = [
        f"Host {host.name}\n"
        f"  HostName {host.access.host}\n"
        f"  Port {host.access.port}\n"
        f"  User {host.access.user}\n"
        f"  HostKeyAlias {alias_of(host.reservation_id, host.ordinal, host.node)}\n"
        for host in hosts
    ]
    return "\n".join(blocks)


def _ansible(hosts: Sequence[Host]) -> str:
    groups: dict[str, Any] = {}
    for host in hosts:
        group = groups.setdefault(pool_name(host.group).replace("-", "_"), {"hosts": {}})
        group["hosts"][host.name] = {
            "ansible_host": host.access.host,
            "ansible_port": host.access.port,
            "ansible_user": host.access.user,
            "rank": host.rank,
            "gpu": host.gpu,
            "gpus": host.gpus,
        }
    return _yaml({"all": {"children": groups}})


def _torchrun(hosts: Sequence[Host]) -> str:
    """The options of ``torchrun`` on each machine, one line each: a job for each workload, or for each of its
    places, since machines of several sellers or regions share no network.
    """
    lines = []
    for group, members in _by_group(hosts).items():
        places = _by_place(members)
        for place, joined in places.items():
            where = f" at {place}" if len(places) > 1 else ""
            lines.append(f"# {group}{where}: {len(joined)} nodes; append the script and its arguments")
            for rank, host in enumerate(joined):
                options = [
                    f"--nnodes={len(joined)}",
                    f"--node-rank={rank}",
                    f"--nproc-per-node={max(1, host.gpus)}",
                    f"--master-addr={joined[0].inner}",
                    f"--master-port={RENDEZVOUS_PORT}",
                    f"--local-addr={host.inner}",
                ]
                lines.append(f"{host.name}\ttorchrun {shlex.join(options)}")
    return "\n".join(lines) + "\n"


def _slurm(hosts: Sequence[Host]) -> str:
    """Lines for ``slurm.conf``: a node for each machine and a partition for each workload."""
    lines = ["GresTypes=gpu"]
    for host in hosts:
        gres = f" Gres=gpu:{host.gpu.lower()}:{host.gpus}" if host.gpus else ""
        lines.append(f"NodeName={host.name} NodeAddr={host.inner}{gres} State=UNKNOWN")
    for group, members in _by_group(hosts).items():
        names = ",".join(host.name for host in members)
        lines.append(f"PartitionName={pool_name(group)} Nodes={names} MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def _dstack(hosts: Sequence[Host]) -> str:
    """An SSH fleet for each workload: dstack runs on these machines, and rents none."""
    fleets = []
    for group, members in _by_group(hosts).items():
        rows = [
            {"hostname": host.access.host, "port": host.access.port, "user": host.access.user}
            | ({"internal_ip": host.access.private_host} if host.access.private_host else {})
            for host in members
        ]
        fleet: dict[str, Any] = {"type": "fleet", "name": pool_name(group)}
        if len(members) > 1 and len(_by_place(members)) == 1:
            fleet["placement"] = "cluster"
        fleets.append(_yaml({**fleet, "ssh_config": {"identity_file": "~/.ssh/id_ed25519", "hosts": rows}}))
    return "---\n".join(fleets)


def _skypilot(hosts: Sequence[Host]) -> str:
    """``~/.sky/ssh_node_pools.yaml``: a pool for each workload. SkyPilot enters machines on port 22 only."""
    pools = {
        pool_name(group): {
            "user": members[0].access.user,
            "identity_file": "~/.ssh/id_ed25519",
            "hosts": [{"ip": host.access.host, "user": host.access.user} for host in members],
        }
        for group, members in _by_group(hosts).items()
    }
    return _yaml(pools)


def _prometheus(hosts: Sequence[Host]) -> str:
    """Targets of Prometheus's file or HTTP service discovery, for metrics of GPUs."""
    rows = [
        {
            "targets": [f"{host.access.host}:{GPU_METRICS_PORT}"],
            "labels": {
                "workload": host.group,
                "rank": str(host.rank),
                "provider": host.provider,
                "region": host.region,
                "gpu": host.gpu,
                "reservation": host.reservation_id,
            },
        }
        for host in hosts
    ]
    return json.dumps(rows, indent=2) + "\n"


_WRITERS: Mapping[HostsFormat, Callable[[Sequence[Host]], str]] = {
    HostsFormat.JSON: _json,
    HostsFormat.SSH_CONFIG: _ssh_config,
    HostsFormat.ANSIBLE: _ansible,
    HostsFormat.TORCHRUN: _torchrun,
    HostsFormat.SLURM: _slurm,
    HostsFormat.DSTACK: _dstack,
    HostsFormat.SKYPILOT: _skypilot,
    HostsFormat.PROMETHEUS: _prometheus,
}


def _by_group(hosts: Sequence[Host]) -> dict[str, list[Host]]:
    groups: dict[str, list[Host]] = {}
    for host in hosts:
        groups.setdefault(host.group, []).append(host)
    return groups


def _by_place(members: Iterable[Host]) -> dict[str, list[Host]]:
    """A workload's machines by seller and region: only machines of one region can be joined."""
    places: dict[str, list[Host]] = {}
    for host in members:
        places.setdefault(f"{host.provider} {host.region}", []).append(host)
    return places


def pool_name(name: str) -> str:
    """What a workload's machines are called in the tools: its name in letters, digits and hyphens."""
    return "-".join("".join(one if one.isalnum() else " " for one in name).split()).lower() or "workload"


def _yaml(document: Any) -> str:
    return str(yaml.safe_dump(document, sort_keys=False))

"""The network that machines of a seller join in the buyer's account, and who reaches them there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from ipaddress import IPv4Network

from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.machines import SSH_PORT

SERVER_PORT = 8000
"""The port of servers whose command the broker writes."""
PORTS = (SSH_PORT, SERVER_PORT)
EVERYBODY = "0.0.0.0/0"
EVERY_REGION = ""
"""The region of a network that serves all of them."""


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """Who reaches machines: IPv4 networks as ``203.0.113.0/24``, and the TCP ports that are open to them."""

    sources: tuple[str, ...]
    ports: tuple[int, ...] = PORTS

    @property
    def says(self) -> str:
        """The rules as a clause."""
        ports = " and ".join(map(str, self.ports))
        return f"lets in TCP {ports} from {', '.join(self.sources)}"


def read_sources(texts: Collection[str]) -> tuple[str, ...]:
    """IPv4 networks in their usual form, each once, sorted. Raises InputError for what is none."""
    found, problems = set(), []
    for text in texts:
        try:
            found.add(str(IPv4Network(text.strip())))
        except ValueError:
            expected = f"an IPv4 network such as 203.0.113.0/24; {EVERYBODY} is everybody"
            problems.append(FieldProblem("/sources", repr(text[:40]), expected))
    if problems or not found:
        nothing = FieldProblem("/sources", "none", "the IPv4 networks that may reach machines")
        raise InputError("network", tuple(problems) or (nothing,))
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class NetworkPart:
    """One resource of a network in ``region`` ("": for all regions).

    ``reference`` is the seller's id of it (None: it is not there, or not as wanted). ``made``: it was made or
    changed just now.
    """

    region: str
    kind: str
    says: str
    reference: str | None
    made: bool = False


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """What a network consists of, and what the public address of a machine costs beside it.

    Its parts cost nothing while they stand. ``source`` says where the seller states the address's price.
    """

    provider: str
    parts: tuple[NetworkPart, ...]
    address_usd_per_node_hour: Decimal
    source: str

    @property
    def missing(self) -> tuple[NetworkPart, ...]:
        """The parts that are not there."""
        return tuple(part for part in self.parts if part.reference is None)


@dataclass(frozen=True, slots=True)
class SellerNetwork:
    """A network that was made: the seller's ids of its parts by kind, which orders in ``region`` name."""

    provider: str
    region: str
    resource_ids: Mapping[str, str] = field(hash=False)
    sources: tuple[str, ...]
    made_at: datetime
    made_by: str


def network_of_region(networks: Sequence[SellerNetwork], region: str) -> SellerNetwork | None:
    """The network of ``region`` among those of one seller, or the one that serves every region."""
    return next((one for one in networks if one.region in (region, EVERY_REGION)), None)

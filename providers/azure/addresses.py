"""How the VMs of a scale set are entered: its network interfaces and public addresses, read as machines.

Both lists are Microsoft.Network's, in the version that it documents for scale sets. A VM's number is its
place in the scale set; a VM without a public address is entered at its private one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from broker.domain.basics.machines import Access
from providers.azure.windows import PROVIDER
from providers.payload import PayloadModel, as_payload

INTERFACES, PUBLIC_ADDRESSES = "networkInterfaces", "publicipaddresses"
NETWORK_VERSION = "2018-10-01"
PORTAL = "https://portal.azure.com/#resource"
_VM = re.compile(r"(?P<id>.+/virtualMachines/(?P<number>\d+))/.*", re.IGNORECASE)


class _Link(PayloadModel):
    id: str = ""


class _Place(PayloadModel):
    privateIPAddress: str | None = None
    publicIPAddress: _Link | None = None


class _Configuration(PayloadModel):
    properties: _Place = _Place()


class _InterfaceParts(PayloadModel):
    ipConfigurations: tuple[_Configuration, ...] = ()


class Interface(PayloadModel):
    """A network interface of a VM."""

    id: str
    properties: _InterfaceParts = _InterfaceParts()

    @property
    def place(self) -> _Place:
        """Its first address."""
        return next((each.properties for each in self.properties.ipConfigurations), _Place())

    @property
    def is_public(self) -> bool:
        """Whether it has a public address."""
        return self.place.publicIPAddress is not None


class _AddressParts(PayloadModel):
    ipAddress: str | None = None


class _PublicAddress(PayloadModel):
    id: str
    properties: _AddressParts = _AddressParts()


def read_interfaces(rows: Iterable[Any]) -> list[Interface]:
    """Network interfaces in the order of their VMs; PayloadUnreadable for what is none."""
    found = [as_payload(PROVIDER, row, Interface) for row in rows]
    return sorted(found, key=lambda each: _number(each.id))


def machines_of(interfaces: Iterable[Interface], public: Iterable[Any], user: str) -> tuple[Access, ...]:
    """The VMs of ``interfaces``, once each has an address; ``public``: rows of the public addresses."""
    rows = [as_payload(PROVIDER, row, _PublicAddress) for row in public]
    by_id = {row.id.lower(): row.properties.ipAddress for row in rows}
    found = []
    for interface in interfaces:
        place = interface.place
        link = place.publicIPAddress
        host = place.privateIPAddress if link is None else by_id.get(link.id.lower())
        vm = _VM.fullmatch(interface.id)
        if not host:
            return ()
        page = f"{PORTAL}{vm['id']}" if vm else None
        found.append(Access(host, user, private_host=place.privateIPAddress, console_url=page))
    return tuple(found)


def _number(resource_id: str) -> int:
    found = _VM.fullmatch(resource_id)
    return int(found["number"]) if found else 0

"""Compute Engine's networks and firewall rules: read, made, changed.

A project has the network ``default`` from its start. A firewall rule is kept as it was sent; the sandbox's
machines, on loopback, are reached whatever it says. Source: compute v1 discovery document (20261106).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from providers.sandbox.protocol import Call, Refusal, Reply, SandboxState, json_reply
from providers.sandbox.sellers.gcp.operations import (
    API,
    Operations,
    gcp_error,
    not_found,
    required,
    resource_name,
)

NETWORKS, FIREWALLS = "global/networks", "global/firewalls"
_DEFAULT = "default"
_KINDS = {"networks": "compute#network", "firewalls": "compute#firewall"}


class Networks:
    """Networks and firewall rules of the projects."""

    def __init__(self, sandbox: SandboxState, operations: Operations) -> None:
        self._sandbox, self._operations = sandbox, operations

    def require(self, interfaces: Sequence[Mapping[str, Any]]) -> None:
        """Refuses an instance in a network that is not there."""
        for number, interface in enumerate(interfaces):
            wanted = str(interface.get("network") or _DEFAULT)
            if not self._has_network(name_of(wanted)):
                field = f"resource.networkInterfaces[{number}].network"
                says = "The referenced network resource cannot be found."
                raise Refusal(
                    gcp_error(400, "invalid", f"Invalid value for field '{field}': '{wanted}'. {says}")
                )

    def get(self, call: Call) -> Reply:
        """One network or rule."""
        kind, name = call.parts["kind"], call.parts["name"]
        if kind == "networks" and name == _DEFAULT:
            return json_reply(self._row(call, kind, {"name": name, "autoCreateSubnetworks": True}))
        return json_reply(self._row(call, kind, self._known(kind, name)))

    def insert(self, call: Call) -> Reply:
        """Makes a network or rule."""
        return self._operations.once(call, lambda: self._insert(call))

    def patch(self, call: Call) -> Reply:
        """Changes the fields of a rule that the body names."""
        kind, name = call.parts["kind"], call.parts["name"]
        known = self._known(kind, name)
        self._sandbox.store.put_document(f"gcp_{kind}", name, {**known, **call.json_object()})
        return self._operations.start(
            call, "patch", f"global/{kind}/{name}", done_at=self._sandbox.clock.now()
        )

    def _insert(self, call: Call) -> Reply:
        kind, body = call.parts["kind"], call.json_object()
        name = resource_name(body)
        if self._sandbox.store.document(f"gcp_{kind}", name) is not None:
            message = f"The resource 'projects/{call.parts['project']}/global/{kind}/{name}' already exists"
            raise Refusal(gcp_error(409, "alreadyExists", message))
        if kind == "firewalls":
            self.require([{"network": required(body, "network")}])
            required(body, "allowed")
        self._sandbox.store.put_document(f"gcp_{kind}", name, body)
        now = self._sandbox.clock.now()
        return self._operations.start(call, "insert", f"global/{kind}/{name}", done_at=now)

    def _has_network(self, name: str) -> bool:
        return name == _DEFAULT or self._sandbox.store.document("gcp_networks", name) is not None

    def _known(self, kind: str, name: str) -> dict[str, Any]:
        known = self._sandbox.store.document(f"gcp_{kind}", name)
        if known is None:
            raise not_found(f"global/{kind}/{name}")
        return known

    def _row(self, call: Call, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
        root = f"{API}/projects/{call.parts['project']}"
        row = {**body, "kind": _KINDS[kind], "selfLink": f"{root}/global/{kind}/{body['name']}"}
        if kind == "firewalls":
            row["network"] = f"{root}/{NETWORKS}/{name_of(str(body['network']))}"
        return row


def name_of(network: str) -> str:
    """The name of a network in a whole or partial URL."""
    return network.rpartition("/")[2]

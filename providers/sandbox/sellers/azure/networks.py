"""Microsoft.Network in the sandbox: security groups and virtual networks, made or changed by PUT, and read.

Every resource group has the virtual network ``broker`` with the subnet ``default`` in each region, as
somebody would have made it who names a network in the settings. What is made is ready once it was read,
and the sandbox's machines, on loopback, are reached whatever a security group says. Source: REST API of
Microsoft.Network 2024-05-01.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.sandbox.protocol import Call, Reply, SandboxState, json_reply
from providers.sandbox.sellers.azure.arm import arm_error, invalid

NETWORK = "/subscriptions/{sub}/resourceGroups/{rg}/providers/Microsoft.Network"
GROUPS, NETWORKS = "networkSecurityGroups", "virtualNetworks"
_STANDING = "/virtualnetworks/broker/subnets/default"
_DOCUMENT = "azure_network"


class Networks:
    """Security groups and virtual networks by their whole id, which has no case."""

    def __init__(self, sandbox: SandboxState) -> None:
        self._sandbox = sandbox

    def get(self, call: Call) -> Reply:
        """One resource."""
        kept = self._known(call)
        self._sandbox.store.put_document(_DOCUMENT, call.path.lower(), {**kept, "state": "Succeeded"})
        return json_reply(_row(kept))

    def put(self, call: Call) -> Reply:
        """Makes or changes one."""
        body, was = call.json_object(), self._kept(call.path)
        if not body.get("location"):
            raise invalid("The property 'location' is required.")
        self._require_links(body)
        kept = {"body": body, "path": call.path, "state": "Updating"}
        self._sandbox.store.put_document(_DOCUMENT, call.path.lower(), kept)
        return json_reply(_row(kept), 201 if was is None else 200)

    def require_subnet(self, subnet: str, location: str) -> None:
        """Refuses a scale set in a subnet that is not there, or in another region."""
        if subnet.lower().endswith(_STANDING):
            return
        path, _, name = subnet.partition("/subnets/")
        network = self._kept(path)
        names = [] if network is None else [one["name"] for one in _subnets(network["body"])]
        if network is None or name not in names or network["body"]["location"] != location:
            raise arm_error(
                400,
                "InvalidResourceReference",
                f"Resource {subnet} referenced by resource was not found. Please make sure that the"
                " referenced resource exists, and that both resources are in the same region.",
            )

    def _require_links(self, body: Mapping[str, Any]) -> None:
        """Refuses a subnet whose security group is not there."""
        for subnet in _subnets(body):
            group = ((subnet.get("properties") or {}).get("networkSecurityGroup") or {}).get("id")
            if group is not None and self._kept(group) is None:
                raise arm_error(
                    400, "InvalidResourceReference", f"Resource {group} referenced by resource was not found."
                )

    def _kept(self, path: str) -> dict[str, Any] | None:
        return self._sandbox.store.document(_DOCUMENT, path.lower())

    def _known(self, call: Call) -> dict[str, Any]:
        found = self._kept(call.path)
        if found is None:
            kind, name = call.path.split("/")[-2:]
            raise arm_error(
                404, "ResourceNotFound", f"The Resource 'Microsoft.Network/{kind}/{name}' was not found."
            )
        return found


def _row(kept: Mapping[str, Any]) -> dict[str, Any]:
    path, body = kept["path"], kept["body"]
    properties = {**body.get("properties", {}), "provisioningState": kept["state"]}
    if "subnets" in properties:
        properties["subnets"] = [
            {**one, "id": f"{path}/subnets/{one['name']}"} for one in properties["subnets"]
        ]
    kind, name = path.split("/")[-2:]
    return {
        "id": path,
        "name": name,
        "type": f"Microsoft.Network/{kind}",
        "location": body["location"],
        "tags": body.get("tags", {}),
        "properties": properties,
    }


def _subnets(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list((body.get("properties") or {}).get("subnets") or ())

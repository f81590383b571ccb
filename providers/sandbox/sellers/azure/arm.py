"""Shared parts of the sandbox's Resource Manager: scope, states, errors, operations in progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from providers.sandbox.ledger import Entry, zulu
from providers.sandbox.protocol import Call, Refusal, Reply, SandboxState, json_reply
from providers.sandbox.sellers.azure.market import NAME

COMPUTE = "/subscriptions/{sub}/resourceGroups/{rg}/providers/Microsoft.Compute"
OPERATIONS = "/subscriptions/{sub}/providers/Microsoft.Compute/locations/{location}/operations/{id}"
_OPERATION = "azure_operation"


def arm_error(status: int, code: str, message: str) -> Refusal:
    """An error of the Resource Manager."""
    return Refusal(json_reply({"error": {"code": code, "message": message}}, status))


def not_found(kind: str, name: str) -> Refusal:
    """404 of a resource."""
    return arm_error(
        404, "ResourceNotFound", f"The Resource 'Microsoft.Compute/{kind}/{name}' was not found."
    )


def invalid(message: str) -> Refusal:
    """400 of a property."""
    return arm_error(400, "InvalidParameter", message)


def short_of_capacity(size: str, location: str) -> dict[str, str]:
    """The error of a failed allocation."""
    message = (
        "Allocation failed. We do not have sufficient capacity for the requested VM size in this region."
        f" VM size: {size}, location: {location}."
    )
    return {"code": "AllocationFailed", "message": message}


@dataclass(frozen=True, slots=True)
class Scope:
    """A resource group, as the path names it."""

    subscription: str
    group: str

    @classmethod
    def of(cls, call: Call) -> Scope:
        """The scope of a call."""
        return cls(call.parts["sub"], call.parts["rg"])

    @property
    def key(self) -> str:
        """Names it in documents; names of resource groups have no case."""
        return f"{self.subscription}/{self.group}".lower()

    def id_of(self, path: str) -> str:
        """The whole id of a resource."""
        return COMPUTE.format(sub=self.subscription, rg=self.group) + f"/{path}"


def root_of(call: Call) -> str:
    """The external base URL of this Azure."""
    return f"http://{call.headers.get('host', 'sandbox')}/{NAME}"


def next_page(call: Call, rows: list[Any], size: int) -> tuple[list[Any], str | None]:
    """One page of a list and the link to the next."""
    token = call.query.get("$skiptoken", "0")
    start = int(token) if token.isdecimal() else 0
    if start + size >= len(rows):
        return rows[start:], None
    version = quote(call.query.get("api-version", ""))
    link = f"{root_of(call)}{call.path}?api-version={version}&$skiptoken={start + size}"
    return rows[start : start + size], link


class Resources:
    """Entries of the ledger as resources with a provisioning state."""

    def __init__(self, sandbox: SandboxState) -> None:
        self.sandbox = sandbox

    @property
    def now(self) -> datetime:
        """The sandbox's time."""
        return self.sandbox.clock.now()

    def find(self, call: Call, path: str) -> Entry | None:
        """A resource that exists, failed and ended ones included, deleted ones not."""
        entry = self.sandbox.ledger.find(NAME, path)
        if entry is None or entry.detail["scope"] != Scope.of(call).key or self.state(entry) == "Deleted":
            return None
        return entry

    def existing(self, call: Call, prefix: str) -> list[Entry]:
        """Every resource whose path begins with ``prefix``."""
        scope = Scope.of(call).key
        return [
            entry
            for entry in self.sandbox.ledger.entries(NAME)
            if entry.instance_id.startswith(prefix)
            and "#" not in entry.instance_id
            and entry.detail["scope"] == scope
            and self.state(entry) != "Deleted"
        ]

    def state(self, entry: Entry) -> str:
        """Creating, then Succeeded or Failed; Deleting, then Deleted."""
        durations = self.sandbox.durations
        deleted = entry.detail.get("deleted_at")
        if deleted is not None:
            gone_at = datetime.fromisoformat(deleted) + timedelta(seconds=durations.terminate_s)
            return "Deleting" if self.now < gone_at else "Deleted"
        if entry.failed(self.now):
            return "Failed"
        is_new = self.now < entry.created_at + timedelta(seconds=durations.boot_s)
        return "Creating" if is_new else "Succeeded"

    def make_room(self, path: str) -> None:
        """Renames the row of a deleted resource of the same name; refuses a name that another group uses."""
        old = self.sandbox.ledger.find(NAME, path)
        if old is None:
            return
        if self.state(old) != "Deleted":
            raise arm_error(409, "Conflict", "The sandbox keeps names apart over all resource groups.")
        self.sandbox.ledger.write(replace(old, instance_id=f"{path}#{old.created_at:%Y%m%dT%H%M%S%f}"))

    def delete(self, call: Call, entry: Entry) -> Reply:
        """Marks a resource as deleted; it is billed no further."""
        if self.state(entry) != "Deleting":
            ended = replace(entry, released_at=entry.released_at or self.now)
            self.sandbox.ledger.write(ended.with_detail(deleted_at=self.now.isoformat()))
        return Reply(202, b"", headers=self.watched(call, entry.instance_id, entry.region, "delete"))

    def created(self, call: Call, entry: Entry, row: Mapping[str, Any]) -> Reply:
        """201 with the URLs of the operation."""
        return json_reply(row, 201, self.watched(call, entry.instance_id, entry.region, "create"))

    def watched(self, call: Call, path: str, location: str, kind: str) -> dict[str, str]:
        """Headers of an operation in progress."""
        operation = self.sandbox.new_id("azure-operation", 32)
        body = {"path": path, "kind": kind, "started": zulu(self.now)}
        self.sandbox.store.put_document(_OPERATION, operation, body)
        place = OPERATIONS.format(sub=call.parts["sub"], location=location, id=operation)
        version = quote(call.query.get("api-version", ""))
        url = f"{root_of(call)}{place}?api-version={version}"
        return {
            "Azure-AsyncOperation": url,
            "Location": f"{url}&monitor=true",
            "Retry-After": "1",
            "x-ms-request-id": operation,
        }

    def operation(self, call: Call) -> Reply:
        """The state of an operation; as a monitor, 202 while it runs and 204 afterwards."""
        known = self.sandbox.store.document(_OPERATION, call.parts["id"])
        if known is None:
            raise arm_error(404, "NotFound", "The operation was not found.")
        entry = self.sandbox.ledger.find(NAME, known["path"])
        state = "Deleted" if entry is None else self.state(entry)
        answer: dict[str, Any] = {"name": call.parts["id"], "startTime": known["started"]}
        is_going_on = state in {"Creating", "Deleting"}
        if call.query.get("monitor") == "true":
            return Reply(202 if is_going_on else 204, b"", headers={"Retry-After": "1"})
        if is_going_on:
            return json_reply({**answer, "status": "InProgress"})
        if entry is not None and known["kind"] == "create" and state == "Failed":
            error = short_of_capacity(entry.sku, entry.region)
            return json_reply({**answer, "status": "Failed", "error": error})
        return json_reply({**answer, "status": "Succeeded", "endTime": zulu(self.now)})


def instance_statuses(state: str, size: str, location: str) -> list[dict[str, str]]:
    """``statuses`` of an instance view."""
    if state == "Failed":
        failure = short_of_capacity(size, location)
        code = f"ProvisioningState/failed/{failure['code']}"
        return [
            {
                "code": code,
                "level": "Error",
                "displayStatus": "Provisioning failed",
                "message": failure["message"],
            }
        ]
    word = state.lower()
    return [{"code": f"ProvisioningState/{word}", "level": "Info", "displayStatus": f"Provisioning {word}"}]

"""Shared parts of every Compute Engine call in the sandbox: errors, URLs, lists, and operations.

A change is answered with an operation at HTTP 200; a lack of capacity is an error inside it. The same
``requestId`` returns the same operation. Source: compute v1 discovery document (20261106).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from providers.sandbox.ledger import Entry, zulu_ms
from providers.sandbox.protocol import Call, Refusal, Reply, SandboxState, json_reply

API = "https://www.googleapis.com/compute/v1"
SETTLE = timedelta(seconds=0.1)
"""How long an operation runs before it is done."""
STOCKOUT = "ZONE_RESOURCE_POOL_EXHAUSTED"
_OPERATION, _REQUEST = "gcp_operation", "gcp_request"
_MOST_RESULTS = 500
_FILTER = re.compile(r"(?P<field>\w+) *(?P<sign>eq|ne|=|!=) *\"?(?P<value>[^\"]*)\"?")


def gcp_error(status: int, reason: str, message: str, word: str | None = None) -> Reply:
    """An error of a call; ``word``: the status of newer APIs."""
    error: dict[str, Any] = {
        "code": status,
        "message": message,
        "errors": [{"message": message, "domain": "global", "reason": reason}],
    }
    return json_reply({"error": {**error, "status": word} if word else error}, status)


def not_found(path: str) -> Refusal:
    """404 for a resource."""
    return Refusal(gcp_error(404, "notFound", f"The resource '{path}' was not found"))


def zone_url(project: str, zone: str) -> str:
    """A zone as answers name it."""
    return f"{API}/projects/{project}/zones/{zone}"


def instance_id(zone: str, kind: str, name: str) -> str:
    """The partial URL by which the ledger knows a resource."""
    return f"zones/{zone}/{kind}/{name}"


def required(body: Mapping[str, Any], *path: str) -> Any:
    """A nested value of a body; 400 when it is missing."""
    value: Any = body
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if value in (None, ""):
        field = ".".join(path)
        message = f"Invalid value for field 'resource.{field}': ''. Required field is missing."
        raise Refusal(gcp_error(400, "required", message))
    return value


def resource_name(body: Mapping[str, Any]) -> str:
    """``name``, checked as RFC 1035 asks."""
    name = str(required(body, "name"))
    if not re.fullmatch(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", name):
        pattern = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
        message = f"Invalid value for field 'resource.name': '{name}'. Must be a match of regex '{pattern}'"
        raise Refusal(gcp_error(400, "invalid", message))
    return name


def filter_of(call: Call) -> Callable[[Mapping[str, Any]], bool]:
    """The call's filter of one comparison; ``eq`` and ``ne`` take a regular expression."""
    text = call.query.get("filter", "")
    if not text:
        return lambda _: True
    found = _FILTER.fullmatch(text.strip().strip("()"))
    if found is None:
        raise ValueError(f"Invalid value for field 'filter': '{text}'")
    field, sign, wanted = found["field"], found["sign"], found["value"]
    try:
        re.compile(wanted)
    except re.error as error:
        raise ValueError(f"Invalid value for field 'filter': {error}") from error

    def passes(row: Mapping[str, Any]) -> bool:
        value = str(row.get(field, ""))
        same = re.fullmatch(wanted, value) is not None if sign in {"eq", "ne"} else value == wanted
        return same == (sign in {"eq", "="})

    return passes


def page_of(call: Call, rows: list[Any]) -> tuple[list[Any], dict[str, str]]:
    """A page of ``rows``, and the token of the next one."""
    size = min(int(call.query.get("maxResults", _MOST_RESULTS)), _MOST_RESULTS)
    start = int(call.query.get("pageToken") or 0)
    if size < 1 or start < 0:
        raise ValueError("Invalid value for field 'maxResults'")
    following = start + size
    return rows[start:following], {"nextPageToken": str(following)} if following < len(rows) else {}


def aggregated(call: Call, kind: str, key: str, rows: list[tuple[str, dict[str, Any]]]) -> Reply:
    """A page of (zone, row) by zone."""
    passes = filter_of(call)
    page, token = page_of(call, [row for row in rows if passes(row[1])])
    items: dict[str, dict[str, Any]] = {}
    for zone, row in page:
        items.setdefault(f"zones/{zone}", {key: []})[key].append(row)
    project = call.parts["project"]
    link = f"{API}/projects/{project}/aggregated/{key}"
    return json_reply({"kind": kind, "id": f"projects/{project}", "items": items, "selfLink": link, **token})


def listed(call: Call, kind: str, rows: list[dict[str, Any]]) -> Reply:
    """A page of one zone's rows."""
    page, token = page_of(call, list(filter(filter_of(call), rows)))
    return json_reply({"kind": kind, "id": call.path.strip("/"), "items": page, **token})


class Operations:
    """Changes under way."""

    def __init__(self, sandbox: SandboxState) -> None:
        self._sandbox = sandbox

    def once(self, call: Call, change: Callable[[], Reply]) -> Reply:
        """``change``, or the operation that the same request id made before."""
        key = call.query.get("requestId", "")
        kept = self._sandbox.store.document(_REQUEST, key) if key else None
        if kept is not None:
            return json_reply(self._row(self._known(kept["operation"])))
        return change()

    def start(
        self,
        call: Call,
        kind: str,
        target: str,
        *,
        error: tuple[str, str] | None = None,
        done_at: datetime | None = None,
    ) -> Reply:
        """Begins an operation on ``target`` (below the project); ``error``: (code, message) at its end."""
        sandbox, now = self._sandbox, self._sandbox.clock.now()
        number = str(int(sandbox.new_id("gcp-operation", 15), 16))
        document = {
            "name": f"operation-{int(now.timestamp() * 1000)}-{number[:12]}",
            "id": number,
            "kind": kind,
            "project": call.parts["project"],
            "zone": call.parts.get("zone", ""),
            "target": target,
            "request_id": call.query.get("requestId", ""),
            "begun_at": now.isoformat(),
            "done_at": (done_at or now + SETTLE).isoformat(),
            "error": list(error) if error is not None else None,
        }
        sandbox.store.put_document(_OPERATION, str(document["name"]), document)
        if document["request_id"]:
            pointer = {"operation": document["name"]}
            sandbox.store.put_document(_REQUEST, str(document["request_id"]), pointer)
        return json_reply(self._row(document))

    def get(self, call: Call) -> Reply:
        """One operation of a zone, or a global one."""
        return json_reply(self._row(self._known(call.parts["name"], call.parts.get("zone", ""))))

    def find_all(self, call: Call) -> Reply:
        """Operations of a zone, newest first."""
        known = self._sandbox.store.documents(_OPERATION).values()
        rows = [self._row(document) for document in known if document["zone"] == call.parts["zone"]]
        return listed(call, "compute#operationList", rows[::-1])

    def _known(self, name: str, zone: str | None = None) -> dict[str, Any]:
        document = self._sandbox.store.document(_OPERATION, name)
        if document is None or zone not in (None, document["zone"]):
            raise not_found(f"operations/{name}")
        return document

    def _row(self, document: Mapping[str, Any]) -> dict[str, Any]:
        begun, done = (datetime.fromisoformat(document[key]) for key in ("begun_at", "done_at"))
        is_done = self._sandbox.clock.now() >= done
        zone = document["zone"]
        place = (
            zone_url(document["project"], zone) if zone else f"{API}/projects/{document['project']}/global"
        )
        row: dict[str, Any] = {
            "kind": "compute#operation",
            "id": document["id"],
            "name": document["name"],
            **({"zone": place} if zone else {}),
            "operationType": document["kind"],
            "targetLink": f"{API}/projects/{document['project']}/{document['target']}",
            "status": "DONE" if is_done else "RUNNING",
            "progress": 100 if is_done else 0,
            "insertTime": zulu_ms(begun),
            "startTime": zulu_ms(begun),
            "selfLink": f"{place}/operations/{document['name']}",
        }
        if document["request_id"]:
            row["clientOperationId"] = document["request_id"]
        if is_done:
            row["endTime"] = zulu_ms(done)
            row |= _failure(document["error"])
        return row


def _failure(error: list[str] | None) -> dict[str, Any]:
    if error is None:
        return {}
    code, message = error
    return {
        "error": {"errors": [{"code": code, "message": message}]},
        "httpErrorStatusCode": 503 if code == STOCKOUT else 400,
        "httpErrorMessage": "SERVICE UNAVAILABLE" if code == STOCKOUT else "BAD REQUEST",
    }


def stockout(project: str, zone: str) -> tuple[str, str]:
    """Google's words for no capacity in a zone."""
    return STOCKOUT, (
        f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the"
        " request.  Try a different zone, or try again later."
    )


def failed_operation(call: Call) -> Reply:
    """An operation that found no capacity, done at once."""
    project = call.parts.get("project", "sandbox")
    zone = call.parts.get("zone", "us-central1-a")
    row = {
        "kind": "compute#operation",
        "id": "1",
        "name": "operation-stockout",
        "zone": zone_url(project, zone),
        "operationType": "insert",
        "status": "DONE",
        "progress": 100,
    }
    return json_reply({**row, **_failure(list(stockout(project, zone)))})


def free_name(
    sandbox: SandboxState, zone: str, kind: str, name: str, is_visible: Callable[[Entry], bool]
) -> str:
    """The ledger id for a new resource.

    409 while a visible resource has the name; one that is gone is renamed.
    """
    wanted = instance_id(zone, kind, name)
    before = sandbox.ledger.find("gcp", wanted)
    if before is None:
        return wanted
    if is_visible(before):
        raise Refusal(gcp_error(409, "alreadyExists", f"The resource '{wanted}' already exists"))
    return f"{wanted}~{sandbox.store.next_number(f'gcp-name-{wanted}')}"

"""Google Cloud under ``/gcp``: Compute Engine v1, the billing catalogue, and the token endpoint.

Compute Engine lies at ``/gcp/compute/v1/projects/…``, Cloud Billing at ``/gcp/v1/services/…``, OAuth 2.0
at ``/gcp/token``. Any bearer token is taken; tokens of the endpoint live an hour of the sandbox's time. An
assertion's form and claims are checked, its signature is not (no key is registered here). Sources: compute
v1 (20261106) and cloudbilling v1 (20260901) discovery documents; RFC 7523.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from providers.sandbox.faults import FaultKind
from providers.sandbox.ledger import zulu
from providers.sandbox.protocol import Call, ProtocolHandler, Refusal, Reply, Route, SandboxState, json_reply
from providers.sandbox.sellers.gcp.calendar import Calendar
from providers.sandbox.sellers.gcp.leases import Leases
from providers.sandbox.sellers.gcp.market import family_of, gcp_inventory
from providers.sandbox.sellers.gcp.networks import Networks
from providers.sandbox.sellers.gcp.operations import (
    Operations,
    aggregated,
    failed_operation,
    gcp_error,
    zone_url,
)
from providers.sandbox.sellers.gcp.prices import SERVICE, catalogue

TOKEN_LIFE_S = 3600
_TOKEN = "ya29.sandbox-"  # noqa: S105  a prefix
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_PROJECT = "/compute/v1/projects/{project}"
_ZONE = _PROJECT + "/zones/{zone}"
_SKU_PAGE = 5000
_RTX = ("nvidia-rtx-pro-6000", 1)
_OTHER_TYPES = (
    (8, 32, "n2-standard-8", None),
    (140, 884, "a4x-highgpu-4g", ("nvidia-gb200", 4)),
    (6, 22, "g4-standard-6", _RTX),
    (24, 90, "g4-standard-24", _RTX),
)
"""Types that no price here sells: without a GPU, without a public SKU, with a part of a card."""
_SLICES = {"g4-standard-6": "1/8", "g4-standard-24": "1/2"}


class GoogleCloud(ProtocolHandler):
    """Catalogue, machine types, calendar, reservations and instances."""

    name = "gcp"

    def __init__(self, sandbox: SandboxState) -> None:
        self._operations = Operations(sandbox)
        self._networks = Networks(sandbox, self._operations)
        self._leases = Leases(sandbox, self._operations, self._networks)
        self._calendar = Calendar(sandbox, self._operations)
        super().__init__(sandbox)
        sandbox.market.add(gcp_inventory(sandbox.seed))

    def make_routes(self) -> Iterable[Route]:
        """The paths of the three APIs that the sandbox serves."""
        calendar, leases, operations = self._calendar, self._leases, self._operations
        networks = self._networks
        futures, one = _ZONE + "/futureReservations", _ZONE + "/futureReservations/{name}"
        return (
            Route("POST", "/token", "other", self._token, public=True),
            Route("GET", "/v1/services/{service}/skus", "list", self._skus),
            Route("GET", _PROJECT + "/aggregated/machineTypes", "list", self._machine_types),
            Route("POST", _PROJECT + "/regions/{region}/advice/calendarMode", "list", calendar.advise),
            Route("POST", futures, "create", calendar.submit),
            Route("GET", _PROJECT + "/aggregated/futureReservations", "get", calendar.find_everywhere),
            Route("GET", one, "get", calendar.get),
            Route("POST", one + "/cancel", "delete", calendar.cancel),
            Route("DELETE", one, "delete", calendar.delete),
            Route("POST", _ZONE + "/reservations", "create", leases.reserve),
            Route("POST", _ZONE + "/instances", "create", leases.launch),
            *(
                route
                for kind in ("reservations", "instances")
                for route in (
                    Route("GET", f"{_PROJECT}/aggregated/{kind}", "get", self._everywhere),
                    Route("GET", f"{_ZONE}/{kind}/{{name}}", "get", self._one),
                    Route("DELETE", f"{_ZONE}/{kind}/{{name}}", "delete", leases.delete),
                )
            ),
            *(
                Route("POST", f"{_PROJECT}/global/{kind}", "other", _of_kind(kind, networks.insert))
                for kind in ("networks", "firewalls")
            ),
            *(
                Route("GET", f"{_PROJECT}/global/{kind}/{{name}}", "other", _of_kind(kind, networks.get))
                for kind in ("networks", "firewalls")
            ),
            Route(
                "PATCH",
                _PROJECT + "/global/firewalls/{name}",
                "other",
                _of_kind("firewalls", networks.patch),
            ),
            Route("GET", _PROJECT + "/global/operations/{name}", "get", operations.get),
            Route("GET", _ZONE + "/operations", "get", operations.find_all),
            Route("GET", _ZONE + "/operations/{name}", "get", operations.get),
        )

    def authorise(self, call: Call) -> None:
        """A bearer token, ours only until it expires; the price list also takes an API key."""
        is_billing = call.path.startswith("/v1/services/")
        if is_billing and (call.query.get("key") or call.headers.get("x-goog-api-key")):
            return
        token = call.key()
        if token is None and is_billing:
            message = "Method doesn't allow unregistered callers. Please use API Key."
            raise Refusal(gcp_error(403, "forbidden", message, "PERMISSION_DENIED"))
        if token is None or self._expired(token):
            message = "Request had invalid authentication credentials. Expected OAuth 2 access token."
            raise Refusal(gcp_error(401, "authError", message, "UNAUTHENTICATED"))

    def _expired(self, token: str) -> bool:
        if not token.startswith(_TOKEN):
            return False
        until = token.removeprefix(_TOKEN).partition("-")[0]
        return not until.isdecimal() or int(until) <= self.now.timestamp()

    def unknown_path(self) -> Reply:
        """404 in the API's form."""
        return gcp_error(404, "notFound", "Not Found", "NOT_FOUND")

    def malformed_body(self, reason: str) -> Reply:
        """400 for a body or parameter that cannot be read."""
        return gcp_error(400, "badRequest", f"Invalid request: {reason}", "INVALID_ARGUMENT")

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """Rate limits are a 403 with a reason in Compute Engine, a 429 in Cloud Billing."""
        if kind is FaultKind.OUT_OF_CAPACITY:
            return failed_operation(call)
        if kind is FaultKind.RATE_LIMITED:
            if call.path.startswith("/v1/services/"):
                message = "Quota exceeded for quota metric 'All requests' and limit 'per minute'."
                return gcp_error(429, "rateLimitExceeded", message, "RESOURCE_EXHAUSTED")
            return gcp_error(403, "rateLimitExceeded", "Rate Limit Exceeded")
        return gcp_error(503, "backendError", "Internal error. Please try again.", "UNAVAILABLE")

    def _token(self, call: Call) -> Reply:
        form = call.form()
        if form.get("grant_type") != _GRANT:
            return _oauth_error("unsupported_grant_type", f"Invalid grant_type: {form.get('grant_type', '')}")
        try:
            claims = _claims(form.get("assertion", ""))
        except (ValueError, TypeError, AttributeError):
            return _oauth_error("invalid_grant", "Invalid JWT: not three parts signed with RS256.")
        missing = [name for name in ("iss", "aud", "iat", "exp") if claims.get(name) in (None, "")]
        if missing or not 0 < int(claims["exp"]) - int(claims["iat"]) <= TOKEN_LIFE_S:
            return _oauth_error("invalid_grant", "Invalid JWT: a claim is missing or lives over an hour.")
        until = int(self.now.timestamp()) + TOKEN_LIFE_S
        token = f"{_TOKEN}{until}-{self.sandbox.new_id('gcp-token', 24)}"
        return json_reply({"access_token": token, "expires_in": TOKEN_LIFE_S - 1, "token_type": "Bearer"})

    def _skus(self, call: Call) -> Reply:
        if call.parts["service"] != SERVICE:
            raise Refusal(self.unknown_path())
        if call.query.get("currencyCode", "USD") != "USD":
            raise ValueError("the sandbox knows the currency USD only")
        effective = zulu(self.now.replace(hour=0, minute=0, second=0, microsecond=0))
        rows = catalogue(self.sandbox.market, effective)
        size = min(int(call.query.get("pageSize") or _SKU_PAGE), _SKU_PAGE)
        start = int(call.query.get("pageToken") or 0)
        if size < 1 or start < 0:
            raise ValueError("pageSize must be positive")
        following = start + size
        token = str(following) if following < len(rows) else ""
        return json_reply({"skus": rows[start:following], "nextPageToken": token})

    def _machine_types(self, call: Call) -> Reply:
        known = {(item.zone, item.sku): item for item in self.sandbox.market.inventory(self.name)}
        rows: list[tuple[str, int, int, str, tuple[str, int] | None]] = []
        for zone, sku in sorted(known):
            family = family_of(sku)
            assert family is not None
            gpus = known[zone, sku].gpus
            accelerator = (family.accelerator, gpus)
            rows.append((zone, family.vcpus * gpus, family.memory_gib * gpus, sku, accelerator))
        for zone in dict.fromkeys(zone for zone, _ in sorted(known)):
            rows += [(zone, *other) for other in _OTHER_TYPES if _has(zone, other[2])]
        project = call.parts["project"]
        shown = [(row[0], _type_row(project, *row)) for row in sorted(rows, key=lambda row: (row[0], row[3]))]
        return aggregated(call, "compute#machineTypeAggregatedList", "machineTypes", shown)

    def _everywhere(self, call: Call) -> Reply:
        made = [] if call.path.endswith("/instances") else self._calendar.made_reservations()
        return self._leases.find_everywhere(call, made)

    def _one(self, call: Call) -> Reply:
        if "/reservations/" in call.path:
            for zone, row in self._calendar.made_reservations():
                if (zone, row["name"]) == (call.parts["zone"], call.parts["name"]):
                    return json_reply(row)
        return self._leases.get(call)


def _of_kind(kind: str, handler: Callable[[Call], Reply]) -> Callable[[Call], Reply]:
    """``handler`` of calls about global resources of ``kind``."""
    return lambda call: handler(replace(call, parts={**call.parts, "kind": kind}))


def _has(zone: str, sku: str) -> bool:
    return sku.startswith("n2-") or zone == "us-central1-a"


def _type_row(
    project: str, zone: str, cpus: int, gib: int, sku: str, cards: tuple[str, int] | None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "kind": "compute#machineType",
        "id": str(int(hashlib.sha256(f"{zone}|{sku}".encode()).hexdigest()[:15], 16)),
        "name": sku,
        "guestCpus": cpus,
        "memoryMb": gib * 1024,
        "zone": zone,
        "selfLink": f"{zone_url(project, zone)}/machineTypes/{sku}",
        "isSharedCpu": False,
    }
    if cards is None:
        return row
    count = _SLICES.get(sku, str(cards[1]))
    row["description"] = f"Accelerator Optimized: {count} NVIDIA GPU, {cpus} vCPUs, {gib}GB RAM"
    family = family_of(sku)
    if family is not None and family.ssds:
        row["bundledLocalSsds"] = {"defaultInterface": "NVME", "partitionCount": family.ssds * cards[1]}
    return {**row, "accelerators": [{"guestAcceleratorType": cards[0], "guestAcceleratorCount": cards[1]}]}


def _claims(assertion: str) -> dict[str, Any]:
    header, claims, signature = assertion.split(".")
    if not signature or json.loads(_decoded(header)).get("alg") != "RS256":
        raise ValueError("not signed with RS256")
    found = json.loads(_decoded(claims))
    if not isinstance(found, dict):
        raise ValueError("claims are no object")
    return found


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _oauth_error(code: str, description: str) -> Reply:
    return json_reply({"error": code, "error_description": description}, 400)

"""Talks to TensorDock: hosts, machines, and errors that come with HTTP 200."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from broker.domain.basics.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    ProviderError,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.basics.machines import SSH_PORT, Access, with_keys
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import OfferBatch
from providers.client import Entry, SellerClient, bearer, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import Name, PayloadModel, as_payload, ordered_units
from providers.rows import rate_of
from providers.schema import Rows, Words
from providers.spec import ProviderSettings, refuse_unless_single
from providers.tensordock.offers import NAME, parse_offers

USER, HOME = "user", "/home/user"
SCRIPT = "/root/startup.sh"
POLICY = HttpPolicy(concurrency=4)

_NO_FUNDS = re.compile(r"need at least|balance|funds|deposit|quota|\blimit\b", re.IGNORECASE)
_NO_STOCK = re.compile(
    r"unavailable|not (currently )?available|no available|out of stock|capacity|not enough|insufficient",
    re.IGNORECASE,
)
_GONE = re.compile(r"not found|does not exist|no such|already (been )?deleted", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"error", "status"}`` at any HTTP status, or of text.

    Only words distinguish a lack of stock from a lack of funds.
    """
    body = reply.json_or_none()
    known = isinstance(body, dict) and "error" in body
    text = str(body["error"])[:300] if known else reply.text[:300]
    status = reply.status if reply.status >= 300 else _status(body)
    if status < 500 and status != 429:
        meant = _meant(reply.operation, status, text)
        if meant is not None:
            return meant
    return classify_by_status(replace(reply, status=status), text)


def _status(body: Any) -> int:
    """The status in the body of an error; 400 when it has none."""
    found = body.get("status") if isinstance(body, dict) else None
    return found if isinstance(found, int) and 300 <= found < 600 else 400


def _meant(operation: Operation, status: int, text: str) -> ProviderError | None:
    if operation is Operation.ORDER and status not in {401, 403}:
        if status == 402 or _NO_FUNDS.search(text):
            return QuotaExceeded(NAME, text)
        if _NO_STOCK.search(text):
            return InsufficientCapacity(NAME, text)
    elif operation in {Operation.LEASES, Operation.RELEASE}:
        if status in {404, 410} or _GONE.search(text):
            return LeaseNotFound(NAME, text)
        if operation is Operation.RELEASE and status in {400, 409, 422}:
            return ReleaseRefused(NAME, text, forever=False)
    return None


class _Forward(PayloadModel):
    internal_port: int = 0
    external_port: int = 0


class _Machine(PayloadModel):
    id: Name
    name: str | None = None
    status: Annotated[str, Words(lambda: _STATES, str.lower)] = ""
    rateHourly: Decimal | None = None
    ipAddress: str | None = None
    portForwards: tuple[_Forward, ...] | None = None

    @property
    def ssh_port(self) -> int:
        """The port that leads to its SSH server."""
        forwards = self.portForwards or ()
        return next((one.external_port for one in forwards if one.internal_port == SSH_PORT), SSH_PORT)


HELD = Rows("GET /instances (what is held)", "data.instances[]", _Machine, held=True)

_STATES: Mapping[str, LeaseState] = {
    **dict.fromkeys(
        ("queued", "creating", "pending", "provisioning", "deploying", "starting", "booting"),
        LeaseState.PROVISIONING,
    ),
    **dict.fromkeys(("running", "online", "active", "stopping", "stopped"), LeaseState.ACTIVE),
    "deleting": LeaseState.ENDING,
    **dict.fromkeys(("deleted", "terminated"), LeaseState.ENDED),
    **dict.fromkeys(("error", "failed"), LeaseState.FAILED),
}


def _lease(machine: _Machine) -> Lease:
    return Lease(
        provider=NAME,
        reference=machine.id,
        state=_STATES.get(machine.status.lower(), LeaseState.UNKNOWN),
        tag=machine.name,
        detail=machine.status,
        price_usd_per_node_hour=rate_of(machine.rateHourly),
        machines=(Access(machine.ipAddress, USER, machine.ssh_port),) if machine.ipAddress else (),
    )


def _unwrapped(value: Any) -> Any:
    """An answer without ``data``, and with ``attributes`` beside the id: answers exist in both forms."""
    inner = value["data"] if isinstance(value, dict) and "data" in value else value
    if isinstance(inner, dict) and isinstance(inner.get("attributes"), dict):
        return {**inner["attributes"], "id": inner.get("id")}
    return inner


class TensorDock(SellerClient):
    """Client of hosts and machines."""

    provider = NAME
    longest_tag = 63
    tells_price = True
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "api_token"))

    async def _call(self, method: str, path: str, operation: Operation, **more: Any) -> Reply:
        """Sends one call; raises an error at HTTP 200 like any other."""
        reply = await super()._call(method, path, operation, **more)
        body = reply.json_or_none()
        if isinstance(body, dict) and body.get("error") and "data" not in body:
            raise self._http.error(reply)
        return reply

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Every host with free GPUs; the list has one page."""
        return parse_offers((await self._on_sale("/hostnodes")).body, observed_at)

    async def reserve(self, order: Order) -> Lease:
        """Creates one machine on the offer's host with the tag as name.

        It takes one key, so that the others come with the script.
        """
        refuse_unless_single(order, NAME, self.longest_tag)
        reply = await self._order("/instances", self._create_body(order))
        made = _unwrapped(reply.json())
        if not isinstance(made, dict) or not isinstance(made.get("id"), str) or not made["id"]:
            raise reply.unreadable("an order without an instance id")
        return ordered(order, made["id"])

    def _create_body(self, order: Order) -> dict[str, Any]:
        wish, options = order.offer.reference, self._settings.options
        attributes: dict[str, Any] = {
            "name": order.tag,
            "type": "virtualmachine",
            "image": options["image"],
            "hostnode_id": wish["hostnode_id"],
            "resources": {
                "vcpu_count": int(wish["vcpu_count"]),
                "ram_gb": int(wish["ram_gb"]),
                "storage_gb": ordered_units(order.offer.disk, order.offer.sku.disk_gb) or 100,
                "gpus": {wish["gpu"]: {"count": int(wish["gpus"])}},
            },
        }
        if wish["port"]:
            attributes["port_forwards"] = [{"internal_port": SSH_PORT, "external_port": int(wish["port"])}]
        else:
            attributes["useDedicatedIp"] = True
        own = next((name for name in ("ssh_key", "ssh_key_id") if options[name]), None)
        if order.keys:
            attributes["ssh_key"] = order.keys[0].line
        elif own is not None:
            attributes[own] = options[own]
        script = with_keys(order.script, order.keys[1:], HOME)
        if script:
            file = {"path": SCRIPT, "content": script, "permissions": "0700"}
            attributes["cloud_init"] = {"write_files": [file], "runcmd": [SCRIPT]}
        return {"data": {"type": "virtualmachine", "attributes": attributes}}

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One machine."""
        reply = await self._held(f"/instances/{reference}")
        return _lease(as_payload(NAME, _unwrapped(reply.json()), _Machine))

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every machine of the account; the list has one page."""
        reply = await self._held("/instances")
        inner = _unwrapped(reply.json())
        rows = inner.get("instances") if isinstance(inner, dict) else inner
        if not isinstance(rows, list):
            raise reply.unreadable("no list of instances")
        with reply.being_read():
            return tuple(_lease(as_payload(NAME, _unwrapped(row), _Machine)) for row in rows)

    async def _give_back(self, lease: Lease) -> None:
        await self._end("DELETE", f"/instances/{lease.reference}")

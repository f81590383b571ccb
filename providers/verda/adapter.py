"""Talks to Verda: tokens, stock, instances."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

import structlog
from pydantic import AliasChoices, Field

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.basics.machines import Access
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import OfferBatch
from broker.ports.holding import FindKept
from providers.client import AccountKey, Entry, KeyRegister, key_line, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import Amount, Name, PayloadModel, as_list, as_payload, ordered_units
from providers.rows import rate_of
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_unless_single
from providers.stored_scripts import StoredScript, StoredScripts
from providers.verda.offers import NAME, AvailabilityFeed, parse_offers

log = structlog.get_logger(__name__)

USER = "root"
KEYS, SCRIPTS = "/v1/sshkeys", "/v1/scripts"
TOKEN_MARGIN_S = 60.0
POLICY = HttpPolicy(concurrency=4)

_ERRORS: Mapping[str, type[ProviderError]] = {
    "unauthorized_request": CredentialsRejected,
    "forbidden_action": CredentialsRejected,
    "insufficient_funds": QuotaExceeded,
    "server_error": ProviderUnavailable,
    "service_unavailable": ProviderUnavailable,
}
_OURS = {"unauthorized_request", "forbidden_action", "insufficient_funds"}
"""Codes of errors that concern the account, whatever the message."""
_NO_CAPACITY = re.compile(
    r"capacity|not enough resources|out of stock"
    r"|(instance|gpu|resource)\S* .{0,40}(not (currently )?available|unavailable)",
    re.IGNORECASE,
)
_GONE = re.compile(r"invalid instance id|discontinue a discontinued|not found", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"code", "message"}``.

    Lack of capacity (a 503) and "already gone" have no code, only words.
    """
    body = reply.json_or_none()
    if reply.status == 429 or not isinstance(body, dict):
        return classify_by_status(reply)
    return _error(str(body.get("code") or ""), str(body.get("message") or ""), reply)


def _error(code: str, message: str, reply: Reply) -> ProviderError:
    text = f"{code}: {message}"
    if reply.operation is Operation.ORDER and code not in _OURS and _NO_CAPACITY.search(message):
        return InsufficientCapacity(NAME, text)
    if code in _ERRORS:
        return _ERRORS[code](NAME, text)
    if reply.operation is Operation.RELEASE:
        if "provisioning" in message.lower():
            return ReleaseRefused(NAME, text, forever=False)
        if code == "not_found" or _GONE.search(message):
            return LeaseNotFound(NAME, text)
    if reply.operation is Operation.TOKEN and reply.status < 500:
        return CredentialsRejected(NAME, text)
    if reply.operation is Operation.ORDER and code in {"invalid_request", "not_found"}:
        return OrderRejected(NAME, text)
    if reply.operation is Operation.LEASES and _GONE.search(message):
        return LeaseNotFound(NAME, text)
    return classify_by_status(reply, text)


class _Token(PayloadModel):
    access_token: Name | None = None
    expires_in: Amount = 0.0


class _Instance(PayloadModel):
    id: Name
    status: Annotated[str, Words(lambda: _STATES)] = ""
    instance_type: str = ""
    description: str | None = None
    hostname: str | None = None
    location: str = Field(default="", validation_alias=AliasChoices("location", "location_code"))
    os_volume_id: str | None = None
    price_per_hour: Decimal | None = None
    ip: str | None = None


class _Volume(PayloadModel):
    """A row of ``GET /v1/volumes``."""

    id: Name
    name: str = ""
    status: str = ""
    is_os_volume: bool = False
    base_hourly_cost: Decimal | None = None


_Volumes = Mapping[str, _Volume]


class _Key(PayloadModel):
    id: Name
    name: str = ""
    key: str = ""


class _Script(PayloadModel):
    id: Name
    name: str = ""


class _Action(PayloadModel):
    """A row of the answer to an action on several instances."""

    status: str = ""
    error: str | None = None
    statusCode: int | None = None


_STATES: Mapping[str, LeaseState] = {
    "pending": LeaseState.PROVISIONING,
    "ordered": LeaseState.PROVISIONING,
    "provisioning": LeaseState.PROVISIONING,
    "validating": LeaseState.PROVISIONING,
    "new": LeaseState.PROVISIONING,
    "running": LeaseState.ACTIVE,
    "offline": LeaseState.ACTIVE,
    "starting_hibernation": LeaseState.ACTIVE,
    "hibernating": LeaseState.ACTIVE,
    "restoring": LeaseState.PROVISIONING,
    "deleting": LeaseState.ENDING,
    "discontinued": LeaseState.ENDED,
    "notfound": LeaseState.ENDED,
    "error": LeaseState.FAILED,
    "no_capacity": LeaseState.FAILED,
    "installation_failed": LeaseState.FAILED,
}


_OVER = (LeaseState.ENDED, LeaseState.FAILED)


def _rate(instance: _Instance, volumes: _Volumes) -> Decimal | None:
    """What an instance costs with its system volume, which is charged beside it; None while one is untold."""
    rate, volume = rate_of(instance.price_per_hour), volumes.get(instance.os_volume_id or "")
    if rate is None or volume is None or volume.base_hourly_cost is None:
        return None
    return rate + volume.base_hourly_cost


def _lease(instance: _Instance, volumes: _Volumes) -> Lease:
    return Lease(
        provider=NAME,
        reference=instance.id,
        state=_STATES.get(instance.status, LeaseState.UNKNOWN),
        tag=instance.description or instance.hostname,
        sku=instance.instance_type,
        region=instance.location,
        detail=instance.status,
        price_usd_per_node_hour=_rate(instance, volumes),
        machines=(Access(instance.ip, USER),) if instance.ip else (),
    )


class Verda(KeyRegister):
    """Client of instances, behind an access token that is fetched when needed."""

    provider = NAME
    longest_tag = 63
    tells_price = True
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY)
        self._scripts = StoredScripts(settings.tag_prefix)
        self._token = ""
        self._token_until_s = 0.0
        self._token_lock = asyncio.Lock()

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Instance types and the price of their system volume, and where each type is in stock."""
        types = await self._on_sale("/v1/instance-types", {"currency": "usd"})
        volumes = await self._on_sale("/v1/volume-types", {"currency": "usd"})
        feeds = [
            AvailabilityFeed(await self._availability(is_spot=spot), is_spot=spot) for spot in (False, True)
        ]
        disk_gb = float(self._settings.options["disk_gb"])
        return parse_offers([types.body], feeds, [volumes.body], observed_at, disk_gb)

    async def _availability(self, *, is_spot: bool) -> bytes:
        params = {"is_spot": "true" if is_spot else "false"}
        return (await self._on_sale("/v1/instance-availability", params)).body

    async def _call(self, method: str, path: str, operation: Operation, **more: Any) -> Reply:
        """Sends one call; if its token was refused, fetches a new one and tries once more."""
        for renew in (False, True):
            headers = {"Authorization": f"Bearer {await self._fresh_token(renew=renew)}"}
            try:
                return await super()._call(method, path, operation, headers=headers, **more)
            except CredentialsRejected:
                if renew:
                    raise
        raise CredentialsRejected(NAME, "no token was accepted")

    async def _fresh_token(self, *, renew: bool) -> str:
        async with self._token_lock:
            if renew or time.monotonic() >= self._token_until_s:
                await self._fetch_token()
            return self._token

    async def _fetch_token(self) -> None:
        reply = await self._http.request(
            "POST",
            "/v1/oauth2/token",
            operation=Operation.TOKEN,
            repeatable=True,
            json={
                "grant_type": "client_credentials",
                "client_id": self._settings.secret("client_id"),
                "client_secret": self._settings.secret("client_secret"),
            },
        )
        token = reply.read(_Token)
        if token.access_token is None:
            raise reply.unreadable("a token answer without a token")
        self._http.add_secret(token.access_token)
        self._token = token.access_token
        self._token_until_s = time.monotonic() + max(0.0, token.expires_in - TOKEN_MARGIN_S)

    async def reserve(self, order: Order) -> Lease:
        """Orders one instance with the tag as description; it may still fail for lack of capacity."""
        refuse_unless_single(order, NAME, self.longest_tag)
        if not order.offer.reference["location_code"]:
            raise OrderRejected(NAME, "the offer names no location")
        own = self._settings.options["ssh_key_id"]
        body = self._order_body(order)
        body["ssh_key_ids"] = await self.registered(order.keys) or ([own] if own else [])
        if order.script:
            body["startup_script_id"] = await self._store(order.tag, order.script)
        return ordered(order, _new_id(await self._order("/v1/instances", body)))

    async def _store(self, tag: str, script: str) -> str:
        """Stores the script of an order; the order names it by the id that is returned."""
        with self._before_order("its script could not be stored"):
            return _new_id(await self._key_call("POST", SCRIPTS, {"name": tag, "script": script}))

    def _order_body(self, order: Order) -> dict[str, Any]:
        note, options = order.offer.reference, self._settings.options
        spot = note["is_spot"] == "true"
        disk_gb = ordered_units(order.offer.disk, order.offer.sku.disk_gb) or int(options["disk_gb"])
        volume: dict[str, Any] = {"name": order.tag, "size": disk_gb}
        if spot:
            volume["on_spot_discontinue"] = "delete_permanently"
        return {
            "instance_type": note["instance_type"],
            "image": options["image"],
            "hostname": re.sub(r"[^a-z0-9-]", "-", order.tag.lower()),
            "description": order.tag,
            "location_code": note["location_code"],
            "os_volume": volume,
            "is_spot": spot,
            "contract": "SPOT" if spot else "PAY_AS_YOU_GO",
            "pricing": "FIXED_PRICE",
        }

    async def account_keys(self) -> Sequence[AccountKey]:
        """The keys of the account."""
        rows = (await self._key_call("GET", KEYS)).rows("keys", _Key)
        return [AccountKey(row.id, row.name, key_line(row.key)) for row in rows]

    async def _register_key(self, name: str, line: str) -> str:
        return _new_id(await self._key_call("POST", KEYS, {"name": name, "key": line}))

    async def _unregister_key(self, key: AccountKey) -> None:
        await self._key_call("DELETE", f"{KEYS}/{key.key_id}")

    async def drop_keys(self, find_kept: FindKept) -> None:
        """Removes the public keys that the broker registered, except ``kept`` lines, and needless scripts."""
        await super().drop_keys(find_kept)
        rows = (await self._key_call("GET", SCRIPTS)).rows("scripts", _Script)
        stored = [StoredScript(row.id, row.name) for row in rows]
        await self._scripts.sweep(stored, await self.list_leases(), self._remove_script)

    async def _remove_script(self, script_id: str) -> None:
        await self._key_call("DELETE", f"{SCRIPTS}/{script_id}")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One instance."""
        return _lease(await self._instance(reference), await self._volumes())

    async def _instance(self, reference: str) -> _Instance:
        return (await self._held(f"/v1/instances/{reference}")).read(_Instance)

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every instance of the account; the list has one page.

        System volumes that failed orders and releases left behind are deleted, because they are billed. They
        are read before the instances, so that none belongs to an order that came in between.
        """
        volumes = await self._volumes()
        instances = (await self._held("/v1/instances")).rows("instances", _Instance)
        await self._delete_left(instances, volumes)
        return tuple(_lease(row, volumes) for row in instances)

    async def _volumes(self) -> _Volumes:
        """Every volume of the account; without their list the prices of leases are untold, and no more."""
        try:
            reply = await self._held("/v1/volumes")
            return {row.id: row for row in reply.rows("volumes", _Volume)}
        except ProviderError as error:
            log.warning("volumes_not_read", provider=NAME, error=str(error))
            return {}

    async def _delete_left(self, instances: Sequence[_Instance], volumes: _Volumes) -> None:
        """Deletes our system volumes that are detached and belong to no instance."""
        held = {row.os_volume_id for row in instances if _STATES.get(row.status) not in _OVER}
        for volume in volumes.values():
            is_ours = volume.is_os_volume and volume.name.startswith(f"{self._settings.tag_prefix}-")
            if is_ours and volume.status == "detached" and volume.id not in held:
                try:
                    await self._end("DELETE", f"/v1/volumes/{volume.id}", {"is_permanent": True})
                except ProviderError as error:
                    log.warning("volume_left", provider=NAME, volume=volume.id, error=str(error))

    async def _give_back(self, lease: Lease) -> None:
        """Deletes the instance with its system volume, which would otherwise still be billed."""
        instance = await self._instance(lease.reference)
        if _STATES.get(instance.status) is LeaseState.ENDED:
            return
        wish = {
            "id": [instance.id],
            "action": "delete",
            "volume_ids": [instance.os_volume_id] if instance.os_volume_id else None,
            "delete_permanently": True,
        }
        reply = await self._end("PUT", "/v1/instances", wish)
        if reply.status in {202, 207} and reply.body.strip():
            _require_done(reply)


def _require_done(reply: Reply) -> None:
    """Raises the error of the first failed row of a partial answer."""
    for row in as_list(NAME, reply.json(), "actions"):
        action = as_payload(NAME, row, _Action)
        if action.error or (action.statusCode or 0) >= 400:
            raise _error("", action.error or action.status, reply)


def _new_id(reply: Reply) -> str:
    """The id of what was made: plain text, a JSON string, or an object with ``id``."""
    body = reply.json_or_none()
    found = body.get("id") if isinstance(body, dict) else body
    text = found if isinstance(found, str) else reply.text.strip()
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text):
        raise reply.unreadable("something was made without an id")
    return text

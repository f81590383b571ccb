"""Talks to OVHcloud: the open catalogue, and signed calls of one project."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from json import dumps
from typing import Annotated, Any
from urllib.parse import urlencode

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    OrderRejected,
    PayloadUnreadable,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    ReleaseRefused,
)
from broker.domain.basics.machines import Access, with_keys
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import OfferBatch
from providers.client import AccountKey, Entry, KeyRegister, key_line, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.ovh.offers import NAME, parse_offers
from providers.payload import Name, PayloadModel, as_list, as_payload
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_unless_single

API = "/v1"
POLICY = HttpPolicy(concurrency=4, total_s=90.0)
"""No limits are published; the catalogue is some megabytes."""

_NOT_OURS = frozenset({"INVALID_SIGNATURE", "INVALID_KEY", "INVALID_CREDENTIAL", "NOT_CREDENTIAL"})
_QUOTA = re.compile(r"quota|limit (exceeded|reached)|payment|insufficient credit", re.IGNORECASE)
_NO_CAPACITY = re.compile(
    r"capacity|out of stock|no valid host|not (currently )?available|unavailable|no more", re.IGNORECASE
)


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"class", "message", "errorCode"?}``.

    Capacity and quota errors are only recognizable by words.
    """
    body = reply.json_or_none()
    if not isinstance(body, dict):
        return classify_by_status(reply)
    text = f"{body.get('class') or ''}: {body.get('message') or ''}"[:300]
    if reply.status == 429:
        return RateLimited(NAME, text, reply.retry_after_s)
    if body.get("errorCode") in _NOT_OURS:
        return CredentialsRejected(NAME, text)
    if reply.operation is Operation.RELEASE and reply.status == 409:
        return ReleaseRefused(NAME, text, forever=False)
    if reply.operation is Operation.ORDER and 400 <= reply.status < 500:
        if _QUOTA.search(text):
            return QuotaExceeded(NAME, text)
        if _NO_CAPACITY.search(text):
            return InsufficientCapacity(NAME, text)
    return classify_by_status(reply, text)


class _Named(PayloadModel):
    name: str = ""


class _Image(PayloadModel):
    id: Name
    name: str = ""


class _Address(PayloadModel):
    ip: str = ""
    type: str = ""
    version: int = 4


class _Key(PayloadModel):
    id: Name
    name: str = ""
    publicKey: str = ""


class _Instance(PayloadModel):
    id: Name
    name: str | None = None
    region: str = ""
    status: Annotated[str, Words(lambda: _STATES)] = ""
    planCode: str | None = None
    flavor: _Named | None = None
    ipAddresses: tuple[_Address, ...] = ()

    def address(self, kind: str) -> str | None:
        """Its first address of version 4 of a kind, ``public`` or ``private``."""
        return next((one.ip for one in self.ipAddresses if (one.type, one.version) == (kind, 4)), None)


_OURS = (
    "ACTIVE",
    "HARD_REBOOT",
    "MIGRATING",
    "PASSWORD",
    "PAUSED",
    "REBOOT",
    "REBUILD",
    "RESCUE",
    "RESCUED",
    "RESCUING",
    "RESIZE",
    "RESIZED",
    "RESUMING",
    "REVERT_RESIZE",
    "SHELVED",
    "SHELVED_OFFLOADED",
    "SHUTOFF",
    "SNAPSHOTTING",
    "STOPPED",
    "SUSPENDED",
    "UNRESCUING",
    "VERIFY_RESIZE",
)
"""States of an instance; a stopped, shelved or changing instance is still held and billed."""

_STATES: Mapping[str, LeaseState] = {
    "BUILD": LeaseState.PROVISIONING,
    "BUILDING": LeaseState.PROVISIONING,
    "DELETING": LeaseState.ENDING,
    "DELETED": LeaseState.ENDED,
    "SOFT_DELETED": LeaseState.ENDED,
    "ERROR": LeaseState.FAILED,
    **dict.fromkeys(_OURS, LeaseState.ACTIVE),
}


def _lease(instance: _Instance, user: str) -> Lease:
    plan = (instance.planCode or "").partition(".")[0]
    return Lease(
        provider=NAME,
        reference=instance.id,
        state=_STATES.get(instance.status, LeaseState.UNKNOWN),
        tag=instance.name,
        sku=instance.flavor.name if instance.flavor and instance.flavor.name else plan,
        region=instance.region,
        detail=instance.status,
        machines=_machines(instance, user),
    )


def _machines(instance: _Instance, user: str) -> tuple[Access, ...]:
    host = instance.address("public")
    return (Access(host, user, private_host=instance.address("private")),) if host else ()


def signature(secrets: tuple[str, str], method: str, url: str, body: str, timestamp: str) -> str:
    """OVH's signature of a call; ``secrets``: the application secret and the consumer key."""
    text = "+".join((*secrets, method, url, body, timestamp))
    return f"$1${hashlib.sha1(text.encode()).hexdigest()}"  # noqa: S324  the scheme is OVH's


class Ovh(KeyRegister):
    """Client of the catalogue and, with keys, of one project. ``seconds``: Unix time, for signatures."""

    provider = NAME
    longest_tag = 63
    entry = Entry.KEYS
    takes_script = True

    def __init__(
        self,
        settings: ProviderSettings,
        http_factory: HttpFactory,
        seconds: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(settings, http_factory, classify, POLICY)
        self._seconds = seconds
        self._project = f"{API}/cloud/project/{settings.secret('project_id')}"
        self._keys = f"{self._project}/sshkey"
        self._user = settings.options["image"].partition(" ")[0].lower()

    async def _call(
        self,
        method: str,
        path: str,
        operation: Operation,
        *,
        repeatable: bool | None = None,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Sends one signed call; the signature covers the whole URL and the body as sent."""
        url = f"{self._settings.base_url}{path}" + (f"?{urlencode(params)}" if params else "")
        body = "" if json is None else dumps(json, separators=(",", ":"))
        return await self._http.request(
            method,
            url,
            operation=operation,
            repeatable=repeatable,
            content=body.encode() if body else None,
            headers={**self._signed(method, url, body), **(headers or {})},
        )

    def _signed(self, method: str, url: str, body: str) -> dict[str, str]:
        settings, timestamp = self._settings, str(int(self._seconds()))
        secrets = (settings.secret("application_secret"), settings.secret("consumer_key"))
        return {
            "X-Ovh-Application": settings.secret("application_key"),
            "X-Ovh-Consumer": settings.secret("consumer_key"),
            "X-Ovh-Timestamp": timestamp,
            "X-Ovh-Signature": signature(secrets, method, url, body, timestamp),
            **({"Content-Type": "application/json"} if body else {}),
        }

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """The subsidiary's prices, which need no signature.

        With keys, also the regions that have each flavor.
        """
        catalogue = await self._http.request(
            "GET",
            f"{API}/order/catalog/public/cloud",
            operation=Operation.OFFERS,
            params={"ovhSubsidiary": self._settings.options["subsidiary"]},
        )
        flavors = None if self._settings.keyless else (await self._on_sale(f"{self._project}/flavor")).body
        return parse_offers(catalogue.body, flavors, observed_at)

    async def reserve(self, order: Order) -> Lease:
        """Creates an instance with the tag as name, billed by the hour.

        It may still fail for lack of capacity. It names one key, so that the others come with the script.
        """
        refuse_unless_single(order, NAME, self.longest_tag)
        note = order.offer.reference
        if not note["flavor_id"]:
            raise OrderRejected(NAME, "the offer names no region")
        keys = await self.registered(order.keys[:1])
        key = keys[0] if keys else self._settings.options["ssh_key_id"]
        script = with_keys(order.script, order.keys[1:], f"/home/{self._user}")
        body = {
            "flavorId": note["flavor_id"],
            "imageId": await self._image(note["region"]),
            "name": order.tag,
            "region": note["region"],
            "monthlyBilling": False,
            **({"sshKeyId": key} if key else {}),
            **({"userData": script} if script else {}),
        }
        reply = await self._order(f"{self._project}/instance", body)
        return ordered(order, reply.read(_Instance).id)

    async def _image(self, region: str) -> str:
        """Id of the image in the region: every region has its own."""
        wanted = self._settings.options["image"]
        params = {"region": region, "osType": "linux"}
        try:
            reply = await self._call("GET", f"{self._project}/image", Operation.ORDER, params=params)
            rows = as_list(NAME, reply.json(), "images")
            images = [as_payload(NAME, row, _Image) for row in rows]
        except PayloadUnreadable as error:
            raise ProviderUnavailable(NAME, f"the list of images could not be read: {error}") from error
        found = next((image.id for image in images if image.name == wanted), None)
        if found is None:
            raise OrderRejected(NAME, f"no image {wanted!r} in {region}")
        return found

    async def account_keys(self) -> Sequence[AccountKey]:
        """The keys of the project."""
        rows = (await self._key_call("GET", self._keys)).rows("keys", _Key)
        return [AccountKey(row.id, row.name, key_line(row.publicKey)) for row in rows]

    async def _register_key(self, name: str, line: str) -> str:
        reply = await self._key_call("POST", self._keys, {"name": name, "publicKey": line})
        return reply.read(_Key).id

    async def _unregister_key(self, key: AccountKey) -> None:
        await self._key_call("DELETE", f"{self._keys}/{key.key_id}")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One instance."""
        reply = await self._held(f"{self._project}/instance/{reference}")
        return _lease(reply.read(_Instance), self._user)

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every instance of the project; the list has one page."""
        reply = await self._held(f"{self._project}/instance")
        return tuple(_lease(row, self._user) for row in reply.rows("instances", _Instance))

    async def _give_back(self, lease: Lease) -> None:
        await self._end("DELETE", f"{self._project}/instance/{lease.reference}")

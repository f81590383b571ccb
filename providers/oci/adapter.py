"""The client of OCI: signed calls to each region, pagination, capacity reports and capacity reservations."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from json import dumps
from typing import Any
from urllib.parse import quote, urlencode

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    PayloadUnreadable,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    ReleaseRefused,
)
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch
from broker.together import all_or_none
from providers.client import Entry, SellerClient, found_again, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status, is_loopback
from providers.oci.offers import ANY_REGION, NAME, known_shapes, parse_offers
from providers.oci.signing import OciKey, load_private_key, signed_headers, throwaway_key
from providers.payload import Instant, Name, PayloadModel, as_list, as_payload
from providers.spec import ProviderSettings

REAL_ROOT = "https://oraclecloud.com"
"""Stands for all of OCI's hosts; any other base URL replaces them and has the host's name in its path."""
PRICES = "apexapps.oracle.com/pls/apex/cetools/api/v1/products/?currencyCode=USD"
VERSION = "20160918"
POLICY = HttpPolicy(interval_s={Operation.OFFERS: 0.05}, concurrency=6)
"""OCI throttles by user and operation at unpublished rates; 20 reads a second is our own estimate."""
PAGE_SIZE = "100"
TAG_KEY, SHAPE_KEY = "broker-tag", "broker-shape"
LONGEST_TOKEN = 64
_MOST_PAGES = 50
"""Most pages of one list in one region, with up to 100 rows each: more reservations than a tenancy holds."""

_ERRORS: Mapping[str, type[ProviderError]] = {
    "NotAuthenticated": CredentialsRejected,
    "NotAuthorized": CredentialsRejected,
    "NotAllowed": CredentialsRejected,
    "SignUpRequired": CredentialsRejected,
    "LimitExceeded": QuotaExceeded,
    "QuotaExceeded": QuotaExceeded,
}
_STATES: Mapping[str, LeaseState] = {
    "CREATING": LeaseState.PROVISIONING,
    "ACTIVE": LeaseState.ACTIVE,
    "UPDATING": LeaseState.ACTIVE,
    "MOVING": LeaseState.ACTIVE,
    "DELETING": LeaseState.ENDING,
    "DELETED": LeaseState.ENDED,
}
_OVER = frozenset({LeaseState.ENDING, LeaseState.ENDED})


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"code", "message"}``.

    A lack of capacity is an InternalError with its own message.
    """
    body = reply.json_or_none()
    if not isinstance(body, dict):
        return classify_by_status(reply)
    code, message = str(body.get("code") or ""), str(body.get("message") or "")
    text = f"{code}: {message}"
    if reply.status == 429 or code == "TooManyRequests":
        return RateLimited(NAME, text, reply.retry_after_s)
    if code in _ERRORS:
        return _ERRORS[code](NAME, text)
    if reply.operation is Operation.ORDER and "out of host capacity" in message.lower():
        return InsufficientCapacity(NAME, text)
    if code == "NotAuthorizedOrNotFound":
        return _MISSING.get(reply.operation, CredentialsRejected)(NAME, text)
    if reply.operation is Operation.RELEASE and reply.status == 409:
        return ReleaseRefused(NAME, text, forever=False)
    return classify_by_status(reply, text)


_MISSING: Mapping[Operation, type[ProviderError]] = {
    Operation.LEASES: LeaseNotFound,
    Operation.RELEASE: LeaseNotFound,
    Operation.ORDER: OrderRejected,
}
"""Codes of a missing resource; OCI uses them for forbidden ones, too."""


class _Named(PayloadModel):
    """An availability domain."""

    name: Name


class _Subscription(PayloadModel):
    regionName: Name
    status: str = ""


class _ReservedShape(PayloadModel):
    instanceShape: str = ""


class _Reservation(PayloadModel):
    """A capacity reservation; lists omit its shapes."""

    id: Name
    lifecycleState: str = ""
    displayName: str | None = None
    freeformTags: Mapping[str, str] | None = None
    reservedInstanceCount: int | None = None
    timeCreated: Instant = None
    instanceReservationConfigs: tuple[_ReservedShape, ...] = ()


CONSOLE = "https://cloud.oracle.com/compute/capacity-reservations"


def utc_now() -> datetime:
    """This machine's time; OCI accepts signatures within five minutes."""
    return datetime.now(UTC)


class Oci(SellerClient):
    """One tenancy, all of its regions. ``now`` dates the signatures."""

    provider = NAME
    idempotency = Idempotency.TOKEN
    entry = Entry.OWN

    def __init__(
        self,
        settings: ProviderSettings,
        http_factory: HttpFactory,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__(settings, http_factory, classify, POLICY)
        self._now = now
        self._key: OciKey | None = None
        self._domains: dict[str, tuple[str, ...]] = {}
        self._regions = tuple(name.strip() for name in settings.options["regions"].split(",") if name.strip())

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """List prices; with keys, only shapes that a capacity report of some availability domain shows as
        available."""
        prices = await self._http.request("GET", self._url(PRICES), operation=Operation.OFFERS)
        if self._settings.keyless:
            return parse_offers([prices.body], None, observed_at)
        regions = await self._all_regions(Operation.OFFERS)
        found = await all_or_none(self._reports(region) for region in regions)
        return parse_offers([prices.body], [body for reports in found for body in reports], observed_at)

    async def quote(self, offer: Offer, asked_at: datetime) -> Offer | None:
        """The offer from list prices and the capacity report of its own availability domain."""
        prices = await self._http.request("GET", self._url(PRICES), operation=Operation.OFFERS)
        if offer.region == ANY_REGION:
            return found_again(offer, parse_offers([prices.body], None, asked_at))
        report = await self._report(offer.region, offer.reference["availability_domain"])
        return found_again(offer, parse_offers([prices.body], [report], asked_at))

    async def _all_regions(self, operation: Operation) -> tuple[str, ...]:
        """The configured regions, else the tenancy's subscribed regions; read once."""
        if not self._regions:
            tenancy = quote(self._settings.secret("tenancy"), safe="")
            host = self._identity(self._settings.options["home_region"])
            rows = [
                row
                async for row in self._pages(f"{host}/tenancies/{tenancy}/regionSubscriptions", {}, operation)
            ]
            subscribed = (as_payload(NAME, row, _Subscription) for row in rows)
            self._regions = tuple(row.regionName for row in subscribed if row.status == "READY")
            if not self._regions:
                raise PayloadUnreadable(NAME, "the tenancy is subscribed to no region that is READY")
        return self._regions

    async def _reports(self, region: str) -> list[bytes]:
        domains = await self._all_domains(region)
        return await all_or_none(self._report(region, domain) for domain in domains)

    async def _all_domains(self, region: str) -> tuple[str, ...]:
        """The availability domains of a region; read once."""
        if region not in self._domains:
            path = f"{self._identity(region)}/availabilityDomains"
            tenancy = {"compartmentId": self._settings.secret("tenancy")}
            rows = [row async for row in self._pages(path, tenancy, Operation.OFFERS)]
            self._domains[region] = tuple(as_payload(NAME, row, _Named).name for row in rows)
        return self._domains[region]

    async def _report(self, region: str, domain: str) -> bytes:
        body = {
            "compartmentId": self._settings.secret("tenancy"),
            "availabilityDomain": domain,
            "shapeAvailabilities": [{"instanceShape": shape} for shape in known_shapes()],
        }
        path = f"{self._compute(region)}/computeCapacityReports"
        reply = await self._call("POST", path, Operation.OFFERS, repeatable=True, json=body)
        return reply.body

    def nodes_per_order(self, offer: Offer) -> int | None:
        """Any number: one reservation holds all nodes."""
        return None

    async def reserve(self, order: Order) -> Lease:
        """Creates one capacity reservation with the tag as name."""
        offer = order.offer
        if offer.region == ANY_REGION:
            raise OrderRejected(NAME, f"offer {offer.offer_id} names no availability domain")
        shape = offer.reference["shape"]
        body = {
            "compartmentId": self._compartment,
            "availabilityDomain": offer.reference["availability_domain"],
            "displayName": order.tag,
            "freeformTags": {TAG_KEY: order.tag, SHAPE_KEY: shape},
            "isDefaultReservation": False,
            "instanceReservationConfigs": [{"instanceShape": shape, "reservedCount": order.nodes}],
        }
        reply = await self._call(
            "POST",
            f"{self._compute(offer.region)}/computeCapacityReservations",
            Operation.ORDER,
            repeatable=False,
            json=body,
            headers={"opc-retry-token": retry_token(order.tag)},
        )
        return _lease(reply.read(_Reservation), offer.region)

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One capacity reservation."""
        path = f"{self._compute(region)}/computeCapacityReservations/{quote(reference, safe='')}"
        return _lease((await self._held(path)).read(_Reservation), region)

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every capacity reservation of the compartment, in all regions."""
        regions = await self._all_regions(Operation.LEASES)
        found = await all_or_none(self._list_region(region) for region in regions)
        return tuple(lease for leases in found for lease in leases)

    async def _list_region(self, region: str) -> tuple[Lease, ...]:
        path = f"{self._compute(region)}/computeCapacityReservations"
        query = {"compartmentId": self._compartment, "limit": PAGE_SIZE}
        rows = [row async for row in self._pages(path, query, Operation.LEASES)]
        return tuple(_lease(as_payload(NAME, row, _Reservation), region) for row in rows)

    async def _give_back(self, lease: Lease) -> None:
        """Deletes the reservation; one that is going counts as success."""
        path = f"{self._compute(lease.region)}/computeCapacityReservations/{quote(lease.reference, safe='')}"
        try:
            await self._end("DELETE", path)
        except ReleaseRefused:
            if (await self._state(lease)) not in _OVER:
                raise

    async def _state(self, lease: Lease) -> LeaseState:
        try:
            return (await self.find_lease(lease.reference, lease.region)).state
        except LeaseNotFound:
            return LeaseState.ENDED

    @property
    def _compartment(self) -> str:
        return self._settings.options["compartment"] or self._settings.secret("tenancy")

    async def _pages(
        self, path: str, query: Mapping[str, str], operation: Operation
    ) -> AsyncIterator[dict[str, Any]]:
        """The rows of all pages; PayloadUnreadable when a page repeats or the list does not end."""
        page, seen, what = "", {""}, path.rpartition("/")[2]
        for _ in range(_MOST_PAGES):
            asked = {**query, "page": page} if page else dict(query)
            reply = await self._call("GET", path, operation, params=asked)
            with reply.being_read():
                rows = as_list(NAME, reply.json(), what)
            for row in rows:
                yield row
            page = reply.headers.get("opc-next-page", "")
            if not page:
                return
            if page in seen:
                raise reply.unreadable(f"{what} repeats a page")
            seen.add(page)
        raise PayloadUnreadable(NAME, f"{what} does not end within {_MOST_PAGES} pages")

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
        url = self._url(path + (f"?{urlencode(params, quote_via=quote)}" if params else ""))
        content = b"" if json is None else dumps(json).encode()
        signed = signed_headers(method, url, content, self._signing_key(), self._now())
        return await self._http.request(
            method,
            url,
            operation=operation,
            repeatable=repeatable,
            content=content or None,
            headers={**(headers or {}), **signed},
        )

    def _signing_key(self) -> OciKey:
        if self._key is None:
            names = ("tenancy", "user", "fingerprint")
            key_id = "/".join(self._settings.secret(name) for name in names)
            try:
                private_key = load_private_key(self._settings.secret("private_key"))
            except ValueError as error:
                if not (self._settings.sandbox or is_loopback(self._settings.base_url)):
                    raise CredentialsRejected(NAME, f"private_key is {error}") from None
                private_key = throwaway_key()
            self._key = OciKey(key_id, private_key)
        return self._key

    def _compute(self, region: str) -> str:
        return f"iaas.{region}.oraclecloud.com/{VERSION}"

    def _identity(self, region: str) -> str:
        return f"identity.{region}.oci.oraclecloud.com/{VERSION}"

    def _url(self, host_and_path: str) -> str:
        root = self._settings.base_url
        if root == REAL_ROOT:
            return f"https://{host_and_path}"
        return f"{root}/{host_and_path}"


def _lease(row: _Reservation, region: str) -> Lease:
    tags = row.freeformTags or {}
    shapes = [config.instanceShape for config in row.instanceReservationConfigs]
    return Lease(
        provider=NAME,
        reference=row.id,
        state=_STATES.get(row.lifecycleState, LeaseState.UNKNOWN),
        tag=tags.get(TAG_KEY) or row.displayName,
        nodes=row.reservedInstanceCount or 1,
        sku=shapes[0] if shapes else tags.get(SHAPE_KEY, ""),
        region=region,
        detail=row.lifecycleState,
        began_at=row.timeCreated,
        access_note=(
            f"it holds capacity in your tenancy: launch instances of its shape in {region} with"
            f" capacityReservationId {row.id} ({CONSOLE}/{row.id}?region={region})"
        ),
    )


def retry_token(tag: str) -> str:
    """An idempotency token that depends on the order alone, in the 64 characters that OCI keeps."""
    return tag if len(tag) <= LONGEST_TOKEN else hashlib.sha256(tag.encode()).hexdigest()

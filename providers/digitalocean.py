"""DigitalOcean: GPU Droplets, on demand and spot.

Sold: sizes by region, one price everywhere. On the wire: dollars per Droplet and hour as JSON numbers
(some with the noise of 32-bit floats, cut here after five decimals), memory in MB of 2²⁰ bytes, disks in
GiB, GPU memory as the *total* of the size, although the specification reads as if per GPU: a size whose
total does not fit its cards is rejected. A size lists the regions that would make one now for this
account. Spot, and that a size is sold by contract only, show in the slug alone. A create is answered 202
and may fail afterwards: a Droplet stays ``new`` while its create action says ``errored``. GPU Droplets are
listed with ``type=gpus`` only. Not said: counts of stock, links, the network between Droplets (no fabric).
Capacity, quota and bad orders are all 422.

Environment: ``BROKER_DIGITALOCEAN_TOKEN``; ``BROKER_DIGITALOCEAN_SSH_KEY`` (id or fingerprint, for orders
without a key of their own), ``BROKER_DIGITALOCEAN_IMAGE`` (default: by vendor,
``config/providers/digitalocean.toml``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Annotated, Any

from broker.catalogue import load_gpus
from broker.domain.basics.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    ReleaseRefused,
)
from broker.domain.basics.machines import Access
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, Stock, StockLevel, Tier
from broker.domain.market.sku import Form, Sku
from broker.provider_facts import ProviderFacts, load_provider_facts
from providers.client import (
    AccountKey,
    Entry,
    KeyRegister,
    Query,
    all_pages,
    bearer,
    key_line,
    tells_all_or_fails,
)
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import (
    Amount,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    canonical_gpu,
    collect,
    gb_of_gib,
    join_batches,
    require_gpus,
    require_price,
    without_noise,
)
from providers.rows import gpu_node, page_by_page, row_name, rows_under
from providers.schema import Rows, Words
from providers.spec import HOLDING, Capability, ProviderSettings, ProviderSpec, refuse_unless_single

NAME = "digitalocean"
BASE_URL = "https://api.digitalocean.com"
USER = "root"
KEYS = "/v2/account/keys"
FIRST_PAGE = {"per_page": "200", "page": "1"}
MOST_PAGES = 40
POLICY = HttpPolicy(any_interval_s=0.25)
"""250 calls a minute are allowed in a burst."""


class _Size(PayloadModel):
    amount: Amount | None = None


class _Gpu(PayloadModel):
    count: GpuCount = 0
    model: str = ""
    vram: _Size | None = None


class _Disk(PayloadModel):
    size: _Size = _Size()


class _SizeRow(PayloadModel):
    slug: Name
    memory: Amount | None = None
    vcpus: Amount | None = None
    disk: Amount | None = None
    disk_info: tuple[_Disk, ...] = ()
    price_hourly: Decimal | None = None
    regions: tuple[Name, ...] = ()
    available: bool = True
    gpu_info: _Gpu | None = None


def parse_offers(payload: bytes, observed_at: datetime) -> OfferBatch:
    """Offers of one page of ``GET /v2/sizes``: one per size and region that has it now."""
    facts = load_provider_facts(NAME)
    rows = rows_under(NAME, payload, "sizes")
    return collect(
        ((row_name(row, "slug"), row) for row in rows), lambda row: _offers_of(row, facts, observed_at)
    )


def _offers_of(row: Any, facts: ProviderFacts, observed_at: datetime) -> Iterator[Offer]:
    size = _SizeRow.model_validate(row)
    if str(facts.search["contract_word"]) in size.slug.split("-"):
        raise RowRejected("sold by contract only")
    sku = _sku(size, facts)
    native = require_price(size.price_hourly, "price_hourly")
    if not size.available:
        raise RowRejected("not available for new Droplets")
    if not size.regions:
        raise RowRejected("sold out everywhere")
    tier = Tier.SPOT if size.slug.endswith(str(facts.search["spot_suffix"])) else Tier.ON_DEMAND
    for region in dict.fromkeys(size.regions):
        yield Offer(
            offer_id=f"{NAME}/{region}/{size.slug}/{tier}",
            provider=NAME,
            sku=sku,
            region=region,
            country=facts.country_of(region),
            tier=tier,
            price_usd_per_node_hour=without_noise(native),
            observed_at=observed_at,
            source="GET /v2/sizes",
            native=NativePrice(native, "USD", "Droplet-hour"),
            min_hours=facts.billed.min_hours,
            billing_increment_s=facts.billed.increment_s,
            stock=Stock(StockLevel.SOME),
            compliance=facts.compliance,
            reference={"size": size.slug, "region": region},
        )


def _sku(size: _SizeRow, facts: ProviderFacts) -> Sku:
    count = require_gpus(size.gpu_info.count if size.gpu_info else 0)
    gpu = _silicon(size.gpu_info, count, facts) if size.gpu_info else ""
    return gpu_node(
        size.slug,
        gpu,
        count,
        Form.VM,
        vcpus=size.vcpus,
        memory_gb=gb_of_gib(None if size.memory is None else size.memory / 1024),
        disk_gb=gb_of_gib(sum(disk.size.amount or 0 for disk in size.disk_info) or size.disk),
    )


def _silicon(gpu: _Gpu, count: int, facts: ProviderFacts) -> str:
    total = gpu.vram.amount if gpu.vram else None
    return canonical_gpu(facts, gpu.model, None if total is None else total / count)


_NO_CAPACITY = re.compile(
    r"\b(size|region) is (not |un)available|not available in this region"
    r"|(no|not enough|insufficient|out of) (available )?(capacity|stock)|sold out",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"limit|quota|restricted|billing|payment", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"id", "message", "request_id"}``.

    422 means capacity, quota or a bad order; the message decides.
    """
    body = reply.json_or_none()
    if not isinstance(body, dict):
        return classify_by_status(reply)
    message, request_id = str(body.get("message") or ""), str(body.get("request_id") or "") or None
    error = _error(reply, message)
    error.request_id = request_id
    return error


def _error(reply: Reply, message: str) -> ProviderError:
    if reply.status == 429:
        return RateLimited(NAME, message or "too many requests", _wait_s(reply))
    if reply.status == 422 and reply.operation is Operation.ORDER:
        if _NO_CAPACITY.search(message):
            return InsufficientCapacity(NAME, message)
        return (QuotaExceeded if _QUOTA.search(message) else OrderRejected)(NAME, message)
    if reply.status == 422 and reply.operation is Operation.RELEASE:
        return ReleaseRefused(NAME, message, forever=False)
    return classify_by_status(reply, message)


def _wait_s(reply: Reply) -> float | None:
    """Seconds to wait: ``Retry-After`` (sent for bursts), else until ``ratelimit-reset`` by the answer's own
    clock."""
    if reply.retry_after_s is not None:
        return reply.retry_after_s
    with contextlib.suppress(ValueError, TypeError):
        reset = float(reply.headers.get("ratelimit-reset", ""))
        return max(0.0, reset - parsedate_to_datetime(reply.headers.get("date", "")).timestamp())
    return None


class _Region(PayloadModel):
    slug: str = ""


class _Address(PayloadModel):
    ip_address: str = ""
    type: str = ""


class _Networks(PayloadModel):
    v4: tuple[_Address, ...] = ()

    def address(self, kind: str) -> str | None:
        """The first address of a kind, ``public`` or ``private``."""
        return next((one.ip_address for one in self.v4 if one.type == kind), None)


class _Key(PayloadModel):
    id: int
    name: str = ""
    public_key: str = ""


class _KeyAnswer(PayloadModel):
    ssh_key: _Key


class _Droplet(PayloadModel):
    id: int
    name: str = ""
    status: Annotated[str, Words(lambda: _STATES)] = ""
    size_slug: str = ""
    region: _Region | None = None
    networks: _Networks = _Networks()


class _DropletAnswer(PayloadModel):
    droplet: _Droplet


class _Pages(PayloadModel):
    next: str | None = None


class _Links(PayloadModel):
    pages: _Pages | None = None


class _Page(PayloadModel):
    """The pagination fields of every list."""

    links: _Links | None = None


class _KeysAnswer(_Page):
    ssh_keys: tuple[_Key, ...]


class _DropletsAnswer(_Page):
    droplets: tuple[_Droplet, ...]


class _Action(PayloadModel):
    type: str = ""
    status: str = ""


class _ActionsAnswer(PayloadModel):
    actions: tuple[_Action, ...]


_STATES: Mapping[str, LeaseState] = {
    "new": LeaseState.PROVISIONING,
    "active": LeaseState.ACTIVE,
    "off": LeaseState.ACTIVE,
    "archive": LeaseState.ENDED,
}


def _lease(droplet: _Droplet, *, errored: bool = False) -> Lease:
    return Lease(
        provider=NAME,
        reference=str(droplet.id),
        state=LeaseState.FAILED if errored else _STATES.get(droplet.status, LeaseState.UNKNOWN),
        tag=droplet.name or None,
        sku=droplet.size_slug,
        region=droplet.region.slug if droplet.region else "",
        detail="create errored" if errored else droplet.status,
        machines=_machines(droplet.networks),
    )


def _machines(networks: _Networks) -> tuple[Access, ...]:
    host = networks.address("public")
    return (Access(host, USER, private_host=networks.address("private")),) if host else ()


class DigitalOcean(KeyRegister):
    """Client of sizes and GPU Droplets."""

    provider = NAME
    longest_tag = 255
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "token"))

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Sizes, to the last page."""
        pages = await all_pages(partial(self._on_sale, "/v2/sizes"), _next_page, FIRST_PAGE, MOST_PAGES)
        return join_batches(parse_offers(reply.body, observed_at) for reply in pages)

    async def reserve(self, order: Order) -> Lease:
        """Creates one Droplet with the tag as name and tag; it may still fail for lack of capacity."""
        refuse_unless_single(order, NAME, self.longest_tag)
        own = self._settings.options["ssh_key"]
        keys: list[str | int] = [int(key) for key in await self.registered(order.keys)]
        reply = await self._order("/v2/droplets", self._order_body(order, keys or ([own] if own else [])))
        return _lease(reply.read(_DropletAnswer).droplet)

    def _order_body(self, order: Order, keys: Sequence[str | int]) -> dict[str, Any]:
        return {
            "name": order.tag,
            "region": order.offer.reference["region"],
            "size": order.offer.reference["size"],
            "image": self._settings.options["image"] or _base_image(order.offer.sku),
            "ssh_keys": keys,
            "tags": [order.tag],
            **({"user_data": order.script} if order.script else {}),
        }

    async def account_keys(self) -> Sequence[AccountKey]:
        """The keys of the account."""
        pages = await all_pages(partial(self._held, KEYS), _next_page, FIRST_PAGE, MOST_PAGES)
        rows = [row for reply in pages for row in reply.read(_KeysAnswer).ssh_keys]
        return [AccountKey(str(row.id), row.name, key_line(row.public_key)) for row in rows]

    async def _register_key(self, name: str, line: str) -> str:
        reply = await self._key_call("POST", KEYS, {"name": name, "public_key": line})
        return str(reply.read(_KeyAnswer).ssh_key.id)

    async def _unregister_key(self, key: AccountKey) -> None:
        await self._key_call("DELETE", f"{KEYS}/{key.key_id}")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One Droplet; while it is ``new``, with the status of its create action."""
        return await self._seen((await self._held(f"/v2/droplets/{reference}")).read(_DropletAnswer).droplet)

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every GPU Droplet of the account."""
        ask, first = partial(self._held, "/v2/droplets"), {"type": "gpus", **FIRST_PAGE}
        pages = await all_pages(ask, _next_page, first, MOST_PAGES)
        droplets = [droplet for reply in pages for droplet in reply.read(_DropletsAnswer).droplets]
        return tuple([await self._seen(droplet) for droplet in droplets])

    async def _seen(self, droplet: _Droplet) -> Lease:
        if droplet.status != "new":
            return _lease(droplet)
        try:
            reply = await self._held(f"/v2/droplets/{droplet.id}/actions")
        except LeaseNotFound:
            return _lease(droplet)
        actions = reply.read(_ActionsAnswer).actions
        return _lease(droplet, errored=any((a.type, a.status) == ("create", "errored") for a in actions))

    async def _give_back(self, lease: Lease) -> None:
        await self._end("DELETE", f"/v2/droplets/{lease.reference}")


def _next_page(reply: Reply, read: int) -> Query | None:
    links = reply.read(_Page).links
    return {"page": str(read + 1)} if links and links.pages and links.pages.next else None


def _base_image(sku: Sku) -> str:
    """The base image of the GPUs' vendor."""
    images = load_provider_facts(NAME).search["images"]
    vendor = load_gpus()[sku.gpu].vendor.lower()
    linked = f"{vendor}_x8" if sku.gpus_per_node == 8 else vendor
    return str(images.get(linked) or images[vendor])


ROWS = (Rows("GET /v2/sizes", "sizes[]", _SizeRow),)


SPEC = ProviderSpec(
    name=NAME,
    title="DigitalOcean",
    base_url=BASE_URL,
    credentials={"token": "a personal access token with the scopes droplet, ssh_key and sizes:read"},
    options={"ssh_key": "", "image": ""},
    capabilities=HOLDING | {Capability.SPOT},
    idempotency=Idempotency.TAG,
    adapter=DigitalOcean,
    build=DigitalOcean,
    parse=page_by_page(parse_offers),
    rows=ROWS,
)

"""Hot Aisle: AMD MI300X in virtual machines and bare metal, by the minute after a minimum.

Sold: whole machines at one site. On the wire: integer US cents per machine and hour, memory and disk in
bytes, the number on sale exactly, and the minimum that is owed in minutes; ``cpus`` is an object for virtual
machines and a list for bare metal; nothing on sale is an empty list or ``null``. A kind has no name: its
``Specs`` are sent back to order it, so that names here carry a short hash of them. Not said: the site,
memory per GPU, the link between GPUs (inferred from the module's form), any network between machines (no
fabric). Billing by the minute is inferred from minimums of one minute.

A name is given by the seller. Bare metal takes our tag as its description in the order itself, a virtual
machine only afterwards (its order takes its specs and a ``user_data_url``, which no list shows; nor does one
say when a machine was made): an order of one whose answer is lost cannot be told from a colleague's, hence no
idempotency, and nothing is ordered again. The error then names the machines without a description, for a
person to look at.
404 of an order means sold out; 401 of an order means that the team has its most machines, unless the body
speaks of the token. A delete forces the end before the minimum (which is owed all the same) and may take
long. A server whose installation failed is still held, and is shown as failed so that it is released. The
power state is not read: what is held is owed.

Keys are those of the token's user: an order names none, and its machine opens to all of them. The broker adds
an order's keys before it, and takes its own away again. No script goes with an order: a virtual machine takes
the address of one (``user_data_url``), bare metal nothing.

Unverified: how long deletes take, bodies of the documented errors (plain JSON strings), rate limits.

Environment: ``BROKER_HOTAISLE_API_KEY``; ``BROKER_HOTAISLE_TEAM`` (handle of the team, default ``broker``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import quote

import structlog
from pydantic import Field

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.basics.machines import SSH_PORT, Access
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, Stock, StockLevel, Tier
from broker.domain.market.sku import Form, Sku
from broker.provider_facts import ProviderFacts, infer_intra_node, load_provider_facts
from providers.client import AccountKey, Entry, KeyRegister, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import (
    Amount,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_list,
    canonical_gpu,
    collect,
    decode_json,
    join_batches,
    nominal_memory_gb,
    require_gpus,
    require_price,
    slug,
)
from providers.schema import Rows, Words
from providers.spec import HOLDING, NamedPayload, ProviderSettings, ProviderSpec, refuse_unless_single

log = structlog.get_logger(__name__)

NAME = "hotaisle"
BASE_URL = "https://admin.hotaisle.app/api"
POLICY = HttpPolicy(concurrency=4, read_s=60.0, total_s=120.0)

USER = "hotaisle"
KEYS = "/user/ssh_keys/"
METAL, VIRTUAL = "bare_metal", "virtual_machines"
_KINDS = {METAL: ("metal", Form.BARE_METAL), VIRTUAL: ("vm", Form.VM)}

_Bytes = Annotated[float, Field(ge=0, le=1e18)]


class _Gpus(PayloadModel):
    count: GpuCount = 0
    model: str = ""


class _Specs(PayloadModel):
    cpu_cores: Amount | None = None
    ram_capacity: _Bytes | None = None
    disk_capacity: _Bytes | None = None
    gpus: tuple[_Gpus, ...] = ()


class _Kind(PayloadModel):
    """A row of ``available``."""

    Quantity: Annotated[int, Field(ge=0, le=100_000)]
    MinimumReservationMinutes: Annotated[int, Field(ge=0, le=10_000_000)]
    OnDemandPrice: Decimal | None = None
    Specs: _Specs


def parse_offers(payload: bytes, path: str, observed_at: datetime) -> OfferBatch:
    """Offers of ``GET …/{path}/available/``; ``path`` is that of bare metal or of virtual machines."""
    facts = load_provider_facts(NAME)
    answer = decode_json(NAME, payload)
    rows = [] if answer is None else as_list(NAME, answer, f"{path} available")
    named = ((f"{_KINDS[path][0]} row {number}", row) for number, row in enumerate(rows, 1))
    return collect(named, lambda row: _offers_of(row, path, facts, observed_at))


def _offers_of(row: Any, path: str, facts: ProviderFacts, observed_at: datetime) -> Iterator[Offer]:
    kind = _Kind.model_validate(row)
    specs = json.dumps(row["Specs"], sort_keys=True, separators=(",", ":"), default=float)
    sku = _sku(kind.Specs, specs, path, facts)
    cents = require_price(kind.OnDemandPrice, "OnDemandPrice")
    if kind.Quantity == 0:
        raise RowRejected("sold out")
    region = str(facts.search["region"])
    yield Offer(
        offer_id=f"{NAME}/{region}/{sku.name}/{Tier.ON_DEMAND}",
        provider=NAME,
        sku=sku,
        region=region,
        country=facts.country_of(region),
        tier=Tier.ON_DEMAND,
        price_usd_per_node_hour=cents / 100,
        observed_at=observed_at,
        source=f"GET /teams/{{team}}/{path}/available/",
        native=NativePrice(cents, "USD", "cents per machine-hour"),
        min_hours=kind.MinimumReservationMinutes / 60,
        billing_increment_s=facts.billed.increment_s,
        stock=Stock(StockLevel.UNKNOWN, kind.Quantity),
        compliance=facts.compliance,
        reference={"path": path, "specs": specs},
    )


def _sku(specs: _Specs, text: str, path: str, facts: ProviderFacts) -> Sku:
    models = {gpus.model for gpus in specs.gpus if gpus.count}
    count = require_gpus(sum(gpus.count for gpus in specs.gpus))
    if len(models) > 1:
        raise RowRejected("GPUs of several models in one machine")
    (word,) = models
    gpu = canonical_gpu(facts, word)
    short, form = _KINDS[path]
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    return Sku(
        name=f"{short}-{count}x-{slug(word)}-{digest}",
        gpu=gpu,
        gpus_per_node=count,
        gpu_memory_gb=nominal_memory_gb(gpu),
        vcpus=specs.cpu_cores,
        memory_gb=_gb(specs.ram_capacity),
        disk_gb=_gb(specs.disk_capacity),
        form=form,
        intra_node=infer_intra_node(gpu, count),
    )


def _gb(size: float | None) -> float | None:
    return None if size is None else round(size / 1e9, 1)


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded answers of ``available``, told apart by the file's name."""
    return join_batches(
        parse_offers(body, METAL if METAL in name else VIRTUAL, observed_at) for name, body in payloads
    )


_NO_STOCK = re.compile(r"insufficient resources|no available|capacity|out of stock", re.IGNORECASE)
_NO_QUOTA = re.compile(r"limit|maximum|balance", re.IGNORECASE)
_NO_KEY = re.compile(r"token|credential|api key|authenticat", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of a JSON string or text; what a status means depends on the call."""
    body = reply.json_or_none()
    text = body if isinstance(body, str) else reply.text
    if reply.operation is Operation.ORDER:
        refused = _refused_order(reply.status, text[:300])
        if refused is not None:
            return refused
    if reply.operation is Operation.RELEASE and reply.status in {400, 409, 422}:
        return ReleaseRefused(NAME, text[:300], forever=False)
    return classify_by_status(reply, text)


def _refused_order(status: int, text: str) -> ProviderError | None:
    if status == 404 or (status in {400, 422} and _NO_STOCK.search(text)):
        return InsufficientCapacity(NAME, text)
    if status == 401:
        return CredentialsRejected(NAME, text) if _NO_KEY.search(text) else QuotaExceeded(NAME, text)
    if status == 402 or (status == 403 and _NO_QUOTA.search(text)):
        return QuotaExceeded(NAME, text)
    return None


class _OsStatus(PayloadModel):
    os_install_status: Annotated[str, Words(lambda: _STEPS)] = ""


class _SshAccess(PayloadModel):
    ip_address: str = ""
    port: int = SSH_PORT


class _Machine(PayloadModel):
    name: Name
    description: str | None = None
    os_status: _OsStatus | None = None
    ip_address: str = ""
    ssh_access: _SshAccess | None = None

    @property
    def access(self) -> tuple[Access, ...]:
        """Where it is entered; its own address is that of the team's network."""
        found = self.ssh_access or _SshAccess(ip_address=self.ip_address)
        if not found.ip_address:
            return ()
        private = self.ip_address if self.ip_address != found.ip_address else None
        return (Access(found.ip_address, USER, found.port, private_host=private or None),)


class _Key(PayloadModel):
    type: str
    public_key: str
    fingerprint: Name
    comment: str = ""


_STEPS: Mapping[str, LeaseState] = {
    **dict.fromkeys(
        (
            "",
            "shutting_down",
            "ac_reset",
            "bios_reset",
            "booting_installer",
            "installing_os",
            "finalizing_os",
            "first_boot",
            "first_boot_tasks",
        ),
        LeaseState.PROVISIONING,
    ),
    "installed": LeaseState.ACTIVE,
    "failed": LeaseState.FAILED,
}
"""States while bare metal is being installed."""


def _lease(machine: _Machine) -> Lease:
    """A machine as a lease.

    A virtual machine is ready as soon as it is listed, bare metal when its system is installed.
    """
    step = machine.os_status.os_install_status if machine.os_status else "installed"
    state = _STEPS.get(step, LeaseState.UNKNOWN)
    return Lease(
        provider=NAME,
        reference=machine.name,
        state=state,
        tag=machine.description or None,
        region=str(load_provider_facts(NAME).search["region"]),
        detail=step if machine.os_status else "",
        machines=machine.access,
    )


class HotAisle(KeyRegister):
    """Client of one team's machines."""

    provider = NAME
    longest_tag = 100
    idempotency = Idempotency.NEITHER
    entry = Entry.KEYS

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        key = {"Authorization": f"Token {settings.secret('api_key')}"}
        super().__init__(settings, http_factory, classify, POLICY, key)
        self._team = f"/teams/{quote(settings.options['team'], safe='')}"

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Both lists of available machines, bare metal first."""
        bodies = {path: (await self._on_sale(f"{self._team}/{path}/available/")).body for path in _KINDS}
        return join_batches(parse_offers(body, path, observed_at) for path, body in bodies.items())

    async def reserve(self, order: Order) -> Lease:
        """Orders one machine by its specs, and writes the tag into its description.

        OutcomeUnknown of a virtual machine names the machines without a description.
        """
        refuse_unless_single(order, NAME, self.longest_tag)
        await self.registered(order.keys)
        path, specs = order.offer.reference["path"], json.loads(order.offer.reference["specs"])
        body = {"specs": specs, "description": order.tag} if path == METAL else specs
        try:
            made = _lease((await self._order(f"{self._team}/{path}/", body)).read(_Machine))
        except OutcomeUnknown as error:
            if path == VIRTUAL:
                words = str(error).removeprefix(f"{NAME}: ")
                raise OutcomeUnknown(NAME, f"{words}; {await self._undescribed()}") from None
            raise
        if path == VIRTUAL:
            await self._describe(made.reference, order.tag)
        return ordered(order, made.reference, made.state)

    async def _describe(self, name: str, tag: str) -> None:
        """Writes the tag into the description; if that fails, the machine stays bought."""
        path = f"{self._team}/{VIRTUAL}/{name}/"
        try:
            await self._call("PATCH", path, Operation.LEASES, repeatable=True, json={"description": tag})
        except ProviderError as error:
            log.warning("machine_not_described", provider=NAME, machine=name, tag=tag, error=str(error))

    async def _undescribed(self) -> str:
        """The names of virtual machines without a tag: one may come from an unanswered order."""
        try:
            names = [lease.reference for lease in await self._machines(VIRTUAL) if lease.tag is None]
        except ProviderError as error:
            return f"what it made cannot be listed: {error}"
        return f"virtual machines without a description: {', '.join(names) or 'none yet'}"

    async def account_keys(self) -> Sequence[AccountKey]:
        """The keys of the token's user, which open every machine that is ordered while they are there."""
        rows = (await self._key_call("GET", KEYS)).rows("keys", _Key)
        return [AccountKey(row.fingerprint, row.comment, f"{row.type} {row.public_key}") for row in rows]

    async def _register_key(self, name: str, line: str) -> str:
        reply = await self._key_call("POST", KEYS, {"authorized_key": f"{line} {name}"})
        return reply.read(_Key).fingerprint

    async def _unregister_key(self, key: AccountKey) -> None:
        digest = quote(key.key_id.removeprefix("SHA256:"), safe="")
        await self._key_call("DELETE", f"{KEYS}{digest}/")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One machine; the list of virtual machines is read first."""
        try:
            return await self._machine(VIRTUAL, reference)
        except LeaseNotFound:
            return await self._machine(METAL, reference)

    async def _machine(self, path: str, name: str) -> Lease:
        return _lease((await self._held(f"{self._team}/{path}/{name}/")).read(_Machine))

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every machine of the team; the lists have one page."""
        return tuple([lease for path in _KINDS for lease in await self._machines(path)])

    async def _machines(self, path: str) -> list[Lease]:
        reply = await self._held(f"{self._team}/{path}/")
        return [_lease(row) for row in reply.rows(path, _Machine)]

    async def _give_back(self, lease: Lease) -> None:
        try:
            await self._delete(VIRTUAL, lease.reference)
        except LeaseNotFound:
            await self._delete(METAL, lease.reference)

    async def _delete(self, path: str, name: str) -> None:
        path, force = f"{self._team}/{path}/{name}/", {"force": "true"}
        await self._call("DELETE", path, Operation.RELEASE, repeatable=True, params=force)


ROWS = (Rows("GET /teams/{team}/virtual_machines/available/, …/bare_metal/available/", "[]", _Kind),)


SPEC = ProviderSpec(
    name=NAME,
    title="Hot Aisle",
    base_url=BASE_URL,
    credentials={"api_key": "an API token with the role operator in the team, and owner of its user"},
    options={"team": "broker"},
    capabilities=HOLDING,
    idempotency=Idempotency.NEITHER,
    adapter=HotAisle,
    build=HotAisle,
    parse=parse,
    rows=ROWS,
)

"""Talks to Hyperstack: price book, stocks, flavors, virtual machines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, TypeVar

from broker.domain.basics.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    ProviderError,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.basics.machines import SSH_PORT, Access, PublicKey, with_keys
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import OfferBatch
from providers.client import AccountKey, AccountKeys, Entry, key_line, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.hyperstack.offers import NAME, parse_offers
from providers.payload import PayloadModel
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_unless_single

USER, HOME = "ubuntu", "/home/ubuntu"
PAGE_SIZE = 100
MACHINES, KEY_PAIRS = "/v1/core/virtual-machines", "/v1/core/keypairs"
SSH_RULE = {
    "direction": "ingress",
    "ethertype": "IPv4",
    "protocol": "tcp",
    "remote_ip_prefix": "0.0.0.0/0",
    "port_range_min": SSH_PORT,
    "port_range_max": SSH_PORT,
}
"""Opens the port: a machine without a rule lets nobody in."""
POLICY = HttpPolicy(concurrency=4)

_NO_STOCK = re.compile(
    r"out of stock|no (stock|capacity)|(not enough|insufficient) (stock|capacity|resources|gpus?)"
    r"|(stock|flavor|capacity|gpu)\b.{0,40}(not (currently )?available|unavailable|exhausted)",
    re.IGNORECASE,
)
_NO_QUOTA = re.compile(r"quota|limit (reached|exceeded)|balance|insufficient (funds|credit)", re.IGNORECASE)
_GONE = re.compile(r"not[ _]found|does not exist|already (been )?deleted|(being|is) delet", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"status": false, "message", "error_reason"}``: a word, and a message with the
    details."""
    body = reply.json_or_none()
    if reply.status in {401, 402, 403, 429} or not isinstance(body, dict):
        return classify_by_status(reply)
    text = f"{body.get('error_reason') or ''}: {body.get('message') or ''}".strip(": ")
    words = text.replace("_", " ")
    if reply.operation is Operation.ORDER:
        if _NO_STOCK.search(words):
            return InsufficientCapacity(NAME, text)
        if reply.status < 500 and _NO_QUOTA.search(words):
            return QuotaExceeded(NAME, text)
    elif reply.status < 500 and reply.operation in {Operation.LEASES, Operation.RELEASE}:
        if reply.status == 404 or _GONE.search(words):
            return LeaseNotFound(NAME, text)
        if reply.operation is Operation.RELEASE and reply.status in {400, 409}:
            return ReleaseRefused(NAME, text, forever=False)
    return classify_by_status(reply, text)


class _Named(PayloadModel):
    name: str = ""
    region: str = ""


class _Machine(PayloadModel):
    id: int
    name: str | None = None
    status: Annotated[str, Words(lambda: _STATES, str.upper)] = ""
    flavor: _Named | None = None
    environment: _Named | None = None
    fixed_ip: str | None = None
    floating_ip: str | None = None


class _KeyPair(PayloadModel):
    id: int
    name: str = ""
    public_key: str = ""
    environment: _Named | None = None


class _KeyPairAnswer(PayloadModel):
    keypair: _KeyPair


class _MachineAnswer(PayloadModel):
    instance: _Machine


class _Created(PayloadModel):
    status: bool = True
    instances: tuple[_Machine, ...] = ()


class _Page(PayloadModel):
    """A page of a list."""

    count: int | None = None
    page: int | None = None


class _Machines(_Page):
    instances: tuple[_Machine, ...]


class _KeyPairs(_Page):
    keypairs: tuple[_KeyPair, ...]


Page = TypeVar("Page", bound=_Page)
Row = TypeVar("Row", _Machine, _KeyPair)


_STATES: Mapping[str, LeaseState] = {
    "CREATING": LeaseState.PROVISIONING,
    "BUILD": LeaseState.PROVISIONING,
    "ACTIVE": LeaseState.ACTIVE,
    "STARTING": LeaseState.ACTIVE,
    "REBOOTING": LeaseState.ACTIVE,
    "STOPPING": LeaseState.ACTIVE,
    "SHUTOFF": LeaseState.ACTIVE,
    "HIBERNATING": LeaseState.ACTIVE,
    "HIBERNATED": LeaseState.ACTIVE,
    "RESTORING": LeaseState.ACTIVE,
    "ERROR": LeaseState.FAILED,
    "DELETING": LeaseState.ENDING,
    "DELETED": LeaseState.ENDED,
}


def _lease(machine: _Machine) -> Lease:
    return Lease(
        provider=NAME,
        reference=str(machine.id),
        state=_STATES.get(machine.status.upper(), LeaseState.UNKNOWN),
        tag=machine.name,
        sku=machine.flavor.name if machine.flavor else "",
        region=machine.environment.region if machine.environment else "",
        detail=machine.status,
        machines=_machines(machine),
    )


def _machines(machine: _Machine) -> tuple[Access, ...]:
    if not machine.floating_ip:
        return ()
    return (Access(machine.floating_ip, USER, private_host=machine.fixed_ip),)


class Hyperstack(AccountKeys):
    """Client of the parts of the API that sell and hold virtual machines."""

    provider = NAME
    longest_tag = 50
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        key = {"api_key": settings.secret("api_key")}
        super().__init__(settings, http_factory, classify, POLICY, key)
        self._environments = _named_environments(settings.options["environments"])

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Reads three lists and joins them; none of them has pages."""
        pricebook = await self._on_sale("/v1/pricebook")
        stocks = await self._on_sale("/v1/core/stocks")
        flavors = await self._on_sale("/v1/core/flavors")
        return parse_offers(pricebook.body, stocks.body, flavors.body, observed_at)

    async def reserve(self, order: Order) -> Lease:
        """Creates one machine named by the tag, in the environment of its region.

        It names one key pair of that environment, so that other keys come with the script.
        """
        refuse_unless_single(order, NAME, self.longest_tag)
        region = order.offer.reference["region"]
        environment = self._environments.get(region, f"default-{region}")
        key_name = self._settings.options["key_name"]
        if order.keys:
            key_name = await self._pair_in(environment, order.keys[0])
        reply = await self._order(MACHINES, self._create_body(order, environment, key_name))
        created = reply.read(_Created)
        if not created.status:
            raise self._http.error(reply)
        if not created.instances:
            raise reply.unreadable("a create without a machine")
        made = _lease(created.instances[0])
        return ordered(order, made.reference, made.state, detail=made.detail)

    def _create_body(self, order: Order, environment: str, key_name: str) -> dict[str, Any]:
        script = with_keys(order.script, order.keys[1:], HOME)
        return {
            "name": order.tag,
            "environment_name": environment,
            "flavor_name": order.offer.reference["flavor_name"],
            "image_name": self._settings.options["image"],
            "key_name": key_name,
            "count": 1,
            "assign_floating_ip": True,
            "security_rules": [SSH_RULE],
            "labels": [order.tag],
            **({"user_data": script} if script else {}),
        }

    async def _pair_in(self, environment: str, key: PublicKey) -> str:
        """The name of the pair with ``key`` in ``environment``, which is imported if there is none."""
        with self._before_order("its public SSH key could not be imported"):
            for pair in await self._pairs():
                place = pair.environment.name if pair.environment else ""
                if (place, key_line(pair.public_key)) == (environment, key.line):
                    return pair.name
            name = self._key_name(replace(key, line=f"{environment} {key.line}"))
            body = {"name": name, "environment_name": environment, "public_key": key.line}
            return (await self._key_call("POST", KEY_PAIRS, body)).read(_KeyPairAnswer).keypair.name

    async def _pairs(self) -> Sequence[_KeyPair]:
        return await self._rows(KEY_PAIRS, _KeyPairs, lambda page: page.keypairs)

    async def account_keys(self) -> Sequence[AccountKey]:
        """The key pairs of all environments."""
        pairs = await self._pairs()
        return [AccountKey(str(pair.id), pair.name, key_line(pair.public_key)) for pair in pairs]

    async def _unregister_key(self, key: AccountKey) -> None:
        await self._key_call("DELETE", f"/v1/core/keypair/{key.key_id}")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One machine."""
        return _lease((await self._held(f"{MACHINES}/{reference}")).read(_MachineAnswer).instance)

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every machine of the account."""
        machines = await self._rows(MACHINES, _Machines, lambda page: page.instances)
        return tuple(map(_lease, machines))

    async def _rows(
        self, path: str, model: type[Page], rows_of: Callable[[Page], Sequence[Row]]
    ) -> Sequence[Row]:
        """Every row of a list; pages are requested by the page number that an answer states."""
        found: dict[int, Row] = {}
        params: dict[str, int] = {"pageSize": PAGE_SIZE}
        while True:
            reply = await self._held(path, params)
            page = reply.read(model)
            new = {row.id: row for row in rows_of(page) if row.id not in found}
            found |= new
            if not rows_of(page) or (page.count is not None and len(found) >= page.count):
                return tuple(found.values())
            if not new:
                raise reply.unreadable("the list repeats itself")
            params["page"] = (page.page if page.page is not None else params.get("page", 1)) + 1

    async def _give_back(self, lease: Lease) -> None:
        await self._end("DELETE", f"{MACHINES}/{lease.reference}")


def _named_environments(text: str) -> Mapping[str, str]:
    """``REGION=name`` pairs, separated by commas."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {region.strip(): name.strip() for region, _, name in pairs}

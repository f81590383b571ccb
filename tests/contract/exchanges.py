"""Plays the exchanges of ``fixtures/providers/<name>/exchanges.json`` against an adapter.

An exchange is one call of the adapter (``call``), the provider's answers to it, and what must come of it:
``raises`` an error by name, or a ``lease``, ``leases``, or a number of ``offers``; ``sent`` is what the
last request's JSON body must hold; ``keys`` (lines by name) and ``script`` go with an order. ``{tag}`` and
``{secret}`` stand for the tag and the credential.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import respx
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from broker.domain.basics.machines import PublicKey
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer
from providers.http import HttpPolicy, ProviderHttp
from providers.spec import Feed, ProviderAdapter, ProviderSettings, ProviderSpec, Secret

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "providers"
NOT_PAYLOADS = {"api.json", "expected.json", "exchanges.json", "SOURCE.md"}
OBSERVED_AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
BASE_URL = "http://provider.test"
SECRET = "s3cr3t-of-the-test"
TAG = "broker-test-01jc-0-0"


def payloads(name: str) -> list[tuple[str, bytes]]:
    folder = FIXTURES / name
    return [
        (path.name, path.read_bytes())
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name not in NOT_PAYLOADS
    ]


def exchanges(name: str) -> list[dict[str, Any]]:
    path = FIXTURES / name / "exchanges.json"
    if not path.is_file():
        return []
    loaded: list[dict[str, Any]] = json.loads(_filled(path.read_text()))
    return loaded


def _filled(text: str) -> str:
    return text.replace("{tag}", TAG).replace("{secret}", SECRET)


def build(spec: ProviderSpec, keyless: bool = False) -> Feed:
    settings = ProviderSettings(
        provider=spec.name,
        base_url=BASE_URL,
        credentials={} if keyless else {name: Secret(_credential(name)) for name in spec.credentials},
        options={**spec.stand_ins, **NAMED.get(spec.name, {})},
        min_interval_s=0.0,
        keyless=keyless,
    )
    return spec.build(settings, one_attempt)


def _credential(name: str) -> str:
    """The test's secret, or a key of the test's own where a signing key in PEM form is asked for."""
    return private_key_pem() if name == "private_key" else SECRET


@cache
def private_key_pem() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def one_attempt(provider: str, base_url: str, classify: Any, policy: HttpPolicy, **more: Any) -> ProviderHttp:
    """A client without retries, so that one answer decides."""
    return ProviderHttp(provider, base_url, classify, replace(policy, attempts=1), **more)


NAMED: Mapping[str, Mapping[str, str]] = {"azure": {"subnet": "broker/default"}}
"""Options that name what an administrator made."""
_FAULTS = {
    "connect": httpx.ConnectError("refused"),
    "read_timeout": httpx.ReadTimeout("too slow"),
    "reset": httpx.RemoteProtocolError("closed without an answer"),
}


def mount(router: respx.MockRouter, name: str, answers: list[Mapping[str, Any]]) -> None:
    """One route for each method and path; several answers of one route come in their order."""
    routes: dict[tuple[str, str], list[Any]] = {}
    for answer in answers:
        routes.setdefault((answer["method"], answer["path"]), []).append(_answer(name, answer))
    for (method, path), effects in routes.items():
        route = router.route(method=method, url__regex=f"^{BASE_URL}{path}([?].*)?$")
        if len(effects) == 1 and isinstance(effects[0], httpx.Response):
            route.mock(return_value=effects[0])
        else:
            route.mock(side_effect=effects)


def _answer(name: str, answer: Mapping[str, Any]) -> httpx.Response | Exception:
    if "fault" in answer:
        return _FAULTS[answer["fault"]]
    headers = answer.get("headers")
    status = answer.get("status", 200)
    if "file" in answer:
        return httpx.Response(
            status, content=(FIXTURES / name / answer["file"]).read_bytes(), headers=headers
        )
    if "text" in answer:
        return httpx.Response(status, text=answer["text"], headers=headers)
    if "json" in answer:
        return httpx.Response(status, json=answer["json"], headers=headers)
    return httpx.Response(status, headers=headers)


async def play(adapter: Feed, exchange: Mapping[str, Any], offers: Mapping[str, Offer]) -> Any:
    """Makes the call of ``exchange``."""
    call = exchange["call"]
    if call == "list_offers":
        return await adapter.list_offers(OBSERVED_AT)
    assert isinstance(adapter, ProviderAdapter)
    if call == "list_leases":
        return await adapter.list_leases()
    if call == "find_lease":
        return await adapter.find_lease(exchange["reference"], exchange.get("region", ""))
    if call == "release":
        state = LeaseState(exchange.get("state", "active"))
        lease = Lease(adapter.provider, exchange["reference"], state, region=exchange.get("region", ""))
        return await adapter.release(lease)
    return await adapter.reserve(_order(exchange, offers))


def _order(exchange: Mapping[str, Any], offers: Mapping[str, Offer]) -> Order:
    window = exchange.get("window")
    return Order(
        tag=TAG,
        offer=offers[exchange["offer"]],
        nodes=exchange.get("nodes", 1),
        window=Window(*(datetime.fromisoformat(instant) for instant in window)) if window else None,
        wait_s=exchange.get("wait_s", 0),
        keys=tuple(PublicKey(name, line) for name, line in exchange.get("keys", {}).items()),
        script=exchange.get("script", ""),
        limit_usd_per_node_hour=_limit(exchange),
    )


def _limit(exchange: Mapping[str, Any]) -> Decimal | None:
    limit = exchange.get("limit_usd_per_node_hour")
    return None if limit is None else Decimal(limit)


def lease_facts(lease: Lease, names: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``lease`` that ``names`` asks for; a window as its start and end, machines as words."""
    facts = {name: getattr(lease, name) for name in names}
    if "machines" in facts:
        facts["machines"] = [
            f"{one.user}@{one.host}:{one.port}" + (f" {one.private_host}" if one.private_host else "")
            for one in lease.machines
        ]
    if lease.window is not None and "window" in facts:
        facts["window"] = [lease.window.start.isoformat(), lease.window.end.isoformat()]
    return {name: str(fact) if isinstance(fact, Decimal) else fact for name, fact in facts.items()}


def offer_facts(offer: Offer, names: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an offer that ``names`` asks for, in the plain form of ``expected.json``."""
    return {name: _plain(offer, name) for name in names}


def _plain(offer: Offer, name: str) -> Any:
    if name == "sku":
        return offer.sku.name
    if name == "intra_node":
        link = offer.sku.intra_node
        return [link.kind, link.gbyte_s] if link else None
    if name == "fabric":
        fabric = offer.sku.fabric
        return [fabric.kind, fabric.gbit_s_per_node, fabric.max_nodes] if fabric else None
    if name == "stock":
        return [offer.stock.level, offer.stock.nodes]
    if name == "pool":
        pool = offer.stock.pool
        return [pool.pool_id, pool.gpus] if pool else None
    if name == "available_until":
        return None if offer.available_until is None else offer.available_until.isoformat()
    if name in ("disk", "memory"):
        sold = getattr(offer, name)
        return [sold.default_gb, sold.min_gb, sold.max_gb, str(sold.usd_per_gb_hour)] if sold else None
    if name == "native":
        return [str(offer.native.amount), offer.native.currency, offer.native.per]
    value = getattr(offer, name) if hasattr(offer, name) else getattr(offer.sku, name)
    return str(value) if name.endswith("_usd") or name == "price_usd_per_node_hour" else value

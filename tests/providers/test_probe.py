"""A probe finds how a seller's answers differ from what its adapter declares, and buys nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest

from broker.domain.holding.reservation import Order
from broker.domain.market.offer import StockLevel, Tier
from broker.domain.market.probing import FindingKind, ProbeReport
from providers.probe import probe
from providers.registry import SPECS, configured, find_spec
from providers.spec import Capability, ProviderAdapter, ProviderSettings
from tests.fakes.market_control import control, hasty
from tests.fakes.relay import Alter, relayed

AT = datetime(2026, 11, 26, 12, tzinfo=UTC)
KEY = "hush-hush-hush"
OWN_KEY = {
    "BROKER_LAMBDA_API_KEY": KEY,
    "BROKER_RUNPOD_API_KEY": KEY,
    "BROKER_SHADEFORM_API_KEY": KEY,
}


def settings_of(name: str, sandbox: str) -> ProviderSettings:
    """As for the real seller where a key of one's own is given, at the sandbox's address."""
    variables = {key: value for key, value in OWN_KEY.items() if key == find_spec(name).variable("api_key")}
    if variables:
        variables[find_spec(name).variable("base_url")] = f"{sandbox}/{name}"
    return configured(variables, sandbox)[name]


def bought(sandbox: str) -> set[tuple[str, bool]]:
    """What the market has sold, and whether it was given back."""
    rows = control(sandbox, "ledger")["instances"]
    return {(row["instance_id"], row["released_at"] is None) for row in rows}


async def test_lists_alone_are_asked_for(sandbox: str) -> None:
    sent: list[httpx.Request] = []

    def noted(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        sent.append(request)
        return answer

    await altered(sandbox, "lambda", noted)
    assert {(request.method, request.url.path) for request in sent} == {
        ("GET", "/lambda/api/v1/instance-types"),
        ("GET", "/lambda/api/v1/instances"),
    }


@pytest.mark.parametrize("name", list(SPECS))
async def test_the_market_answers_as_every_adapter_declares(sandbox: str, name: str) -> None:
    before = bought(sandbox)
    report = await probe(settings_of(name, sandbox), AT, hasty)
    assert not report.findings
    rows = {one.call: one.rows for one in report.compared}
    assert all(rows[declared.call] for declared in SPECS[name].rows if not declared.held)
    assert bought(sandbox) == before


async def hold_one(sandbox: str, name: str) -> None:
    """Order one unit from the seller, so that its list of own leases has a row."""
    adapter = find_spec(name).build(settings_of(name, sandbox), hasty)
    assert isinstance(adapter, ProviderAdapter)
    offers = (await adapter.list_offers(datetime.now(UTC))).offers
    taken = next(
        offer
        for offer in offers
        if offer.stock.level is not StockLevel.NONE and offer.tier in {Tier.ON_DEMAND, Tier.SPOT}
    )
    await adapter.reserve(Order(f"broker-probe-{name}", taken, 1))
    await adapter.aclose()


SOLD_BY_THE_HOUR = [
    name for name, spec in SPECS.items() if Capability.RESERVE in spec.capabilities and name != "sfcompute"
]


@pytest.mark.parametrize("name", SOLD_BY_THE_HOUR)
async def test_what_is_held_is_compared_as_well(sandbox: str, name: str) -> None:
    await hold_one(sandbox, name)
    before = bought(sandbox)
    report = await probe(settings_of(name, sandbox), AT, hasty)
    assert not report.findings
    rows = {one.call: one.rows for one in report.compared}
    held = [declared for declared in SPECS[name].rows if declared.held]
    assert not held or any(rows.get(declared.call) for declared in held)
    assert bought(sandbox) == before


Answer = httpx.Response


async def altered(sandbox: str, name: str, alter: Alter) -> ProbeReport:
    """A probe of the sandbox, whose answers ``alter`` has in its hands on their way."""

    with relayed(alter):
        return await probe(settings_of(name, sandbox), AT, hasty)


def with_json(path: str, change: Callable[[Any], None]) -> Alter:
    """Alters the JSON answers of one path."""

    def alter(request: httpx.Request, answer: Answer) -> Answer:
        if not request.url.path.endswith(path):
            return answer
        document = json.loads(answer.content)
        change(document)
        return Answer(answer.status_code, json=document)

    return alter


def each(rows: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Any], None]:
    def of(document: Any) -> None:
        for row in document[rows]:
            change(row)

    return of


@dataclass(frozen=True)
class Fault:
    seller: str
    alter: Alter
    found: tuple[FindingKind, str]
    says: str
    holds: bool = False
    """Whether a lease is held, so that the list of own leases is not empty."""


def _types(change: Callable[[dict[str, Any]], None]) -> Alter:
    return with_json("/v1/instances/types", each("instance_types", change))


def _headers(**headers: str) -> Alter:
    return lambda request, answer: Answer(answer.status_code, content=answer.content, headers=headers)


def _gone(request: httpx.Request, answer: Answer) -> Answer:
    return Answer(410) if request.url.path.endswith("/v1/instances") else answer


def _in_plenty(answer: Any) -> None:
    for row in answer["data"]["gpuTypes"]:
        if row.get("lowestPrice"):
            row["lowestPrice"]["stockStatus"] = "Plenty"


FAULTS = {
    "a vanished field": Fault(
        "shadeform",
        _types(lambda row: row.pop("hourly_price")),
        (FindingKind.VANISHED, "hourly_price"),
        "is read, and no row has it",
    ),
    "a vanished list": Fault(
        "shadeform",
        with_json("/v1/instances/types", lambda answer: answer.update(types=answer.pop("instance_types"))),
        (FindingKind.UNREADABLE, ""),
        "instance_types is not a list",
    ),
    "a field of another type": Fault(
        "shadeform",
        _types(lambda row: row.update(hourly_price={"cents": row["hourly_price"]})),
        (FindingKind.OTHER_TYPE, "hourly_price"),
        "Decimal input should be",
    ),
    "a price that is null": Fault(
        "shadeform",
        _types(lambda row: row["configuration"].update(num_gpus=None)),
        (FindingKind.OTHER_TYPE, "configuration.num_gpus"),
        "Input should be a valid integer",
    ),
    "an unknown word of stock": Fault(
        "runpod",
        with_json("/graphql", _in_plenty),
        (FindingKind.UNKNOWN_WORD, "lowestPrice.stockStatus"),
        "'Plenty' is no word that the adapter knows",
    ),
    "an unknown state": Fault(
        "lambda",
        with_json("/v1/instances", lambda answer: answer["data"][0].update(status="hibernating")),
        (FindingKind.UNKNOWN_WORD, "data.status"),
        "'hibernating' is no word that the adapter knows",
        holds=True,
    ),
    "an end that is announced": Fault(
        "lambda",
        _headers(Sunset="Thu, 31 Dec 2026 23:59:59 GMT"),
        (FindingKind.RETIRES, ""),
        "sunset: Thu, 31 Dec 2026 23:59:59 GMT",
    ),
    "a version that is deprecated": Fault(
        "lambda",
        _headers(Deprecation="@1767225600"),
        (FindingKind.RETIRES, ""),
        "deprecation: @1767225600",
    ),
    "an endpoint that is gone": Fault(
        "lambda", _gone, (FindingKind.GONE, ""), "HTTP 410: the endpoint is retired"
    ),
    "an answer that is none": Fault(
        "lambda",
        lambda request, answer: Answer(200, text=f"<html>{KEY}</html>"),
        (FindingKind.UNREADABLE, ""),
        "not JSON",
    ),
    "a key that is refused": Fault(
        "lambda",
        lambda request, answer: Answer(401, json={"error": {"code": "invalid", "message": f"bad {KEY}"}}),
        (FindingKind.UNANSWERED, ""),
        "bad ***",
    ),
}


@pytest.mark.parametrize("fault", [pytest.param(fault, id=name) for name, fault in FAULTS.items()])
async def test_a_difference_is_found_and_told(sandbox: str, fault: Fault) -> None:
    if fault.holds:
        await hold_one(sandbox, fault.seller)
    before = bought(sandbox)
    report = await altered(sandbox, fault.seller, fault.alter)
    told = [finding for finding in report.findings if (finding.kind, finding.field) == fault.found]
    assert told
    assert all(fault.says in finding.says for finding in told)
    besides = {finding.kind for finding in report.findings} - {fault.found[0]}
    assert besides <= {FindingKind.UNREADABLE}
    assert KEY not in repr(report)
    assert bought(sandbox) == before


DRY = ("aws", "azure")
UNAUTHORIZED = (
    "<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>You are not authorized to do "
    "this.</Message></Error></Errors></Response>"
)


def is_dry(request: httpx.Request) -> bool:
    return b"DryRun=true" in request.content or request.url.path.endswith("/validate")


@pytest.mark.parametrize("name", DRY)
async def test_an_order_of_each_tier_is_run_dry_and_nothing_is_bought(sandbox: str, name: str) -> None:
    sent: list[httpx.Request] = []

    def noted(request: httpx.Request, answer: Answer) -> Answer:
        if is_dry(request):
            sent.append(request)
        return answer

    before = bought(sandbox)
    report = await altered(sandbox, name, noted)
    assert not report.findings
    calls = {one.call for one in report.compared}
    assert {"an order on demand, as a dry run", "an order spot, as a dry run"} <= calls
    assert len(sent) == 2
    assert bought(sandbox) == before


def test_those_that_run_dry_say_so() -> None:
    assert {name for name, spec in SPECS.items() if Capability.DRY_RUN in spec.capabilities} == set(DRY)


def _unauthorized(request: httpx.Request, answer: Answer) -> Answer:
    return Answer(403, text=UNAUTHORIZED) if is_dry(request) else answer


def _refused(request: httpx.Request, answer: Answer) -> Answer:
    inner = {"code": "InvalidParameter", "message": "The value of parameter imageReference is invalid."}
    error = {"code": "InvalidTemplateDeployment", "message": "not valid", "details": [inner]}
    return Answer(200, json={"error": error}) if is_dry(request) else answer


def _short(request: httpx.Request, answer: Answer) -> Answer:
    inner = {"code": "SkuNotAvailable", "message": "The requested size is not available in this region."}
    error = {"code": "InvalidTemplateDeployment", "message": "not valid", "details": [inner]}
    return Answer(400, json={"error": error}) if is_dry(request) else answer


def _taken(request: httpx.Request, answer: Answer) -> Answer:
    action = dict(parse_qsl(request.content.decode())).get("Action")
    return Answer(200, text=f"<{action}Response/>") if is_dry(request) else answer


@pytest.mark.parametrize(
    ("name", "alter", "kind", "says"),
    [
        ("aws", _unauthorized, FindingKind.ORDER_REFUSED, "UnauthorizedOperation"),
        ("aws", _taken, FindingKind.UNANSWERED, "with DryRun was answered like an order"),
        ("azure", _refused, FindingKind.ORDER_REFUSED, "InvalidParameter"),
        ("azure", _short, None, ""),
    ],
)
async def test_what_a_dry_run_met_with_is_told_unless_it_is_capacity(
    sandbox: str, name: str, alter: Alter, kind: FindingKind | None, says: str
) -> None:
    before = bought(sandbox)
    report = await altered(sandbox, name, alter)
    assert {one.kind for one in report.findings} == ({kind} if kind else set())
    assert all(says in one.says for one in report.findings)
    assert bought(sandbox) == before


async def test_a_dry_run_that_a_seller_takes_for_an_order_is_found_out(sandbox: str) -> None:
    """EC2 without its word for a dry run: the order is made, and the list of what is held shows it."""
    made: list[str] = []

    def unheeded(request: httpx.Request) -> httpx.Request:
        content = request.content.replace(b"&DryRun=true", b"")
        made.extend([request.url.path] * (content != request.content))
        return httpx.Request(request.method, request.url, headers=request.headers, content=content)

    with relayed(lambda request, answer: answer, unheeded):
        report = await probe(settings_of("aws", sandbox), AT, hasty)
    assert len(made) == 2
    held = [one for one in report.findings if one.kind is FindingKind.BOUGHT]
    rows = [row for row in control(sandbox, "ledger")["instances"] if row["tag"] == "broker-probe"]
    assert sorted(one.says.split()[0] for one in held) == sorted(row["instance_id"] for row in rows)
    assert len(rows) == 2

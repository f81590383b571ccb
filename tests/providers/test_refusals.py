"""What sellers answer when they refuse an order, and what is made of it.

The answers are such as people and the sellers' own documents and clients have published: DigitalOcean, Vultr,
RunPod, Scaleway and OCI from issue threads, Lambda, Shadeform, AWS, Azure and GCP from their documents, Verda
from its command line's issues, Latitude and Crusoe from their clients. A refusal that nobody knows is no
capacity, and an order that a seller broke on may have bought something.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    OrderRejected,
    OutcomeUnknown,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from providers.http import Operation, ProviderHttp, Reply
from providers.registry import SPECS
from providers.spec import Capability

SELLERS = tuple(name for name, spec in SPECS.items() if Capability.RESERVE in spec.capabilities)
HOMES = {
    "aws": "aws.errors",
    "azure": "azure.arm",
    "digitalocean": "digitalocean",
    "gcp": "gcp.compute",
    "hotaisle": "hotaisle",
    "lambda": "lambda_cloud",
    "shadeform": "shadeform",
    "together": "together",
}
"""Where ``classify`` is, of those that have no module ``adapter`` or have it elsewhere."""

AWS = "<Response><Errors><Error><Code>{}</Code><Message>{}</Message></Error></Errors></Response>"
ANSWERS: list[tuple[str, int, Any, type[ProviderError]]] = [
    (
        "aws",
        500,
        AWS.format(
            "InsufficientInstanceCapacity", "We currently do not have sufficient p5.48xlarge capacity"
        ),
        InsufficientCapacity,
    ),
    ("aws", 400, AWS.format("VcpuLimitExceeded", "You have requested more vCPU capacity"), QuotaExceeded),
    ("aws", 503, AWS.format("RequestLimitExceeded", "Request limit exceeded."), RateLimited),
    (
        "azure",
        409,
        {"error": {"code": "SkuNotAvailable", "message": "The requested VM size is currently not available"}},
        InsufficientCapacity,
    ),
    (
        "azure",
        409,
        {"error": {"code": "AllocationFailed", "message": "We do not have sufficient capacity"}},
        InsufficientCapacity,
    ),
    (
        "azure",
        409,
        {
            "error": {
                "code": "OperationNotAllowed",
                "message": "Operation could not be completed as it results in exceeding approved standard "
                "NDSv5Family Cores quota.",
            }
        },
        QuotaExceeded,
    ),
    (
        "cudo",
        429,
        {"code": 8, "message": "no available hosts for the requested machine type"},
        InsufficientCapacity,
    ),
    ("cudo", 400, {"code": 9, "message": "billing account has no payment method"}, QuotaExceeded),
    (
        "digitalocean",
        422,
        {"id": "unprocessable_entity", "message": "Size is not available in this region."},
        InsufficientCapacity,
    ),
    (
        "digitalocean",
        422,
        {
            "id": "unprocessable_entity",
            "message": "creating this/these droplet(s) will exceed your droplet limit",
        },
        QuotaExceeded,
    ),
    (
        "digitalocean",
        422,
        {"id": "unprocessable_entity", "message": "You specified invalid ssh key ids for Droplet creation."},
        OrderRejected,
    ),
    (
        "gcp",
        403,
        {
            "error": {
                "code": 403,
                "message": "Quota 'NVIDIA_H100_GPUS' exceeded.",
                "errors": [{"reason": "quotaExceeded"}],
            }
        },
        QuotaExceeded,
    ),
    (
        "lambda",
        400,
        {
            "error": {
                "code": "instance-operations/launch/insufficient-capacity",
                "message": "Not enough capacity to fulfill launch request.",
            }
        },
        InsufficientCapacity,
    ),
    (
        "lambda",
        400,
        {"error": {"code": "global/quota-exceeded", "message": "Quota exceeded."}},
        QuotaExceeded,
    ),
    (
        "latitude",
        422,
        {"errors": [{"code": "SERVERS_OUT_OF_STOCK", "status": "422", "title": "Servers out of stock"}]},
        InsufficientCapacity,
    ),
    (
        "latitude",
        422,
        {"errors": [{"code": "unprocessable_entity", "detail": "No stock availability"}]},
        InsufficientCapacity,
    ),
    ("oci", 500, {"code": "InternalError", "message": "Out of host capacity."}, InsufficientCapacity),
    (
        "oci",
        400,
        {"code": "LimitExceeded", "message": "The following service limits were exceeded"},
        QuotaExceeded,
    ),
    (
        "runpod",
        400,
        {
            "title": "Bad Request",
            "detail": "There are no longer any instances available with the requested specifications. "
            "Please refresh and try again.",
        },
        InsufficientCapacity,
    ),
    (
        "runpod",
        500,
        {
            "error": "create pod: This machine does not have the resources to deploy your pod. Please try a "
            "different machine"
        },
        InsufficientCapacity,
    ),
    (
        "runpod",
        500,
        {"error": "create pod: There are no instances currently available"},
        InsufficientCapacity,
    ),
    (
        "runpod",
        200,
        {"errors": [{"message": "Something went wrong. Please try again later or contact support."}]},
        OutcomeUnknown,
    ),
    (
        "scaleway",
        403,
        {"type": "quotas_exceeded", "message": "Quotas exceeded for this resource"},
        QuotaExceeded,
    ),
    (
        "scaleway",
        403,
        {"type": "invalid_request_error", "message": "Quota exceeded for this resource."},
        QuotaExceeded,
    ),
    ("scaleway", 412, {"type": "out_of_stock", "resource": "H100-1-80G"}, InsufficientCapacity),
    ("shadeform", 409, {"error_code": "OUT_OF_STOCK", "error": "out of stock"}, InsufficientCapacity),
    (
        "verda",
        503,
        {"code": "service_unavailable", "message": "Not enough resources to deploy 1H100.80S.32V"},
        InsufficientCapacity,
    ),
    ("verda", 503, {"code": "service_unavailable", "message": "Maintenance"}, OutcomeUnknown),
    (
        "verda",
        402,
        {"code": "insufficient_funds", "message": "Not enough resources on the balance"},
        QuotaExceeded,
    ),
    (
        "vultr",
        400,
        {"error": "plan is not available in the selected region", "status": 400},
        InsufficientCapacity,
    ),
    (
        "vultr",
        400,
        {"error": "Please open a support request for access to this product", "status": 400},
        QuotaExceeded,
    ),
]


def refusal(name: str, status: int, body: Any, operation: Operation = Operation.ORDER) -> ProviderError:
    """What the seller's client raises for an answer to an order, which is never sent twice."""
    module = importlib.import_module(f"providers.{HOMES.get(name, f'{name}.adapter')}")
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    http = ProviderHttp(name, "http://127.0.0.1:1", module.classify)
    return http.error(Reply(name, operation, status, {}, content, repeatable=False))


@pytest.mark.parametrize(
    ("name", "status", "body", "expected"),
    [pytest.param(*row, id=f"{row[0]}-{i}") for i, row in enumerate(ANSWERS)],
)
def test_a_published_refusal_is_understood(
    name: str, status: int, body: Any, expected: type[ProviderError]
) -> None:
    assert type(refusal(name, status, body)) is expected


def forms(name: str, words: str) -> list[Any]:
    """Bodies in which ``name`` might say ``words``: every form of an error that some seller has."""
    return [
        {"error": words, "status": 400},
        {"error": {"code": "odd", "message": words}},
        {"errors": [{"code": "odd", "detail": words, "details": words, "message": words}]},
        {"detail": words, "title": "Error"},
        {"code": "odd", "message": words},
        {"status": False, "message": words, "error_reason": "odd"},
        words,
    ]


@pytest.mark.parametrize("name", SELLERS)
@pytest.mark.parametrize("status", [400, 422])
def test_words_that_nobody_knows_bought_nothing_and_are_no_lack_of_capacity(name: str, status: int) -> None:
    for body in forms(name, "The wombat declined."):
        assert type(refusal(name, status, body)) is OrderRejected, body


@pytest.mark.parametrize("name", SELLERS)
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_seller_that_breaks_on_an_order_may_have_bought(name: str, status: int) -> None:
    for body in forms(name, "The wombat fell over."):
        assert type(refusal(name, status, body)) is OutcomeUnknown, body


@pytest.mark.parametrize("name", SELLERS)
def test_payment_and_pace_are_understood_without_words(name: str) -> None:
    assert type(refusal(name, 402, "")) is QuotaExceeded
    assert type(refusal(name, 429, "")) is RateLimited
    assert type(refusal(name, 401, "")) in {CredentialsRejected, QuotaExceeded}


def test_a_fault_on_a_call_without_effect_is_no_open_outcome() -> None:
    body = {"code": "service_unavailable", "message": "Not enough resources to list"}
    assert isinstance(refusal("verda", 503, body, Operation.OFFERS), ProviderUnavailable | OutcomeUnknown)

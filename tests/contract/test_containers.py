"""Sellers of containers start the image that an order names, with its command and its variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import respx

from broker.domain.market.offer import Tier
from broker.domain.workloads.startup import Container
from providers.registry import SPECS
from providers.spec import ProviderAdapter, settings_from_environment
from tests.contract.journey import HOST, KEYS, LATER_S, START, Market, order_of
from tests.contract.seller_api import description_of, heard
from tests.fakes.market_control import hasty

IMAGE, COMMAND = "vllm/vllm-openai:v0.33.0", "Qwen/Qwen3-32B --port 8000"
CONTAINER = Container(IMAGE, COMMAND, {"HF_TOKEN": "swordfish-4711"})
KEYED = {"HF_TOKEN": "swordfish-4711", "PUBLIC_KEY": "\n".join(key.line for key in KEYS)}

SENT: Mapping[tuple[str, Tier], Mapping[str, Any]] = {
    ("runpod", Tier.ON_DEMAND): {
        "image": IMAGE,
        "args": COMMAND,
        "env": KEYED,
        "ports": ["22/tcp", "8000/tcp"],
    },
    ("runpod", Tier.SPOT): {
        "imageName": IMAGE,
        "dockerArgs": COMMAND,
        "ports": "22/tcp,8000/tcp",
        "env": [{"key": name, "value": value} for name, value in KEYED.items()],
    },
    ("vast", Tier.ON_DEMAND): {
        "image": IMAGE,
        "runtype": "args",
        "args_str": COMMAND,
        "env": {"HF_TOKEN": "swordfish-4711", "-p 8000:8000": "1"},
        "onstart": None,
    },
}
"""Of the body of an order, by seller and tier; None: it is not there."""
DIFFERS: Mapping[str, frozenset[str]] = {
    "runpod": frozenset(),
    "vast": frozenset({"env", "extra_env", "ports"}),
}
"""Fields that the seller's clients and pages write otherwise than its description says."""


@pytest.mark.parametrize(("name", "tier"), SENT)
async def test_an_order_names_its_image_in_the_seller_s_own_fields(name: str, tier: Tier) -> None:
    market = Market()
    settings = settings_from_environment(SPECS[name], {}, HOST)
    assert settings is not None
    adapter = SPECS[name].build(settings, hasty)
    assert isinstance(adapter, ProviderAdapter)
    try:
        with respx.mock(assert_all_called=False) as router:
            router.route(host="127.0.0.1").mock(side_effect=market.answer)
            offer = next(one for one in (await adapter.list_offers(START)).offers if one.tier is tier)
            market.heard.clear()
            order = replace(
                order_of("broker-c-0", offer),
                keys=KEYS,
                script="#!/bin/sh\n",
                container=CONTAINER,
                server_port=8000,
            )
            assert "swordfish" not in repr(order)
            lease = await adapter.reserve(order)
            await market.advance(LATER_S)
            held = await adapter.find_lease(lease.reference, lease.region)
    finally:
        await adapter.aclose()
        market.close()
    sent = json.loads(market.heard[0][0].content)
    body = sent["variables"]["input"] if "variables" in sent else sent
    assert {field: body.get(field) for field in SENT[name, tier]} == SENT[name, tier]
    (access,) = held.machines
    assert (access.server_port, access.is_entered) == (8000, name == "runpod")
    assert ("alone" in held.access_note) == (name == "vast")

    description = description_of(name)
    for request, answer in market.heard:
        one = heard(name, request, answer)
        if description.call_for(one.method, one.path) is not None:
            strange = [
                problem
                for problem in description.problems(one)
                if not any(f".{field}" in problem for field in DIFFERS[name])
            ]
            assert set(strange) <= {
                told.partition(" ")[2].partition(" ")[2] for told in description.differs
            }, strange

"""The tools of ``broker mcp``, called by the SDK's own client over standard input and output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.client import ConnectMode
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from api.client import BrokerClient
from tests.client.conftest import Served
from tests.client.test_client import SERVICE
from tests.e2e.processes import BROKER

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("served")]

TOOLS = {
    "search_offers",
    "estimate",
    "plan",
    "get_plan",
    "compare",
    "reserve",
    "list_reservations",
    "release",
    "spend",
}
DOCUMENT = json.dumps(SERVICE)


@asynccontextmanager
async def assistant(
    served: Served, answer: ElicitResult | None = None, mode: ConnectMode = "auto", key: str = ""
) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client whose user, if it can ask one, always gives ``answer``; and what the user was asked."""
    asked: list[str] = []

    async def ask(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        assert answer is not None
        return answer

    environment = served.environment | ({"BROKER_KEY": key} if key else {})
    command = StdioServerParameters(command=str(BROKER), args=["mcp"], env=environment)
    async with Client(
        command, mode=mode, elicitation_callback=ask if answer is not None else None, read_timeout_seconds=240
    ) as client:
        yield client, asked


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured answer of a tool; AssertionError with its words where it is an error."""
    done = await client.call_tool(tool, arguments)
    assert not done.is_error, done.content
    assert done.structured_content is not None
    return dict(done.structured_content)


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """The words of an error."""
    done = await client.call_tool(tool, arguments)
    assert done.is_error
    return " ".join(getattr(part, "text", "") for part in done.content)


def ledger(served: Served) -> list[dict[str, Any]]:
    """What the market sold and did not take back."""
    rows: list[dict[str, Any]] = httpx.get(f"{served.market_url}/_sandbox/ledger").json()["instances"]
    return [row for row in rows if row["released_at"] is None]


async def test_an_assistant_finds_plans_compares_and_reads_spend(served: Served) -> None:
    async with assistant(served) as (client, _):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == TOOLS
        assert all(tool.description and tool.output_schema for tool in tools.values())
        assert tools["reserve"].annotations is not None
        assert tools["reserve"].annotations.destructive_hint is True
        assert (
            "agreed" not in tools["reserve"].input_schema["properties"]
        )  # the user's answer, not the model's

        found = await call(client, "search_offers", gpu="H100-SXM-80GB", tier="on_demand", limit=3)
        assert (len(found["offers"]), found["more"]) == (3, True)
        prices = [float(one["usd_per_gpu_hour"]) for one in found["offers"]]
        assert prices == sorted(prices)

        quick = await call(client, "estimate", workloads=DOCUMENT)
        assert 0 < float(quick["cheapest_usd"]) <= float(quick["median_usd"])
        assert quick["workloads"][0]["gpus"][0]["gpu"] in quick["workloads"][0]["says"]
        first = await call(client, "plan", workloads=DOCUMENT, time_limit_s=3)
        assert first["placements"][0]["estimate"]["ttft_p95_ms"] <= 2000
        made = await call(client, "plan", workloads=DOCUMENT, time_limit_s=3)
        assert made["plan_id"] != first["plan_id"]
        assert await call(client, "get_plan", plan_id=made["plan_id"]) == made
        compared = await call(
            client, "compare", first_plan_id=first["plan_id"], second_plan_id=made["plan_id"]
        )
        difference = float(made["cost_usd"]) - float(first["cost_usd"])
        assert float(compared["comparison"]["plans"][0]["difference_usd"]) == pytest.approx(
            difference, abs=0.001
        )
        assert float((await call(client, "spend", group_by="provider"))["total_usd"]) >= 0

        wrong = await refusal(client, "plan", workloads=DOCUMENT.replace("Llama-3.1-8B", "Lama-3.1-8B"))
        assert "/workloads/0/model" in wrong
        assert "not found" in await refusal(client, "get_plan", plan_id="plan-of-nobody")


async def test_without_a_user_to_ask_only_the_second_call_buys(served: Served) -> None:
    async with assistant(served) as (client, _):
        made = await call(client, "plan", workloads=DOCUMENT, time_limit_s=3)
        before = ledger(served)
        first = await call(client, "reserve", plan_id=made["plan_id"])
        assert (first["reserved"], first["reservations"]) == (False, [])
        assert first["cost_usd"] == made["cost_usd"]
        assert made["placements"][0]["provider"] in first["would_buy"][0]

        other = await call(client, "plan", workloads=DOCUMENT, time_limit_s=3)
        for plan_id, given in ((made["plan_id"], "0" * 20), (other["plan_id"], first["confirmation"])):
            told = await refusal(client, "reserve", plan_id=plan_id, confirmation=given)
            assert "not that of this plan" in told
        assert ledger(served) == before

        bought = await call(client, "reserve", plan_id=made["plan_id"], confirmation=first["confirmation"])
        assert bought["reserved"] is True
        ids = {row["reservation_id"] for row in bought["reservations"]}
        again = await call(client, "reserve", plan_id=made["plan_id"], confirmation=first["confirmation"])
        assert {row["reservation_id"] for row in again["reservations"]} == ids
        listed = await call(client, "list_reservations", plan_id=made["plan_id"])
        assert {row["reservation_id"] for row in listed["result"]} == ids
        given_back = await call(client, "release", plan_id=made["plan_id"])
        assert {row["reservation_id"] for row in given_back["result"]} == ids
        assert "one of both" in await refusal(client, "release")


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.slow)])
async def test_a_user_who_agrees_is_asked_once_and_one_who_does_not_buys_nothing(
    served: Served, mode: ConnectMode
) -> None:
    """By the protocol of 2026, where the call is repeated with the answer, and by the one before it."""
    with BrokerClient(served.url, served.key) as broker:
        plan_ids = [broker.plan(SERVICE, time_limit_s=2).plan_id for _ in range(2)]
    for answer in (ElicitResult(action="decline"), ElicitResult(action="accept", content={"reserve": False})):
        async with assistant(served, answer, mode) as (client, asked):
            order = await call(client, "reserve", plan_id=plan_ids[0])
        assert (order["reserved"], len(asked)) == (False, 1)
    async with assistant(served, ElicitResult(action="accept", content={"reserve": True}), mode) as (
        client,
        asked,
    ):
        order = await call(client, "reserve", plan_id=plan_ids[1])
        assert order["reserved"] is True
        (question,) = asked
        assert question.startswith(f"Reserve plan {plan_ids[1]} for ${float(order['cost_usd']):,.2f}?")
        assert all(line in question for line in order["would_buy"])
        await call(client, "release", plan_id=plan_ids[1])
    with BrokerClient(served.url, served.key) as broker:
        assert not list(broker.list_reservations(plan_ids[0]))


async def test_a_key_that_may_only_read_is_told_so(served: Served) -> None:
    with BrokerClient(served.url, served.key) as broker:
        body = {"name": "reader", "team": "research", "scopes": ["plans:read"]}
        secret = broker.create_key(body, "reader").secret
        assert secret is not None
        plan_id = broker.plan(SERVICE, time_limit_s=2).plan_id
    async with assistant(served, key=secret) as (client, _):
        first = await call(client, "reserve", plan_id=plan_id)
        told = await refusal(client, "reserve", plan_id=plan_id, confirmation=first["confirmation"])
    assert "reservations:write" in told


def test_without_the_sdk_the_command_names_the_extra(tmp_path: Path, served: Served) -> None:
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError(\"No module named 'mcp'\", name='mcp')")
    done = subprocess.run(
        [sys.executable, "-c", "from api.cli.main import main; main()", "mcp"],
        env=served.environment | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert "gpu-capacity-broker[mcp]" in done.stderr

"""The published clients against a running broker: both say the same, and neither brings the server along."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from markdown_it import MarkdownIt

from api.client import AsyncBrokerClient, BrokerClient, MadePlan, PlanFailed, ServerTimedOut
from api.client.answers import made_or_waiting
from api.client.notebook import plan_markdown
from api.schemas.plans.plan_record import UnmadePlanForm
from broker.domain.basics.errors import InputError, NotAuthenticated, NotFound
from broker.domain.planning.plan import Obstacle, Unplaced
from broker.domain.planning.workload import WorkloadKind
from tests.client.conftest import Served
from tests.docs.fences import ROOT, fences_of
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("served")]

SERVICE: dict[str, Any] = {
    "team": "research",
    "horizon": {"start": "now", "days": 2},
    "policy": {"tiers": ["on_demand"]},
    "workloads": [
        {
            "name": "chat-8b",
            "kind": "serving",
            "model": "Llama-3.1-8B",
            "traffic": {"peak_requests_per_s": 2, "input_tokens": 1000, "output_tokens": 200},
            "slo": {"ttft_p95_ms": 2000, "itl_p95_ms": 100},
        }
    ],
}
HEAVY = (
    "fastapi",
    "starlette",
    "uvicorn",
    "sqlalchemy",
    "apscheduler",
    "ortools",
    "numpy",
    "numba",
    "optimizer",
)


def test_importing_the_client_loads_no_server_no_solver_and_no_arrays() -> None:
    script = "import sys, json, api.client; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert "httpx" in loaded
    assert not loaded & set(HEAVY)


def published(client: type) -> dict[str, list[tuple[str, Any, Any]]]:
    """Public methods with their parameters: name, default and type."""
    return {
        name: [(p.name, p.default, p.annotation) for p in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(client, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_calls() -> None:
    sync, asynchronous = published(BrokerClient), published(AsyncBrokerClient)
    assert {"plan", "reserve_plan", "find_spend", "list_offers", "create_webhook"} <= set(asynchronous)
    del sync["download"]
    assert asynchronous == sync
    assert inspect.signature(BrokerClient.find_offer).return_annotation == "Offer"
    assert inspect.signature(BrokerClient.list_offers).return_annotation == "Iterator[Offer]"


def test_from_a_key_to_a_plan_and_back(served: Served) -> None:
    with BrokerClient(served.url, served.key) as broker:
        offers = list(broker.list_offers(gpu="H100-SXM-80GB", tier="on_demand"))
        prices = [one.price_usd_per_node_hour / one.sku.gpus_per_node for one in offers]
        assert prices == sorted(prices)
        assert broker.find_offer(offers[0].offer_id).offer_id == offers[0].offer_id
        quick = broker.estimate(SERVICE)
        assert quick.workloads[0].gpus[0].gpu in quick.workloads[0].says
        made = broker.plan(SERVICE)
        assert quick.cheapest_usd <= made.plan.cost_usd * 2
        assert made.document["workloads"]["team"] == "research"
        assert [one.plan_id for one in broker.list_plans()][:1] == [made.plan_id]
        held = broker.reserve_plan(made.plan_id)
        assert {one.plan_id for one in held} == {made.plan_id}
        assert {one.reservation_id for one in broker.list_reservations(made.plan_id)} == {
            one.reservation_id for one in held
        }
        for one in held:
            broker.release(one.reservation_id)
        assert broker.find_spend(group_by="workload").currency == "USD"


async def test_the_asynchronous_client_says_the_same(served: Served) -> None:
    async with AsyncBrokerClient(served.url, served.key) as broker:
        asked = await broker.ask_for_plan(json.dumps(SERVICE))
        made = await broker.wait_for_plan(asked.plan_id)
        with BrokerClient(served.url, served.key) as other:
            assert other.find_plan(made.plan_id) == made
            listed = [one.offer_id for one in other.list_offers(provider="lambda")]
        assert [one.offer_id async for one in broker.list_offers(provider="lambda")] == listed
        assert (await broker.estimate(SERVICE)).workloads[0].workload == "chat-8b"
        compared = await broker.compare_plans([made.plan_id, made.plan_id])
        assert [one.difference_usd for one in compared.plans] == [0]
        assert made.plan_id in [one.plan_id async for one in broker.list_plans()]
        spend = await broker.find_spend(group_by="provider")
        assert spend.total_usd == sum(item.row.usd for item in spend.items)


def test_errors_come_by_their_meaning(served: Served) -> None:
    with BrokerClient(served.url, served.key) as broker:
        with pytest.raises(NotFound):
            broker.find_plan("plan-../keys")
        with pytest.raises(InputError, match="/workloads/0/model"):
            broker.plan({**SERVICE, "workloads": [{**SERVICE["workloads"][0], "model": "Lama-3.1-8B"}]})
        with pytest.raises(ServerTimedOut, match="not made after 0 s"):
            broker.plan(SERVICE, timeout_s=0)
    with BrokerClient(served.url, "broker_live_wrong") as broker, pytest.raises(NotAuthenticated):
        broker.find_spend()


async def test_what_is_no_broker_is_said_with_its_address(served: Served) -> None:
    def html(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text="<html>")

    with (
        BrokerClient("http://elsewhere", "k", transport=httpx.MockTransport(html)) as broker,
        pytest.raises(InputError, match="'http://elsewhere' that answers '<html>'"),
    ):
        broker.find_spend()
    async with AsyncBrokerClient("http://127.0.0.1:1", "k") as nobody:
        with pytest.raises(InputError, match="start one with `broker up`"):
            await nobody.find_spend()


def test_a_plan_that_failed_is_an_error_with_its_reason() -> None:
    body = {"plan_id": "plan-1", "team": "t", "created_at": "2026-11-23T08:00:00Z", "standing": None}
    said = dict.fromkeys(("approval_reason", "approved_by", "approved_at", "approval", "supersedes"))
    failed = UnmadePlanForm.model_validate(
        {**body, **said, "status": "failed", "state": "failed", "problem": "it needs 9 GiB",
         "workloads": {}, "needs_approval": False, "intended": False, "decisions": []}
    )  # fmt: skip
    with pytest.raises(PlanFailed, match="plan-1 failed: it needs 9 GiB"):
        made_or_waiting(failed)


def rendered(text: str) -> str:
    return str(MarkdownIt("commonmark").enable("table").render(text))


def test_a_notebook_shows_a_plan_with_its_bars_and_tables(served: Served) -> None:
    with BrokerClient(served.url, served.key) as broker:
        made = broker.plan(SERVICE)
    assert isinstance(made, MadePlan)
    html = rendered(made._repr_markdown_())
    placed, *_ = re.findall(r"<tbody>\n(.*?)</tbody>", html, flags=re.DOTALL)
    assert placed.count("<tr>") == len(made.plan.placements)
    assert f"<strong>${made.plan.cost_usd:,.2f}</strong>" in html
    assert "█" in html


def test_names_in_a_notebook_are_text() -> None:
    segments = [a_segment(0, 10, 2), a_segment(10, 400, 4)]
    placement = a_placement(an_offer("a"), segments, "<script>a|b</script>", WorkloadKind.SERVING)
    left_out = (Unplaced("b<i>", Obstacle.MEMORY, "use <more> [GPUs](x)"),)
    html = rendered(plan_markdown(replace(a_plan(placement), unplaced=left_out)))
    assert "<script" not in html
    assert "<i>" not in html
    assert "<a" not in html
    rows = re.findall(r"<tr>\n(.*?)</tr>", html, flags=re.DOTALL)
    assert [len(re.findall(r"<t[hd]", row)) for row in rows] == [5, 5, 3, 3]
    assert "2 to 4 × 8 H100-SXM-80GB" in html
    assert "▄" in html


EXAMPLES = [
    (page, fence.text)
    for page in (ROOT / "README.md", ROOT / "docs" / "guides" / "python.md")
    for fence in fences_of(page)
    if fence.language == "python"
]


@pytest.mark.parametrize(
    ("page", "text"), EXAMPLES, ids=[f"{p.name}-{i}" for i, (p, _) in enumerate(EXAMPLES)]
)
def test_the_programs_of_the_pages_run(served: Served, page: Path, text: str, tmp_path: Path) -> None:
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=tmp_path,
        env=served.environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{page.name}:\n{text}\n{done.stderr[-3000:]}"

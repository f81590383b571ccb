"""First estimates over HTTP: checked, told as money in strings, stored nowhere, and bounded."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from threading import Event
from typing import Any

from broker.domain.basics.account import Scope
from broker.domain.planning.cost_estimate import MOST_ESTIMATED, CostEstimate
from broker.services.planning.estimating import MOST_WAITING, EstimatingService
from tests.api.house import DOCUMENT, Home
from tests.fakes.clock import NOON

SERVICE = {
    "name": "chat",
    "kind": "serving",
    "model": "Llama-3.1-8B",
    "traffic": {"peak_requests_per_s": 3, "input_tokens": 1000, "output_tokens": 200},
    "slo": {"ttft_p95_ms": 2000, "itl_p95_ms": 100},
}


async def test_each_workload_is_estimated_alone_and_nothing_is_stored(home: Home) -> None:
    team = await home.team("research")
    hosts = {"hosts": ["datacenter", "community"]}
    document = {**DOCUMENT, "policy": hosts, "workloads": [*DOCUMENT["workloads"], SERVICE]}
    answer = await team.post("/v1/estimates", json=document)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    run, service = found["workloads"]
    assert (run["workload"], run["kind"], service["workload"]) == ("tune-8b", "training", "chat")
    assert Decimal(found["cheapest_usd"]) == sum(Decimal(one["cheapest_usd"]) for one in (run, service))
    (kind,) = run["gpus"]
    assert kind["gpu"] == "H100-SXM-80GB"
    assert kind["gpus_least"] % 8 == 0
    assert kind["hours_least"] > 0
    assert kind["replicas_least"] is None
    assert run["says"].startswith(f"{kind['gpus_least']}")
    assert isinstance(run["median_usd"], str)
    assert service["gpus"][0]["replicas_least"] >= 1
    assert (await team.get("/v1/plans")).json()["items"] == []


async def test_all_errors_of_a_document_come_in_one_round(home: Home) -> None:
    team = await home.team("research")
    wrong = {**DOCUMENT, "workloads": [{**DOCUMENT["workloads"][0], "model": "Lama", "deadlin": "+2d"}]}
    answer = await team.post("/v1/estimates", json=wrong)
    assert answer.status_code == 422
    pointers = {one["pointer"] for one in answer.json()["errors"]}
    assert {"/workloads/0/model", "/workloads/0/deadlin"} <= pointers


async def test_a_key_that_only_reads_may_ask(home: Home) -> None:
    reader = await home.team("research", {Scope.PLANS_READ})
    assert (await reader.post("/v1/estimates", json=DOCUMENT)).status_code == 200
    finance = await home.team("research", {Scope.SPEND_READ})
    assert (await finance.post("/v1/estimates", json=DOCUMENT)).status_code == 403


async def test_more_workloads_than_one_estimate_looks_at_are_refused(home: Home) -> None:
    rows = [{**DOCUMENT["workloads"][0], "name": f"tune-{n}"} for n in range(MOST_ESTIMATED + 1)]
    answer = await home.client().post("/v1/estimates", json={**DOCUMENT, "workloads": rows})
    assert answer.status_code == 422
    assert "at most 20 for an estimate" in answer.text


async def test_who_comes_when_many_are_under_way_is_asked_to_wait(home: Home) -> None:
    going, begun = Event(), Event()

    def held(*_: Any) -> CostEstimate:
        begun.set()
        going.wait(60)
        return CostEstimate(NOON, ())

    product = home.product
    product.estimating = EstimatingService(
        product.store.unit_of_work,
        held,
        product.estimator,
        product.clock,
        home.house.rules.offers,
        lambda *_: None,  # type: ignore[arg-type]
        lambda *_: None,  # type: ignore[arg-type]
        lambda *_: (),
    )
    client = home.client()
    tasks = [asyncio.create_task(client.post("/v1/estimates", json=DOCUMENT)) for _ in range(MOST_WAITING)]
    try:
        while not begun.is_set() or product.estimating.under_way < MOST_WAITING:
            await asyncio.sleep(0.01)
        refused = await client.post("/v1/estimates", json=DOCUMENT)
    finally:
        going.set()
    assert (refused.status_code, refused.json()["code"]) == (429, "too-many-estimates")
    assert refused.headers["Retry-After"] == "1"
    assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * MOST_WAITING
    assert product.estimating.under_way == 0


async def test_a_source_becomes_a_workload_and_says_what_it_leaves_out(home: Home) -> None:
    reader = await home.team("research", {Scope.PLANS_READ})
    line = {"text": "vllm serve Qwen/Qwen3-32B-FP8 --port 80"}
    answer = await reader.post("/v1/starting-points", json=line)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["workload"]["model"], found["workload"]["precisions"]) == ("Qwen3-32B", ["fp8"])
    assert found["left_out"] == [
        {"what": "--port", "why": "they set up the server and change nothing that is planned"}
    ]
    assert "Requests per second at the peak" in found["missing"]
    other = await reader.post("/v1/starting-points", json={**line, "kind": "training"})
    assert (other.status_code, other.json()["errors"][0]["pointer"]) == (422, "/kind")
    lora = {"text": "torchrun --nproc_per_node 8 train.py --adapter ia3"}
    assert "--adapter ia3" in (await reader.post("/v1/starting-points", json=lora)).text

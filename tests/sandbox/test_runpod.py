from typing import Any

from tests.sandbox.conftest import Bench

H100 = "NVIDIA H100 80GB HBM3"
CATALOG = "/runpod/v2/catalog/gpus?include=AVAILABILITY&product=POD&count=8"


async def graphql(bench: Bench, query: str, **variables: Any) -> Any:
    body = {"query": query, "variables": variables}
    return await bench.json("POST", "/runpod/graphql", body)


def pod(**more: Any) -> dict[str, Any]:
    return {"name": "broker-1", "image": "img", "gpu": {"id": H100, "count": 8}, "cloud": "SECURE"} | more


async def test_catalogue_prices_are_per_gpu_and_places_are_left_out_without_stock(bench: Bench) -> None:
    rows = {row["id"]: row for row in (await bench.json("GET", CATALOG))["gpus"]}
    assert rows[H100]["price"] == {"secure": 3.29, "community": 2.69}
    assert rows["AMD Instinct MI300X OAM"]["availability"] == "NONE"
    assert "dataCenters" not in rows["AMD Instinct MI300X OAM"]
    assert rows["NVIDIA A100 80GB PCIe"]["price"]["community"] == 0
    answer = await bench.call("GET", "/runpod/v2/catalog/gpus?include=AVAILABILITY")
    assert answer.status_code == 400
    assert "RateLimit" in answer.headers


async def test_a_pod_lives_and_its_gpus_come_back(bench: Bench) -> None:
    await bench.stock("runpod", H100, 8)
    made = await bench.call("POST", "/runpod/v2/pods", pod())
    assert (made.status_code, made.json()["status"]) == (201, "PROVISIONING")
    pod_id = made.json()["id"]
    await bench.advance(3600)
    assert (await bench.json("GET", f"/runpod/v2/pods/{pod_id}"))["status"] == "RUNNING"
    (entry,) = await bench.ledger(pod_id)
    assert entry["billed_usd"].startswith("26.33")  # 8 x 3.29 and 20 GB of disk for an hour and a second
    elsewhere = [await bench.call("POST", "/runpod/v2/pods", pod()) for _ in range(5)]
    refused = elsewhere[-1]
    assert (refused.status_code, refused.headers["content-type"]) == (400, "application/problem+json")
    assert "no longer any instances" in refused.json()["detail"]
    assert (await bench.call("DELETE", f"/runpod/v2/pods/{pod_id}")).status_code == 204
    assert (await bench.call("DELETE", f"/runpod/v2/pods/{pod_id}")).status_code == 404
    assert (await bench.call("POST", "/runpod/v2/pods", pod())).status_code == 201


async def test_graphql_catalogue_needs_no_key_and_takes_variables(bench: Bench) -> None:
    query = """
      query Gpus($count: Int!, $secure: Boolean = true) {
        gpuTypes { id, displayName memoryInGb
          cell: lowestPrice(input: {gpuCount: $count, secureCloud: $secure}) {
            minimumBidPrice uninterruptablePrice stockStatus availableGpuCounts } } }
    """
    body = {"query": query, "variables": {"count": 1}}
    answer = await bench.client.post("/runpod/graphql", json=body, headers={"Authorization": ""})
    rows = {row["id"]: row for row in answer.json()["data"]["gpuTypes"]}
    assert rows[H100]["cell"]["uninterruptablePrice"] == 3.29
    assert rows["AMD Instinct MI300X OAM"]["cell"]["stockStatus"] is None
    hidden = {"query": "mutation { podRentInterruptable(input: {}) { id } }"}
    refused = await bench.client.post("/runpod/graphql", json=hidden, headers={"Authorization": ""})
    assert refused.status_code == 401


async def test_graphql_spot_pod_and_errors_with_status_200(bench: Bench) -> None:
    rent = "mutation($input: In!) { podRentInterruptable(input: $input) { id machineId } }"
    wanted = {"gpuTypeId": H100, "gpuCount": 1, "cloudType": "SECURE", "imageName": "i", "name": "broker-s"}
    made = await graphql(bench, rent, input=wanted | {"bidPerGpu": 3.5})
    pod_id = made["data"]["podRentInterruptable"]["id"]
    (entry,) = await bench.ledger(pod_id)
    assert (entry["tier"], entry["tag"]) == ("spot", "broker-s")
    low = await graphql(bench, rent, input=wanted | {"bidPerGpu": 0.1})
    assert "bid" in low["errors"][0]["message"]
    assert (await bench.call("DELETE", f"/runpod/v2/pods/{pod_id}")).status_code == 204
    await bench.stock("runpod", H100, 0)
    none = await graphql(bench, rent, input=wanted | {"bidPerGpu": 3.5})
    assert "no longer any instances" in none["errors"][0]["message"]


async def test_graphql_syntax_errors_are_answered_not_raised(bench: Bench) -> None:
    for query in ("{ gpuTypes { nope } }", "{ gpuTypes", "", "{ a ^ }", "{ gpuTypes { ...F } }"):
        answer = await bench.call("POST", "/runpod/graphql", {"query": query})
        assert (answer.status_code, "errors" in answer.json()) == (400, True)

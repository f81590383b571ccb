from typing import Any

import httpx
import pytest

from providers.sandbox import Durations, create_sandbox
from providers.sandbox.market import recorded_prices
from tests.sandbox.conftest import START, Bench


async def offers(seed: int) -> list[bytes]:
    app = create_sandbox(seed, clock_start=START)
    headers = {"Authorization": "Bearer k"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://sandbox", headers=headers) as client:
        paths = ("/lambda/api/v1/instance-types", "/sfcompute/v0/zones", "/verda/v1/instance-types")
        found = [(await client.get(path)).content for path in paths]
    app.close()
    return found


async def test_the_same_seed_gives_the_same_market_and_another_a_different_one() -> None:
    first, again, other = await offers(3), await offers(3), await offers(4)
    assert first == again
    assert first != other


async def test_the_market_says_when_prices_were_recorded(bench: Bench) -> None:
    found = await bench.json("GET", "/_sandbox/market?provider=lambda")
    assert "recorded" in found["note"]
    cells = {(cell["sku"], cell["region"]): cell for cell in found["cells"]}
    assert cells["gpu_8x_h100_sxm5", "us-south-2"]["recorded_on"] == "2026-07"


def test_the_newest_recorded_row_wins() -> None:
    rows = recorded_prices("aws")
    assert len({(r.sku, r.region, r.zone, r.tier) for r in rows}) == len(rows)
    (p4d,) = [r for r in rows if (r.sku, r.region, r.tier) == ("p4d.24xlarge", "us-east-1", "on_demand")]
    assert p4d.recorded_on == "2026-07-20"


async def test_prices_change_by_factor_or_amount_and_factors_do_not_pile_up(bench: Bench) -> None:
    async def cents() -> Any:
        data = (await bench.json("GET", "/lambda/api/v1/instance-types"))["data"]
        return data["gpu_8x_h100_sxm5"]["instance_type"]["price_cents_per_hour"]

    wish: dict[str, Any] = {"provider": "lambda", "sku": "gpu_8x_h100_sxm5"}
    for _ in range(2):
        await bench.json("POST", "/_sandbox/market", wish | {"price_factor": 0.5})
        assert await cents() == 1596
    await bench.json("POST", "/_sandbox/market", wish | {"price_usd": "12.34"})
    assert await cents() == 1234
    changed = await bench.json("POST", "/_sandbox/market", wish | {"price_factor": 1})
    assert changed["cells"][0]["usd_per_unit_hour"] == "31.92"


async def test_a_node_of_gpus_that_are_priced_one_by_one(bench: Bench) -> None:
    for sku in ("8x NVIDIA H200", "NVIDIA H200 x8", "8x h200 sxm"):
        wish = {"provider": "runpod", "sku": sku, "tier": "on_demand", "price_usd": 24, "stock": 2}
        changed = await bench.json("POST", "/_sandbox/market", wish)
        assert {cell["usd_per_unit_hour"] for cell in changed["cells"]} == {"3"}
        assert {cell["free"] for cell in changed["cells"]} == {16}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("market", {"provider": "nope", "sku": "x", "stock": 1}, "provider"),
        ("market", {"provider": "lambda", "sku": "x", "stock": 1}, "sku"),
        ("market", {"provider": "lambda", "sku": "gpu_1x_a10", "region": "moon", "stock": 1}, "region"),
        ("market", {"provider": "lambda", "sku": "gpu_1x_a10", "tier": "spot", "stock": 1}, "tier"),
        ("market", {"provider": "lambda", "sku": "gpu_1x_a10", "stock": -1}, "stock"),
        (
            "market",
            {"provider": "lambda", "sku": "gpu_1x_a10", "price_usd": 1, "price_factor": 1},
            "price_usd",
        ),
        ("market", {"provider": "lambda", "sku": "gpu_1x_a10"}, "price_factor"),
        ("market", {"provider": "lambda", "sku": "gpu_1x_a10", "colour": 1}, "colour"),
        ("clock", {"advance_s": -1}, "advance_s"),
        ("clock", {}, "advance_s"),
        ("faults", {"provider": "lambda", "operation": "list", "kind": "rain"}, "kind"),
        ("faults", {"provider": "lambda", "operation": "fly", "kind": "slow"}, "operation"),
        ("faults", {"provider": "lambda", "operation": "get", "kind": "out_of_capacity"}, "operation"),
        ("faults", {"provider": "nope", "operation": "get", "kind": "slow"}, "provider"),
        ("faults", {"provider": "lambda", "operation": "get", "kind": "slow", "count": 0}, "count"),
    ],
)
async def test_a_bad_control_body_names_its_field(
    bench: Bench, path: str, body: dict[str, Any], field: str
) -> None:
    answer = await bench.call("POST", f"/_sandbox/{path}", body)
    assert answer.status_code == 422
    assert field in {problem["field"] for problem in answer.json()["problems"]}


async def test_bodies_that_are_not_json_and_unknown_paths(bench: Bench) -> None:
    answer = await bench.client.post("/_sandbox/clock", content=b"{")
    assert (answer.status_code, "JSON" in answer.text) == (422, True)
    for path in ("/_sandbox/nope", "/nope/v1", "/lambda/api/v1/nope", "/vast/x", "/verda/x", "/runpod/v2/x"):
        assert (await bench.call("GET", path)).status_code == 404
    for path in ("/verda/v1/instances", "/runpod/v2/pods", "/vast/api/v0/bundles/", "/sfcompute/v0/orders"):
        bad = await bench.client.post(path, content=b"{nope")
        assert bad.status_code in {400, 422}
        assert await bench.ledger() == []


async def test_calls_are_counted_by_provider_and_operation(bench: Bench) -> None:
    await bench.call("GET", "/lambda/api/v1/instance-types")
    await bench.call("GET", "/lambda/api/v1/instances")
    await bench.ec2("DescribeSpotPriceHistory")
    counts = (await bench.json("GET", "/_sandbox/requests"))["requests"]
    assert counts == {"aws": {"list": 1}, "lambda": {"get": 1, "list": 1}}


async def test_durations_can_be_set() -> None:
    app = create_sandbox(1, clock_start=START, durations=Durations(boot_s=0))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://s", headers={"Authorization": "Bearer k"}
    ) as client:
        body = {
            "region_name": "us-south-2",
            "instance_type_name": "gpu_8x_h100_sxm5",
            "ssh_key_names": ["k"],
        }
        made = await client.post("/lambda/api/v1/instance-operations/launch", json=body)
        (instance_id,) = made.json()["data"]["instance_ids"]
        row = (await client.get(f"/lambda/api/v1/instances/{instance_id}")).json()["data"]
        assert row["status"] == "active"
    app.close()

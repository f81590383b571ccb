from typing import Any

from tests.sandbox.conftest import Bench

API = "/vultr/v2"
VM, VM_REGION = "vcg-a100-12c-120g-80vram", "ewr"
METAL, METAL_REGION = "vbm-112c-2048gb-8-h100-gpu", "sea"


def order(plan: str = VM, region: str = VM_REGION, **more: Any) -> dict[str, Any]:
    return {"plan": plan, "region": region, "os_id": 2284, "label": "broker-1", "tags": ["t"]} | more


async def plans(bench: Bench, path: str = "plans?type=all") -> dict[str, Any]:
    key = path.partition("?")[0].replace("-", "_")
    found = await bench.json("GET", f"{API}/{path}", headers={"Authorization": ""})
    return {row["id"]: row for row in found[key]}


async def test_plans_need_no_key_and_say_total_memory_and_odd_counts(bench: Bench) -> None:
    rows = await plans(bench)
    assert (rows[VM]["hourly_cost"], rows[VM]["ram"], rows[VM]["gpu_vram_gb"]) == (2.397, 122880, 80)
    assert rows["vcg-a40-6c-30g-12vram"]["gpu_count"] == "1/4"
    assert "gpu_type" not in rows["vcg-a40-24c-120g-48vram"]
    assert rows["vcg-a40-24c-120g-48vram"]["type"] == "vdm"
    assert rows["vcg-l40s-16c-180g-48vram"]["location_cost"] == {"sgp": {"hourly_cost": 2.005}}
    assert rows["vcg-mi325x-252c-2872g-1536vram"]["locations"] == []
    metal = await plans(bench, "plans-metal")
    b200 = metal["vbm-256c-3072gb-8-b200-gpu"]
    assert (b200["deploy_ondemand"], b200["deploy_preemptible"]) == (False, True)
    assert (b200["hourly_cost"], b200["hourly_cost_preemptible"]) == (68, 25.6)
    assert (await bench.client.get(f"{API}/instances", headers={"Authorization": ""})).json() == {
        "error": "Invalid API token.",
        "status": 401,
    }


async def test_lists_page_by_cursor(bench: Bench) -> None:
    whole = await bench.json("GET", f"{API}/plans?type=all&per_page=500")
    seen: list[str] = []
    cursor = ""
    while True:
        page = await bench.json("GET", f"{API}/plans?type=all&per_page=3&cursor={cursor}")
        seen += [row["id"] for row in page["plans"]]
        cursor = page["meta"]["links"]["next"]
        if not cursor:
            break
    assert seen == [row["id"] for row in whole["plans"]]
    assert page["meta"]["total"] == len(seen)
    assert (await bench.call("GET", f"{API}/plans?cursor=nonsense!")).status_code == 400


async def test_a_machine_is_locked_then_boots_and_is_deleted_once(bench: Bench) -> None:
    await bench.stock("vultr", VM, 1, VM_REGION)
    answer = await bench.call("POST", f"{API}/instances", order())
    assert answer.status_code == 202
    made = answer.json()["instance"]
    path = f"{API}/instances/{made['id']}"
    assert (made["status"], made["main_ip"]) == ("pending", "0.0.0.0")
    early = await bench.call("DELETE", path)
    assert (early.status_code, early.json()["error"][-9:]) == (500, "ly locked")
    assert VM_REGION not in (await plans(bench))[VM]["locations"]
    full = await bench.call("POST", f"{API}/instances", order())
    assert full.json() == {"error": "plan is not available in the selected region", "status": 400}
    await bench.advance(3)
    assert (await bench.json("GET", path))["instance"]["server_status"] == "ok"
    assert (await bench.call("DELETE", path)).status_code == 204
    assert "already pending destruction" in (await bench.call("DELETE", path)).text
    await bench.advance(2)
    assert (await bench.call("DELETE", path)).status_code == 404
    (entry,) = await bench.ledger(made["id"])
    assert (entry["tag"], entry["billed_usd"]) == ("broker-1", "2.397000")  # an hour begun


async def test_bare_metal_has_paths_of_its_own(bench: Bench) -> None:
    refused = await bench.call("POST", f"{API}/instances", order(METAL, METAL_REGION))
    assert refused.json()["error"] == "Invalid plan chosen."
    await bench.stock("vultr", METAL, 1, METAL_REGION)
    made = (await bench.json("POST", f"{API}/bare-metals", order(METAL, METAL_REGION)))["bare_metal"]
    assert "power_status" not in made
    assert (await bench.call("GET", f"{API}/instances/{made['id']}")).status_code == 404
    listed = await bench.json("GET", f"{API}/bare-metals?label=broker-1")
    assert [row["id"] for row in listed["bare_metals"]] == [made["id"]]


async def test_refused_orders_say_why(bench: Bench) -> None:
    for body, said in (
        (order(region="moon"), "Invalid location chosen."),
        (order(plan="vcg-none"), "Invalid plan chosen."),
        (order(os_id=None), "Must supply one of"),
    ):
        answer = await bench.call("POST", f"{API}/instances", body)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(said)

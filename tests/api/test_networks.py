"""What a seller's machines need before they can be reached: made over HTTP, and named by later orders."""

from __future__ import annotations

from typing import Any

import pytest

from broker.domain.basics.access import EVERY_TEAM
from broker.services.holding.networks import NetworksService
from tests.api.house import Home

OFFICE = {"sources": ["203.0.113.0/24"]}
SETUP = "/v1/providers/fake/setup"


def parts(body: dict[str, Any]) -> list[tuple[str, str, bool]]:
    return [(part["region"], part["kind"], part["made"]) for part in body["parts"]]


async def test_a_dry_run_makes_nothing_and_a_repetition_makes_it_once(home: Home) -> None:
    admin, network = home.client(), home.house.network
    planned = (await admin.post(SETUP, json={**OFFICE, "dry_run": True})).json()
    assert network.made == []
    assert [part["reference"] for part in planned["parts"]] == [None] * 4
    assert planned["address_usd_per_node_hour"] == "0.005"
    made = (await admin.post(SETUP, json=OFFICE)).json()
    assert parts(made) == [(r, k, True) for r in ("east", "west") for k in ("network", "rules")]
    again = (await admin.post(SETUP, json=OFFICE)).json()
    assert parts(again) == [(region, kind, False) for region, kind, _ in parts(made)]
    assert len(network.made) == 4
    wider = {"sources": ["198.51.100.0/24", *OFFICE["sources"]], "regions": ["east"]}
    assert parts((await admin.post(SETUP, json=wider)).json()) == [
        ("east", "network", False),
        ("east", "rules", True),
    ]
    trail = (await admin.get("/v1/audit", params={"object_id": "fake"})).json()["items"]
    assert [line["action"] for line in trail] == ["network.make"] * 3
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        stored = {one.region: one for one in await uow.networks.find("fake")}
    assert stored["east"].sources == ("198.51.100.0/24", "203.0.113.0/24")
    assert stored["west"].resource_ids == {"network": "network-west", "rules": "rules-west"}


async def test_without_a_region_a_dry_run_shows_that_of_the_cheapest_offer(home: Home) -> None:
    admin, network = home.client(), home.house.network
    network._regions = ()
    cheapest = (await home.product.offers.find_offer("h100-b")).region
    shown = await admin.post(SETUP, json={**OFFICE, "dry_run": True})
    assert parts(shown.json()) == [(cheapest, kind, False) for kind in ("network", "rules")]
    refused = await admin.post(SETUP, json=OFFICE)
    assert (refused.status_code, "BROKER_FAKE_REGIONS" in refused.text) == (422, True)
    assert network.made == []
    home.house.provider.offers = ()
    await home.product.offers.refresh()
    assert (await admin.post(SETUP, json={**OFFICE, "dry_run": True})).status_code == 422


async def test_orders_name_the_network_of_their_region(home: Home) -> None:
    offer = (await home.product.offers.find_offer("h100-b")).region
    network = home.house.network
    network._regions = (offer,)
    assert (await home.client().post(SETUP, json=OFFICE)).status_code == 200
    team = await home.team("research")
    answer = await team.post("/v1/reservations", json={"offer_id": "h100-b", "nodes": 1})
    assert answer.status_code == 202, answer.text
    (order,) = home.house.provider.orders
    assert order.network == {"network": f"network-{offer}", "rules": f"rules-{offer}"}


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (SETUP, {"sources": ["everybody"]}, 422, "0.0.0.0/0 is everybody"),
        (SETUP, {"sources": ["203.0.113.9/24"]}, 422, "an IPv4 network such as"),
        (SETUP, {}, 422, "/sources"),
        ("/v1/providers/plain/setup", OFFICE, 409, "plain needs no setup"),
        ("/v1/providers/plane/setup", OFFICE, 404, "nearest: plain"),
    ],
)
async def test_what_cannot_be_set_up_is_refused(
    home: Home, path: str, body: dict[str, object], status: int, says: str
) -> None:
    answer = await home.client().post(path, json=body)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text
    assert home.house.network.made == []


async def test_a_network_that_a_setting_names_is_not_made(home: Home) -> None:
    home.house.network.names_network = True
    answer = await home.client().post(SETUP, json=OFFICE)
    assert answer.status_code == 409
    assert "BROKER_FAKE_NETWORK" in answer.text


async def test_a_seller_that_does_not_answer_leaves_nothing_stored(home: Home) -> None:
    home.house.network.is_down = True
    answer = await home.client().post(SETUP, json=OFFICE)
    assert answer.json()["code"] == "provider-unavailable"
    service: NetworksService = home.product.networks
    assert await service.find_all() == ()


async def test_only_administrators_set_up(home: Home) -> None:
    team = await home.team("research")
    assert (await team.post(SETUP, json=OFFICE)).status_code == 403
    assert home.house.network.made == []

"""What ``broker doctor`` says of the network of a seller's machines."""

from __future__ import annotations

from dataclasses import replace

from api.cli.installation.diagnosis import network_standing
from broker.domain.holding.seller_network import NetworkRules, SellerNetwork
from tests.cli.running import broker, fake_server
from tests.fakes.clock import NOON
from tests.fakes.network import FakeNetwork

OFFICE = NetworkRules(("203.0.113.0/24",))
EAST = SellerNetwork("aws", "east", {"network": "network-east"}, OFFICE.sources, NOON, "key-ada")
COMMAND = "broker providers setup aws --from NETWORK"


async def test_a_seller_that_needs_none_has_none() -> None:
    assert await network_standing(None, [EAST], asks=True) == (None, [])


async def test_before_the_setup_each_region_lacks_a_network() -> None:
    told, lacks = await network_standing(FakeNetwork("east", "west"), [], asks=True)
    assert told == f"none was made: {COMMAND}"
    assert lacks == [f"a network in east, west: {COMMAND}"]


async def test_what_was_made_is_looked_for_at_the_seller() -> None:
    seller = FakeNetwork("east")
    await seller.make_network(OFFICE, ["east"])
    made = f"made in east on {NOON:%Y-%m-%d}"
    assert await network_standing(seller, [EAST], asks=True) == (made, [])
    seller.known.clear()
    told, lacks = await network_standing(seller, [EAST], asks=True)
    assert told == made
    assert lacks == [
        f"network of east for all in east: {COMMAND}",
        f"rules of east for 203.0.113.0/24 in east: {COMMAND}",
    ]
    assert await network_standing(seller, [EAST], asks=False) == (made, []), "nothing is asked"
    seller.is_down = True
    _, lacks = await network_standing(seller, [EAST], asks=True)
    assert lacks == ["an answer about its network: down"]


async def test_a_region_that_was_added_later_lacks_its_own() -> None:
    seller = FakeNetwork("east", "west")
    _, lacks = await network_standing(seller, [EAST, replace(EAST, provider="gcp", region="")], asks=False)
    assert lacks == [f"a network in west: {COMMAND}"]


async def test_a_setting_names_it_instead() -> None:
    seller = FakeNetwork("east")
    seller.names_network = True
    assert await network_standing(seller, [], asks=True) == ("named by BROKER_FAKE_NETWORK", [])


def test_a_dry_run_ends_with_the_command_that_makes_it() -> None:
    part = {"region": "eastus", "kind": "rules", "says": "a security group", "reference": None, "made": False}
    plan = {"provider": "azure", "parts": [part], "address_usd_per_node_hour": "0.005", "source": "a page"}
    there = {**plan, "parts": [{**part, "reference": "nsg-1"}]}
    path = "/v1/providers/azure/setup"
    command = "providers", "setup", "azure", "--from", "203.0.113.0/24", "--dry-run"
    with fake_server({("POST", path): [(200, plan), (200, there)]}) as server:
        missing, complete = (broker(*command, env=server.env) for _ in range(2))
    made_by = "To make it: broker providers setup azure --from 203.0.113.0/24 --region eastus"
    assert (missing.exit_code, made_by in missing.stdout) == (0, True)
    assert "To make it" not in complete.stdout

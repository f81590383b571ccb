"""What an order needs and is not configured: told before anything is bought, by the name of its variable."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from broker.domain.basics.errors import OrderRejected
from broker.domain.basics.machines import PublicKey
from broker.domain.holding.reservation import Order
from broker.domain.market.offer import Tier
from providers.registry import (
    PRICE_LISTS,
    SPECS,
    build_adapters,
    can_be_ordered,
    configured,
    is_orderable,
    missing_settings,
    not_orderable,
    not_planned,
    sellers,
)
from tests.fakes.examples import an_offer
from tests.fakes.market_control import hasty, ledger

KEY = PublicKey("key", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILXGDN/SclOozk1xsDztpmhGiKkkrfQB9SKoO8dSIQQZ")
SANDBOX = "http://127.0.0.1:9000"
TENSORDOCK = {"BROKER_TENSORDOCK_API_TOKEN": "t"}
AZURE = {
    f"BROKER_AZURE_{name}": "hush-hush"
    for name in ("TENANT_ID", "SUBSCRIPTION_ID", "CLIENT_ID", "CLIENT_SECRET")
}
VERDA = {f"BROKER_VERDA_{name}": "v" for name in ("CLIENT_ID", "CLIENT_SECRET")}
KEY = PublicKey("ann", "ssh-ed25519 AAAA")
CRUSOE = {f"BROKER_CRUSOE_{name}": "AAAA" for name in ("ACCESS_KEY", "SECRET_KEY", "PROJECT_ID")}


def test_the_sandbox_lacks_nothing() -> None:
    found = configured({}, SANDBOX)
    assert not_orderable(found) == {}
    assert not_planned(found) == PRICE_LISTS
    assert all(is_orderable(name, found) for name in SPECS if name not in PRICE_LISTS)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("crusoe", "SSH_PUBLIC_KEY"),
        ("tensordock", "SSH_KEY"),
        ("tensordock", "SSH_KEY_ID"),
        ("verda", "SSH_KEY_ID"),
    ],
)
def test_a_key_is_that_of_the_order_or_of_the_installation(name: str, option: str) -> None:
    """Nobody could enter a machine without either; a machine of the sandbox costs nothing."""
    bare = configured({**TENSORDOCK, **CRUSOE, **VERDA}, SANDBOX)
    assert not_orderable(bare) == {}
    assert not_planned(bare) == PRICE_LISTS
    seller, offer = sellers(build_adapters(bare))[name], an_offer()
    assert "no public SSH key" in seller.locked_out(offer, ())
    assert seller.locked_out(offer, (KEY,)) == ""
    keyed = configured({**TENSORDOCK, **CRUSOE, **VERDA, f"BROKER_{name.upper()}_{option}": "k"})
    assert sellers(build_adapters(keyed))[name].locked_out(offer, ()) == ""
    assert sellers(build_adapters(configured({}, SANDBOX)))[name].locked_out(offer, ()) == ""


def test_a_project_that_an_access_token_does_not_name_is_missing() -> None:
    token = {"BROKER_GCP_CREDENTIALS": "ya29.token"}
    (told,) = not_orderable(configured(token))["gcp"]
    assert told.variables == ("BROKER_GCP_PROJECT",)
    assert not_orderable(configured({**token, "BROKER_GCP_PROJECT": "p"})) == {}


def test_open_feeds_take_no_orders_and_are_planned_with_only_among_themselves() -> None:
    alone = configured({}, keyless=True)
    (told,) = not_orderable(alone)["runpod"]
    assert told.variables == ("BROKER_RUNPOD_API_KEY",)
    assert not_planned(alone) == PRICE_LISTS
    beside = configured({"BROKER_LAMBDA_API_KEY": "k"}, keyless=True)
    assert "runpod" in not_planned(beside)
    assert "lambda" not in not_planned(beside)


@pytest.mark.parametrize("name", [name for name in SPECS if name not in PRICE_LISTS])
def test_needs_are_options_without_a_default_that_say_what_to_put_there(name: str) -> None:
    for need in SPECS[name].needs:
        assert all(SPECS[name].options[option] == "" for option in need.names)
        assert need.says
        assert need.stand_in


def test_a_seller_says_why_it_takes_no_order() -> None:
    adapters = sellers(build_adapters(configured({"BROKER_GCP_CREDENTIALS": "ya29.token"}, SANDBOX)))
    assert "BROKER_GCP_PROJECT" in adapters["gcp"].barred(an_offer())
    assert adapters["lambda"].barred(an_offer()) == ""


async def test_azure_takes_vms_with_a_key_alone_and_capacity_reservations_without(sandbox: str) -> None:
    environ = {**AZURE, "BROKER_AZURE_BASE_URL": f"{sandbox}/azure"}
    settings = configured(environ)
    adapter = sellers(build_adapters(settings, hasty))["azure"]
    offers = (await adapter.list_offers(datetime.now(UTC))).offers
    takes = can_be_ordered(settings)
    assert missing_settings(settings) == {}
    assert all(takes(offer) and adapter.barred(offer) == "" for offer in offers)
    spot = next(offer for offer in offers if offer.tier is Tier.SPOT)
    assert "no public SSH key goes with the order" in adapter.locked_out(spot, ())
    assert adapter.locked_out(spot, (KEY,)) == ""

    with pytest.raises(OrderRejected, match="SSH"):
        await adapter.reserve(Order("broker-azure-spot-0", spot, 1))
    assert ledger(sandbox, "broker-azure-spot-0") == []
    await adapter.reserve(Order("broker-azure-spot-1", spot, 1, keys=(KEY,)))
    assert [row["tier"] for row in ledger(sandbox, "broker-azure-spot-1")] == ["spot"]
    reserved = next(offer for offer in offers if offer.tier is Tier.ON_DEMAND)
    assert adapter.locked_out(reserved, ()) == ""
    await adapter.reserve(Order("broker-azure-held-0", reserved, 1))
    assert [row["sku"] for row in ledger(sandbox, "broker-azure-held-0")] == [reserved.sku.name]
    await adapter.aclose()

    keyed = configured({**environ, "BROKER_AZURE_SSH_PUBLIC_KEY": "ssh-rsa AAAA"})
    own = sellers(build_adapters(keyed, hasty))["azure"]
    assert own.locked_out(spot, ()) == ""
    await own.aclose()


async def test_tensordock_refuses_an_order_without_a_key(sandbox: str) -> None:
    """The seller's own word, which the check spares."""
    environ = {**TENSORDOCK, "BROKER_TENSORDOCK_BASE_URL": f"{sandbox}/tensordock"}
    adapter = sellers(build_adapters(configured(environ), hasty))["tensordock"]
    offer = (await adapter.list_offers(datetime.now(UTC))).offers[0]
    with pytest.raises(OrderRejected, match="ssh_key"):
        await adapter.reserve(Order("broker-t-1-0-1", offer, 1))
    assert ledger(sandbox, "broker-t-1-0-1") == []
    await adapter.aclose()

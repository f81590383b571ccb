"""What every seller of the sandbox shares: states by age, visible machines, stock."""

from datetime import datetime, timedelta

import pytest

from providers.sandbox import Durations, create_sandbox
from providers.sandbox.ledger import Tariff
from providers.sandbox.seller import Lifecycle, SellerState
from tests.sandbox.conftest import START

STATES = Lifecycle({"queued": 0.25, "booting": 1}, up="up", failed="failed", ending="ending", gone="gone")
NEVER_SHOWN = Lifecycle({"booting": 1}, up="up", failed="gone", ending="ending", gone="gone")
PLAIN = Lifecycle({"booting": 1}, up="up", failed="failed")


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seller(clock: Clock) -> SellerState:
    app = create_sandbox(7, clock_start=START, durations=Durations(boot_s=100), wall=clock)
    return SellerState(app.state, "lambda", ending_s=10)


def test_a_machine_goes_through_its_seller_s_words(seller: SellerState, clock: Clock) -> None:
    entry = seller.sell(seller.inventory()[0], "tag", Tariff(), {})
    words = []
    for age_s in (0, 24, 25, 99, 100):
        clock.now = START + timedelta(seconds=age_s)
        words.append(seller.state(entry, STATES))
    assert words == ["queued", "queued", "booting", "booting", "up"]
    ended = seller.release(entry)
    assert (seller.state(ended, STATES), seller.state(ended, PLAIN)) == ("ending", "up")
    assert seller.find(entry.instance_id) == ended
    clock.now += timedelta(seconds=10)
    assert seller.state(ended, STATES) == "gone"
    assert seller.find(entry.instance_id) is None
    assert seller.visible() == []


def test_a_lost_purchase_takes_no_stock_and_fails_after_its_boot(seller: SellerState, clock: Clock) -> None:
    item = next(item for item in seller.inventory() if seller.free(item) > 1)
    free = seller.free(item)
    entry = seller.sell(item, "tag", Tariff(), {}, fails=True)
    assert (seller.free(item), seller.state(entry, STATES)) == (free, "queued")
    clock.now += timedelta(seconds=100)
    ended = seller.release(entry)
    assert (seller.state(entry, STATES), seller.state(ended, STATES)) == ("failed", "ending")
    assert (seller.state(entry, NEVER_SHOWN), seller.state(ended, NEVER_SHOWN)) == ("gone", "gone")


def test_visible_machines_are_found_by_detail_too(seller: SellerState) -> None:
    item = seller.inventory()[0]
    mine = seller.sell(item, "tag", Tariff(), {"project": "mine"})
    seller.sell(item, "tag", Tariff(), {"project": "other"})
    assert seller.visible(project="mine") == [mine]
    assert seller.find(mine.instance_id, project="other") is None
    assert seller.item(sku=item.sku, region=item.region) == item
    assert seller.item(sku=item.sku, region="nowhere") is None

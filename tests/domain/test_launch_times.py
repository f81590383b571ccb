"""How long a node takes to run: our own launches, else the seller's word, else what is assumed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from broker.catalogue import load_launch_table
from broker.domain.basics.node_launch import LaunchBasis, NodeLaunch
from broker.domain.holding.launch_times import LEAST_LAUNCHES, MOST_LAUNCHES, FetchTerms, LaunchTable
from broker.domain.holding.launches import LaunchAttempt, LaunchOutcome
from broker.domain.market.launch_statistics import LaunchStatistics, StatisticsLevel
from broker.domain.market.offer import Offer
from broker.domain.market.sku import Form
from providers.registry import SPECS
from tests.store.examples import NOON, offer

TABLE = LaunchTable(
    sellers={
        ("aws", Form.VM): (100.0, LaunchBasis.ASSUMED),
        ("oci", Form.BARE_METAL): (700.0, LaunchBasis.STATED),
    },
    forms={Form.VM: 240.0, Form.BARE_METAL: 900.0, Form.CONTAINER: 45.0, None: 240.0},
    fetch=FetchTerms(340.0, 0.5),
)


def sold(form: Form | None = Form.VM, provider: str = "aws", sku: str = "node", **changes: object) -> Offer:
    one = offer(f"{provider}-{sku}", provider=provider)
    return replace(one, sku=replace(one.sku, name=sku, form=form), **changes)  # type: ignore[arg-type]


def launched(
    minutes: float, number: int, one: Offer, outcome: LaunchOutcome = LaunchOutcome.USABLE
) -> LaunchAttempt:
    asked = NOON + timedelta(hours=number)
    usable = asked + timedelta(minutes=minutes) if outcome is LaunchOutcome.USABLE else None
    return LaunchAttempt(
        f"rsv-{number}", one.offer_id, one.provider, one.sku.name, one.region, asked, asked, outcome, usable
    )


def told(one: Offer, *attempts: LaunchAttempt) -> NodeLaunch:
    (found,) = TABLE.with_launch_times([one], attempts)
    assert found.launch is not None
    return found.launch


@pytest.mark.parametrize(
    ("one", "launch_s", "basis"),
    [
        (sold(), 100, LaunchBasis.ASSUMED),
        (sold(Form.BARE_METAL), 900, LaunchBasis.ASSUMED),
        (sold(Form.BARE_METAL, "oci"), 700, LaunchBasis.STATED),
        (sold(None, "vast"), 240, LaunchBasis.ASSUMED),
        (sold(launch=NodeLaunch(420.0, LaunchBasis.STATED)), 420, LaunchBasis.STATED),
    ],
)
def test_without_launches_of_our_own_the_row_and_then_the_table_says(
    one: Offer, launch_s: float, basis: LaunchBasis
) -> None:
    assert told(one) == NodeLaunch(launch_s, basis, 340.0, 0.5)


def test_the_median_of_our_own_launches_takes_the_place_of_both() -> None:
    stated = sold(launch=NodeLaunch(420.0, LaunchBasis.STATED))
    for one in (sold(), stated):
        three = [launched(minutes, n, one) for n, minutes in enumerate((7, 30, 9))]
        assert told(one, *three) == NodeLaunch(540.0, LaunchBasis.MEASURED, 340.0, 0.5)
        assert told(one, *three[:2]).basis is not LaunchBasis.MEASURED


def test_only_the_last_launches_count_in_whatever_order_they_come() -> None:
    slow = [launched(60, n, sold()) for n in range(30)]
    quick = [launched(5, 30 + n, sold()) for n in range(MOST_LAUNCHES)]
    assert told(sold(), *quick, *slow).launch_s == 300


def test_launches_are_those_of_one_seller_and_form() -> None:
    here = sold()
    others = [sold(sku="other"), sold(Form.BARE_METAL, sku="metal"), sold(seller="lambda", sku="resold")]
    attempts = [launched(10, n, here) for n in range(LEAST_LAUNCHES)]
    found = TABLE.with_launch_times([here, *others], attempts)
    assert [one.launch.basis for one in found if one.launch] == [
        LaunchBasis.MEASURED,
        LaunchBasis.MEASURED,
        LaunchBasis.ASSUMED,
        LaunchBasis.ASSUMED,
    ]


def test_what_failed_or_was_refused_tells_no_time() -> None:
    failed = [launched(1, n, sold(), outcome) for n, outcome in enumerate(LaunchOutcome)] * 3
    usable = [one for one in failed if one.outcome is LaunchOutcome.USABLE]
    assert len(usable) == 3
    assert told(sold(), *(one for one in failed if one not in usable)).basis is LaunchBasis.ASSUMED


def test_a_container_that_runs_has_its_image() -> None:
    one = sold(Form.CONTAINER, "vast")
    assert told(one) == NodeLaunch(45.0, LaunchBasis.ASSUMED, 340.0, 0.5)
    own = [launched(4, n, one) for n in range(LEAST_LAUNCHES)]
    assert told(one, *own) == NodeLaunch(240.0, LaunchBasis.MEASURED, 0.0, 0.5)


def test_what_a_document_tells_of_our_launches_counts_as_they_do() -> None:
    learned = LaunchStatistics(1.0, 25.0, 20, StatisticsLevel.SKU)
    assert told(sold(learned=learned)).launch_s == 1500
    assert told(sold(learned=replace(learned, basis=StatisticsLevel.PROVIDER))).launch_s == 100
    assert told(sold(learned=replace(learned, attempts=2))).launch_s == 100


def test_a_document_that_tells_the_whole_way_is_left_as_it_is() -> None:
    whole = sold(launch=NodeLaunch(0.0, LaunchBasis.STATED, 0.0))
    assert told(whole, *(launched(9, n, whole) for n in range(3))) == whole.launch


def test_an_empty_table_tells_nothing() -> None:
    assert LaunchTable().with_launch_times([sold()], [launched(9, n, sold()) for n in range(3)]) == (sold(),)


def test_the_table_in_force_knows_every_form_and_its_sellers_are_sold_from() -> None:
    table = load_launch_table()
    assert set(table.forms) == {*Form, None}
    assert {seller for seller, _ in table.sellers} <= set(SPECS)
    assert table.forms[Form.CONTAINER] < table.forms[Form.VM] < table.forms[Form.BARE_METAL]

"""Fleets that a platform engineer would sign: demand, loss of a place, few pools, true stock, few restarts.

Documents of teams over one small market; every figure is counted by hand from the segments of the plan.
"""

from __future__ import annotations

from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

import pytest

from broker.catalogue import load_geographies
from broker.domain.planning.plan import Obstacle, Plan
from tests.placement.teams import (
    NAMES,
    asked,
    assert_demand_is_carried,
    assert_few_pools,
    assert_half_is_left,
    assert_stock_is_true,
    document,
    market,
    most_gpus,
    offers,
    plan_of,
    planned,
    starts_of,
)

SERVICES = [
    (name, row["name"]) for name in NAMES for row in document(name)["workloads"] if row["kind"] == "serving"
]
REDUNDANT = [
    (name, service)
    for name, service in SERVICES
    for row in document(name)["workloads"]
    if row["name"] == service and row.get("redundancy", {}).get("zones", 1) > 1
]


def service_of(name: str, service: str) -> dict[str, Any]:
    (row,) = [row for row in document(name)["workloads"] if row["name"] == service]
    return dict(row)


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_every_hour_s_requests_are_carried_with_the_spares_away(name: str, service: str) -> None:
    assert_demand_is_carried(planned(name), asked(document(name)), service_of(name, service))


@pytest.mark.parametrize(("name", "service"), REDUNDANT)
def test_any_one_place_lost_leaves_half_of_the_requests(name: str, service: str) -> None:
    assert_half_is_left(planned(name), asked(document(name)), service_of(name, service))


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_a_service_stands_on_few_pools_and_two_kinds_of_gpu(name: str, service: str) -> None:
    assert_few_pools(planned(name), service_of(name, service))


@pytest.mark.parametrize("name", NAMES)
def test_no_more_is_held_than_there_is_and_what_is_assumed_is_told(name: str) -> None:
    assert_stock_is_true(planned(name), offers())


def test_gpus_of_one_lent_machine_are_not_sold_twice() -> None:
    """Two machines of four and six GPUs are sold in three sizes each, 30 GPUs if each size were apart."""
    written = document("side-project-on-lent-machines")
    plan = planned("side-project-on-lent-machines")
    for seller, gpus in (("vast", 4), ("tensordock", 6)):
        assert most_gpus(plan, [offer for offer in market().offers if offer.provider == seller]) <= gpus
    rate = plan.placements_of("stories")[0].estimate.sure_requests_per_s
    for gpus, placed in ((10, True), (11, False)):
        written["workloads"] = written["workloads"][:1]
        written["workloads"][0]["traffic"]["peak_requests_per_s"] = rate * gpus - 0.5
        found = plan_of(written)
        assert bool(found.placements) is placed
    assert found.unplaced[0].reason is Obstacle.STOCK


def test_what_one_seller_does_not_count_is_not_taken_for_endless() -> None:
    """Thirty L4 are wanted; sixteen are assumed in the cheaper region, the others stand in the next."""
    fleet = {p.offer_id: p.nodes for p in planned("launch-day").placements}
    assert fleet["gcp/us-central1/L4x1"] == 16
    assert fleet["gcp/europe-west4/L4x1"] >= 12
    told = {a.offer_id: (a.nodes, a.says) for a in planned("launch-day").assumptions}
    assert told["gcp/us-central1/L4x1"] == (
        16,
        "gcp states no stock; the plan assumes at most 16 nodes",
    )


def places_of(plan: Plan) -> set[str]:
    return {offers()[placement.offer_id].place for placement in plan.placements}


def test_two_halls_of_one_operator_are_two_places_and_two_sellers_of_one_hall_are_one() -> None:
    assert places_of(planned("two-halls-in-finland")) == {"verda/FIN-01", "verda/FIN-02"}
    one = document("two-halls-in-finland")
    one["policy"]["regions"] = ["FIN-02"]
    sellers = {o.provider for o in market().offers if o.region == "FIN-02"}
    assert sellers == {"verda", "prime_intellect"}
    assert [left.reason for left in plan_of(one).unplaced] == [Obstacle.REDUNDANCY]


def test_two_regions_of_one_cloud_are_two_places_and_one_region_is_told_with_a_way_out() -> None:
    assert places_of(planned("payments-one-cloud")) == {"aws/us-east-1", "aws/us-west-2"}
    one = document("payments-one-cloud")
    one["policy"]["regions"] = ["us-east-1"]
    (left,) = plan_of(one).unplaced
    assert left.reason is Obstacle.REDUNDANCY
    assert "zones" in left.fixes[0].says
    assert all("providers" not in operation.path for fix in left.fixes for operation in fix.patch)


@pytest.mark.parametrize(
    ("name", "most"),
    [("helpdesk-closed-at-night", 0.75), ("insurer-two-places", 0.75), ("newsroom-three-places", 0.75)],
)
def test_a_fleet_follows_its_demand(name: str, most: float) -> None:
    """Cost is far below what the same nodes cost if the peak were held throughout."""
    plan, request = planned(name), asked(document(name))
    hours = Decimal(str(request.horizon.hours))
    peak = sum(p.nodes * offers()[p.offer_id].price_usd_per_node_hour * hours for p in plan.placements)
    assert plan.cost_usd <= peak * Decimal(str(most))


@pytest.mark.parametrize(
    ("name", "service", "most"),
    [
        ("helpdesk-closed-at-night", "answers", 3),
        ("payments-one-cloud", "receipts", 2),
        ("tune-then-serve", "drafts", 0),
        ("five-teams-of-a-shop", "voices", 0),
    ],
)
def test_a_small_service_is_neither_moved_about_nor_restarted(name: str, service: str, most: int) -> None:
    """Each node is started once, and beyond that so many are started anew each day, one of them after an hour
    of zero requests, and twice as often on the day before it is measured; one place beside those asked for.
    """
    plan, request = planned(name), asked(document(name))
    fleet = plan.placements_of(service)
    anew = sum(starts_of(p) for p in fleet) - sum(p.nodes for p in fleet)
    assert anew <= most * (request.horizon.hours / 24 + 1)
    zones = service_of(name, service).get("redundancy", {}).get("zones", 1)
    assert len({offers()[p.offer_id].place for p in fleet}) <= zones + 1


def test_patterns_that_drop_most_of_a_continent_are_told_with_counts() -> None:
    plan, written = planned("clinic-by-patterns"), document("clinic-by-patterns")
    union = [o for o in market().offers if o.country in load_geographies()["eu"]]
    patterns = written["policy"]["regions"]
    inside = [o for o in market().offers if any(fnmatchcase(o.region, p) for p in patterns)]
    matched = [o for o in union if o in inside]
    assert len(matched) < len(union) / 2
    (note,) = (one for one in plan.notes if "are not served" not in one)
    assert f"match {len(matched)} of the {len(union)} offers in EU" in note
    assert f"and {len(inside) - len(matched)} elsewhere" in note
    del written["policy"]["regions"]
    written["policy"]["geography"] = ["EU"]
    by_geography = plan_of(written)
    assert {offers()[p.offer_id].country for p in by_geography.placements} <= load_geographies()["eu"]
    assert all("are not served" in one for one in by_geography.notes)
    assert by_geography.cost_usd < plan.cost_usd


def test_tags_in_capitals_hold() -> None:
    for placement in planned("clinic-by-patterns").placements:
        assert {"soc2", "gdpr"} <= offers()[placement.offer_id].compliance

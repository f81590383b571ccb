"""The search over sets of pools against every set and every hourly schedule of it, on drawn markets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from optimizer.placement.fleets.hours import hour_classes
from optimizer.placement.fleets.pool_search import SetSearch
from optimizer.placement.fleets.pool_table import Pool, table_of
from optimizer.placement.fleets.rules import FleetRules
from optimizer.placement.fleets.set_costs import PoolFleet
from optimizer.placement.problem.problem import Floats, Ints
from optimizer.placement.problem.units import NO_HOUR
from optimizer.placement.runtime.tuning import TUNING
from tests.placement.tuned import tuned

PROFILE = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Stand:
    """A pool of a small market: replicas of ``rate`` requests/s, each for ``usd`` an hour and ``start_usd``;
    of ``later_share`` times the rate in the second stage."""

    gpu: int
    place: int
    rate: float
    most: int
    usd: float
    start_usd: float
    later_share: float = 1.0

    def rate_at(self, later: bool) -> float:
        return self.rate * (self.later_share if later else 1.0)


@dataclass(frozen=True)
class Market:
    stands: tuple[Stand, ...]
    demand: tuple[float, ...]
    rules: FleetRules
    later_from: int = NO_HOUR


def searched(market: Market, incumbent_usd: float = np.inf) -> SetSearch:
    pools = []
    for stand in market.stands:
        level = np.arange(stand.most + 1)
        usd: Floats = level * np.float64(stand.usd)
        start: Floats = level * np.float64(stand.start_usd)
        counts = level[:, None]
        unit = np.zeros(1, dtype=np.int64)
        share = stand.later_share
        pools.append(
            Pool(
                stand.gpu, stand.place, stand.rate, unit, usd, counts, usd, start, start, 1, later_share=share
            )
        )
    demand = np.array(market.demand)
    classes = hour_classes(demand, np.ones(len(demand)), 1, 0, later_from=market.later_from, later_share=1.3)
    search = SetSearch(
        table_of(pools, range(len(pools))), classes, market.rules, 0.0, incumbent_usd=incumbent_usd
    )
    search.run()
    return search


def cheapest(market: Market) -> float:
    """The least cost of all fleets: every set of pools, every count of replicas in every hour."""
    found = np.inf
    rules = market.rules
    for size in range(1, rules.pools + 1):
        for chosen in combinations(market.stands, size):
            if len({stand.gpu for stand in chosen}) <= rules.gpus:
                found = min(found, _cheapest_of(chosen, market, rules))
    return found


def _cheapest_of(chosen: tuple[Stand, ...], market: Market, rules: FleetRules) -> float:
    states = np.array(list(product(*[range(stand.most + 1) for stand in chosen])))
    usd = states @ np.array([stand.usd for stand in chosen])
    start = np.array([stand.start_usd for stand in chosen])
    moves = np.maximum(states[None, :, :] - states[:, None, :], 0) @ start
    total = np.zeros(len(states))
    for hour, wanted in enumerate(market.demand):
        rates = [stand.rate_at(hour >= market.later_from) for stand in chosen]
        met = np.array([_meets(chosen, rates, state, wanted, rules) for state in states])
        before = (total[:, None] + moves).min(axis=0) if hour else total
        total = np.where(met, before + usd, np.inf)
    return float(total.min())


def _meets(
    chosen: tuple[Stand, ...], rates: list[float], state: Ints, wanted: float, rules: FleetRules
) -> bool:
    carried: Floats = state * np.array(rates)
    largest = max((rate for rate, count in zip(rates, state, strict=True) if count), default=0.0)
    by_place = {
        place: sum(float(part) for stand, part in zip(chosen, carried, strict=True) if stand.place == place)
        for place in {stand.place for stand in chosen}
    }
    total = float(carried.sum())
    standing = sum(1 for part in by_place.values() if part > 0 and part >= rules.least_share * wanted - 1e-9)
    return (
        total - rules.spare * largest >= wanted - 1e-9
        and (not rules.idle or total > (rules.spare + rules.idle) * largest + 1e-9)
        and standing >= rules.places
        and all(total - part >= rules.loss_share * wanted - 1e-9 for part in by_place.values())
    )


@st.composite
def markets(draw: st.DrawFn) -> Market:
    """Five to seven pools of three kinds in four places, for fleets that stand in up to three of them."""
    stands = tuple(
        Stand(
            draw(st.integers(0, 2)),
            draw(st.integers(0, 3)),
            draw(st.sampled_from([1.0, 2.0, 5.0])),
            draw(st.integers(0, 3)),
            draw(st.sampled_from([1.0, 1.3, 1.9, 2.5, 4.0])),
            draw(st.sampled_from([0.0, 0.4, 1.5])),
            draw(st.sampled_from([1.0, 1.2, 1.7])),
        )
        for _ in range(draw(st.integers(5, 7)))
    )
    demand = tuple(draw(st.lists(st.sampled_from([0.5, 2.0, 3.5, 6.0]), min_size=2, max_size=4)))
    places, pools = draw(st.integers(1, 3)), draw(st.integers(3, 4))
    share = draw(st.sampled_from([0.0, 0.5, 0.7]))
    least = share / max(1, places - 1)
    idle = float(draw(st.sampled_from([0, 0, 1, 2])))
    rules = FleetRules(draw(st.integers(0, 2)), places, share, least, pools, draw(st.integers(1, 2)), idle)
    return Market(stands, demand, rules, draw(st.sampled_from([0, 1, 2, NO_HOUR])))


@pytest.mark.parametrize(
    "most", [0, TUNING.fleets.most_unbranched], ids=["kind by kind", "all kinds at once"]
)
@PROFILE
@given(market=markets(), first=st.sampled_from([0, TUNING.fleets.first_pools]))
def test_the_fleet_and_the_bound_are_those_of_all_fleets(market: Market, first: int, most: int) -> None:
    """``first``: with no promising pools to begin with, bounds alone decide what is looked at."""
    sets = {"most_unbranched": most, "most_unbranched_of_many": most}
    with tuned(TUNING.fleets, **sets, first_pools=first, first_of_branch=first // 2):
        search = searched(market)
    least = cheapest(market)
    if search.best is None:
        assert np.isinf(least)
    else:
        assert search.best.usd == pytest.approx(least, abs=1e-6)
        assert search.bound_usd == pytest.approx(least, abs=1e-6)


def test_a_large_replica_that_rests_is_spared_in_no_hour() -> None:
    """By day two large nodes and five small ones carry 10 requests/s and the spare of 5. By night two small
    ones carry 1 and the spare of 1: what is known of the large pool must not ask for a large spare then."""
    large, small = Stand(0, 0, 5.0, 3, 1.0, 0.0), Stand(1, 1, 1.0, 8, 0.1, 0.0)
    market = Market((large, small), (10.0, 1.0), FleetRules(1, 1, 0.0, 0.0, 2, 2))
    search = searched(market)
    assert search.best is not None
    assert search.best.usd == pytest.approx(2 * 1.0 + (5 + 2) * 0.1)
    assert search.extended_bounds(np.array([[0]]), search.whole, 1)[0] == pytest.approx(2.7)


def test_each_of_three_places_carries_its_part_of_a_pair_s_bound() -> None:
    """Two pools of one place beside one more: three places are out of reach. In two places beside two more,
    one of the two carries a quarter of the demand of 8: two nodes of $1."""
    here = [Stand(0, 0, 1.0, 9, 1.0, 0.0), Stand(0, 0, 1.0, 9, 1.0, 0.0), Stand(0, 1, 1.0, 9, 1.0, 0.0)]
    cheap = [Stand(1, place, 1.0, 9, 0.1, 0.0) for place in (2, 3)]
    search = searched(Market((*here, *cheap), (8.0,), FleetRules(0, 3, 0.5, 0.25, 4, 2)))
    assert np.isinf(search.extended_bounds(np.array([[0, 1]]), search.whole, 1)[0])
    assert search.extended_bounds(np.array([[0, 2]]), search.whole, 2)[0] >= 2 * 1.0 + 6 * 0.1


def test_a_bundle_is_bounded_by_one_replica_more_than_the_bundles_below() -> None:
    """Three replicas of $1.00 are two bundles of two: the fleet holds four, and three cost $3.00 an hour."""
    levels, nothing = np.arange(3), np.zeros(3)
    usd, least = np.array([0.0, 2.0, 4.0]), np.array([0.0, 1.0, 3.0])
    unit = np.zeros(1, dtype=np.int64)
    pool = Pool(0, 0, 2.0, unit, usd, 2 * levels[:, None], least, nothing, nothing, 2)
    classes = hour_classes(np.array([3.0, 3.0]), np.ones(2), 1, 0)
    search = SetSearch(table_of([pool], [0]), classes, FleetRules(0, 1, 0.0, 0.0, 1, 1), 0.0)
    search.run()
    assert search.best is not None
    assert search.best.usd == pytest.approx(8.0)
    assert search.bound_usd == pytest.approx(6.0)


@pytest.mark.parametrize("pools", [2, 3])
def test_kinds_of_which_no_node_is_free_carry_nothing(pools: int) -> None:
    """They are branches of their own, where fleets may have fewer kinds than pools."""
    free = [Stand(0, place, 5.0, 2, 1.0 + place, 0.0) for place in range(2)]
    taken = [Stand(gpu, place, 5.0, 0, 0.5, 0.0) for gpu in (1, 2) for place in range(3)]
    market = Market((*free, *taken), (3.0, 4.0), FleetRules(0, 1, 0.0, 0.0, pools, gpus=1))
    assert searched(market).bound_usd == pytest.approx(cheapest(market))
    nothing = Market(tuple(taken), (3.0, 4.0), FleetRules(0, 1, 0.0, 0.0, pools, gpus=1))
    assert searched(nothing).bound_usd == np.inf


@PROFILE
@given(market=markets(), dearer=st.sampled_from([1.0, 1.5]))
def test_beside_a_known_fleet_the_bound_is_that_of_all_fleets_and_none_is_built(
    market: Market, dearer: float
) -> None:
    least = cheapest(market)
    assume(np.isfinite(least) and least > 0)
    search = searched(market, dearer * least)
    assert search.bound_usd == pytest.approx(least)
    assert not search.fleets


def test_a_node_with_a_term_that_every_day_needs_is_held_throughout() -> None:
    """By hand: 48 h of one node with a term at 1 USD, and 12 h of a second one by the hour at 3 USD."""
    by_hour, term = np.array([0.0, 3.0]), np.array([0.0, 1.0])
    none, counts, unit = np.zeros(2), np.array([[0], [1]]), np.zeros(1, dtype=np.int64)
    demand = np.where(np.arange(48) % 24 < 6, 2.0, 1.0)
    classes = hour_classes(demand, np.ones(48), 1, 0, with_terms=True)
    pools = [
        Pool(0, 0, 1.0, unit, term, counts, term, none, none, 1, term_h=24.0),
        Pool(0, 0, 1.0, unit, by_hour, counts, by_hour, none, none, 1),
    ]
    search = SetSearch(table_of(pools, [0, 1]), classes, FleetRules(0, 1, 0.0, 0.0, 2, 1), 0.0)
    walked = PoolFleet((0, 1), np.ones((48, 2), dtype=np.int64), 1000.0)
    held = search.costs.held_throughout((0, 1), walked)
    assert held is not None
    assert held.usd == pytest.approx(48 * 1.0 + 12 * 3.0)


@settings(PROFILE, max_examples=200)
@given(
    pattern=st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=24, max_size=24).map(sorted),
    shift=st.integers(0, 23),
    days=st.integers(3, 6),
    term_h=st.sampled_from([24.0, 40.0, 72.0]),
    by_hour_usd=st.sampled_from([1.1, 1.6, 2.5, 6.0]),
    owners=st.sampled_from([[0, 0], [0, 1]]),
    stretches=st.lists(st.tuples(st.integers(0, 140), st.integers(1, 144)), max_size=8),
    lead_h=st.integers(0, 12),
)
def test_no_fleet_of_stretches_costs_less_than_the_bound_with_terms(
    pattern: list[float], shift: int, days: int, term_h: float, by_hour_usd: float, owners: list[int],
    stretches: list[tuple[int, int]], lead_h: int,
) -> None:  # fmt: skip
    """Nodes with a term at 1 USD an hour are held in any stretches, also such that take turns; others carry
    the rest by the hour.
    """
    demand = np.tile(np.roll(np.array(pattern), shift), days)
    hours = len(demand)
    classes = hour_classes(demand, np.ones(hours), 1, 24, with_terms=True)
    assert classes.bands is not None
    kept = term_h / (term_h + classes.bands.usual_rest_h)
    level, none, unit = np.arange(4.0), np.zeros(4), np.zeros(1, dtype=np.int64)
    rate, start, counts = kept * level, (1 - kept) * term_h * level, np.arange(4)[:, None]
    pools = [
        Pool(0, 0, 1.0, unit, rate, counts, rate, start, start, 1, float(start[1]), term_h, 1 / kept),
        Pool(0, owners[1], 1.0, unit, by_hour_usd * level, counts, by_hour_usd * level, none, none, 1),
    ]
    search = SetSearch(table_of(pools, owners), classes, FleetRules(0, 1, 0.0, 0.0, 2, 1), 0.0)
    search.run()
    # Nodes that take turns: each is held from a rise of demand to a fall after its term.
    turns = [(begin, int(term_h) + lead_h) for begin, _ in stretches]
    for plan in (stretches, turns):
        held, usd = np.zeros(hours), 0.0
        for begin, length in plan:
            now = slice(begin, min(hours, begin + length))
            if begin < hours and held[now].max() < 3:
                held[now] += 1
                usd += max(float(now.stop - begin), term_h)
        usd += by_hour_usd * float(np.maximum(demand - held, 0).sum())
        assert usd >= search.bound_usd - 1e-6
    assert search.best is not None
    assert search.best.usd >= search.bound_usd - 1e-6
    assert search.best.usd <= min(by_hour_usd * demand.sum(), demand.max() * max(hours, term_h)) + 1e-6


@pytest.mark.parametrize("later_from", [0, 24, 60, 100])
def test_equal_days_are_counted_at_once_only_in_the_last_stage(later_from: int) -> None:
    """Ten equal days of two levels: dear days of the first stage are not those that remain."""
    demand = np.tile(np.repeat([3.0, 9.0], 12), 10)
    level = np.arange(12.0)
    unit, counts = np.zeros(1, dtype=np.int64), np.arange(12)[:, None]
    pools = [
        Pool(0, 0, 1.0, unit, level, counts, level, 0.5 * level, 0.5 * level, 1, later_share=1.5),
        Pool(0, 1, 2.0, unit, 1.9 * level, counts, 1.9 * level, level, level, 1, later_share=1.1),
    ]
    found = []
    for period in (0, 24):
        classes = hour_classes(demand, np.ones(240), 1, period, later_from=later_from, later_share=1.3)
        search = SetSearch(table_of(pools, range(2)), classes, FleetRules(0, 1, 0.0, 0.0, 2, 2), 0.0)
        search.run()
        assert search.best is not None
        found.append((search.best.usd, search.bound_usd))
    assert found[1][0] == pytest.approx(found[0][0])
    assert found[1][1] == pytest.approx(found[0][1], rel=2e-4)
    assert found[1][1] <= found[1][0] + 1e-6

"""Fleets on any number of pools against exhaustive search, on small drawn markets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer
from broker.domain.planning.plan import PlanStatus
from broker.domain.planning.workload import NO_LIMIT, FleetLimits, PlanRequest, Policy
from optimizer.placement.fleets.covers import STEPS, HourCovers, PoolPrices
from optimizer.placement.fleets.hours import hour_classes
from optimizer.placement.fleets.many_pools import PatternSearch
from optimizer.placement.fleets.pool_table import Pool, table_of
from optimizer.placement.fleets.rules import FleetRules
from optimizer.placement.fleets.set_costs import Openings
from optimizer.placement.problem.problem import Floats, Ints
from tests.depth import examples
from tests.placement.market import offer, plan, request, serving

PROFILE = settings(
    max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
SEEDS = range(examples(60))
SLIGHT = 1e-6


# Covers of one hour.


@dataclass(frozen=True)
class Hour:
    """Pools of one hour, what it needs, and under which rules."""

    prices: PoolPrices
    demand: float
    rules: FleetRules

    def usd(self, levels: Sequence[int] | Ints) -> float:
        """What levels of the pools cost; inf where they break a rule."""
        stands = [
            (rate * level, rate, place)
            for level, rate, place in zip(levels, self.prices.rate, self.prices.place, strict=True)
            if level
        ]
        if not _meets(stands, self.demand, self.rules):
            return np.inf
        return sum(float(self.prices.usd[pool, level]) for pool, level in enumerate(levels))

    def least_usd(self) -> float:
        return min(self.usd(levels) for levels in product(*(range(most + 1) for most in self.prices.most)))


def _meets(stands: Sequence[tuple[float, float, int]], demand: float, rules: FleetRules) -> bool:
    """Whether replicas that serve so much in all, each so much, in a place, meet the rules."""
    total = sum(served for served, _, _ in stands)
    by_place: defaultdict[int, float] = defaultdict(float)
    for served, _, place in stands:
        by_place[place] += served
    standing = sum(served >= rules.least_share * demand - 1e-9 for served in by_place.values())
    return (
        total - rules.spare * max((rate for _, rate, _ in stands), default=0.0) >= demand - 1e-9
        and standing >= rules.places
        and all(total - served >= rules.loss_share * demand - 1e-9 for served in by_place.values())
    )


def drawn_rules(rng: np.random.Generator, pools: int = NO_LIMIT, gpus: int = NO_LIMIT) -> FleetRules:
    places = int(rng.integers(1, 4))
    loss = 0.5 if places > 1 and rng.random() < 0.7 else 0.0
    return FleetRules(int(rng.integers(0, 3)), places, loss, loss / max(1, places - 1), pools, gpus)


def drawn_hour(seed: int) -> Hour:
    """Up to five pools in up to four places, each of up to three replicas."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    most = rng.integers(1, 4, count)
    usd = np.full((count, int(most.max()) + 1), np.inf)
    for pool, price in enumerate(rng.uniform(1, 5, count)):
        usd[pool, : most[pool] + 1] = np.arange(most[pool] + 1) * price
    rate = rng.choice([1.0, 1.7, 2.3, 4.1], count)
    prices = PoolPrices(usd, rate, most, rng.integers(0, 4, count), np.arange(count))
    return Hour(prices, float(rng.uniform(0.5, 6)), drawn_rules(rng))


def test_covers_of_an_hour_are_the_cheapest_and_bounded_so() -> None:
    """No bound is above the optimum, and in nearly all hours a cover of that cost is built. In one place a
    bound is that of rates rounded up: the optimum of a demand that is a step lower for each pool."""
    hours = [drawn_hour(seed) for seed in range(examples(300))]
    served = built_best = 0
    for hour in hours:
        least, covers = hour.least_usd(), HourCovers(hour.rules)
        bound = covers.bound_usd(hour.prices, hour.demand)
        assert bound <= least + 1e-9
        if not np.isfinite(least):
            continue
        built = min(hour.usd(levels) for levels in covers.covers(hour.prices, hour.demand))
        served += 1
        built_best += built <= least * (1 + 1e-9)
        if hour.rules.places == 1 and hour.rules.loss_share == 0:
            step = (hour.demand + hour.rules.spare * float(hour.prices.rate.max())) / STEPS
            lower = hour.demand - (1 + len(hour.prices.rate)) * step
            assert bound >= replace(hour, demand=lower).least_usd() - 1e-9
    assert served > len(hours) / 3
    assert built_best >= 0.95 * served


def test_what_is_enough_is_not_looked_beyond() -> None:
    for hour in map(drawn_hour, range(60)):
        least, covers = hour.least_usd(), HourCovers(hour.rules)
        bound = covers.bound_usd(hour.prices, hour.demand)
        if np.isfinite(least):
            assert covers.bound_usd(hour.prices, hour.demand, 0.5 * least) <= 0.5 * least
            assert covers.bound_usd(hour.prices, hour.demand, 2 * least) >= bound - 1e-9


# Fleets over all hours.


@dataclass(frozen=True)
class Row:
    """One pool with ``owed`` replicas that are paid ``owed_usd`` each, and more for ``usd`` and ``start_usd``
    each."""

    owner: int
    gpu: int
    place: int
    rate: float
    most: int
    usd: float
    start_usd: float
    owed: int = 0
    owed_usd: float = 0.0

    def money(self) -> tuple[Floats, Floats]:
        """USD [R] an hour and what starting costs, by level."""
        beyond: Ints = np.maximum(np.arange(self.most + 1) - self.owed, 0)
        return self.owed * self.owed_usd + beyond * np.float64(self.usd), beyond * np.float64(self.start_usd)

    def pool(self) -> Pool:
        usd, start = self.money()
        counts, unit = np.arange(self.most + 1)[:, None], np.array([self.owner], dtype=np.int64)
        return Pool(self.gpu, self.place, self.rate, unit, usd, counts, usd, start, start, 1)


@dataclass(frozen=True)
class Market:
    rows: tuple[Row, ...]
    demand: tuple[float, ...]
    rules: FleetRules
    openings: Openings | None = None

    def search(self) -> PatternSearch:
        """The search over the market, before it runs."""
        owner = [row.owner for row in self.rows]
        table = table_of([row.pool() for row in self.rows], owner)
        demand = np.array(self.demand)
        classes = hour_classes(demand, np.ones(len(demand)), 1, 0)
        units = np.stack((np.arange(max(owner) + 1), np.ones(max(owner) + 1, dtype=np.int64)))
        return PatternSearch(table, classes, self.rules, 0.0, openings=self.openings, units=units)

    def least_usd(self) -> float:
        """The least cost of all fleets: every choice of pools, every level of each in every hour."""
        by_owner: defaultdict[int, list[Row]] = defaultdict(list)
        for row in self.rows:
            by_owner[row.owner].append(row)
        found = np.inf
        for count in range(1, min(self.rules.pools, len(by_owner)) + 1):
            for owners in combinations(sorted(by_owner), count):
                for chosen in product(*(by_owner[owner] for owner in owners)):
                    if len({row.gpu for row in chosen}) <= self.rules.gpus:
                        found = min(found, self._least_of(chosen))
        return found

    def _least_of(self, chosen: tuple[Row, ...]) -> float:
        states = np.array(list(product(*(range(row.most + 1) for row in chosen))))
        money = [row.money() for row in chosen]
        usd = sum(one[states[:, at]] for at, (one, _) in enumerate(money))
        start = np.stack([one[states[:, at]] for at, (_, one) in enumerate(money)], axis=1)
        moves = np.maximum(start[None, :, :] - start[:, None, :], 0).sum(axis=2)
        total = np.zeros(len(states))
        for hour, wanted in enumerate(self.demand):
            met = np.array([self._stands(chosen, state, wanted, hour) for state in states])
            before = (total[:, None] + moves).min(axis=0) if hour else total
            total = np.where(met, before + usd, np.inf)
        return float(total.min())

    def _stands(self, chosen: tuple[Row, ...], state: Ints, wanted: float, hour: int) -> bool:
        if self.openings is not None:
            free = self.openings.free[self.openings.of_hour[hour]]
            if any(level > free[row.owner] for row, level in zip(chosen, state, strict=True)):
                return False
        stands = [
            (row.rate * level, row.rate, row.place) for row, level in zip(chosen, state, strict=True) if level
        ]
        return _meets(stands, wanted, self.rules)


def drawn_market(
    seed: int,
    *,
    owners: int = 3,
    most: int = 2,
    owed: bool = False,
    pools: int = NO_LIMIT,
    kinds: bool = False,
) -> Market:
    """A few pools of two kinds of GPU in up to three places over three or four hours."""
    rng = np.random.default_rng(seed)
    rows = []
    for owner in range(owners):
        usd = float(rng.choice([1.0, 1.3, 1.9, 2.5, 4.0]))
        row = Row(
            owner,
            int(rng.integers(0, 2)),
            int(rng.integers(0, 3)),
            float(rng.choice([1.0, 2.0, 5.0])),
            int(rng.integers(1, most + 1)),
            usd,
            float(rng.choice([0.0, 0.4, 1.5])),
        )
        rows.append(row)
        if owed and rng.random() < 0.7:
            rows.append(replace(row, owed=1, owed_usd=0.6 * usd))
    demand = rng.choice([0.5, 2.0, 3.5, 6.0], int(rng.integers(3, 5)))
    rules = drawn_rules(rng, pools, 1 if kinds else NO_LIMIT)
    return Market(tuple(rows), tuple(demand.tolist()), replace(rules, places=min(2, rules.places)))


def drawn_openings(market: Market, seed: int) -> Openings:
    """Others hold one replica or all of one pool in every other hour."""
    rng = np.random.default_rng(seed)
    owners = max(row.owner for row in market.rows) + 1
    free = np.full((2, owners), 9)
    free[1, rng.integers(0, owners)] = rng.integers(0, 2)
    return Openings(free, np.arange(len(market.demand)) % 2)


KINDS_OF_MARKET = {
    "plain": lambda seed: drawn_market(seed, most=3),
    "commitments": lambda seed: drawn_market(seed, owed=True),
    "one kind of GPU": lambda seed: drawn_market(seed, most=3, kinds=True),
    "two pools": lambda seed: drawn_market(seed, most=3, pools=2),
    "five of six pools": lambda seed: drawn_market(seed, owners=6, most=1, pools=5),
    "nodes that others hold": lambda seed: _beside_others(drawn_market(seed, most=3), seed),
}
NEARLY_ALL = 0.9


def _beside_others(market: Market, seed: int) -> Market:
    return replace(market, openings=drawn_openings(market, seed))


@pytest.mark.parametrize("kind", KINDS_OF_MARKET)
def test_fleets_cost_what_the_cheapest_of_all_fleets_does(kind: str) -> None:
    """The fleet is a fleet, its bound is never above the optimum, and nearly always it is the optimum."""
    served = best = 0
    for seed in SEEDS:
        market = KINDS_OF_MARKET[kind](seed)
        search, least = market.search(), market.least_usd()
        search.run()
        # What others hold is left out of the bound.
        assert search.bound_usd <= replace(market, openings=None).least_usd() + SLIGHT
        if search.best is None:
            assert np.isinf(least)
            continue
        assert all(len(fleet.pools) <= market.rules.pools for fleet in search.fleets)
        assert search.best.usd >= least - SLIGHT
        served += 1
        best += search.best.usd <= least + SLIGHT
    assert served > len(SEEDS) / 3
    assert best >= NEARLY_ALL * served


def test_fleets_between_others_keep_to_what_is_free() -> None:
    tried = 0
    for seed in SEEDS:
        market = drawn_market(seed, most=3)
        search = market.search()
        search.run()
        open_market = _beside_others(market, seed)
        assert open_market.openings is not None
        best = search.best
        found = search.between(open_market.openings)
        assert search.best is best
        assert search.openings is None
        if found:
            tried += 1
            assert min(fleet.usd for fleet in found) >= open_market.least_usd() - SLIGHT
    assert tried > len(SEEDS) / 4


# The dual prices of starts.


@PROFILE
@given(
    seed=st.integers(0, 10**6),
    owed=st.booleans(),
    power=st.sampled_from([0.0, 0.5, 2.0]),
    theta=st.lists(st.floats(0, 1), min_size=8, max_size=8),
)
def test_any_duals_of_starts_give_a_bound(seed: int, owed: bool, power: float, theta: list[float]) -> None:
    market = drawn_market(seed, most=3, owed=owed)
    least, duals = market.least_usd(), market.search().duals
    drawn = np.resize(np.array(theta), duals.theta.shape)
    told = replace(duals, theta=drawn).charged(power)
    nothing = np.zeros(len(duals.slots.demand))
    each = told.bounds_usd(None, nothing, np.inf)
    assert each.sum() <= least + SLIGHT
    if np.isfinite(least):
        assert told.hours_usd([None] * len(nothing))[0] == pytest.approx(each.sum())


def test_duals_of_starts_only_climb() -> None:
    """What is proven rises on the way, and most often above what one price of a start proves."""
    higher = 0
    for seed in SEEDS:
        market = drawn_market(seed, most=3)
        least, duals = market.least_usd(), market.search().duals
        if not np.isfinite(least):
            continue
        climbed, covers = duals.ascend(least)
        nothing = np.zeros(len(duals.slots.demand))
        before, after = (one.bounds_usd(None, nothing, np.inf).sum() for one in (duals, climbed))
        assert before - SLIGHT <= after <= least + SLIGHT
        assert all((cover <= duals.table.most).all() for cover in covers)
        assert ((climbed.theta >= 0) & (climbed.theta <= 1)).all()
        higher += after > before + SLIGHT
    assert higher > 3


def test_a_start_that_lasts_two_hours_is_paid_by_both() -> None:
    """One small node by night; by day for two hours a second one, of $1 an hour and $1 to start: 4 + 2 + 1.
    The duals spread the start over both hours of the day, so that the bound is all of it."""
    rows = (Row(0, 0, 0, 1.0, 2, 1.0, 1.0),)
    market = Market(rows, (1.0, 2.0, 2.0, 1.0), FleetRules(0, 1, 0.0, 0.0, NO_LIMIT, NO_LIMIT))
    assert market.least_usd() == 7.0
    search = market.search()
    search.run()
    assert search.best is not None
    assert search.best.usd == pytest.approx(7.0)
    assert search.bound_usd == pytest.approx(7.0, rel=1e-5)


# Through the planner.


def six_places() -> list[Offer]:
    """Pools of three kinds in six places, none of which carries the peak alone."""
    offers = [
        offer("a", "1.00", nodes=1, zone="a"),
        offer("b", "1.10", nodes=2, zone="b", provider="aws"),
        offer("c", "0.70", nodes=2, zone="c", gpu="MID"),
        offer("d", "1.25", nodes=3, zone="d", provider="gcp"),
        offer("e", "0.30", nodes=3, zone="e", gpu="TINY", provider="aws"),
        offer("f", "1.90", nodes=9, zone="f", provider="gcp"),
    ]
    return [replace(one, billing_increment_s=3600) for one in offers]


def asked(limits: FleetLimits, *, in_policy: bool, zones: int) -> PlanRequest:
    own, team = (FleetLimits(), limits) if in_policy else (limits, FleetLimits())
    service = serving(hourly=[6.0, 9.0, 17.0, 12.0], zones=zones, spare=1, fleet=own)
    return request(service, hours=24, policy=Policy(premium=0.0, fleet=team))


@pytest.mark.parametrize("zones", [1, 2])
@pytest.mark.parametrize("kinds", [2, NO_LIMIT])
@pytest.mark.parametrize("in_policy", [False, True], ids=["of the workload", "of the policy"])
def test_more_pools_never_cost_more(in_policy: bool, kinds: int, zones: int) -> None:
    """Every plan passes its own check, which counts pools and kinds of GPU."""
    few, any_number = (
        plan(asked(FleetLimits(pools, kinds), in_policy=in_policy, zones=zones), six_places(), gap=0.01)
        for pools in (4, NO_LIMIT)
    )
    assert few.status is not PlanStatus.INFEASIBLE
    assert any_number.cost_usd <= few.cost_usd * Decimal("1.01")
    assert any_number.bound_usd is not None
    assert any_number.bound_usd <= min(few.cost_usd, any_number.cost_usd)
    assert len({placement.gpu for placement in any_number.placements}) <= kinds


def test_a_peak_that_only_five_pools_carry_is_placed() -> None:
    """Five places of one node each, of 4 requests/s: 20 in all."""
    offers = [offer(zone, "1.00", nodes=1, zone=zone) for zone in "abcde"]
    service = serving(hourly=[20.0])
    for pools, status in (
        (4, PlanStatus.INFEASIBLE),
        (5, PlanStatus.OPTIMAL),
        (NO_LIMIT, PlanStatus.OPTIMAL),
    ):
        limited = replace(service, fleet=FleetLimits(pools, 2))
        assert plan(request(limited, hours=10), offers).status is status


def test_an_hour_without_demand_holds_nothing() -> None:
    """By hand: at each noon five pools at $1.00, all of which start at $0.10."""
    rows = tuple(Row(number, gpu=0, place=0, rate=1.0, most=1, usd=1.0, start_usd=0.1) for number in range(5))
    search = Market(rows, (0.0, 5.0, 0.0, 5.0, 0.0), FleetRules(0, 1, 0.0, 0.0, NO_LIMIT, NO_LIMIT)).search()
    search.run()
    assert search.best is not None
    assert search.best.usd == pytest.approx(2 * 5 * 1.0 + 2 * 5 * 0.1)
    assert search.best.levels[[0, 2, 4]].sum(axis=1).tolist() == [0, 0, 0]


def test_five_places_are_found_on_kinds_that_serve_little() -> None:
    """By hand: two small cards at $0.30 and three at $1.00, in five places. Four dear kinds serve more, and
    the cheapest cards stand in two places only."""
    kinds = [(kind, place, 9.0, 10.0) for kind in range(4) for place in range(5)]
    kinds += [(4, place, 4.0, 1.0) for place in range(5)] + [(5, place, 1.0, 0.3) for place in range(2)]
    rows = tuple(
        Row(number, gpu, place, rate, most=2, usd=usd, start_usd=0.0)
        for number, (gpu, place, rate, usd) in enumerate(kinds)
    )
    search = Market(rows, (1.0,) * 24, FleetRules(0, 5, 0.5, 0.125, 6, 2)).search()
    search.run()
    assert search.best is not None
    assert search.best.usd == pytest.approx(24 * (2 * 0.3 + 3 * 1.0))
    assert search.bound_usd == pytest.approx(search.best.usd, rel=0.01)

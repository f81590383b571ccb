"""Near ties of runs, fewer pools of fleets, and what their limits cost: one right answer each."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from broker.domain.market.offer import Offer, Tier, WindowKind
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import FleetLimits, PlanRequest, Workload
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import at, offer, plan, request, serving, training, window

STARTUP = FakeEstimator(startup_hours=1.0)


def listing(name: str, start: int, hours: int, usd: str, provider: str = "lambda") -> Offer:
    terms = window(WindowKind.LISTED, (start, start + hours, 1))
    return offer(name, usd, tier=Tier.WINDOW, window=terms, provider=provider)


def planned(premium: float, offers: list[Offer], *workloads: Workload, hours: float = 48) -> Plan:
    asked: PlanRequest = request(*workloads, hours=hours)
    asked = replace(asked, policy=replace(asked.policy, premium=premium))
    return plan(asked, offers, estimator=STARTUP, gap=0.5)


def held(found: Plan) -> list[str]:
    return [placement.offer_id for placement in found.placements]


def test_a_part_less_is_worth_the_premium_and_no_more() -> None:
    """Two windows of 6 h at $1.00 do the run of 10 h and both start-ups for $12.00; one node by the hour does
    it in 11 h, for $12.10 (0.8 % more) or $13.20."""
    run = training("run", 10, deadline=at(14), interruptible=True)
    windows = [listing("w", 0, 6, "1.00"), listing("x", 8, 6, "1.00")]
    assert held(planned(0.0, [*windows, offer("b", "1.10")], run)) == ["w", "x"]
    whole = planned(0.01, [*windows, offer("b", "1.10")], run)
    assert (held(whole), whole.cost_usd) == (["b"], Decimal("12.10"))
    assert held(planned(0.01, [*windows, offer("b", "1.20")], run)) == ["w", "x"]
    told = "A near tie: $0.10 more than the cheapest way pay for 1 part in place of 2, an end 3.0 h earlier."
    assert told in whole.placements[0].why.sentences
    assert (
        whole.placements[0].why.binding[0]
        == "it is among the cheapest of 1 offer that fits and meets the deadline"
    )


def test_a_seller_less_is_worth_the_premium() -> None:
    """The second window is $6.00 at another seller, or $6.06 at the first one's."""
    run = training("run", 10, deadline=at(14), interruptible=True)
    windows = [
        listing("w", 0, 6, "1.00"),
        listing("x", 8, 6, "1.00", provider="verda"),
        listing("y", 8, 6, "1.01"),
    ]
    assert held(planned(0.0, windows, run)) == ["w", "x"]
    assert held(planned(0.01, windows, run)) == ["w", "y"]


def test_an_end_much_earlier_is_worth_the_premium() -> None:
    """26 h at $0.40 are $10.40; 11 h at $0.95 are $10.45, 0.5 % more for an end 15 h earlier."""
    offers = [offer("slow", "0.40", gpu="MID"), offer("fast", "0.95")]
    assert held(planned(0.0, offers, training("run", 10))) == ["slow"]
    found = planned(0.01, offers, training("run", 10))
    assert (held(found), found.cost_usd) == (["fast"], Decimal("10.45"))
    assert "pay for an end 15.0 h earlier." in " ".join(found.placements[0].why.sentences)


def test_an_end_a_little_earlier_is_not() -> None:
    """A window from hour 1 on costs $100.20 for 101 h; by the hour it is $101.00, done an hour earlier."""
    run = training("run", 100, deadline=at(120))
    found = planned(0.01, [listing("w", 1, 101, "0.992"), offer("b", "1.00")], run, hours=130)
    assert held(found) == ["w"]


def test_an_end_a_little_earlier_is_where_it_takes_the_risk_from_the_deadline() -> None:
    """As above. At its upper end the run takes 111.1 h: the window's ends at 112.1 h,
    the other at 111.1 h.

    With a deadline at 112 h the premium is paid for all of the overrun; at 105 h for a seventh of it.
    """
    offers = [listing("w", 1, 101, "0.992"), offer("b", "1.00")]
    run = training("run", 100, deadline=at(112))
    assert held(planned(0.0, offers, run, hours=130)) == ["w"]
    assert held(planned(0.01, offers, run, hours=130)) == ["b"]
    assert held(planned(0.01, offers, training("run", 100, deadline=at(105)), hours=130)) == ["w"]


def test_no_next_best_that_is_told_costs_less() -> None:
    """The way that lost the near tie is neither the runner-up nor the next best."""
    offers = [offer("slow", "0.40", gpu="MID"), offer("fast", "0.95"), offer("dear", "2.00")]
    why = planned(0.01, offers, training("run", 10)).placements[0].why
    assert why.runner_up is not None
    assert why.runner_up.offer_id == "dear"
    assert all(way.more_usd >= 0 for way in why.next_best)
    more = "it costs $11.55 more (110.5 %) and ends at the same time"
    assert f"The next best is 1 x BIG at lambda in us-east (dear): {more}." in why.sentences


def test_a_pool_less_is_worth_the_premium() -> None:
    """Two nodes are needed: one of each pool for $2.005 an hour, or both of the second for $2.01."""
    offers = [offer("a", "1.000", nodes=1), offer("b", "1.005", nodes=2, zone="b")]
    service = serving(hourly=[7.0])
    assert sorted(held(planned(0.0, offers, service, hours=10))) == ["a", "b"]
    found = planned(0.01, offers, service, hours=10)
    assert (held(found), found.cost_usd) == (["b"], Decimal("20.10"))
    assert "pay for 1 pool in place of 2" in " ".join(found.placements[0].why.sentences)


def test_a_limit_of_pools_says_what_a_pool_more_would_save() -> None:
    """Two nodes are needed: both of the dear pool for $3.00 an hour, or one of each for $2.50."""
    offers = [offer("a", "1.00", nodes=1), offer("b", "1.50", nodes=2, zone="b")]
    service = serving(hourly=[7.0])
    limited = planned(0.01, offers, replace(service, fleet=FleetLimits(1, 2)), hours=10)
    assert limited.cost_usd == Decimal("30.00")
    assert "At most 1 pool is allowed, and a second would save $5.00." in limited.placements[0].why.sentences
    free = planned(0.01, offers, replace(service, fleet=FleetLimits(2, 2)), hours=10)
    assert free.cost_usd == Decimal("25.00")
    assert "allowed, and a" not in " ".join(s for p in free.placements for s in p.why.sentences)


def test_a_limit_of_kinds_says_what_a_kind_more_would_save() -> None:
    """As above, with GPUs of two kinds."""
    offers = [offer("a", "1.00", nodes=1), offer("b", "1.50", gpu="MID", nodes=8, zone="b")]
    service = replace(serving(hourly=[7.0]), fleet=FleetLimits(2, 1))
    found = planned(0.01, offers, service, hours=10)
    more = planned(0.01, offers, replace(service, fleet=FleetLimits(2, 2)), hours=10)
    saved = found.cost_usd - more.cost_usd
    assert saved > 0
    told = f"At most 1 kind of GPU is allowed, and a second would save ${saved}."
    assert told in found.placements[0].why.sentences

"""Which moves pay: the pure core, by examples in dollars and by properties over drawn markets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.estimate import Estimate
from broker.domain.market.offer import Offer, Stock, StockLevel
from broker.domain.moving.merging import merged
from broker.domain.moving.move_cost_benefit import MoveContext, PastMove, leaving_usd
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.moving.remaining import remaining
from broker.domain.moving.reoptimization import RiskKind
from broker.domain.moving.reoptimizing import Decision, decide_moves
from broker.domain.planning.assumed_stock import most_gpus, most_nodes
from broker.domain.planning.plan import Assumption, Plan
from broker.domain.planning.workload import Checkpoints, PlanRequest, Training, WorkloadKind
from broker.domain.reconciling.held_offers import with_held
from broker.domain.workloads.reoptimize_policy import MoveRules, ReoptimizeMode, ReoptimizePolicy, rules_of
from tests.depth import examples
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_request, a_segment, an_offer
from tests.fakes.planned import held_as_planned

HOUR = timedelta(hours=1)
TERMS = MovingTerms(egress_usd_per_gb={"fake": Decimal("0.09")})
SERVING, TRAINING = WorkloadKind.SERVING, WorkloadKind.TRAINING
EAGER = MoveRules(min_saving_usd=Decimal(0), min_saving_share=Decimal(0), cooldown=timedelta(0))


def plan_of(on: Mapping[str, Offer], now: datetime = NOON, **runs: Any) -> Plan:
    """Each workload on its offer from ``now`` on: services to the end, runs for ten hours."""
    placements = []
    at = (now - NOON) / HOUR
    for name, offer in on.items():
        if name == "chat":
            placements.append(a_placement(offer, [a_segment(at, 48)], name, SERVING))
        else:
            run = a_placement(offer, [a_segment(at, at + runs.get("hours", 10))], name, TRAINING)
            hours = Estimate({"hours": runs.get("hours", 10.0)}, {"hours": 1.0}, {"hours": 1.0})
            placements.append(replace(run, estimate=hours))
    return a_plan(*placements, as_of=now)


def situation(
    plan: Plan, offers: Sequence[Offer], now: datetime, ordered: Sequence[Offer] | None = None, **more: Any
) -> MoveContext:
    """``plan`` as planned until ``now``; ``ordered``: the offers as they were when it was bought."""
    request = more.pop("request", a_request())
    then = {offer.offer_id: offer for offer in ordered or offers}
    return MoveContext(
        request=request,
        plan=plan,
        held=held_as_planned(plan, then, now),
        offers={offer.offer_id: offer for offer in offers},
        prices_then={key: offer.price_usd_per_node_hour for key, offer in then.items()},
        now=now,
        **more,
    )


def interruptible(request: PlanRequest, **changes: Any) -> PlanRequest:
    run, service = request.workloads
    assert isinstance(run, Training)
    return replace(request, workloads=(replace(run, interruptible=True, **changes), service))


def decide(seen: MoveContext, new: Plan, rules: MoveRules = EAGER) -> Decision:
    return decide_moves(seen, new, {w.name: rules for w in seen.request.workloads}, TERMS)


def test_a_held_fleet_counts_what_is_left_and_what_the_handover_costs() -> None:
    a, b = an_offer("a", "10"), an_offer("b", "5", provider="other")
    now = NOON + 4 * HOUR
    seen = situation(plan_of({"chat": a}), [a, b], now)
    (move,) = decide(seen, plan_of({"chat": b}, now), MoveRules()).moves
    assert (move.stay_usd, move.saving_usd) == (Decimal(440), Decimal(220))
    assert move.cost.overlap_usd == Decimal(10), "an hour of the old beside the new"
    assert move.cost.egress_usd == Decimal("0.00"), "2 MB of weights"
    assert move.net_usd == Decimal(210)
    assert "b: price unchanged at $5.00 a node-hour" in move.why
    assert {risk.kind for risk in move.risks} == {
        RiskKind.UNPROVEN_SELLER, RiskKind.SINGLE_ZONE, RiskKind.OLD_PRICE,
    }  # fmt: skip


def test_the_price_of_the_order_counts_for_what_is_held() -> None:
    old, now = an_offer("a", "10"), NOON + 4 * HOUR
    seen = situation(plan_of({"chat": old}), [an_offer("a", "20"), an_offer("b", "9")], now, [old])
    (move,) = decide(seen, plan_of({"chat": an_offer("b", "9")}, now)).moves
    assert move.stay_usd == Decimal(440)
    assert leaving_usd(seen, TERMS)["chat"] == Decimal(450), "440 of it is cheaper than today, 10 overlap"


def test_a_commitment_that_is_owed_stays_however_cheap_the_rest_is() -> None:
    a, b = an_offer("a", "10", min_hours=48.0), an_offer("b", "0.5")
    now = NOON + 4 * HOUR
    decision = decide(situation(plan_of({"chat": a}), [a, b], now), plan_of({"chat": b}, now))
    assert decision.moves == ()
    assert decision.held_back == {"chat"}


def test_a_run_in_progress_moves_only_where_it_may_and_pays_for_its_rework() -> None:
    a, b, now = an_offer("a", "10"), an_offer("b", "2"), NOON + 4.5 * HOUR
    plan, new = plan_of({"train": a}), plan_of({"train": b}, now, hours=6)
    fixed = decide(situation(plan, [a, b], now), new)
    assert fixed.moves == ()
    assert "must not be interrupted" in fixed.declined[0].reason
    free = interruptible(a_request(), checkpoint=Checkpoints(60.0))
    (move,) = decide(situation(plan, [a, b], now, request=free), new).moves
    assert move.stay_usd == Decimal(50), "hours 5 to 10; the one begun is owed"
    assert move.cost.rework_usd == Decimal("1.23"), "37 minutes since the last checkpoint, at 2 USD an hour"
    assert move.saving_usd == Decimal(50) - (Decimal(12) - move.cost.rework_usd)
    left = remaining(free, plan, situation(plan, [a, b], now).held, now, TERMS)
    run = left.request.workload("train")
    assert isinstance(run, Training)
    assert run.tokens == 6e8, "four of ten hours are safe"


def test_what_runs_and_may_not_move_is_not_asked_for_again() -> None:
    a, now = an_offer("a", "10"), NOON + 4 * HOUR
    plan = plan_of({"train": a, "chat": a})
    left = remaining(a_request("1000"), plan, held_as_planned(plan, {"a": a}, now), now, TERMS)
    assert [w.name for w in left.request.workloads] == ["chat"]
    assert left.request.budget_usd == Decimal(900)
    assert left.fixed == {"train": NOON + 10 * HOUR}


@pytest.mark.parametrize("price", ["9.5", "0.01"])
def test_within_the_cooldown_nothing_is_cheap_enough_to_move_again(price: str) -> None:
    a, b, now = an_offer("a", price), an_offer("b", "10"), NOON + 4 * HOUR
    plan, new = plan_of({"chat": b}), plan_of({"chat": a}, now)
    past = (PastMove("chat", NOON - 48 * HOUR), PastMove("chat", NOON + 3 * HOUR))
    rules = replace(EAGER, cooldown=12 * HOUR)
    assert decide(situation(plan, [a, b], now, past=past), new, EAGER).moved == {"chat"}
    back = decide(situation(plan, [a, b], now, past=past), new, rules)
    assert back.moves == ()
    assert back.declined[0].reason == "it moved at 23 Nov 15:00 UTC; the cooldown ends at 24 Nov 03:00 UTC"
    short = decide(situation(plan, [a, b], now, past=past), new, replace(rules, cooldown=2 * HOUR))
    assert short.declined[0].reason == "it moved at 15:00 UTC; the cooldown ends at 17:00 UTC"
    over = situation(plan, [a, b], NOON + 15 * HOUR, past=past)
    assert decide(over, plan_of({"chat": a}, over.now), rules).moved == {"chat"}


def test_what_must_leave_moves_in_its_cooldown_and_says_what_that_costs() -> None:
    a, b, now = an_offer("a", "10.50"), an_offer("b", "10"), NOON + 4 * HOUR
    seen = situation(
        plan_of({"chat": b}),
        [a, b],
        now,
        past=(PastMove("chat", NOON + 3 * HOUR),),
        must_leave={"chat": "its seller takes it away"},
    )
    (move,) = decide(seen, plan_of({"chat": a}, now), replace(EAGER, cooldown=24 * HOUR)).moves
    assert move.why == (
        "b: price unchanged at $10.00 a node-hour; a: price unchanged at $10.50 a node-hour; "
        "its seller takes it away; it costs $32.00 more elsewhere"
    ), "44 hours at half a dollar more, and an hour of both"


def test_a_move_that_costs_more_says_how_much() -> None:
    a, b, now = an_offer("a", "10.20"), an_offer("b", "10"), NOON + 4 * HOUR
    seen = situation(plan_of({"chat": b}), [a, b], now)
    (declined,) = decide(seen, plan_of({"chat": a}, now)).declined
    assert declined.reason == "moving would cost $18.80 more", "44 hours at 20 cents, and an hour of both"


def test_never_means_never_and_a_workload_only_narrows_its_team() -> None:
    auto, never = ReoptimizePolicy(ReoptimizeMode.AUTO), ReoptimizePolicy(ReoptimizeMode.NEVER)
    strict = ReoptimizePolicy(min_saving_usd=Decimal(50), cooldown_hours=6, lapse_hours=2)
    assert rules_of((auto, never), MoveRules()).mode is ReoptimizeMode.NEVER
    assert rules_of((ReoptimizePolicy(), auto), MoveRules()).mode is ReoptimizeMode.AUTO
    rules = rules_of((strict, replace(auto, min_saving_usd=Decimal(20))), MoveRules())
    assert (rules.min_saving_usd, rules.cooldown, rules.lapse) == (Decimal(50), 6 * HOUR, 2 * HOUR)
    a, b = an_offer("a", "10"), an_offer("b", "1")
    decision = decide(
        situation(plan_of({"chat": a}), [a, b], NOON),
        plan_of({"chat": b}),
        replace(EAGER, mode=ReoptimizeMode.NEVER),
    )
    assert decision.moves == ()
    assert decision.after_usd == decision.before_usd


def test_own_nodes_are_there_to_keep() -> None:
    now = NOON + 4 * HOUR
    sold_out = an_offer("a", "10", stock=0, observed_at=now)
    held = held_as_planned(plan_of({"chat": an_offer("a", "10"), "train": an_offer("b", "9")}), {
        "a": an_offer("a", "10"), "b": an_offer("b", "9"),
    }, now)  # fmt: skip
    mine = {offer.offer_id: offer.stock.nodes for offer in with_held([sold_out], held)}
    assert mine == {"a": 1, "b": 1}


def test_own_nodes_count_beside_what_is_assumed() -> None:
    now = NOON + 4 * HOUR
    uncounted = replace(an_offer("a", "10", observed_at=now), stock=Stock(StockLevel.LOW))
    held = held_as_planned(plan_of({"chat": uncounted}), {"a": uncounted}, now)
    (mine,) = with_held([uncounted], held)
    assert mine.stock == Stock(StockLevel.LOW, held_nodes=1)
    assert most_nodes(mine, 16) == 17
    assert most_gpus([mine, mine], 16) == 18 * mine.sku.gpus_per_node


def test_the_plan_in_force_is_the_old_with_what_moved() -> None:
    a, b = an_offer("a", "10"), an_offer("b", "5")
    old, new = plan_of({"train": a, "chat": a}), plan_of({"train": b, "chat": b})
    both = merged(old, new, {"chat"}, a_request())
    assert {p.workload: p.offer_id for p in both.placements} == {"train": "a", "chat": "b"}
    assert both.cost_usd == Decimal(340) == sum(line.usd for line in both.spend)
    assert merged(old, new, {"chat", "train"}, a_request()) == new


def test_the_plan_in_force_counts_on_what_it_still_holds() -> None:
    a, b, c = an_offer("a", "10"), an_offer("b", "5"), an_offer("c", "5")
    old = replace(plan_of({"train": a, "chat": a}), assumptions=(Assumption("a", 2, "old"),))
    said = (Assumption("b", 1, "new"), Assumption("c", 1, "new"))
    both = merged(old, replace(plan_of({"train": c, "chat": b}), assumptions=said), {"chat"}, a_request())
    assert both.assumptions == (Assumption("a", 1, "old"), Assumption("b", 1, "new"))


prices = st.sampled_from(["1.1", "4", "7.77", "10", "25"])


@st.composite
def markets(draw: st.DrawFn) -> tuple[list[Offer], list[Offer]]:
    """Offers as they were bought and as they are today."""
    before = [
        an_offer(
            key,
            draw(prices),
            provider=draw(st.sampled_from(["fake", "other"])),
            min_hours=draw(st.sampled_from([0.0, 0.0, 12.0, 48.0])),
            increment_s=draw(st.sampled_from([1, 60, 3600])),
        )
        for key in "abc"
    ]
    today = [replace(o, price_usd_per_node_hour=Decimal(draw(prices))) for o in before]
    return before, today


@st.composite
def cases(draw: st.DrawFn, *, moved: bool = True) -> tuple[MoveContext, Plan]:
    before, today = draw(markets())
    now = NOON + draw(st.floats(0, 30)) * HOUR
    now = now.replace(microsecond=0)
    request = a_request()
    if draw(st.booleans()):
        request = interruptible(
            request, checkpoint=draw(st.sampled_from([None, Checkpoints(20.0), Checkpoints(90.0)]))
        )
    old = plan_of({"train": draw(st.sampled_from(before)), "chat": draw(st.sampled_from(before))}, hours=40)
    market = today if moved else before
    seen = situation(old, market, now, before, request=request)
    new = plan_of({"train": draw(st.sampled_from(market)), "chat": draw(st.sampled_from(market))}, now)
    return seen, new


rules = st.builds(
    MoveRules,
    mode=st.sampled_from(list(ReoptimizeMode)),
    min_saving_usd=st.sampled_from([Decimal(0), Decimal(10), Decimal(100)]),
    min_saving_share=st.sampled_from([Decimal(0), Decimal("0.02"), Decimal("0.3")]),
)


@settings(max_examples=examples(30), deadline=None)
@given(cases(), rules)
def test_no_move_costs_more_than_it_saves_or_saves_less_than_it_must(
    case: tuple[MoveContext, Plan], rule: MoveRules
) -> None:
    seen, new = case
    decision = decide(seen, new, rule)
    for move in decision.moves:
        assert rule.mode is not ReoptimizeMode.NEVER
        assert move.stay_usd is not None
        assert move.saving_usd > move.cost.total_usd
        assert move.net_usd >= max(rule.min_saving_usd, move.stay_usd * rule.min_saving_share) - Decimal(
            "0.01"
        )
    if decision.before_usd is not None:
        assert decision.after_usd <= decision.before_usd


@settings(max_examples=examples(30), deadline=None)
@given(cases())
def test_nothing_is_interrupted_that_must_not_be(case: tuple[MoveContext, Plan]) -> None:
    seen, new = case
    run = seen.request.workload("train")
    assert isinstance(run, Training)
    at_work = any(one.is_in_use(seen.now) for one in seen.held_by("train"))
    if at_work and not run.interruptible:
        assert "train" not in decide(seen, new).moved
        left = remaining(seen.request, seen.plan, seen.held, seen.now, TERMS)
        assert "train" in left.fixed


@settings(max_examples=examples(30), deadline=None)
@given(cases(moved=False), rules)
def test_the_same_plan_over_the_same_prices_changes_nothing(
    case: tuple[MoveContext, Plan], rule: MoveRules
) -> None:
    seen, _ = case
    decision = decide(seen, replace(seen.plan, as_of=seen.now), rule)
    assert decision.moves == ()
    assert decision.declined == ()
    assert decision.after_usd == decision.before_usd

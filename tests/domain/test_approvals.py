"""When finance's word on a plan no longer holds: the plan, and its price, edge by edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.errors import ApprovalLapsed
from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Placement, Plan
from broker.domain.spend.approvals import (
    Decision,
    Purchase,
    SeenFigures,
    Verdict,
    cost_now_usd,
    lapse,
    over_limit,
    plan_sha256,
    purchases_of,
)
from broker.services.spend.approving import require_as_approved
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_record, a_segment, an_offer

HOUR = timedelta(hours=1)
OFFER, OTHER = an_offer("a", "10"), an_offer("b", "20")
PLAN = a_plan(a_placement(OFFER, [a_segment(0, 5, 2)]), a_placement(OTHER, [a_segment(5, 10)], "chat"))


def seen(now: str | None, cost: Decimal = PLAN.cost_usd) -> SeenFigures:
    """What stood before finance: the plan at $200, and what it cost at the prices of that moment."""
    now_usd = None if now is None else Decimal(now)
    return SeenFigures(cost, now_usd, None, None, None, None, plan_sha256(PLAN))


@pytest.mark.parametrize(
    ("at_approval", "now", "holds"),
    [
        ("200", "200", True),
        ("200", "200.01", False),
        ("210", "200.01", True),  # a higher price was seen, and said yes to
        ("210", "210", True),
        ("210", "210.01", False),
        ("190", "200", True),  # the plan's own cost was seen as well
        ("190", "200.01", False),
        (None, "200", True),  # an offer was off sale: the plan's own cost is what was seen
        (None, "200.01", False),
        ("200", None, True),  # off sale now: prices are refused elsewhere
        ("200", "1", True),
    ],
)
def test_a_word_holds_up_to_the_dearest_figure_that_was_seen(
    at_approval: str | None, now: str | None, holds: bool
) -> None:
    assert PLAN.cost_usd == 200
    why = lapse(PLAN, seen(at_approval), None if now is None else Decimal(now))
    assert (why is None) is holds
    if why is not None:
        approved = max(Decimal(200), Decimal(at_approval or 0))
        assert f"${now} now and ${approved:.2f} was approved" in why


def test_what_was_seen_is_told_without_what_nobody_could_say() -> None:
    whole = plan_sha256(PLAN)[:16]
    assert str(seen("210")) == (f"seen: cost $200.00, cost at current prices $210.00, plan sha256 {whole}")
    assert str(seen(None)) == f"seen: cost $200.00, plan sha256 {whole}"


def changed(**changes: object) -> Callable[[Placement], Placement]:
    return lambda placement: replace(placement, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        changed(workload="other"),
        changed(offer_id="c"),
        changed(tier=Tier.SPOT),
        changed(cost_usd=Decimal("100.01")),
        changed(segments=(a_segment(0, 5, 1), a_segment(5, 10, 1))),
        changed(segments=(a_segment(0, 5, 3),)),
        changed(segments=(a_segment(1, 6, 2),)),
        changed(segments=(replace(a_segment(0, 5, 2), end=a_segment(0, 5).end + timedelta(seconds=1)),)),
    ],
)
def test_a_word_on_another_plan_does_not_hold(change: Callable[[Placement], Placement]) -> None:
    first, second = PLAN.placements
    for placements in ((change(first), second), (first, change(second))):
        other = replace(PLAN, placements=placements)
        assert plan_sha256(other) != plan_sha256(PLAN)
        assert lapse(other, seen("200"), Decimal(1)) == "it is not the plan that was approved"


def test_what_no_plan_is_told_apart_by() -> None:
    same: Plan = replace(PLAN, plan_id="again", solve_seconds=9.0, cost_usd=Decimal("200.00"))
    assert plan_sha256(same) == plan_sha256(PLAN)
    assert lapse(PLAN, None, Decimal(999)) is None, "nobody looked: nothing can lapse"


def test_a_plan_costs_what_all_of_its_offers_ask() -> None:
    dearer = {"a": an_offer("a", "11"), "b": OTHER}
    assert cost_now_usd(PLAN, dearer) == 11 * 10 + 20 * 5
    assert cost_now_usd(PLAN, {"a": OFFER}) is None


@pytest.mark.parametrize(("limit", "asked"), [("199.99", True), ("200", False), (None, False)])
def test_a_plan_at_the_limit_needs_no_word(limit: str | None, asked: bool) -> None:
    assert bool(over_limit(PLAN.cost_usd, None if limit is None else Decimal(limit))) is asked


@pytest.mark.parametrize("at_approval", ["200", None])
@pytest.mark.parametrize(("now_usd", "holds"), [("10", True), ("10.01", False)])
def test_a_plan_is_bought_as_it_was_approved_or_not_at_all(
    at_approval: str | None, now_usd: str, holds: bool
) -> None:
    """Also where an offer was off sale when finance said yes."""
    word = Decision(Verdict.APPROVED, "finance", NOON, seen=seen(at_approval))
    record = a_record(PLAN, needs_approval=True).decided(word)
    offers = {"a": an_offer("a", now_usd), "b": OTHER}
    if holds:
        require_as_approved(record, PLAN, offers)
        return
    with pytest.raises(ApprovalLapsed, match=r"costs \$200\.10 now and \$200\.00 was approved"):
        require_as_approved(record, PLAN, offers)
    require_as_approved(replace(record, needs_approval=False), PLAN, offers)


@pytest.mark.parametrize(
    ("first", "second", "gpus", "gpu_hours", "end_h"),
    [
        ((0, 5, 2), (4, 10, 1), 24, 8 * (10 + 6), 10),  # both are held in the fifth hour
        ((0, 5, 2), (5, 10, 2), 16, 8 * (10 + 10), 10),  # one follows the other
        ((2, 8, 1), (0, 8, 3), 32, 8 * (6 + 24), 8),
        ((1, 2, 3), (6, 7, 1), 24, 8 * (3 + 1), 7),
    ],
)
def test_a_purchase_is_all_that_one_workload_takes_of_one_seller(
    first: tuple[int, int, int], second: tuple[int, int, int], gpus: int, gpu_hours: float, end_h: int
) -> None:
    """Nodes of eight GPUs of two offers, at $10 and $20; another workload's purchase stands apart."""
    mine = [a_placement(offer, [a_segment(*hours)]) for offer, hours in ((OFFER, first), (OTHER, second))]
    other = a_placement(OFFER, [a_segment(0, 1)], "chat")
    usd = sum(
        10 * (index + 1) * (end - start) * nodes for index, (start, end, nodes) in enumerate((first, second))
    )
    bought, apart = purchases_of(a_plan(other, *mine))
    begin, end = NOON + min(first[0], second[0]) * HOUR, NOON + end_h * HOUR
    assert bought == Purchase(
        "train", "fake", "H100-SXM-80GB", Tier.ON_DEMAND, gpus, gpu_hours, begin, end, Decimal(usd)
    )
    assert (apart.workload, apart.gpus, apart.usd) == ("chat", 8, Decimal(10))

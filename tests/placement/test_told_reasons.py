"""What a plan says of itself is so: figures of the plan, reasons that bind, risks that its estimates tell."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

import pytest

from broker.domain.market.offer import Offer, Stock, Tier, WindowKind
from broker.domain.planning.plan import BindingRule, Obstacle, Plan
from broker.domain.planning.workload import Dataset, GpuRange, Policy
from optimizer.placement.explain.clauses import duration, figure
from tests.placement.market import at, batch, offer, plan, request, serving, training, window
from tests.placement.test_transfers import TERMS

UPPER = "at the upper end of its 80 % interval"


def sentences(found: Plan, name: str = "run") -> tuple[str, ...]:
    return found.placements_of(name)[0].why.sentences


def listed(name: str, start: float, end: float, nodes: int = 1, usd: str = "1.00") -> Offer:
    """A window that is bought whole."""
    terms = window(WindowKind.LISTED, (start, end, nodes), durations_hours=(end - start,))
    made = offer(name, usd, tier=Tier.WINDOW, window=terms, joined=8)
    return replace(made, upfront_usd=Decimal(usd) * Decimal(end - start))


def test_a_window_that_the_upper_end_passes_is_told_first() -> None:
    told = sentences(plan(request(training("run", 10)), [listed("short", 0, 10.5)]))
    assert told[1] == f"The window holds 10 h 30 min; the run needs 10 h, and 11 h {UPPER}."


def test_a_window_that_holds_the_upper_end_is_not() -> None:
    told = sentences(plan(request(training("run", 10)), [listed("long", 0, 12)]))
    assert not any(UPPER in sentence for sentence in told)


@pytest.mark.parametrize(("due", "is_told"), [(10.5, True), (11.5, False)])
def test_a_deadline_that_the_upper_end_passes_is_told(due: float, is_told: bool) -> None:
    told = sentences(plan(request(training("run", 10, deadline=at(due))), [offer("a", "1.00")]))
    assert (f"The deadline leaves 10 h 30 min; the run needs 10 h, and 11 h {UPPER}." in told) is is_told


def test_the_upper_end_of_a_batch_is_that_of_its_slowest_replicas() -> None:
    """600 s cold and 100,000 requests at 4/s; at the upper end 660 s and 3.6/s."""
    told = sentences(plan(request(batch(deadline=at(7.5))), [offer("a", "1.00", nodes=1)]), "batch")
    assert f"The deadline leaves 7 h 30 min; the run needs 7 h 7 min, and 7 h 54 min {UPPER}." in told


def test_memory_that_the_upper_end_passes_is_told() -> None:
    card = offer("a", "1.00")
    small = replace(card, sku=replace(card.sku, gpu_memory_gb=17.0))
    told = sentences(plan(request(training("run", 10)), [small]))
    assert any(s.startswith("A GPU has 17 GB of memory; the run needs 16 GB") and UPPER in s for s in told)
    assert not any("of memory" in s for s in sentences(plan(request(training("run", 10)), [card])))


def test_a_delay_has_one_figure() -> None:
    run = training("run", 10, policy=Policy(tiers=(Tier.WINDOW,)))
    asked = request(run, serving("chat", [3.0], starts_after="run"))
    found = plan(
        asked, [offer("node", "1.00"), listed("late", 24, 34, usd="2.00"), listed("early", 0, 10, usd="9.00")]
    )
    (wait,) = found.waits
    assert wait.delay_usd > 0
    (told,) = (s for s in sentences(found, "chat") if s.startswith("It starts when run ends"))
    assert told.endswith(f"which counts for ${wait.delay_usd:,.2f}.")


def test_nodes_are_needed_for_the_window_where_the_deadline_is_far() -> None:
    told = sentences(plan(request(training("run", 20)), [listed("w", 0, 6, nodes=4)]))
    assert "4 nodes are needed: fewer do not end before the window does." in told


def test_nodes_are_needed_for_the_deadline_where_it_is_near() -> None:
    found = plan(request(training("run", 20, deadline=at(6))), [offer("a", "1.00", nodes=4, joined=8)])
    assert "4 nodes are needed: fewer miss the deadline." in sentences(found)
    found = plan(request(batch(deadline=at(3))), [offer("a", "1.00", nodes=3)])
    assert "3 nodes are needed: fewer miss the deadline." in sentences(found, "batch")


def test_a_batch_in_a_short_window_does_not_blame_its_far_deadline() -> None:
    told = sentences(plan(request(batch()), [listed("w", 0, 4, nodes=2)]), "batch")
    assert "2 nodes are needed: fewer do not end before the window does." in told
    assert not any("deadline" in sentence and "needed" in sentence for sentence in told)


def test_the_sentence_tells_the_first_of_the_next_ways() -> None:
    """What is cheaper and held comes after what can be had."""
    due = {"deadline": at(12)}
    offers = [offer("cheap", "1.00", nodes=1), offer("dear", "3.00"), offer("third", "4.00", region="eu")]
    found = plan(request(training("large", 10, **due), training("small", 8, **due)), offers)
    why = found.placements_of("small")[0].why
    assert [way.offer_id for way in why.next_best] == ["third", "cheap"]
    assert why.rule is BindingRule.STOCK
    (told,) = (s for s in why.sentences if s.startswith("The next best is "))
    assert f"in eu: it costs ${why.next_best[0].more_usd} more" in told


def test_of_ways_that_cost_the_same_the_earlier_is_the_next_best() -> None:
    windows = [
        listed(name, start, start + 10) for name, start in (("first", 0), ("third", 30), ("second", 15))
    ]
    why = plan(request(training("run", 10)), windows).placements[0].why
    assert [way.later_hours for way in why.next_best] == sorted(way.later_hours or 0 for way in why.next_best)
    (told,) = (s for s in why.sentences if s.startswith("The next best is "))
    assert f"{why.next_best[0].later_hours:.1f} h later" in told


def test_a_next_best_that_reads_alike_names_what_differs() -> None:
    zones = [offer("a", "1.00", zone="z1"), offer("b", "1.10", zone="z2")]
    told = " ".join(sentences(plan(request(training("run", 10)), zones)))
    assert "The next best is 1 x BIG at lambda in us-east, zone z2: " in told
    same = [offer("a", "1.00", zone="z1"), offer("b", "1.10", zone="z1")]
    told = " ".join(sentences(plan(request(training("run", 10)), same)))
    assert "The next best is 1 x BIG at lambda in us-east (b): " in told


def test_assumed_nodes_are_the_last_fix_and_say_what_they_are() -> None:
    asked = request(training(gpu_hours=200, gpus=GpuRange(20), deadline=at(24)))
    (left,) = plan(asked, [offer("joined", "1.00", joined=64)]).unplaced
    assert left.reason is Obstacle.STOCK
    says = [fix.says for fix in left.fixes]
    assert len(says) > 1
    assumed = [number for number, one in enumerate(says) if "assumed_nodes" in one]
    assert assumed == [len(says) - 1]
    assert re.match(
        r"policy.assumed_nodes of (\d+), which assumes \1 nodes where the seller states none", says[-1]
    )


def test_a_replica_that_is_loaded_to_its_objective_says_nothing_of_it() -> None:
    """The estimate has 20 ms between tokens and 500 ms before the first."""
    service = serving(hourly=[3.0])

    def told(itl_ms: float) -> list[str]:
        asked = request(replace(service, slo=replace(service.slo, itl_p95_ms=itl_ms)), hours=8)
        return [s for s in sentences(plan(asked, [offer("a", "1.00")]), "chat") if "objective" in s]

    assert told(20.0) == []
    assert told(22.0) == ["The objective is near: each further token takes 20 ms of 22 ms (p95)."]


def test_stock_that_is_all_taken_and_hosts_that_fail_are_told() -> None:
    host = offer("host", "1.00", nodes=2, provider="vast", reliability=0.974)
    told = sentences(plan(request(serving(hourly=[7.0]), hours=8), [host]), "chat")
    assert "All 2 of 2 stated nodes are taken: one that fails has no spare there." in told
    assert "Vast states that this host is up 97.4 % of the time." in told
    ample = replace(host, stock=Stock(nodes=3), reliability=0.995)
    told = sentences(plan(request(serving(hourly=[7.0]), hours=8), [ample]), "chat")
    assert not any("stated nodes" in s or "is up" in s for s in told)


def test_a_copy_that_only_adds_to_the_price_limits_nothing() -> None:
    """The same way is best with the data and without; its bill is in the price."""
    run = training("run", 10, dataset=Dataset(30, "aws", "us-east"))
    found = plan(request(run), [offer("a", "1.00"), offer("b", "9.00")], terms=TERMS)
    assert found.placements[0].transfer_usd > 0
    assert found.placements[0].why.rule is BindingRule.PRICE


def test_tokens_of_the_traffic_cost_what_the_plan_pays_for_them() -> None:
    found = plan(request(serving(hourly=[1.0, 3.0]), hours=10), [offer("a", "1.00")])
    tokens = 100 * 3600 * (1.0 + 3.0) * 5
    paid = found.cost_usd / Decimal(tokens) * 1_000_000
    told = f"A million output tokens of this traffic cost ${paid:,.2f}, idle capacity in it."
    assert told in sentences(found, "chat")


@pytest.mark.parametrize(
    ("hours", "told"),
    [(0.95, "57 min"), (7.95, "7 h 57 min"), (8, "8 h"), (7.9999, "8 h"), (57.23, "57.2 h"), (72, "72 h")],
)
def test_durations(hours: float, told: str) -> None:
    assert duration(hours) == told


@pytest.mark.parametrize(
    ("value", "told"), [(0.5321, "0.532"), (15.63, "15.6"), (524.2, "524"), (1046.0, "1,046")]
)
def test_figures_have_no_exponent(value: float, told: str) -> None:
    assert figure(value) == told

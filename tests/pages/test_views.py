"""What the pages say: sums that agree, savings that are real, words for every case."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import plan_sections
from api.pages.finance import spend_view
from api.pages.market import market_view
from api.pages.parts import words
from api.pages.parts.rendering import templates
from api.pages.plans import plan_view
from broker.domain.basics.window import Window
from broker.domain.market.offer import Tier
from broker.domain.market.offer_pages import OfferCount, OfferFilter
from broker.domain.planning.plan import Baseline, Plan
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.spend import (
    Charge,
    ChargeBasis,
    Commitment,
    CostView,
    Interval,
    group_of,
    period_of,
)
from broker.services.spend.settled_spend import SumKey
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer

charges = st.lists(
    st.builds(
        lambda day, team, cents, basis: Charge(
            window=Window(NOON + timedelta(days=day), NOON + timedelta(days=day, hours=1)),
            team=f"team-{team}",
            workload="w",
            kind=WorkloadKind.SERVING,
            provider="fake",
            sku="sku",
            tier=Tier.ON_DEMAND,
            usd=Decimal(cents) / 100,
            basis=basis,
        ),
        st.integers(0, 120),
        st.integers(0, 12),
        st.integers(0, 10**7),
        st.sampled_from(ChargeBasis),
    ),
    max_size=40,
)


def sum_by_key(
    charges: Iterable[Charge], interval: Interval, group_by: str, view: CostView
) -> dict[SumKey, Decimal]:
    """The sums of ``charges``."""
    sums: defaultdict[SumKey, Decimal] = defaultdict(Decimal)
    for charge in charges:
        period = period_of(charge.at(view), interval)
        sums[SumKey(period, group_of(charge, group_by), charge.basis, charge.commitment)] += charge.usd
    return dict(sums)


def drawn(svg: str) -> Decimal:
    return sum(
        (Decimal(usd.replace(",", "")) for usd in re.findall(r": \$([\d,.]+)</title>", svg)), Decimal(0)
    )


@given(charges, st.sampled_from(Interval))
def test_table_chart_and_cards_have_one_sum(made: Sequence[Charge], interval: Interval) -> None:
    sums = sum_by_key(made, interval, "team", CostView.AMORTIZED)
    table = spend_view.spend_table(sums, interval, "team")
    total = sum((charge.usd for charge in made), Decimal(0))
    assert table.total == total == sum((row.sum for row in table.rows), Decimal(0))
    assert drawn(str(table.charts.wide)) == drawn(str(table.charts.narrow)) == total
    assert len(table.legend) <= spend_view.DRAWN_GROUPS + 1
    assert len(set(look for _, look in table.legend)) == len(table.legend), "each is drawn differently"
    assert list(table.sums) == sorted(table.sums, reverse=True)
    window = Window(NOON, NOON + timedelta(days=200))
    cards = {card.label: card.figure for card in spend_view.spend_cards(sums, window)}
    assert cards["Total"] == words.usd(total)


def test_months_follow_each_other() -> None:
    start = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
    months = [f"{spend_view.month_start(start, n):%Y-%m-%d}" for n in (0, 1, 3, 12)]
    assert months == ["2026-11-01", "2026-12-01", "2027-02-01", "2027-11-01"]


@pytest.mark.parametrize(
    ("since", "until", "is_told"),
    [
        (None, None, False),
        ("2026-12-01", "2027-01-01", False),
        ("2026-12-01", "2026-12-01", True),
        ("soon", None, True),
        ("9999-12-31", "0001-01-01", True),
        ("0001-01-01", None, True),
        (None, "9999-12-31", True),
        ("2026-12-01", "2036-12-01", False),
    ],
)
def test_wrong_dates_are_told(since: str | None, until: str | None, is_told: bool) -> None:
    window, notice = spend_view.wished_window(since, until, NOON)
    assert bool(notice) is is_told
    assert window.start < window.end


def a_plan_against(*baselines: tuple[str, str | None]) -> Plan:
    plan = a_plan(a_placement(an_offer("a", "10"), [a_segment(0, 10)]))
    told = tuple(Baseline(name, None if usd is None else Decimal(usd), "") for name, usd in baselines)
    return replace(plan, baselines=told)


@pytest.mark.parametrize(
    ("baselines", "label", "figure"),
    [
        ((("single_shape", "150"), ("converged", "180")), "Saved against one node type for all", "$50.00"),
        ((("single_shape", "150"), ("converged", "120")), "Saved against one always-on pool", "$20.00"),
        (
            (("single_shape", None), ("converged", "130"), ("single_provider", "180")),
            "Saved against one always-on pool",
            "$30.00",
        ),
        ((("single_shape", None),), "Saved against simpler strategies", "–"),
        ((("single_shape", "90"),), "Above one node type for all", "$10.00"),
    ],
)
def test_savings_name_their_strategy(
    baselines: tuple[tuple[str, str | None], ...], label: str, figure: str
) -> None:
    cards = plan_sections.plan_cards(a_plan_against(*baselines))
    assert figure in [card.figure for card in cards if card.label == label]
    assert cards[0].figure == "$100.00"


def test_figures_say_what_is_known() -> None:
    placement = a_placement(an_offer(), [a_segment(0, 10)])
    assert words.figures(placement) == ["1.0 h"]
    assert words.place(placement) == "us-1"
    assert words.place(replace(placement, zone="us-1-a")) == "us-1-a"
    assert words.place(replace(placement, zone="a")) == "us-1 · a"


def test_a_table_of_many_groups_sums_what_it_leaves_out() -> None:
    day = spend_view.month_start(NOON)
    keys = [SumKey(day, f"w{n:02}", ChargeBasis.ACTUAL, Commitment.COMMITTED) for n in range(40)]
    table = spend_view.spend_table(
        {key: Decimal(n + 1) for n, key in enumerate(keys)}, Interval.DAY, "workload"
    )
    assert len(table.names) == len(table.sums) == len(table.rows[0].values) == spend_view.MOST_COLUMNS
    assert table.names[-1] == f"{40 - spend_view.MOST_COLUMNS + 1} others"
    assert sum(table.sums) == sum(table.rows[0].values) == table.total == sum(range(41))


def explained_page(sentences: tuple[str, ...]) -> str:
    """The plan page of one placement with these sentences."""
    placement = a_placement(an_offer(), [a_segment(0, 10)])
    placement = replace(placement, why=replace(placement.why, sentences=sentences))
    part = templates.env.get_template("placement_why.html")
    return str(part.render(fleet=plan_sections.fleets_of(a_plan(placement))[0]))


def test_six_sentences_stand_open_and_the_rest_behind_a_fold() -> None:
    sentences = tuple(f"Reason {number} holds." for number in range(8))
    shown, _, rest = explained_page(sentences).partition("<details")
    assert [s for s in sentences if s in shown] == list(sentences[:6])
    assert [s for s in sentences if s in rest] == list(sentences[6:])
    assert "<summary>2 more, and its layout</summary>" in rest
    few = explained_page(sentences[:6])
    assert "<summary>Its layout</summary>" in few


def test_progress_says_what_its_bound_is_of() -> None:
    """Delay is on no bill and counts in the bound, so that the cards name it."""
    event = {
        "state": "running",
        "stage": "improved",
        "seconds": 1.0,
        "incumbent_usd": "12",
        "bound_usd": "11",
    }
    page = templates.env.get_template("plan_progress.html").render(event={**event, "gap": 0.08})
    assert '<dd class="figure">Searching</dd>' in page
    assert "cost, penalty and delay; proven so far" in page
    assert '<dd class="note">cost, penalty and delay</dd>' in page


def test_filters_of_the_market_have_names_and_groups() -> None:
    kinds = [("lambda", "H100-SXM-80GB", "us-1"), ("ovh", "H100-PCIe-80GB", "GRA11"), ("ovh", "L4", "x-9")]
    counts = [OfferCount(provider, gpu, region, "spot", 1) for provider, gpu, region in kinds]
    asked = dict.fromkeys(("gpu", "provider", "region", "tier", "country"), "")
    places = {"us-1": "US", "GRA11": "FR", "x-9": ""}

    def groups(name: str, **words: str) -> dict[str, list[str]]:
        filters = market_view.market_filters(counts, asked | words, OfferFilter(), places)
        (found,) = (one for one in filters if one.name == name)
        return {group: [label for _, label in choices] for group, choices in found.groups}

    assert groups("gpu") == {"H100": ["Any H100", "H100-PCIe-80GB", "H100-SXM-80GB"], "L4": ["L4"]}
    assert groups("country") == {"": ["France", "United States"]}
    assert groups("region") == {
        "France": ["GRA11"], "United States": ["us-1"], "Country not stated": ["x-9"]
    }  # fmt: skip
    assert groups("region", country="fr") == {"France": ["GRA11"]}
    assert groups("tier", tier="sport") == {"": ["sport", "spot"]}


def with_strategies(usd: str, hour: int, **costs: str | None) -> Plan:
    """A plan of ``usd``, made at an hour, with the costs of its simpler strategies (None: not completed)."""
    told = tuple(
        Baseline(name, None if cost is None else Decimal(cost), "", cost is not None)
        for name, cost in costs.items()
    )
    as_of = NOON + timedelta(hours=hour)
    made = a_plan(a_placement(an_offer("o", usd), [a_segment(0, 1)]), as_of=as_of)
    return replace(made, baselines=told)


BASE = with_strategies("75", 0, single_shape=None, single_provider="100", converged="150")
MARKETS = (
    " A strategy is planned anew for the document of each plan: here at the prices of 2026-11-23 13:00 UTC"
    " and there of 2026-11-23 12:00 UTC."
)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        (
            {"single_shape": "80", "single_provider": "120"},
            "This plan saves $20.00 (25 %) against “one node type for all”; the plan that it changes saves "
            "$25.00 (25 %) against “one provider for all”. Of those completed for both: this plan saves "
            "$60.00 (50 %) against “one provider for all”, that one saves $25.00 (25 %) against “one "
            "provider for all”.",
        ),
        (
            {"single_shape": None, "single_provider": "50"},
            "This plan costs $10.00 (20 %) more than “one provider for all”; the plan that it changes saves "
            "$25.00 (25 %) against “one provider for all”.",
        ),
        (
            {"single_shape": "60", "single_provider": None, "converged": None},
            "This plan costs the same as “one node type for all”; the plan that it changes saves $25.00 "
            "(25 %) against “one provider for all”. No simpler strategy was completed for both.",
        ),
    ],
)
def test_a_variant_says_against_what_it_and_its_base_save(variant: dict[str, str | None], said: str) -> None:
    assert plan_view.savings_beside_base(with_strategies("60", 1, **variant), BASE) == said + MARKETS


def test_a_variant_without_a_strategy_says_why_savings_cannot_be_compared() -> None:
    alone = with_strategies("60", 1, single_shape=None)
    assert plan_view.savings_beside_base(alone, BASE) == (
        "The savings cannot be compared: for this plan no simpler strategy could be completed within the "
        "budget."
    )
    at_assumed = plan_view.savings_beside_base(BASE, BASE, at_assumed_prices=True)
    assert "12:00 UTC, with the assumed changes of prices, and there" in at_assumed

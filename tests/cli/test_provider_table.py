"""The guides say of each adapter what its spec says."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from api.cli.market.providers import capability_table, increment_words, show_feeds
from api.cli.plain_table import PlainTable, markdown_lines
from api.schemas.market.provider import FEED, Feed
from broker.domain.market.market import FeedHealth
from broker.domain.market.polling import PollPlan, polling_of
from broker.provider_facts import load_provider_facts
from providers.registry import SPECS
from providers.spec import Capability
from tests.fakes.clock import NOON

DOCS = Path(__file__).resolve().parents[2] / "docs"
CONNECT, OFFERS = DOCS / "guides" / "connect-provider.md", DOCS / "offers.md"


def test_the_guide_holds_the_table_that_the_command_prints() -> None:
    assert capability_table() in CONNECT.read_text(), "broker providers list --markdown prints it"


def test_the_guide_holds_how_each_seller_rounds_what_it_bills() -> None:
    rows = []
    for name in sorted(SPECS):
        billing = load_provider_facts(name).billing
        if billing is not None:
            basis = f"assumed: {billing.assumed}" if billing.assumed else billing.source
            spans = map(increment_words, (billing.increment_s, billing.minimum_s))
            rows.append((f"`{name}`", *spans, basis))
    table = PlainTable(("provider", "billed by", "at least", "source"), tuple(rows), 4)
    text = "\n".join(markdown_lines(table))
    assert text in OFFERS.read_text(), text


def test_the_guide_holds_when_each_seller_bills_its_windows() -> None:
    rows = []
    for name in sorted(SPECS):
        billing = load_provider_facts(name).billing
        for kind, bill in billing.windows.items() if billing is not None else ():
            basis = f"assumed: {bill.assumed}" if bill.assumed else bill.source
            rows.append((f"`{name}`", kind, bill.billed.value.replace("_", " "), basis))
    table = PlainTable(("provider", "window", "billed", "source"), tuple(rows), 4)
    text = "\n".join(markdown_lines(table))
    assert text in OFFERS.read_text(), text


def test_every_kind_of_window_says_where_its_billing_stands_or_why_it_is_assumed() -> None:
    for name in SPECS:
        billing = load_provider_facts(name).billing
        for kind, bill in billing.windows.items() if billing is not None else ():
            assert bool(bill.source) != bool(bill.assumed), f"{name} {kind}"


def test_every_seller_says_where_its_rounding_stands_or_why_it_is_assumed() -> None:
    for name, spec in SPECS.items():
        billing = load_provider_facts(name).billing
        assert (billing is not None) == (Capability.RESERVE in spec.capabilities), name
        assert billing is None or bool(billing.source) != bool(billing.assumed), name


def test_scaleway_bills_gpu_instances_by_the_minute_and_render_s_by_the_hour() -> None:
    billing = load_provider_facts("scaleway").billed
    assert (billing.increment_of("L4-1-24G"), billing.increment_of("RENDER-S")) == (60, 3600)


def test_feeds_say_where_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    feed = FeedHealth("lambda", None, NOON, "no answer", NOON, 0, 0, 1.0, 2, NOON + timedelta(minutes=1))
    plan = PollPlan(timedelta(minutes=1))
    show_feeds([FEED.write(Feed(feed, polling_of(feed, plan, NOON)))], as_json=False)
    told = capsys.readouterr().out
    assert "open, 2 failed" in told
    assert f"{NOON + timedelta(minutes=1):%d %b %H:%M}" in told
    assert "no answer" in " ".join(told.split())

"""The README says of each adapter what its spec says."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from api.cli.market.providers import capability_table, show_feeds
from broker.domain.market.market import FeedHealth
from broker.domain.market.polling import PollPlan, polling_of
from tests.fakes.clock import NOON

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_readme_holds_the_table_that_the_command_prints() -> None:
    assert capability_table() in README.read_text(), "broker providers list --markdown prints it"


def test_feeds_say_where_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    feed = FeedHealth("lambda", None, NOON, "no answer", NOON, 0, 0, 1.0, 2, NOON + timedelta(minutes=1))
    plan = PollPlan(timedelta(minutes=1))
    show_feeds([(feed, polling_of(feed, plan, NOON))], as_json=False)
    told = capsys.readouterr().out
    assert "open, 2 failed" in told
    assert f"{NOON + timedelta(minutes=1):%d %b %H:%M}" in told
    assert "no answer" in " ".join(told.split())

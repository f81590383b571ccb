"""Which events an address is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from broker.domain.basics.webhook import TEST, OutboxEvent, Webhook
from tests.fakes.clock import NOON

HOOK = Webhook("w-1", "research", "https://example.com/", ("plan.*", "spend.closed"), "whsec_x", NOON, "k")
EVENT = OutboxEvent(1, NOON, "plan.done", "research", "plan", "plan-1", "planner", "")


@pytest.mark.parametrize(("seconds", "wanted"), [(-1, False), (-0.000001, False), (0, True), (1, True)])
def test_an_address_is_told_what_happens_from_its_making_on(seconds: float, wanted: bool) -> None:
    assert HOOK.wants(replace(EVENT, at=NOON + timedelta(seconds=seconds))) is wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("plan.done", True), ("spend.closed", True), ("spend.other", False), ("reservation.changed", False)],
)
def test_an_address_is_told_what_it_asked_for(name: str, wanted: bool) -> None:
    assert HOOK.wants(replace(EVENT, event=name)) is wanted
    assert replace(HOOK, events=("*",)).wants(replace(EVENT, event=name))
    assert not replace(HOOK, disabled_at=NOON).wants(replace(EVENT, event=name))


def test_a_test_is_sent_though_the_clock_of_who_asked_for_it_is_behind() -> None:
    early = replace(EVENT, event=TEST, object_id=HOOK.webhook_id, at=HOOK.created_at - timedelta(seconds=1))
    assert HOOK.wants(early)
    assert not HOOK.wants(replace(early, object_id="whk-other"))
    assert not replace(HOOK, disabled_at=NOON).wants(early)

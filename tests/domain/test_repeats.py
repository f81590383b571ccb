"""The same failure is told once a minute, with how many others there were."""

from __future__ import annotations

from broker.repeats import TOLD_EVERY_S, Repeats


def test_a_failure_is_told_at_first_with_other_words_and_once_a_minute() -> None:
    now_s = 0.0
    repeats = Repeats(lambda: now_s)
    assert [repeats.failed("a", "down") for _ in range(3)] == [0, None, None]
    assert repeats.failed("b", "down") == 0
    assert repeats.failed("a", "full") == 2
    assert repeats.failed("a", "full") is None
    now_s += TOLD_EVERY_S
    assert repeats.failed("a", "full") == 1
    assert repeats.succeeded("a") == 0
    assert repeats.succeeded("a") is None
    assert repeats.failed("a", "full") == 0

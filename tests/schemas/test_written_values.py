"""Amounts and times as people write them: what they mean, and that what is shown of them means the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.schemas.base.times import parse_relative, parse_start
from api.schemas.workloads.document_edit import EditedDocument, empty_document
from api.schemas.workloads.form_fields import (
    DEADLINE,
    DOCUMENT_FIELDS,
    NEW_WORKLOADS,
    WORKLOAD_FIELDS,
    FormField,
    Unit,
    shown,
)
from api.schemas.workloads.workloads import read_workloads
from api.schemas.workloads.written_values import (
    UNIT_WORDS,
    exact_amount,
    exact_time,
    meaning,
    read_amount,
    read_moment,
    write_amount,
    write_moment,
)
from broker.domain.planning.workload import WorkloadKind
from tests.depth import examples

NOW = datetime(2026, 11, 27, 15, 42, 10, tzinfo=UTC)
"""A Friday."""
START = next(one for one in DOCUMENT_FIELDS if one.is_start)
TRAINING = {one.path: one for one in WORKLOAD_FIELDS[WorkloadKind.TRAINING]}
AMOUNTS = st.decimals(min_value=0, max_value=Decimal(10) ** 20, places=4)
INSTANTS = st.integers(0, 199 * 365 * 86_400).map(
    lambda seconds: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("500M", Unit.TOKENS, "500000000"),
        ("500m tokens", Unit.TOKENS, "500000000"),
        ("1.2B", Unit.TOKENS, "1200000000"),
        ("1.2G", Unit.NONE, "1200000000"),
        ("2e11", Unit.TOKENS, "200000000000"),
        ("200 billion tokens", Unit.TOKENS, "200000000000"),
        ("15T", Unit.TOKENS, "15000000000000"),
        ("500,000,000", Unit.TOKENS, "500000000"),
        ("500 000 000", Unit.TOKENS, "500000000"),
        ("$250k", Unit.USD, "250000"),
        ("250 thousand dollars", Unit.USD, "250000"),
        ("2 weeks", Unit.DAYS, "14"),
        ("90m", Unit.MINUTES, "90"),
        ("1.5 hours", Unit.MINUTES, "90"),
        ("1.5 s", Unit.MS, "1500"),
        ("10%", Unit.SHARE, "0.1"),
        ("2k requests/s", Unit.REQUESTS_PER_S, "2000"),
        (".5", Unit.NONE, "0.5"),
    ],
)
def test_an_amount_in_words_is_a_number(text: str, unit: Unit, value: str) -> None:
    assert read_amount(text, unit) == Decimal(value)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("many", Unit.TOKENS),
        ("", Unit.TOKENS),
        ("1,2B", Unit.TOKENS),
        ("1,5", Unit.NONE),
        ("-5M", Unit.TOKENS),
        ("5 apples", Unit.TOKENS),
        ("5M apples", Unit.TOKENS),
        ("5 weeks", Unit.TOKENS),
        ("$5", Unit.TOKENS),
        ("1e99", Unit.TOKENS),
        ("5 M M", Unit.TOKENS),
    ],
)
def test_what_says_no_amount_stays_as_it_is(text: str, unit: Unit) -> None:
    assert read_amount(text, unit) is None
    assert exact_amount(text, unit) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("in 10 days", "Mon 7 Dec 2026 00:00 UTC"),
        ("in two weeks", "Fri 11 Dec 2026 00:00 UTC"),
        ("in 3 hours", "Fri 27 Nov 2026 19:00 UTC"),
        ("in 20 minutes", "Fri 27 Nov 2026 16:03 UTC"),
        ("in 3 months", "Sat 27 Feb 2027 00:00 UTC"),
        ("Next Friday", "Fri 4 Dec 2026 00:00 UTC"),
        ("by thursday 18:00", "Thu 3 Dec 2026 18:00 UTC"),
        ("next-monday", "Mon 30 Nov 2026 00:00 UTC"),
        ("next week", "Mon 30 Nov 2026 00:00 UTC"),
        ("next month", "Tue 1 Dec 2026 00:00 UTC"),
        ("tomorrow at 6pm", "Sat 28 Nov 2026 18:00 UTC"),
        ("12 am today", ""),
        ("today 12 am", "Fri 27 Nov 2026 00:00 UTC"),
        ("7 Dec", "Mon 7 Dec 2026 00:00 UTC"),
        ("Dec 7th", "Mon 7 Dec 2026 00:00 UTC"),
        ("7 January", "Thu 7 Jan 2027 00:00 UTC"),
        ("2026-12-07 18:00", "Mon 7 Dec 2026 18:00 UTC"),
        ("2026-12-07T18:00:00+02:00", "Mon 7 Dec 2026 16:00 UTC"),
        ("Mon 7 Dec 2026", "Mon 7 Dec 2026 00:00 UTC"),
        ("Tue 7 Dec 2026", ""),
        ("31 Nov", ""),
        ("7/12/2026", ""),
        ("in a while", ""),
        ("tomorrow 25:00", ""),
        ("in 9999 months", ""),
        ("10 days", ""),
    ],
)
def test_a_time_in_words_is_an_instant_or_none(text: str, shown: str) -> None:
    moment = read_moment(text, NOW)
    assert ("" if moment is None else write_moment(moment)) == shown


@settings(max_examples=examples(200), deadline=None)
@given(AMOUNTS, st.sampled_from(Unit))
def test_an_amount_that_is_shown_reads_as_the_same_amount(value: Decimal, unit: Unit) -> None:
    assert read_amount(write_amount(value, unit), unit) == value
    assert Decimal(exact_amount(write_amount(value, unit), unit)) == value


@settings(max_examples=examples(200), deadline=None)
@given(INSTANTS, INSTANTS)
def test_a_time_that_is_shown_reads_as_the_same_time(instant: datetime, now: datetime) -> None:
    assert read_moment(write_moment(instant), now) == instant


@settings(max_examples=examples(200), deadline=None)
@given(st.text(max_size=16), st.sampled_from(Unit))
def test_whatever_is_typed_is_read_or_refused(text: str, unit: Unit) -> None:
    read_amount(text, unit)
    read_moment(text, NOW)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 999), st.sampled_from(["minutes", "hours", "days", "weeks", "h", "d"]))
def test_what_is_written_into_a_document_is_what_is_shown(count: int, period: str) -> None:
    start = NOW + timedelta(days=1)
    for written in (f"in {count} {period}", f"+{count} {period}"):
        stored = exact_time(DEADLINE, written, NOW)
        assert meaning(DEADLINE, stored, written, NOW, start) == write_moment(parse_relative(stored, start))
        began = exact_time(START, written, NOW)
        assert meaning(START, began, written, NOW, None) == write_moment(parse_start(began, NOW))


def test_words_that_a_document_knows_itself_stay_in_it() -> None:
    for written in ("now", "today", "tomorrow", "next-monday", "2026-12-01"):
        assert exact_time(START, written, NOW) == written
    assert exact_time(DEADLINE, "+4d", NOW) == exact_time(DEADLINE, "+4 days", NOW) == "+4d"
    assert exact_time(DEADLINE, "2026-12-01", NOW) == "2026-12-01"
    assert exact_time(DEADLINE, "tomorrow", NOW) == "2026-11-28T00:00:00Z"
    assert exact_time(START, "+3d", NOW) == "2026-11-30T00:00:00Z"
    assert exact_time(TRAINING["name"], "tomorrow", NOW) == "tomorrow"
    assert exact_time(DEADLINE, "some day", NOW) == "some day"


def test_only_what_does_not_say_so_itself_is_said_again() -> None:
    def says(path: str, value: object, written: str = "") -> str:
        return meaning(TRAINING[path], value, written, NOW, NOW)

    assert says("tokens", 5e8) == "500,000,000 tokens"
    assert says("gpus/max", 64, "64") == ""
    assert says("gpus/max", 1000, "1k") == "1,000 GPUs"
    assert says("headroom", 0.1, "0.1") == "10 %"
    assert says("tokens", "many", "many") == ""
    assert says("interruptible", True) == ""
    assert says("deadline", "+4d") == "Tue 1 Dec 2026 15:42:10 UTC"
    assert meaning(DEADLINE, "+4d", "", NOW, None) == ""


def test_a_document_of_words_is_one_of_exact_values() -> None:
    document = EditedDocument(empty_document("research"), "test")
    document.add(NEW_WORKLOADS[WorkloadKind.TRAINING])
    words: dict[FormField, tuple[int | None, str]] = {
        START: (None, "next friday"),
        DOCUMENT_FIELDS[2]: (None, "3 weeks"),
        DOCUMENT_FIELDS[3]: (None, "$1.5M"),
        TRAINING["tokens"]: (0, "200 million tokens"),
        TRAINING["sequence_length"]: (0, "4k"),
        TRAINING["global_batch_tokens"]: (0, "2M"),
        TRAINING["gpus/max"]: (0, "1k"),
        TRAINING["deadline"]: (0, "Dec 9 18:00"),
        TRAINING["headroom"]: (0, "5%"),
    }
    for field, (workload, written) in words.items():
        document.put(field, workload, exact_time(field, written, NOW))
    request = read_workloads(document.text, source="test", base=None, now=NOW)
    (run,) = request.workloads
    assert request.horizon.start == datetime(2026, 12, 4, tzinfo=UTC)
    assert (request.horizon.hours, request.budget_usd) == (21 * 24, Decimal(1_500_000))
    assert (run.tokens, run.sequence_length, run.gpus.max) == (200_000_000, 4000, 1000)  # type: ignore[union-attr]
    assert run.deadline == datetime(2026, 12, 9, 18, tzinfo=UTC)  # type: ignore[union-attr]
    assert "tokens: 2e8\n" in document.text


def test_every_unit_is_a_word_of_its_own() -> None:
    for unit in Unit:
        if unit is not Unit.NONE:
            assert unit.lower() in UNIT_WORDS[unit]


@pytest.mark.parametrize("written", ["1e400", "1e309", "-1e400"])
def test_a_number_beyond_every_float_has_no_meaning_and_harms_nothing(written: str) -> None:
    """YAML reads it as infinity, which the document refuses at its field."""
    assert meaning(TRAINING["tokens"], float(written), written, NOW, NOW) == ""
    assert shown(float(written)) in ("inf", "-inf")

"""A batch that recurs is written out as one dated batch for each time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from api.schemas.workloads.document_edit import EditedDocument
from api.schemas.workloads.recurrence import MOST_TIMES, write_out
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.domain.planning.workload import Batch

NOW = datetime(2026, 11, 27, 15, 42, tzinfo=UTC)
NIGHTLY = """\
# scoring
team: research
horizon: {start: tomorrow, days: 7}
workloads:
  - name: score
    kind: batch
    model: Llama-3.1-8B
    requests: 1e5
    input_tokens: 1000
    output_tokens: 100
    earliest_start: +22h   # at night
    deadline: +30h
  - name: chat   # stays
    kind: serving
    model: Llama-3.1-8B
    traffic: {peak_requests_per_s: 4, input_tokens: 1200, output_tokens: 250}
    slo: {ttft_p95_ms: 1500, itl_p95_ms: 80}
"""


def written_out(text: str, period: str = "day", workload: int = 0) -> EditedDocument:
    document = EditedDocument(text, "test")
    write_out(document, workload, period, NOW, "test")
    return document


def spans(text: str) -> dict[str, tuple[datetime, datetime]]:
    request = read_workloads(text, source="test", base=None, now=NOW)
    batches = [one for one in request.workloads if isinstance(one, Batch)]
    return {one.name: (one.earliest_start, one.deadline) for one in batches}


def test_each_night_of_the_horizon_has_its_batch_and_the_rest_stays() -> None:
    document = written_out(NIGHTLY)
    first = datetime(2026, 11, 28, 22, tzinfo=UTC)
    nights = [first + timedelta(days=day) for day in range(6)]
    assert spans(document.text) == {
        f"score-{number}": (night, night + timedelta(hours=8)) for number, night in enumerate(nights, 1)
    }
    assert "# scoring" in document.text
    assert "# stays" in document.text
    assert "earliest_start: +46h\n" in document.text
    last = document.workloads[-1]
    assert (last["requests"], last["input_tokens"], last["name"]) == (100_000, 1000, "score-6")


def test_times_stay_times() -> None:
    text = NIGHTLY.replace("+22h   # at night", "2026-12-01").replace("+30h", "2026-12-01T06:00:00Z")
    document = written_out(text)
    assert list(spans(document.text).values()) == [
        (datetime(2026, 12, day, tzinfo=UTC), datetime(2026, 12, day, 6, tzinfo=UTC)) for day in (1, 2, 3, 4)
    ]
    assert document.workloads[-1]["deadline"] == "2026-12-04T06:00:00Z"


def test_without_an_earliest_start_the_first_begins_with_the_horizon() -> None:
    text = NIGHTLY.replace("    earliest_start: +22h   # at night\n", "").replace("+30h", "+1d")
    found = spans(written_out(text).text)
    assert len(found) == 7
    assert found["score-1"][0] == datetime(2026, 11, 28, tzinfo=UTC)
    assert found["score-7"][1] == datetime(2026, 12, 5, tzinfo=UTC), "the horizon's end is a deadline"


@pytest.mark.parametrize(
    ("text", "period", "workload", "pointer"),
    [
        (NIGHTLY, "day", 1, "/workloads/1"),
        (NIGHTLY, "week", 0, "/horizon/days"),
        (NIGHTLY.replace("+30h", "+23h").replace("days: 7", "days: 9"), "hour", 0, "/horizon/days"),
        (NIGHTLY, "hour", 0, "/workloads/0/deadline"),
        (NIGHTLY.replace("+30h", "+22h"), "day", 0, "/workloads/0/deadline"),
        (NIGHTLY.replace("    deadline: +30h\n", ""), "day", 0, "/workloads/0/deadline"),
        (NIGHTLY.replace("+30h", "soon"), "day", 0, "/workloads/0/deadline"),
        (NIGHTLY.replace("+22h", "late"), "day", 0, "/workloads/0/earliest_start"),
        (NIGHTLY.replace("tomorrow", "someday"), "day", 0, "/horizon/start"),
        (NIGHTLY.replace("days: 7", "days: many"), "day", 0, "/horizon/days"),
        (NIGHTLY.replace("days: 7", "days: 4000000000"), "day", 0, "/horizon/days"),
    ],
)
def test_what_cannot_recur_is_told_at_its_field(text: str, period: str, workload: int, pointer: str) -> None:
    document = EditedDocument(text, "test")
    with pytest.raises(InputError) as refused:
        write_out(document, workload, period, NOW, "test")
    assert [one.pointer for one in refused.value.problems] == [pointer]
    assert document.text == text


def test_it_recurs_as_often_as_is_allowed_and_not_more() -> None:
    text = NIGHTLY.replace("+22h   # at night", "+1h").replace("+30h", "+2h")
    longest = text.replace("days: 7", f"days: {(MOST_TIMES + 1) / 24}")
    assert len(spans(written_out(longest, "hour").text)) == MOST_TIMES
    with pytest.raises(InputError, match="2 to 60 times"):
        written_out(text.replace("days: 7", f"days: {(MOST_TIMES + 2) / 24}"), "hour")

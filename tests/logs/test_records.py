"""What a record of the log holds: short, on one line, without secrets, in order, and never in the way."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from broker import logs
from broker.redaction import origin_of, redacted, register_secret

SECRET = "planted/secret+of=mine-0123456789"


@pytest.fixture(autouse=True)
def as_json() -> Iterator[None]:
    """JSON records of every level of ours, on the stderr of the moment."""
    logs.begin(level=logging.DEBUG, as_json=True)
    register_secret(SECRET)
    yield
    logs.begin(level=logging.WARNING, as_json=False)
    structlog.reset_defaults()


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def fail(depth: int, text: str) -> None:
    held = {"key": text}
    if depth:
        fail(depth - 1, text)
    raise ValueError(f"{held['key']} " + "long " * 10_000)


def caught(depth: int = 0, text: str = SECRET) -> Exception:
    try:
        fail(depth, text)
    except ValueError as error:
        return error
    raise AssertionError


def test_both_kinds_of_loggers_take_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    with structlog.contextvars.bound_contextvars(trace_id="t1"):
        structlog.get_logger("broker.one").warning("told", count=3, share=float("nan"))
        logging.getLogger("broker.two").info("%s of %d", "one", 2)
    one, two = written(capsys)
    assert (one["event"], one["level"], one["logger"], one["count"]) == ("told", "warning", "broker.one", 3)
    assert (two["event"], two["level"], two["logger"]) == ("one of 2", "info", "broker.two")
    assert {one["trace_id"], two["trace_id"]} == {"t1"}
    assert all(record["timestamp"].endswith("Z") for record in (one, two))


def test_others_are_heard_from_warning_on(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("httpx").info("HTTP Request: GET https://h/?key=x")
    logging.getLogger("sqlalchemy.engine").debug("Row(...)")
    logging.getLogger("httpx").warning("odd")
    assert [record["event"] for record in written(capsys)] == ["odd"]


def test_an_exception_is_short_and_without_variables(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.get_logger("api").error("failed", exc_info=caught(depth=200))
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)["exception"]
    assert told["type"] == "ValueError"
    assert len(told["frames"]) == logs.MOST_FRAMES
    assert told["frames"][-1].startswith("tests/logs/test_records.py:")
    assert len(line) < 3000
    assert SECRET not in line
    assert "held" not in line


def test_causes_and_members_are_told_but_not_all(capsys: pytest.CaptureFixture[str]) -> None:
    error: Exception = ExceptionGroup("many", [KeyError(number) for number in range(50)])
    for number in range(50):
        try:
            raise RuntimeError(str(number)) from error
        except RuntimeError as next_one:
            error = next_one
    logging.getLogger("api").error("failed", exc_info=error)
    (told,) = written(capsys)
    depth, one = 0, told["exception"]
    while "cause" in one:
        depth, one = depth + 1, one["cause"]
    assert depth == logs.MOST_CAUSES
    group = logs.summary_of(ExceptionGroup("many", [KeyError(number) for number in range(50)]))
    assert (len(group["members"]), group["member_count"]) == (logs.MOST_MEMBERS, 50)


def test_what_ours_told_a_server_does_not_tell_again(capsys: pytest.CaptureFixture[str]) -> None:
    error = caught()
    logging.getLogger("api.http.errors").error("once", exc_info=error)
    logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=error)
    assert [record["event"] for record in written(capsys)] == ["once"]


def test_one_record_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.begin(as_json=False)
    structlog.get_logger("api").warning("first\nforged line\x1b[31m", name="a\u202eb\r\nc")
    (line,) = capsys.readouterr().err.splitlines()
    assert "\\nforged line\\x1b" in line
    assert not {"\x1b", "\u202e", "\r"} & set(line)


def test_what_is_printed_is_a_record_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.begin()
    print(f"serving with {SECRET}", file=sys.stderr)
    (told,) = written(capsys)
    assert told["event"] == "serving with [redacted]"


def test_the_one_who_makes_a_record_does_not_write_it(capsys: pytest.CaptureFixture[str]) -> None:
    writers: list[str] = []

    class Telling:
        def __str__(self) -> str:
            return "value"

    class Watching(logging.Filter):
        def filter(self, _: logging.LogRecord) -> bool:
            writers.append(threading.current_thread().name)
            return True

    watch = Watching()
    writer = logs.writer()
    writer.addFilter(watch)
    try:
        with logs.on_a_thread():
            logging.getLogger("api").warning("%s", Telling())
    finally:
        writer.removeFilter(watch)
    assert [record["event"] for record in written(capsys)] == ["value"]
    assert threading.current_thread().name not in writers


def test_more_records_than_can_wait_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    held, begun = threading.Event(), threading.Event()

    class Slow(logging.Filter):
        def filter(self, _: logging.LogRecord) -> bool:
            begun.set()
            return held.wait(60)

    slow, writer = Slow(), logs.writer()
    writer.addFilter(slow)
    too_many = 7
    try:
        with logs.on_a_thread():
            logging.getLogger("api").warning("first")
            assert begun.wait(60)
            for number in range(logs.MOST_WAITING + too_many):
                logging.getLogger("api").warning("flood %d", number)
            held.set()
    finally:
        writer.removeFilter(slow)
    events = [record["event"] for record in written(capsys)]
    assert f"{too_many} records were dropped, because they came faster than they could be written" in events
    assert len(events) == logs.MOST_WAITING + 2


def test_a_record_that_cannot_be_made_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError

    (ours,) = (one for one in logging.getLogger().handlers if type(one).__module__ == "broker.logs")
    for words, given in (("%s", Mute()), ("%d", "no number")):
        ours.handle(logging.LogRecord("api", logging.WARNING, __file__, 1, words, (given,), None))
    logging.getLogger("api").error("failed", exc_info=caught(text="other"))
    assert [record["level"] for record in written(capsys)] == ["warning", "warning", "error"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://hooks.slack.com/services/T0/B0/xyz?token=1", "https://hooks.slack.com/[redacted]"),
        ("serving on http://127.0.0.1:8080", "serving on http://127.0.0.1:8080"),
        ("postgresql+psycopg://u:p@h:5/db", "postgresql+psycopg://[redacted]@h:5/db"),
        ("no key broker_live_ab12_Abc-_9", "no key broker_live_ab12_[redacted]"),
        ("('authorization', 'Bearer abcdefgh')", "('authorization', '[redacted]')"),
        ("(b'cookie', b'broker_session=abc')", "(b'cookie', b'[redacted]')"),
        ("Idempotency-Key: mine", "Idempotency-Key: [redacted]"),
        ("/x?limit=1&api_key=abc", "/x?limit=1&api_key=[redacted]"),
        ("{'client_secret': 'abc'}", "{'client_secret': '[redacted]'}"),
        ("whsec_AbC+/=", "whsec_[redacted]"),
        ("duplicate key\nDETAIL:  Key (name)=(x) already exists.", "duplicate key\nDETAIL: [redacted]"),
        ("input_tokens: 800, tokens=4000000", "input_tokens: 800, tokens=4000000"),
        ("plan pln_1 of team research: 3 offers", "plan pln_1 of team research: 3 offers"),
    ],
)
def test_what_looks_like_a_secret_is_struck_out(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_secret_at_the_cut_is_not_half_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for before in range(logs.LONGEST_TEXT - 40, logs.LONGEST_TEXT + 10, 7):
        logging.getLogger("api").warning("%s", "x" * before + SECRET + "y" * 20_000)
    for record in written(capsys):
        assert SECRET[:12] not in record["event"]


@pytest.mark.parametrize("url", ["https://h/p?q", "https://u:p@h/p", "https://h#f", "https://h\\p"])
def test_of_an_address_scheme_and_host_are_shown(url: str) -> None:
    assert origin_of(url) == "https://h"

"""The log of a process: where its records come from, what each looks like, and how it gets to stderr.

Records of structlog and of ``logging`` (ours, uvicorn's, asyncio's) take one way. Where a record is made it
is made short: an exception becomes its type, its message and its last places in the code, without the values
of variables and without lines of source. What is long is cut. Then secrets are struck out
(``broker.redaction``) and one line of text or JSON is written. A server does the second part on a thread of
its own (``on_a_thread``), so that no request waits for who reads the log.

Other packages are heard from WARNING on, whatever the level: their further records hold headers and rows.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import math
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any, TextIO, TypeVar, cast

import structlog
from structlog.contextvars import bound_contextvars, get_contextvars, merge_contextvars
from structlog.stdlib import ProcessorFormatter, add_log_level, add_logger_name
from structlog.typing import EventDict, WrappedLogger

from broker.redaction import (
    LONGEST,
    MARK,
    Known,
    is_secret_name,
    know,
    known_secrets,
    redacted,
    without_known,
)
from broker.unseen import ESCAPES

T = TypeVar("T")

OURS = ("api", "broker", "providers", "optimizer")
MOST_WAITING = 4096
"""Records that may wait to be written; what comes beyond is dropped and counted."""
LONGEST_MESSAGE = 600
LONGEST_TEXT = 2000
LARGEST_FIELD = 20
DEEPEST = 4
MOST_FRAMES = 10
MOST_CAUSES = 3
MOST_MEMBERS = 3
STOP_LIMIT_S = 5.0
_RAW = "stderr"
_TOLD = "_told_in_the_log"
_ROOTS = tuple(
    sorted({f"{Path(entry).resolve()}{os.sep}" for entry in sys.path if entry}, key=len, reverse=True)
)
_UNSEEN = {**ESCAPES, ord("\n"): "\\n"}


@dataclass(frozen=True, slots=True)
class LogForm:
    """How a process logs. ``level``: from which level on our own records are written."""

    level: int = logging.WARNING
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Handed:
    """What a process that we start logs with: our form, the secrets that we know, and whose work it does."""

    form: LogForm
    known: Known = field(repr=False)


_form = LogForm()


def begin(*, level: int | None = None, as_json: bool | None = None) -> None:
    """Logs from now on to stderr; what is None stays as it was. Again is no error."""
    global _form
    _form = LogForm(_form.level if level is None else level, _form.as_json if as_json is None else as_json)
    _configure(_form)
    root = logging.getLogger()
    if _handler not in root.handlers:
        root.addHandler(_handler)
    logging.getLogger(_RAW).setLevel(logging.INFO)
    if _form.as_json and not isinstance(sys.stderr, _Lines):
        sys.stderr = _Lines(sys.stderr)
    elif not _form.as_json and isinstance(sys.stderr, _Lines):
        sys.stderr = sys.stderr.below


def begin_for_ours(handed: Handed) -> None:
    """In a process that is another's (a Dask worker): our records alone, unless we log here already."""
    root = logging.getLogger()
    if _handler in root.handlers or any(_handler in logging.getLogger(name).handlers for name in OURS):
        return
    global _form
    _form = handed.form
    know(handed.known)
    _configure(_form)
    for name in OURS:
        logger = logging.getLogger(name)
        logger.addHandler(_handler)
        logger.propagate = False


def catch_the_rest() -> None:
    """Warnings, and exceptions that nobody awaits, are records too."""
    logging.captureWarnings(True)
    sys.excepthook = _on_uncaught
    threading.excepthook = _on_uncaught_of_thread
    sys.unraisablehook = _on_unraisable


def handed_on() -> Handed:
    """What a process that we start is handed."""
    return Handed(_form, known_secrets())


def take_over(handed: Handed) -> None:
    """In a process that we started: logs as the one that started it."""
    know(handed.known)
    begin(level=handed.form.level, as_json=handed.form.as_json)
    catch_the_rest()


def to_argument() -> str:
    """What a process is handed on its command line, where no secret may stand: our form, whose work it is."""
    bound = {name: str(value) for name, value in get_contextvars().items()}
    return json.dumps({"level": _form.level, "as_json": _form.as_json, "bound": bound})


def take_argument(argument: str) -> None:
    """In the process: what ``to_argument`` said."""
    said = json.loads(argument)
    begin(level=said["level"], as_json=said["as_json"])
    catch_the_rest()
    structlog.contextvars.bind_contextvars(**said["bound"])


def bound_now() -> Mapping[str, Any]:
    """What every record of the request at hand carries (its ``trace_id``), for ``on_behalf``."""
    return get_contextvars()


def on_behalf(bound: Mapping[str, Any], fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """``fn`` in another process or thread; its records carry ``bound``."""
    with bound_contextvars(**bound):
        return fn(*args, **kwargs)


@contextmanager
def on_a_thread() -> Iterator[None]:
    """Records are rendered and written by another thread; at the end all that wait are written."""
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(MOST_WAITING)
    listener = _Listener(waiting, _writer)
    _handler.queue = waiting
    listener.start()
    _handler.is_waiting = True
    try:
        yield
    finally:
        _handler.is_waiting = False
        listener.stop()
        listener.tell_dropped()


def is_json() -> bool:
    """Whether stderr is a log of JSON lines, and so no place to show a secret once."""
    return _form.as_json


def writer() -> logging.Handler:
    """What writes records in the end: where a filter sees each of them."""
    return _writer


def was_told(error: BaseException) -> bool:
    """Whether a record tells of ``error`` already."""
    return bool(getattr(error, _TOLD, False))


def summary_of(error: BaseException, causes: int = MOST_CAUSES) -> dict[str, Any]:
    """An exception in short: its type, message and last places, its cause, and the members of a group."""
    kind = type(error)
    walked = ((frame.f_code, line) for frame, line in walk_tb(error.__traceback__))
    where = deque((one for one in walked if not one[0].co_filename.startswith("<frozen")), MOST_FRAMES)
    told: dict[str, Any] = {
        "type": kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}",
        "message": _cut(_message(error), LONGEST_MESSAGE),
        "frames": [f"{_place(code.co_filename)}:{line} {code.co_name}" for code, line in where],
    }
    if isinstance(error, BaseExceptionGroup):
        told["members"] = [summary_of(one, 0) for one in error.exceptions[:MOST_MEMBERS]]
        told["member_count"] = len(error.exceptions)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and causes:
        told["cause"] = summary_of(cause, causes - 1)
    return told


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide what went wrong
        return "(no message: its __str__ fails)"


def _place(path: str) -> str:
    return next((path.removeprefix(root) for root in _ROOTS if path.startswith(root)), path)


def _cut(text: str, longest: int) -> str:
    """``text`` cut for now: so long that a secret at the cut is beyond what ``_shown`` shows."""
    return text if len(text) <= longest + LONGEST else text[: longest + LONGEST] + "…"


def _shown(text: str, longest: int) -> str:
    """``text`` without secrets, on one line, cut."""
    clean = redacted(text)
    if len(text) > longest + LONGEST:
        clean = clean[:-LONGEST]
    if len(clean) > longest:
        clean = f"{clean[:longest]}… (cut)"
    return clean.translate(_UNSEEN)


def _plain(value: object, depth: int = 0) -> object:
    """``value`` as text, numbers, lists and mappings, which nobody changes any more."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and depth < DEEPEST:
        return {str(key): _plain(one, depth + 1) for key, one in list(value.items())[:LARGEST_FIELD]}
    if (
        isinstance(value, Sequence | set | frozenset)
        and not isinstance(value, str | bytes)
        and depth < DEEPEST
    ):
        return [_plain(one, depth + 1) for one in list(value)[:LARGEST_FIELD]]
    return _cut(_message(value) if isinstance(value, BaseException) else str(value), LONGEST_TEXT)


def _struck(value: object, longest: int = LONGEST_TEXT) -> object:
    """``value`` of ``_plain`` without secrets."""
    if isinstance(value, str):
        return _shown(value, longest)
    if isinstance(value, Mapping):
        return {
            _shown(name, longest): MARK if is_secret_name(name) and one else _struck(one, longest)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_struck(one, longest) for one in value]
    return value


def _prepared(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
    """Structlog's processor where a record is made."""
    given = fields.pop("exc_info", None)
    error = given if isinstance(given, BaseException) else sys.exc_info()[1] if given else None
    if isinstance(given, tuple):
        error = given[1]
    made = {str(name): _plain(value) for name, value in fields.items()}
    if error is not None:
        made["exception"] = _told(error)
    return made


def _told(error: BaseException) -> dict[str, Any]:
    with suppress(AttributeError):  # some exceptions take no attributes
        setattr(error, _TOLD, True)
    return summary_of(error)


def _of_logging(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
    """What ``_Handler.prepare`` noted in a record of ``logging``."""
    record = cast("logging.LogRecord", fields["_record"])
    fields.update(getattr(record, "bound", {}))
    if getattr(record, "exception", None) is not None:
        fields["exception"] = record.__dict__["exception"]
    return fields


def _dated(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
    """When, how grave, whose and what stand first."""
    at = datetime.fromtimestamp(fields["_record"].created, UTC).isoformat(timespec="milliseconds")
    first = {
        "timestamp": at.replace("+00:00", "Z"),
        **{k: fields.pop(k) for k in ("level", "logger", "event")},
    }
    return {**first, **fields}


def _strike(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
    exception = fields.pop("exception", None)
    clean = cast("dict[str, Any]", _struck(fields))
    if exception is not None:
        clean["exception"] = _struck(exception, LONGEST_MESSAGE)
    return clean


def _exception_as_text(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
    exception = fields.get("exception")
    if isinstance(exception, Mapping):
        fields["exception"] = "\n".join(_told_lines(exception, "  "))
    return fields


def _told_lines(told: Mapping[str, Any], indent: str) -> Iterator[str]:
    yield f"{indent}{told['type']}: {told['message']}"
    for place in reversed(told["frames"]):
        yield f"{indent}  {place}"
    for member in told.get("members", ()):
        yield from _told_lines(member, f"{indent}  | ")
    if "cause" in told:
        yield f"{indent}because of"
        yield from _told_lines(told["cause"], indent)


def _configure(form: LogForm) -> None:
    structlog.configure(
        processors=[
            merge_contextvars,
            add_logger_name,
            add_log_level,
            _prepared,
            ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(form.level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    logging.getLogger().setLevel(max(form.level, logging.WARNING))
    for name in OURS:
        logging.getLogger(name).setLevel(form.level)
    renderers: list[Any] = [structlog.processors.JSONRenderer()]
    if not form.as_json:
        colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        renderers = [_exception_as_text, structlog.dev.ConsoleRenderer(colors=colors, sort_keys=False)]
    _writer.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[add_logger_name, add_log_level, _of_logging],
            processors=[_dated, ProcessorFormatter.remove_processors_meta, _strike, *renderers],
        )
    )


class _Writer(logging.Handler):
    """Writes records to the process's stderr as it stands at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """One record, in one write."""
        try:
            line = without_known(self.format(record))
        except Exception as error:  # a record that cannot be shown must not end what it tells of
            line = f"a record of {record.name!r} cannot be shown: {type(error).__name__}"
            line = json.dumps({"level": "error", "event": line}) if _form.as_json else line
        stream = sys.stderr.below if isinstance(sys.stderr, _Lines) else sys.stderr
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):
            return  # nobody reads any more


class _Handler(QueueHandler):
    """Makes records short where they are made; writes them, or has them wait for the thread that does."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None))
        self.is_waiting = False
        self.dropped = 0

    def filter(self, record: logging.LogRecord) -> Any:
        """Whether to tell it: what ours have told, a server does not tell again."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None and was_told(error) and record.name.partition(".")[0] not in OURS:
            return False
        return super().filter(record)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """A copy that holds texts alone: no frames, nothing that may change. Nothing is rendered here."""
        record = copy.copy(record)
        if not hasattr(record, "_logger"):
            error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
            record.msg = _cut(_one_line(record.getMessage()), LONGEST_TEXT)
            record.__dict__["bound"] = {name: _plain(value) for name, value in get_contextvars().items()}
            record.__dict__["exception"] = _told(error) if error is not None else None
        record.args = None
        record.exc_info = record.exc_text = record.stack_info = None
        return record

    def emit(self, record: logging.LogRecord) -> None:
        """Prepares a record and hands it on."""
        try:
            prepared = self.prepare(record)
        except Exception as error:  # a record that cannot be made short must not end what it tells of
            words = f"a record of {record.name!r} cannot be made: {type(error).__name__}"
            prepared = logging.makeLogRecord({"name": record.name, "levelno": record.levelno, "msg": words})
            prepared.levelname = record.levelname
        if self.is_waiting:
            self.enqueue(prepared)
        else:
            _writer.handle(prepared)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Has it wait, unless too many do."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def take_dropped(self) -> int:
        """How many were dropped since the last time."""
        self.acquire()
        try:
            dropped, self.dropped = self.dropped, 0
        finally:
            self.release()
        return dropped


class _Listener(QueueListener):
    """The thread that writes; says how many records did not come so far."""

    def handle(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        super().handle(record)
        if _handler.dropped and cast("queue.Queue[Any]", self.queue).qsize() < MOST_WAITING // 2:
            self.tell_dropped()

    def tell_dropped(self) -> None:
        """One record for all that were dropped since the last time."""
        if dropped := _handler.take_dropped():
            words = f"{dropped} records were dropped: more came than could be written"
            super().handle(logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, None, None))

    def stop(self) -> None:
        """Writes what waits; a reader who has stopped holds the end up for STOP_LIMIT_S at most."""
        thread, self._thread = self._thread, None
        ends_at = time.monotonic() + STOP_LIMIT_S
        while thread is not None and time.monotonic() < ends_at:
            try:
                self.enqueue_sentinel()
            except queue.Full:
                time.sleep(0.05)
            else:
                thread.join(ends_at - time.monotonic())
                return


class _Lines(io.TextIOBase):
    """stderr of a process that logs JSON: each line that anything writes there becomes a record."""

    def __init__(self, below: TextIO) -> None:
        self.below = below
        self._begun = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream below."""
        return self.below.encoding or "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """What is done with what cannot be encoded."""
        return self.below.errors or "backslashreplace"

    def fileno(self) -> int:
        """That of the stream below, for what writes without Python."""
        return self.below.fileno()

    def isatty(self) -> bool:
        """No screen: colours would be no JSON."""
        return False

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Makes records of lines that are whole."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                logging.getLogger(_RAW).info("%s", line.rstrip())
        return len(text)

    def flush(self) -> None:
        """Nothing: what is begun waits for its end."""


_TRACEBACK = "Traceback (most recent call last)"


def _one_line(message: str) -> str:
    """A message; of a traceback in text its last line alone."""
    message = message.strip()
    return message.splitlines()[-1] if message.startswith(_TRACEBACK) else message


def _on_uncaught(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger(__name__).critical("the process ends: unexpected error", exc_info=error)


def _on_uncaught_of_thread(told: threading.ExceptHookArgs) -> None:
    if not issubclass(told.exc_type, SystemExit):
        name = told.thread.name if told.thread is not None else "?"
        logging.getLogger(__name__).error("a thread ended: %s", name, exc_info=told.exc_value)


def _on_unraisable(told: sys.UnraisableHookArgs) -> None:
    words = told.err_msg or "an exception that nobody can catch"
    logging.getLogger(__name__).error("%s: %s", words, type(told.object).__name__, exc_info=told.exc_value)


_writer = _Writer()
_handler = _Handler()

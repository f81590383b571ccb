"""The log of a process: the sources of its records, their format, and their way to stderr.

Records of structlog and of ``logging`` (ours, uvicorn's, asyncio's) are processed alike. A record is
shortened where it is created: an exception becomes its type, message and last code locations, without values
of variables and source lines, and long texts are cut. Then secrets are redacted (``broker.redaction``) and
one line of text or JSON is written. A server does the second part on a separate thread (``on_a_thread``), so
that no request waits for the reader of the log.

Records of other packages are logged from WARNING on, at every level, because their other records contain
headers and rows.
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
"""Maximum number of records that wait to be written; further ones are dropped and counted."""
LONGEST_MESSAGE = 600
LONGEST_TEXT = 2000
LARGEST_FIELD = 20
DEEPEST = 4
MOST_FRAMES = 10
MOST_CAUSES = 3
MOST_MEMBERS = 3
STOP_LIMIT_S = 5.0
_RAW = "stderr"
_LOGGED = "_is_logged"
_ROOTS = tuple(
    sorted({f"{Path(entry).resolve()}{os.sep}" for entry in sys.path if entry}, key=len, reverse=True)
)
_UNSEEN = {**ESCAPES, ord("\n"): "\\n"}


@dataclass(frozen=True, slots=True)
class LogForm:
    """Format and level of a log. ``level``: minimum level of our own records."""

    level: int = logging.WARNING
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Handed:
    """The log settings of a child process: our form, known secrets, and bound fields such as ``trace_id``."""

    form: LogForm
    known: Known = field(repr=False)


_form = LogForm()


def begin(*, level: int | None = None, as_json: bool | None = None) -> None:
    """Starts logging to stderr. Arguments that are None do not change. Calling it again is no error."""
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
    """Starts logging in a process of another program (a Dask worker), only for our records."""
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
    """Logs warnings and unhandled exceptions too."""
    logging.captureWarnings(True)
    sys.excepthook = _on_uncaught
    threading.excepthook = _on_uncaught_of_thread
    sys.unraisablehook = _on_unraisable


def handed_on() -> Handed:
    """The log settings for a child process."""
    return Handed(_form, known_secrets())


def take_over(handed: Handed) -> None:
    """In a child process: logs as its parent does."""
    know(handed.known)
    begin(level=handed.form.level, as_json=handed.form.as_json)
    catch_the_rest()


def bound_now() -> Mapping[str, Any]:
    """Fields of all records of the current request (its ``trace_id``), for ``on_behalf``."""
    return get_contextvars()


def on_behalf(bound: Mapping[str, Any], fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Calls ``fn`` in another process or thread, with the fields ``bound`` in all records."""
    with bound_contextvars(**bound):
        return fn(*args, **kwargs)


@contextmanager
def on_a_thread() -> Iterator[None]:
    """A context in which another thread renders and writes records. At its end all of them are written."""
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
    """Whether stderr is a log of JSON lines, to which no secret may be printed."""
    return _form.as_json


def writer() -> logging.Handler:
    """The handler that writes all records; a filter there sees each of them."""
    return _writer


def is_logged(error: BaseException) -> bool:
    """Whether ``error`` is already logged."""
    return bool(getattr(error, _LOGGED, False))


def summary_of(error: BaseException, causes: int = MOST_CAUSES) -> dict[str, Any]:
    """Summary of an exception: type, message, last code locations, cause, and members of a group."""
    kind = type(error)
    walked = ((frame.f_code, line) for frame, line in walk_tb(error.__traceback__))
    where = deque((one for one in walked if not one[0].co_filename.startswith("<frozen")), MOST_FRAMES)
    summary: dict[str, Any] = {
        "type": kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}",
        "message": _cut(_message(error), LONGEST_MESSAGE),
        "frames": [f"{_place(code.co_filename)}:{line} {code.co_name}" for code, line in where],
    }
    if isinstance(error, BaseExceptionGroup):
        summary["members"] = [summary_of(one, 0) for one in error.exceptions[:MOST_MEMBERS]]
        summary["member_count"] = len(error.exceptions)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and causes:
        summary["cause"] = summary_of(cause, causes - 1)
    return summary


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the error
        return "(no message: its __str__ fails)"


def _place(path: str) -> str:
    return next((path.removeprefix(root) for root in _ROOTS if path.startswith(root)), path)


def _cut(text: str, longest: int) -> str:
    """``text`` cut early, so that a secret at the cut is beyond the part that ``_shown`` keeps."""
    return text if len(text) <= longest + LONGEST else text[: longest + LONGEST] + "…"


def _shown(text: str, longest: int) -> str:
    """``text`` without secrets, on one line, cut to ``longest``."""
    clean = redacted(text)
    if len(text) > longest + LONGEST:
        clean = clean[:-LONGEST]
    if len(clean) > longest:
        clean = f"{clean[:longest]}… (cut)"
    return clean.translate(_UNSEEN)


def _plain(value: object, depth: int = 0) -> object:
    """``value`` copied to strings, numbers, lists and mappings."""
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
    """A ``value`` of ``_plain`` without secrets."""
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
    """Structlog processor that shortens a new record."""
    given = fields.pop("exc_info", None)
    error = given if isinstance(given, BaseException) else sys.exc_info()[1] if given else None
    if isinstance(given, tuple):
        error = given[1]
    made = {str(name): _plain(value) for name, value in fields.items()}
    if error is not None:
        made["exception"] = _marked_summary(error)
    return made


def _marked_summary(error: BaseException) -> dict[str, Any]:
    with suppress(AttributeError):  # some exceptions have no settable attributes
        setattr(error, _LOGGED, True)
    return summary_of(error)


def _of_logging(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
    """Adds the fields that ``_Handler.prepare`` stored in a record of ``logging``."""
    record = cast("logging.LogRecord", fields["_record"])
    fields.update(getattr(record, "bound", {}))
    if getattr(record, "exception", None) is not None:
        fields["exception"] = record.__dict__["exception"]
    return fields


def _dated(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
    """Puts time, level, logger and event first."""
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
        fields["exception"] = "\n".join(_summary_lines(exception, "  "))
    return fields


def _summary_lines(summary: Mapping[str, Any], indent: str) -> Iterator[str]:
    yield f"{indent}{summary['type']}: {summary['message']}"
    for place in reversed(summary["frames"]):
        yield f"{indent}  {place}"
    for member in summary.get("members", ()):
        yield from _summary_lines(member, f"{indent}  | ")
    if "cause" in summary:
        yield f"{indent}because of"
        yield from _summary_lines(summary["cause"], indent)


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
    """Writes records to the current stderr of the process."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record with one call."""
        try:
            line = without_known(self.format(record))
        except Exception as error:  # a failure of the log must not stop the program
            line = f"a record of {record.name!r} cannot be rendered: {type(error).__name__}"
            line = json.dumps({"level": "error", "event": line}) if _form.as_json else line
        stream = sys.stderr.below if isinstance(sys.stderr, _Lines) else sys.stderr
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):
            return  # stderr is closed


class _Handler(QueueHandler):
    """Shortens records where they are created, and writes them or queues them for the writing thread."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None))
        self.is_waiting = False
        self.dropped = 0

    def filter(self, record: logging.LogRecord) -> Any:
        """Whether to log it; exceptions that we logged are not logged again by the server."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None and is_logged(error) and record.name.partition(".")[0] not in OURS:
            return False
        return super().filter(record)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """A copy without frames and mutable objects. It is not rendered yet."""
        record = copy.copy(record)
        if not hasattr(record, "_logger"):
            error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
            record.msg = _cut(_one_line(record.getMessage()), LONGEST_TEXT)
            record.__dict__["bound"] = {name: _plain(value) for name, value in get_contextvars().items()}
            record.__dict__["exception"] = _marked_summary(error) if error is not None else None
        record.args = None
        record.exc_info = record.exc_text = record.stack_info = None
        return record

    def emit(self, record: logging.LogRecord) -> None:
        """Prepares a record and passes it on."""
        try:
            prepared = self.prepare(record)
        except Exception as error:  # a failure of the log must not stop the program
            words = f"a record of {record.name!r} cannot be prepared: {type(error).__name__}"
            prepared = logging.makeLogRecord({"name": record.name, "levelno": record.levelno, "msg": words})
            prepared.levelname = record.levelname
        if self.is_waiting:
            self.enqueue(prepared)
        else:
            _writer.handle(prepared)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queues the record, or drops it if the queue is full."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def take_dropped(self) -> int:
        """Number of records that were dropped since the last call."""
        self.acquire()
        try:
            dropped, self.dropped = self.dropped, 0
        finally:
            self.release()
        return dropped


class _Listener(QueueListener):
    """The writing thread, which also reports dropped records."""

    def handle(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        super().handle(record)
        if _handler.dropped and cast("queue.Queue[Any]", self.queue).qsize() < MOST_WAITING // 2:
            self.tell_dropped()

    def tell_dropped(self) -> None:
        """Writes one record about all that were dropped since the last call."""
        if dropped := _handler.take_dropped():
            words = f"{dropped} records were dropped, because they came faster than they could be written"
            super().handle(logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, None, None))

    def stop(self) -> None:
        """Writes all queued records, for at most STOP_LIMIT_S if the reader of stderr has stopped."""
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
    """stderr of a process that logs JSON: each line that is written to it becomes a record."""

    def __init__(self, below: TextIO) -> None:
        self.below = below
        self._begun = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the underlying stream."""
        return self.below.encoding or "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Encoding error handler of the underlying stream."""
        return self.below.errors or "backslashreplace"

    def fileno(self) -> int:
        """File descriptor of the underlying stream, for native libraries."""
        return self.below.fileno()

    def isatty(self) -> bool:
        """False, because colours would not be valid JSON."""
        return False

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Logs complete lines as records."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                logging.getLogger(_RAW).info("%s", line.rstrip())
        return len(text)

    def flush(self) -> None:
        """Does nothing; an incomplete line waits for its end."""


_TRACEBACK = "Traceback (most recent call last)"


def _one_line(message: str) -> str:
    """A message on one line; of a traceback in text only its last line."""
    message = message.strip()
    return message.splitlines()[-1] if message.startswith(_TRACEBACK) else message


def _on_uncaught(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger(__name__).critical("the process ends because of an unexpected error", exc_info=error)


def _on_uncaught_of_thread(args: threading.ExceptHookArgs) -> None:
    if not issubclass(args.exc_type, SystemExit):
        name = args.thread.name if args.thread is not None else "?"
        logging.getLogger(__name__).error("a thread ended: %s", name, exc_info=args.exc_value)


def _on_unraisable(args: sys.UnraisableHookArgs) -> None:
    words = args.err_msg or "an exception that cannot be raised"
    logging.getLogger(__name__).error("%s: %s", words, type(args.object).__name__, exc_info=args.exc_value)


_writer = _Writer()
_handler = _Handler()

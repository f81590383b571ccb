"""How asks travel to another process: what many services share is sent once, the rest with each ask.

Shared are the problem, without what was derived from it and with its offers as columns, and what the first
gates let through. A frame is a length (8 bytes) and a pickle; both ends are processes of ours, joined by
pipes that nobody else can open.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import IO, Any

from optimizer.placement.crew.billed_offers import BilledOffers
from optimizer.placement.problem.gates import Opened
from optimizer.placement.problem.problem import Problem
from optimizer.recall import MemoCache

LENGTH_BYTES = 8
PROBLEM = "problem"


def lean(problem: Problem) -> Problem:
    """What services ask of a problem; nothing of it changes while it is sent."""
    table = replace(problem.table, offers=BilledOffers.of(problem.table.offers), menus=())
    return replace(problem, table=table, index_of={}, kept={}, kept_of_market={}, recall=MemoCache())


@dataclass(slots=True)
class Outbox:
    """The sending end: a frame for each ask, after those of what it shares with others, each sent once."""

    stream: IO[bytes]
    problem: Problem
    _numbers: dict[int, int] = field(default_factory=dict)
    _kept: list[Opened] = field(default_factory=list)

    def send_problem(self) -> None:
        """The first frame."""
        send(self.stream, (PROBLEM, lean(self.problem)))

    def send(self, thing: Any) -> None:
        """An ask."""
        fresh: list[tuple[int, Opened]] = []
        frame = self._pickled(("ask", thing), fresh)
        for number, part in fresh:
            send(self.stream, ("part", (number, replace(part, shelves=part.shelves.by_price()))))
        _write(self.stream, frame)

    def _pickled(self, thing: object, fresh: list[tuple[int, Opened]]) -> bytes:
        def number(part: object) -> object | None:
            if part is self.problem:
                return PROBLEM
            if not isinstance(part, Opened):
                return None
            if id(part) not in self._numbers:
                self._numbers[id(part)] = len(self._kept)
                fresh.append((len(self._kept), part))
                # Kept alive, so that its identity stays its own.
                self._kept.append(part)
            return self._numbers[id(part)]

        return _pickled(thing, number)


@dataclass(slots=True)
class Inbox:
    """The receiving end."""

    stream: IO[bytes]
    _problem: Problem | None = None
    _parts: dict[int, Opened] = field(default_factory=dict)

    def receive_problem(self) -> Problem:
        """The first frame; EOFError where the sender is gone."""
        _, self._problem = receive(self.stream)
        return self._problem

    def receive(self) -> Any:
        """The next ask, after what it shares; EOFError when the sender is gone."""
        while True:
            kind, thing = self._unpickled(_read(self.stream))
            if kind == "ask":
                return thing
            number, part = thing
            self._parts[number] = part

    def _unpickled(self, frame: bytes) -> Any:
        reader = pickle.Unpickler(io.BytesIO(frame))  # noqa: S301  from our own parent
        reader.persistent_load = self._part  # type: ignore[method-assign]
        return reader.load()

    def _part(self, number: object) -> object:
        if number == PROBLEM:
            return self._problem
        return self._parts[number]  # type: ignore[index]


def send(stream: IO[bytes], thing: object) -> None:
    """One frame."""
    _write(stream, pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL))


def receive(stream: IO[bytes]) -> Any:
    """The next frame; EOFError at the end of the stream."""
    return pickle.loads(_read(stream))  # noqa: S301  from our own process


def _pickled(thing: object, persistent_id: Callable[[object], object | None]) -> bytes:
    buffer = io.BytesIO()
    writer = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    writer.persistent_id = persistent_id  # type: ignore[method-assign]
    writer.dump(thing)
    return buffer.getvalue()


def _write(stream: IO[bytes], frame: bytes) -> None:
    stream.write(len(frame).to_bytes(LENGTH_BYTES, "big"))
    stream.write(frame)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes:
    return _exactly(stream, int.from_bytes(_exactly(stream, LENGTH_BYTES), "big"))


def _exactly(stream: IO[bytes], count: int) -> bytes:
    found = stream.read(count)
    if len(found) < count:
        raise EOFError(f"the stream ended {count - len(found)} bytes early")
    return found

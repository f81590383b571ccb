"""How questions travel to worker processes. What many services share is sent once, the rest with each
question.

Shared are the problem (without caches, its offers as arrays) and the results of the gates. A frame is a
length (8 bytes) and a pickle. Both ends are processes of this program, connected by pipes that no other can
open.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import IO, Any

from optimizer.memo_cache import MemoCache
from optimizer.placement.problem.gates import Opened
from optimizer.placement.problem.problem import Problem
from optimizer.placement.workers.billed_offers import BilledOffers

LENGTH_BYTES = 8
PROBLEM = "problem"


def lean(problem: Problem) -> Problem:
    """The part of a problem that services need. Nothing changes it while it is sent."""
    table = replace(problem.table, offers=BilledOffers.of(problem.table.offers), count_terms=())
    return replace(problem, table=table, index_of={}, kept={}, kept_of_market={}, memo=MemoCache())


@dataclass(slots=True)
class TaskSender:
    """The sending end: one frame for each question, preceded by the shared parts that were not sent yet."""

    stream: IO[bytes]
    problem: Problem
    _numbers: dict[int, int] = field(default_factory=dict)
    _kept: list[Opened] = field(default_factory=list)

    def send_problem(self) -> None:
        """Sends the problem, which is the first frame."""
        send(self.stream, (PROBLEM, lean(self.problem)))

    def send(self, thing: Any) -> None:
        """Sends a question."""
        fresh: list[tuple[int, Opened]] = []
        frame = self._pickled(("ask", thing), fresh)
        for number, part in fresh:
            send(self.stream, ("part", (number, replace(part, groups=part.groups.by_price()))))
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
                # A reference keeps the object alive, so that its id stays unique.
                self._kept.append(part)
            return self._numbers[id(part)]

        return _pickled(thing, number)


@dataclass(slots=True)
class TaskReceiver:
    """The receiving end."""

    stream: IO[bytes]
    _problem: Problem | None = None
    _parts: dict[int, Opened] = field(default_factory=dict)

    def receive_problem(self) -> Problem:
        """Receives the problem; raises EOFError if the sender is gone."""
        _, self._problem = receive(self.stream)
        return self._problem

    def receive(self) -> Any:
        """Receives the next question and the shared parts before it; raises EOFError if the sender is
        gone.
        """
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
    """Writes one frame."""
    _write(stream, pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL))


def receive(stream: IO[bytes]) -> Any:
    """The next frame; raises EOFError at the end of the stream."""
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

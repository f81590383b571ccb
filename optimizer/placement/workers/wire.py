"""How questions travel to a worker process over a ``Connection`` that no other process can open.

The problem and the results of the gates are shared by many questions. Each is sent once to a worker, without
what services do not need, before the first question that refers to it.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from optimizer.memo_cache import MemoCache
from optimizer.placement.problem.gates import Opened
from optimizer.placement.problem.problem import Problem
from optimizer.placement.workers.billed_offers import BilledOffers


def lean(problem: Problem) -> Problem:
    """The part of a problem that services need. Nothing changes it while it is sent."""
    table = replace(problem.table, offers=BilledOffers.of(problem.table.offers), count_terms=())
    return replace(problem, table=table, index_of={}, kept={}, kept_of_market={}, memo=MemoCache())


@dataclass(frozen=True, slots=True)
class Sender:
    """The sending end. ``sent``: the number of each shared part by its id, and the part, which keeps the id
    unique.
    """

    connection: Connection
    sent: dict[int, tuple[int, Problem | Opened]] = field(default_factory=dict)

    def send(self, question: object) -> None:
        """Sends the shared parts that are new, and the question with their numbers."""
        packed = io.BytesIO()
        pickler = pickle.Pickler(packed, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = self._number  # type: ignore[method-assign]
        pickler.dump(question)
        self.connection.send(packed.getvalue())

    def _number(self, part: object) -> int | None:
        if not isinstance(part, Problem | Opened):
            return None
        if id(part) not in self.sent:
            self.sent[id(part)] = len(self.sent), part
            if isinstance(part, Problem):
                self.connection.send(lean(part))
            else:
                self.connection.send(replace(part, groups=part.groups.by_price()))
        return self.sent[id(part)][0]


@dataclass(frozen=True, slots=True)
class Receiver:
    """The receiving end, with the shared parts by number."""

    connection: Connection
    parts: list[object] = field(default_factory=list)

    def receive(self) -> Any:
        """The next question; raises EOFError if the sender is gone."""
        while not isinstance(message := self.connection.recv(), bytes):
            self.parts.append(message)
        unpickler = pickle.Unpickler(io.BytesIO(message))  # noqa: S301  from our own parent
        unpickler.persistent_load = self.parts.__getitem__  # type: ignore[method-assign]
        return unpickler.load()

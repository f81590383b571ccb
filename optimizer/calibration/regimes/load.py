"""What a load asks of a replica, what comes of it, and how many sequences the replica takes.

Arrays over rows; tokens/s of one copy, times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from optimizer.performance.arrays import Array, Mask
from optimizer.performance.serving.first_token import Prompts
from optimizer.performance.serving.queueing import Arrivals, Lengths, batch_limit, client_overhead
from optimizer.performance.serving.served_model import ServedModel, sequences_most


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The load: sequences in flight (``batch``), arrivals/s (``rate``), requests in all (inf: no end).

    ``rounds``: requests that a client of a closed loop sends one after the other; ``of_means``: 1 where the
    table gives means over a run from its cold start, 0 where medians; ``objective_s``: time between tokens
    whose 99th percentile the rate was chosen to keep, inf where it was not, ``first_objective_s``: that of
    the time to the first token beside it. ``before_s``: time before the
    engine sees a request, its own where None; ``polled``: 1 where the engine looks at the queue
    every few steps only; ``burst_dense``: share of ``Engine.burst_s`` that models without experts wait for;
    ``longest``: the longest answer over the mean one at most; ``parted``: 1 where requests end one by one
    at the end of a run, 0 where they keep together or the run has no end.
    """

    batch: Array
    rate: Array
    requests: Array
    rounds: Array
    of_means: Array
    objective_s: Array
    before_s: Array | None = None
    polled: Array | float = 0.0
    burst_dense: Array | float = 1.0
    longest: Array | float = np.inf
    parted: Array | float = 1.0
    first_objective_s: Array | float = np.inf


class OverRequests(Protocol):
    """A positive quantity over requests, by row."""

    @property
    def mean(self) -> Array:
        """Mean over requests."""
        ...

    @property
    def p50(self) -> Array:
        """Median."""
        ...

    def quantile(self, normal: float) -> Array:
        """Where the standard normal has ``normal``."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes of it; nan where not defined. ``stable``: the replica keeps up with the arrivals.
    ``first_mean``: mean first token over a run from its start, where that is not the shown one."""

    tokens_per_s: Array
    ttft: OverRequests
    tpot: OverRequests
    stable: Mask
    first_mean: Array | None = None


def limit_of(served: ServedModel, lengths: Lengths) -> Array:
    """Sequences in flight at most: cache and engine; at least one."""
    return np.maximum(batch_limit(served, lengths, sequences_most(served)), 1.0)


def places_of(served: ServedModel, lengths: Lengths) -> Array:
    """The same where an engine that has room for none is given more memory."""
    usual = limit_of(served, lengths)
    if not np.any(usual <= 1.0):
        return usual
    return np.where(usual <= 1.0, limit_of(raised(served), lengths), usual)


def limit_for(served: ServedModel, lengths: Lengths, wanted: Array) -> Array:
    """The same where ``wanted`` are to be in flight: who runs out of cache gives the engine more memory."""
    usual = limit_of(served, lengths)
    if not np.any(wanted > usual):
        return usual
    more = limit_of(raised(served), lengths)
    return np.where(wanted > usual, np.maximum(usual, np.minimum(more, wanted)), usual)


def raised(served: ServedModel) -> ServedModel:
    """The same with as much of the card as users give an engine that needs it."""
    share = served.rates.memory_share_most
    return served if served.engine.memory_share >= share else replace(served, memory_share=share)


def before_engine_s(served: ServedModel, asked: LoadSpec) -> Array:
    """Time before the engine sees a request: as asked, else its own."""
    return client_overhead(served) if asked.before_s is None else asked.before_s


def starting_together(known: Arrivals, share: Array, together: Array) -> Arrivals:
    """The same where ``share`` of the prompts come all at once, ``together`` of them: as many share a step as
    its budget takes. The others go on as they did."""
    return replace(known, prompts=partly_batched(known.prompts, share, known.prompts.in_a_step(together)))


def partly_batched(prompts: Prompts, share: Array, together: Array) -> Prompts:
    """The same where only ``share`` of the prompts come ``together``."""
    alone = 1.0 - share
    return replace(
        prompts,
        work=prompts.work + share * (prompts.batched(together).work - prompts.work),
        lone_overhead=alone * prompts.lone_overhead,
        rank_wait=alone * prompts.rank_wait,
    )

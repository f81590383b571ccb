"""The load on a replica, its results, and the number of sequences that the replica holds.

Arrays over rows; tokens/s per replica, times in seconds.
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
    """The load: sequences in flight (``batch``), arrivals/s (``rate``), total requests (inf: no end).

    ``rounds``: consecutive requests of a client of a closed loop. ``of_means``: 1 if the table gives means
    over a run from its cold start, 0 if it gives medians. ``objective_s``: the time between tokens whose 99th
    percentile the rate was chosen to keep (inf: none); ``first_objective_s``: the same of the time to the
    first token. ``before_s``: time before the engine sees a request (None: the engine's own). ``polled``: 1
    if the engine looks at its queue only every few steps. ``burst_dense``: the share of ``Engine.burst_s``
    that models without experts wait for. ``longest``: the longest answer in multiples of the mean one.
    ``parted``: 1 if requests end one by one at the end of a run, 0 if they stay together or the run has no
    end.
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
    """A positive quantity that varies over requests, by row."""

    @property
    def mean(self) -> Array:
        """Mean over requests."""
        ...

    @property
    def p50(self) -> Array:
        """Median."""
        ...

    def quantile(self, normal: float) -> Array:
        """The quantile at ``normal``, a quantile of the standard normal distribution."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a load; nan if not defined. ``stable``: the replica keeps up with the arrivals.
    ``first_mean``: the mean first token over a run from its start, if it differs from the shown one."""

    tokens_per_s: Array
    ttft: OverRequests
    tpot: OverRequests
    stable: Mask
    first_mean: Array | None = None


def limit_of(served: ServedModel, lengths: Lengths) -> Array:
    """The most sequences in flight, by cache and engine; at least one."""
    return np.maximum(batch_limit(served, lengths, sequences_most(served)), 1.0)


def places_of(served: ServedModel, lengths: Lengths) -> Array:
    """The same; an engine without room for a sequence gets more memory."""
    usual = limit_of(served, lengths)
    if not np.any(usual <= 1.0):
        return usual
    return np.where(usual <= 1.0, limit_of(raised(served), lengths), usual)


def limit_for(served: ServedModel, lengths: Lengths, wanted: Array) -> Array:
    """The same if ``wanted`` sequences should be in flight: an engine that runs out of cache gets more
    memory."""
    usual = limit_of(served, lengths)
    if not np.any(wanted > usual):
        return usual
    more = limit_of(raised(served), lengths)
    return np.where(wanted > usual, np.maximum(usual, np.minimum(more, wanted)), usual)


def raised(served: ServedModel) -> ServedModel:
    """The same with as much GPU memory as users give to an engine that needs it."""
    share = served.rates.memory_share_most
    return served if served.engine.memory_share >= share else replace(served, memory_share=share)


def before_engine_s(served: ServedModel, asked: LoadSpec) -> Array:
    """The time before the engine sees a request: as given by the load, else the engine's own."""
    return client_overhead(served) if asked.before_s is None else asked.before_s


def starting_together(known: Arrivals, share: Array, together: Array) -> Arrivals:
    """The same if ``share`` of the prompts come all at once, ``together`` of them; as many share a step as
    its budget takes. The others are unchanged."""
    return replace(known, prompts=partly_batched(known.prompts, share, known.prompts.in_a_step(together)))


def partly_batched(prompts: Prompts, share: Array, together: Array) -> Prompts:
    """The same if only ``share`` of the prompts come ``together``."""
    alone = 1.0 - share
    return replace(
        prompts,
        work=prompts.work + share * (prompts.batched(together).work - prompts.work),
        lone_overhead=alone * prompts.lone_overhead,
        rank_wait=alone * prompts.rank_wait,
    )

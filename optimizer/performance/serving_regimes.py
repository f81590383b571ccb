"""What a load asks of a replica: closed and open loops, offline work, fixed batches, one at a time.

Arrays over rows; tokens/s of one copy, times in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from optimizer.performance.arrays import Array, Mask
from optimizer.performance.queueing import Lengths, batch_limit, harness, load_at, load_at_rate
from optimizer.performance.serving import ServedModel, decode_step, prefill


@dataclass(frozen=True, slots=True)
class Asked:
    """The load: sequences in flight (``batch``), arrivals/s (``rate``), requests in all (inf: no end)."""

    batch: Array
    rate: Array
    requests: Array


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes of it; nan where not defined. ``stable``: the replica keeps up with the arrivals."""

    tokens_per_s: Array
    ttft_p50_s: Array
    ttft_p95_s: Array
    tpot_p50_s: Array
    tpot_p95_s: Array
    stable: Mask


def limit_of(served: ServedModel, lengths: Lengths) -> Array:
    """Sequences in flight at most: cache and engine; at least one."""
    return np.maximum(batch_limit(served, lengths, served.engine.batch_most), 1.0)


def capacity(served: ServedModel, lengths: Lengths) -> Array:
    """Requests/s of one copy with as many sequences in flight as it takes; 0 where the cache holds none."""
    held = batch_limit(served, lengths, served.engine.batch_most)
    full = load_at(served, lengths, np.maximum(held, 1.0), np.maximum(held, 1.0), harness(served))
    return np.where(held >= 1.0, full.requests_per_s, 0.0)


def closed_loop(served: ServedModel, lengths: Lengths, asked: Asked) -> Answer:
    """``asked.batch`` requests always in flight: those beyond the cache wait a share of an answer's time.

    First token = harness + prefill + steps that it shares + prompts that arrive together,
    wait·(B − 1)^power·work.
    """
    constants = served.calibration.queueing
    most = limit_of(served, lengths)
    batch = np.minimum(np.maximum(asked.batch, 1.0), most)
    load = load_at(served, lengths, batch, most, harness(served))
    first = prefill(served, lengths.input_tokens)
    others = np.power(np.maximum(batch - 1.0, 0.0), constants.closed_loop_power)
    together = constants.closed_loop_wait * others
    queue = np.maximum(asked.batch - batch, 0.0) / np.maximum(load.requests_per_s, 1e-9)
    chunks = np.maximum(lengths.input_tokens / served.rates.prefill_tokens_most, 1.0)
    shared = np.where(batch > 1.0, chunks * load.step.total, 0.0)
    ttft = harness(served) + first.latency + shared + together * first.work + queue
    return Answer(
        load.requests_per_s * lengths.output_tokens,
        ttft,
        ttft * constants.ttft_p95_idle,
        load.itl_p50_s,
        load.itl_p95_s,
        np.ones_like(ttft, dtype=np.bool_),
    )


def offline(served: ServedModel, lengths: Lengths, asked: Asked) -> Answer:
    """Everything at once, as many in flight as cache, engine and the work itself allow."""
    most = np.minimum(limit_of(served, lengths), np.maximum(asked.requests, 1.0))
    load = load_at(served, lengths, most, most, harness(served))
    unknown = np.full_like(most, np.nan)
    return Answer(
        load.requests_per_s * lengths.output_tokens,
        unknown,
        unknown,
        load.itl_p50_s,
        load.itl_p95_s,
        np.ones_like(most, dtype=np.bool_),
    )


def open_loop(served: ServedModel, lengths: Lengths, asked: Asked) -> Answer:
    """Arrivals at a rate, whatever the answers take."""
    most = limit_of(served, lengths)
    load, stable = load_at_rate(served, lengths, asked.rate, most, harness(served))
    tokens = np.minimum(load.requests_per_s * lengths.output_tokens, asked.rate * lengths.output_tokens)
    return Answer(tokens, load.ttft_p50_s, load.ttft_p95_s, load.itl_p50_s, load.itl_p95_s, stable)


def fixed_batch(served: ServedModel, lengths: Lengths, asked: Asked) -> Answer:
    """A fixed batch from prefill to the last token, nothing joins."""
    first = prefill(served, lengths.input_tokens)
    step = decode_step(served, asked.batch, lengths.mean_context).total
    begin = first.latency + (asked.batch - 1.0) * first.work * served.replica.pp
    tokens = asked.batch * lengths.output_tokens / (begin + (lengths.output_tokens - 1.0) * step)
    return Answer(tokens, begin, begin, step, step, np.ones_like(step, dtype=np.bool_))


def single_stream(served: ServedModel, lengths: Lengths, asked: Asked) -> Answer:
    """One request at a time."""
    constants = served.calibration.queueing
    first = prefill(served, lengths.input_tokens).latency + harness(served)
    step = decode_step(served, np.ones_like(first), lengths.mean_context).total
    tokens = lengths.output_tokens / (first + (lengths.output_tokens - 1.0) * step)
    return Answer(
        tokens,
        first,
        first * constants.ttft_p95_idle,
        step,
        step * constants.itl_p95_idle,
        np.ones_like(step, dtype=np.bool_),
    )


ANSWERS: Mapping[str, Callable[[ServedModel, Lengths, Asked], Answer]] = {
    "closed": closed_loop,
    "offline": offline,
    "open": open_loop,
    "static": fixed_batch,
    "single": single_stream,
}

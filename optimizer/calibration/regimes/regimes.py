"""The result of each regime of load: closed and open loops, offline work, fixed batches, decode pools, single
streams.

Arrays over rows; tokens/s per replica, times in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from optimizer.calibration.regimes.closed_loops import closed_loop
from optimizer.calibration.regimes.load import (
    Answer,
    LoadSpec,
    before_engine_s,
    limit_for,
    places_of,
    starting_together,
)
from optimizer.calibration.regimes.short_runs import short_run
from optimizer.calibration.table_constants import load_table_constants
from optimizer.performance.arrays import TINY, Array, as_array
from optimizer.performance.serving.first_token import SATURATED, Spread, first_token
from optimizer.performance.serving.queueing import (
    LEAST_BATCH,
    MOST_BATCH,
    P99,
    Arrivals,
    Lengths,
    Load,
    arrivals,
    batch_limit,
    client_overhead,
    crossing,
    load_at,
    load_at_rate,
    mean_context,
    rate_at,
)
from optimizer.performance.serving.served_model import ServedModel, sequences_most
from optimizer.performance.serving.steps import decode_step, prefill

BELIEVED = 2.0


def capacity(served: ServedModel, lengths: Lengths) -> Array:
    """Requests/s of one replica with as many sequences in flight as it holds; 0 if the cache holds none."""
    held = batch_limit(served, lengths, sequences_most(served))
    full = load_at(served, lengths, np.maximum(held, 1.0), client_overhead(served))
    return np.where(held >= 1.0, full.requests_per_s, 0.0)


def offline(served: ServedModel, lengths: Lengths, asked: LoadSpec) -> Answer:
    """All requests at once; as many in flight as cache, engine and the work itself allow.

    Prompts that find a place at the start fill their steps; the others join the answers in flight. Places are
    empty only if prompts fill every step's budget; then the time between tokens follows from the rate per
    place. The queueing of prompts that arrive at random, as at a server, is not included.
    """
    requests = np.maximum(asked.requests, 1.0)
    most = np.minimum(places_of(served, lengths), requests)
    known = starting_together(arrivals(served, lengths), most / requests, most)
    load = load_at(served, lengths, most, before_engine_s(served, asked), known)
    tokens_per_s = load.requests_per_s * lengths.output_tokens
    parts = known.prompts.steps / (served.replica.dp * served.replica.pp)
    full_s = load.step.total + known.prompts.work / parts
    unknown = np.full_like(most, np.nan)
    return Answer(
        tokens_per_s,
        Spread(unknown, unknown),
        Spread(np.minimum(most / tokens_per_s, full_s), load.itl.cv2),
        np.ones_like(most, dtype=np.bool_),
    )


def open_loop(served: ServedModel, lengths: Lengths, asked: LoadSpec) -> Answer:
    """Arrivals at a given rate without end.

    A rate that is said to meet an objective is trusted up to ``BELIEVED`` times the predicted sustainable
    rate, and first tokens likewise.
    """
    most = places_of(served, lengths)
    load, stable = load_at_rate(served, lengths, asked.rate, most, before_engine_s(served, asked))
    believed = asked.rate <= BELIEVED * load.requests_per_s
    chosen = np.isfinite(asked.objective_s) & (stable | believed)
    if chosen.any():
        objective_s = np.where(chosen, asked.objective_s, np.inf)
        load = _at_objective(served, lengths, replace(asked, objective_s=objective_s), load)
    most_s = np.where(chosen, asked.first_objective_s, np.inf)
    first = load.ttft.times(np.minimum(most_s / load.ttft.quantile(P99), 1.0))
    rate = np.where(chosen, asked.rate, np.minimum(load.requests_per_s, asked.rate))
    return Answer(rate * lengths.output_tokens, first, load.itl, stable | chosen)


def _at_objective(served: ServedModel, lengths: Lengths, asked: LoadSpec, load: Load) -> Load:
    """The state at the highest rate that meets an objective on the time between tokens.

    The error of the predicted time at that rate is e/(1 − e) times the error of the predicted rate, where e
    is the share of the time that grows with the load: near saturation the prediction says little, and the
    objective says more. Their logs are averaged with inverse variances as weights.
    """
    constants = load_table_constants().chosen
    known = arrivals(served, lengths)
    grows = np.clip(1.0 - known.alone_s / load.itl.mean, 0.0, SATURATED)
    doubt = (constants.rate_sd / (1.0 - grows)) ** 2
    share = doubt / (doubt + constants.share_sd**2)
    usual = np.log(constants.usual_share * np.where(np.isfinite(asked.objective_s), asked.objective_s, 1.0))
    own = np.log(load.itl.mean)
    wanted = np.where(
        np.isfinite(asked.objective_s), np.exp((1.0 - share) * own + share * usual), load.itl.mean
    )
    return load_at_itl(served, lengths, wanted, known, before_engine_s(served, asked))


def fixed_batch(served: ServedModel, lengths: Lengths, asked: LoadSpec) -> Answer:
    """A fixed batch from prefill to the last token, which no request joins; a batch that exceeds the cache
    runs in equal waves. The first token is the mean over these."""
    held = np.floor(limit_for(served, lengths, asked.batch))
    waves = np.where(held > 1.0, np.ceil(asked.batch / held), 1.0)
    batch = asked.batch / waves
    first = prefill(served, lengths.new_tokens)
    step = decode_step(served, batch, mean_context(served, lengths)).total
    begin = first.latency + (batch - 1.0) * first.work * served.replica.pp
    wave_s = begin + (lengths.output_tokens - 1.0) * step
    tokens = batch * lengths.output_tokens / wave_s
    alike = np.zeros_like(step)
    mean = Spread(begin + (waves - 1.0) / 2.0 * wave_s, alike)
    return Answer(tokens, mean, Spread(step, alike), np.ones_like(step, dtype=np.bool_))


def decode_pool(served: ServedModel, lengths: Lengths, asked: LoadSpec) -> Answer:
    """The decoding half of a disaggregated deployment: prefill runs elsewhere, ``asked.batch`` sequences
    decode without interruption. It has no first tokens."""
    limit = limit_for(served, lengths, asked.batch)
    batch = np.minimum(np.maximum(asked.batch, 1.0), limit)
    step = decode_step(served, batch, mean_context(served, lengths)).total
    unknown, jitter = np.full_like(step, np.nan), served.calibration.queueing.itl_jitter
    between = Spread(step, np.zeros_like(step) + jitter**2)
    return Answer(batch / step, Spread(unknown, unknown), between, np.ones_like(step, dtype=np.bool_))


def single_stream(served: ServedModel, lengths: Lengths, asked: LoadSpec) -> Answer:
    """One request at a time."""
    constants = served.calibration.queueing
    known = arrivals(served, lengths)
    none = np.zeros_like(known.alone_s)
    fixed = Spread(before_engine_s(served, asked), as_array(constants.ttft_jitter**2))
    first = first_token(known.prompts, none, known.alone_s, none, fixed)
    tokens = lengths.output_tokens / (first.mean + (lengths.output_tokens - 1.0) * known.alone_s)
    between = Spread(known.alone_s, none + constants.itl_jitter**2)
    return Answer(tokens, first, between, np.ones_like(none, dtype=np.bool_))


ANSWERS: Mapping[str, Callable[[ServedModel, Lengths, LoadSpec], Answer]] = {
    "closed": closed_loop,
    "offline": offline,
    "open": open_loop,
    "run": short_run,
    "static": fixed_batch,
    "decode": decode_pool,
    "single": single_stream,
}


def load_at_itl(
    served: ServedModel, lengths: Lengths, itl_s: Array, known: Arrivals, client_overhead_s: Array
) -> Load:
    """The state of a replica whose mean time between tokens is ``itl_s``, whatever its cache holds."""
    low, high = np.full_like(itl_s, LEAST_BATCH), np.full_like(itl_s, MOST_BATCH)

    def slower(batch: Array) -> Array:
        itl = batch / (lengths.output_tokens * rate_at(served, lengths, batch, known))
        return np.log(itl / np.maximum(itl_s, TINY))

    return load_at(served, lengths, crossing(slower, low, high), client_overhead_s, known)

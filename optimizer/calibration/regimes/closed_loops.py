"""Closed loops: each client has one request in flight.

Arrays over rows; tokens/s per replica, times in seconds.
"""

from __future__ import annotations

import numpy as np

from optimizer.calibration.regimes.load import Answer, LoadSpec, before_engine_s, limit_for, starting_together
from optimizer.performance.arrays import Array, Mask, as_array
from optimizer.performance.serving.first_token import SATURATED, Prompts, Spread, first_token
from optimizer.performance.serving.queueing import Arrivals, Lengths, arrivals, load_at, mean_context, met_cv2
from optimizer.performance.serving.served_model import ServedModel
from optimizer.performance.serving.steps import decode_step

MANY_CLIENTS = 16.0
WIDEST = 0.7  # least median of the times between tokens, each a mean over an answer, as a share of their mean


def closed_loop(served: ServedModel, lengths: Lengths, asked: LoadSpec) -> Answer:
    """``asked.batch`` clients, each with one request in flight; those beyond the cache wait for a place.

    All clients start at once, so the first of their ``rounds`` prompts meets a queue of all of them. Then
    either they spread over a share of a cycle (``_prompt_spread``), and a prompt finds the B − 1 others as if
    they arrived at random (arrival theorem), or they stay together (``_in_waves``). Means over the run
    include the first round and what engines compile on the first prompts; medians are those of the later
    rounds. The prompts of others that a prompt waits for do not also slow its answer: time between tokens =
    step + ((B − 1)·prefill − waited)/output.
    """
    batch = np.minimum(np.maximum(asked.batch, 1.0), limit_for(served, lengths, asked.batch))
    known = arrivals(served, lengths)
    step = decode_step(served, batch, mean_context(served, lengths)).total
    cycle_s = lengths.output_tokens * step + batch * known.batched(batch).work
    spread_s = uneven_share(known.output_cv, asked) * cycle_s
    known = _staying_together(served, known, batch, spread_s, asked)
    before, jitter = before_engine_s(served, asked), served.calibration.queueing.itl_jitter
    load = load_at(served, lengths, batch, before, known)
    prompts = known.batched(batch)
    others = np.maximum(batch - 1.0, 0.0)
    rate = load.requests_per_s * others / batch
    window = _prompt_spread(served, known, prompts, asked, step, load.requests_per_s)
    packed = known.prompts.batched(batch / lengths.output_tokens / window)
    later = _later(served, packed, step, np.minimum(others, 1.0), rate, window, asked)
    shared = known.prompts.batched(known.prompts.in_a_step(batch))
    later, waited = _in_waves(served, shared, batch, spread_s, later, rate)
    tpot = step + np.maximum(others * prompts.work - waited, 0.0) / lengths.output_tokens
    burst = before + burst_mean(known.prompts, batch, step) + _compiled_s(served, asked)
    once = 1.0 / np.maximum(asked.rounds, 1.0)
    all_at_once = once > 0.5
    mean_queue, median_queue = _queued(batch, asked, all_at_once)
    place_s = 1.0 / np.maximum(load.requests_per_s, 1e-9)
    mean = once * burst + (1.0 - once) * later.mean + mean_queue * place_s
    median = np.where(all_at_once, burst, later.p50) + median_queue * place_s
    shown = np.where(asked.of_means > 0, mean, median)
    paced = batch / (lengths.output_tokens * tpot + later.mean)
    return Answer(
        np.where(all_at_once, load.requests_per_s, paced) * lengths.output_tokens,
        Spread(shown * np.sqrt(1.0 + later.cv2), later.cv2),
        _closed_spread(served, tpot, known, prompts, rate).at_least(np.maximum(step, WIDEST * tpot), jitter),
        np.ones_like(shown, dtype=np.bool_),
        mean,
    )


def _staying_together(
    served: ServedModel, known: Arrivals, batch: Array, spread_s: Array, asked: LoadSpec
) -> Arrivals:
    """The same if prompts that come in waves (``_in_waves``), or all at once, share their steps."""
    prompts = known.prompts
    waves = np.where(asked.rounds > 1.0, _queued_share(served, prompts, batch, spread_s), 1.0)
    return starting_together(known, waves, batch)


def _queued_share(served: ServedModel, prompts: Prompts, batch: Array, spread_s: Array) -> Array:
    """Share of the prompts that come as one wave: those that prefill cannot keep up
    with while answers end."""
    left = np.maximum(1.0 - spread_s / (batch * prompts.work), 0.0)
    share: Array = served.engine.prompts_first * left
    return share


def _queued(batch: Array, asked: LoadSpec, all_at_once: Mask) -> tuple[Array, Array]:
    """Requests for which a mean and a median one wait before there is a place for them.

    Clients beyond ``batch`` places queue in every round. Requests that arrive together only once get places
    in turn: then the median wait is half of the queue, and the mean wait (N − B)²/2N.
    """
    beyond = np.maximum(asked.batch - batch, 0.0)
    mean = beyond**2 / (2.0 * np.maximum(asked.batch, 1.0))
    median = np.maximum(asked.batch / 2.0 - batch, 0.0)
    return np.where(all_at_once, mean, beyond), np.where(all_at_once, median, beyond)


def _compiled_s(served: ServedModel, asked: LoadSpec) -> Array:
    """Time that a run's first prompts wait for kernels to be compiled and tuned on their shapes, especially
    those of experts."""
    return served.engine.burst_s * np.where(served.shapes.experts > 0, 1.0, asked.burst_dense)


def _in_waves(
    served: ServedModel, prompts: Prompts, batch: Array, spread_s: Array, later: Spread, rate: Array
) -> tuple[Spread, Array]:
    """First tokens after the first round, and the prefill of others that they waited for.

    If waiting prompts stop decoding until none is left (``prompts_first``), answers of equal length that
    began together end together. Then all B prompts come at once again and k of them share a step, so a prompt
    is on average in step (B/k + 1)/2, after (B + k)/2 prefills. Answers whose ends spread over ``spread_s``
    bring the prompts one by one; the queue that remains is what prefill cannot keep up with meanwhile, 1 −
    spread/(B·prefill).
    """
    met = np.minimum(rate * prompts.work, SATURATED) * np.maximum(later.mean - prompts.latency, 0.0)
    together = prompts.in_a_step(batch)
    behind = ((batch + together) / 2.0 - 1.0) * prompts.work
    share = _queued_share(served, prompts, batch, spread_s)
    mean = later.mean + share * np.maximum(behind - met, 0.0)
    return Spread(mean, later.cv2 * (later.mean / mean) ** 2), met + share * np.maximum(behind - met, 0.0)


def _prompt_spread(
    served: ServedModel,
    known: Arrivals,
    prompts: Prompts,
    asked: LoadSpec,
    step: Array,
    requests_per_s: Array,
) -> Array:
    """Share of a cycle over which the clients' prompts are spread, half-way through a run that they start
    together.

    Their first answers begin one after the other, w + s·n/M apart; then answers of unequal length spread them
    further: √12·c·√(rounds/2) of a cycle, as a uniform density of that standard deviation.
    """
    burst = (prompts.work + step * prompts.steps) * requests_per_s
    window: Array = np.hypot(
        burst, uneven_share(known.output_cv, asked, served.calibration.queueing.min_cycle_cv)
    )
    return np.minimum(window, 1.0)


def uneven_share(output_cv: Array, asked: LoadSpec, least: float = 0.0) -> Array:
    """Share of a cycle over which answers of unequal length spread the clients, half-way through a run."""
    uneven = np.maximum(output_cv, least)
    share: Array = np.minimum(np.sqrt(12.0 * np.maximum(asked.rounds, 1.0) / 2.0) * uneven, 1.0)
    return share


def _later(
    served: ServedModel,
    prompts: Prompts,
    step: Array,
    busy: Array,
    rate: Array,
    window: Array,
    asked: LoadSpec,
) -> Spread:
    """First tokens after the first round, under ``rate`` within the share ``window`` of each cycle.

    Prompts that fill a whole step budget pace one another, so they are not concentrated.
    """
    constants = served.calibration.queueing
    shared = 1.0 - np.minimum(prompts.steps, 1.0)
    packed = rate * (1.0 + shared * (1.0 / window - 1.0))
    packed = np.minimum(packed, np.maximum(constants.prefill_load_most / prompts.work, rate))
    fixed = Spread(before_engine_s(served, asked), as_array(constants.ttft_jitter**2))
    engine = served.engine
    steps = np.where(asked.batch >= MANY_CLIENTS, engine.polled_by_many_steps, engine.polled_steps)
    return first_token(prompts, packed, step, busy, fixed, steps * asked.polled)


def _closed_spread(
    served: ServedModel, tpot: Array, known: Arrivals, prompts: Prompts, rate: Array
) -> Spread:
    """Time between tokens if the number of sequences in flight is constant, and only the prompts that an
    answer meets vary."""
    met = met_cv2(rate * prompts.work, prompts.work, prompts.work_cv, known.output_tokens * tpot)
    cv2 = met * (1.0 + known.output_cv**2) + served.calibration.queueing.itl_jitter**2
    return Spread(tpot, cv2)


def burst_mean(prompts: Prompts, batch: Array, step_s: Array) -> Array:
    """Mean first token of ``batch`` prompts that come at once to an idle replica.

    Steps of k = min(1/steps, batch) prompts follow each other, so on average (batch + k)/2 prompts are done
    when a prompt's own step ends; steps after the first also decode.
    """
    together = prompts.in_a_step(batch)
    before = (batch + together) / 2.0
    prompts = prompts.batched(together)
    decoding = (before / together - 1.0) * np.maximum(prompts.steps, 1.0)
    return prompts.latency + (before - 1.0) * prompts.work + decoding * step_s

"""What a load asks of a replica: closed and open loops, offline work, fixed batches, decode pools, one at a
time.

Arrays over rows; tokens/s of one copy, times in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from optimizer.performance.arrays import Array, Mask, as_array
from optimizer.performance.queueing import (
    Arrivals,
    Lengths,
    Load,
    arrivals,
    batch_limit,
    harness,
    load_at,
    load_at_itl,
    load_at_rate,
    mean_context,
)
from optimizer.performance.served_model import ServedModel, sequences_most
from optimizer.performance.serving import decode_step, prefill
from optimizer.performance.waiting import SATURATED, Prompts, Spread, burst_mean, first_token

MANY_CLIENTS = 16.0
BELIEVED = 2.0
WIDEST = 0.7  # of its mean a median of times between tokens, each a mean over an answer, is at least


@dataclass(frozen=True, slots=True)
class Asked:
    """The load: sequences in flight (``batch``), arrivals/s (``rate``), requests in all (inf: no end).

    ``rounds``: requests that a client of a closed loop sends one after the other; ``of_means``: 1 where the
    table gives means over a run from its cold start, 0 where medians; ``objective_s``: time between tokens
    whose 99th percentile the rate was chosen to keep, inf where it was not. ``before_s``: time before the
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


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes of it; nan where not defined. ``stable``: the replica keeps up with the arrivals."""

    tokens_per_s: Array
    ttft: Spread
    tpot: Spread
    stable: Mask


def limit_of(served: ServedModel, lengths: Lengths) -> Array:
    """Sequences in flight at most: cache and engine; at least one."""
    return np.maximum(batch_limit(served, lengths, sequences_most(served)), 1.0)


def places_of(served: ServedModel, lengths: Lengths) -> Array:
    """The same where an engine that has room for none is given more memory."""
    usual = limit_of(served, lengths)
    if not np.any(usual <= 1.0):
        return usual
    return np.where(usual <= 1.0, limit_of(raised(served), lengths), usual)


def _limit_for(served: ServedModel, lengths: Lengths, wanted: Array) -> Array:
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


def capacity(served: ServedModel, lengths: Lengths) -> Array:
    """Requests/s of one copy with as many sequences in flight as it takes; 0 where the cache holds none."""
    held = batch_limit(served, lengths, sequences_most(served))
    full = load_at(served, lengths, np.maximum(held, 1.0), harness(served))
    return np.where(held >= 1.0, full.requests_per_s, 0.0)


def _before(served: ServedModel, asked: Asked) -> Array:
    return harness(served) if asked.before_s is None else asked.before_s


def closed_loop(served: ServedModel, lengths: Lengths, asked: Asked) -> Answer:
    """``asked.batch`` clients, each with one request in flight: those beyond the cache wait for a place.

    All clients start at once, so that the first of ``rounds`` prompts meets a queue of them all; then they
    spread over ``_window`` of a cycle, where a prompt finds the B − 1 others as if they came at random
    (arrival theorem), or they stay together (``_in_waves``). Means over the run hold both, and what engines
    compile on the first prompts; medians are the later rounds'. Others' prompts that a prompt waits for do
    not slow its answer too: time between tokens = step + ((B − 1)·prefill − waited)/output.
    """
    batch = np.minimum(np.maximum(asked.batch, 1.0), _limit_for(served, lengths, asked.batch))
    known = _kept_together(served, lengths, arrivals(served, lengths), batch, asked)
    before, jitter = _before(served, asked), served.calibration.queueing.itl_jitter
    load = load_at(served, lengths, batch, before, known)
    prompts, step = known.joining(batch), load.step.total
    others = np.maximum(batch - 1.0, 0.0)
    rate = load.requests_per_s * others / batch
    window = _window(served, known, prompts, asked, step, load.requests_per_s)
    packed = known.prompts.joining(batch / lengths.output_tokens / window)
    later = _later(served, packed, step, np.minimum(others, 1.0), rate, window, asked)
    spread_s = uneven_share(known.output_cv, asked) * lengths.output_tokens * step
    shared = known.prompts.joining(_in_a_step(known.prompts, batch))
    later, waited = _in_waves(served, shared, batch, spread_s, later, rate)
    tpot = step + np.maximum(others * prompts.work - waited, 0.0) / lengths.output_tokens
    burst = before + burst_mean(known.prompts, batch, step) + _compiled_s(served, asked)
    once = 1.0 / np.maximum(asked.rounds, 1.0)
    in_burst = np.where(asked.of_means > 0, once, np.where(once > 0.5, 1.0, 0.0))
    typical = np.where(asked.of_means > 0, later.mean, later.p50)
    queue = _queued(batch, asked, once > 0.5) / np.maximum(load.requests_per_s, 1e-9)
    shown = in_burst * burst + (1.0 - in_burst) * typical + queue
    paced = batch / (lengths.output_tokens * tpot + later.mean)
    return Answer(
        np.where(once > 0.5, load.requests_per_s, paced) * lengths.output_tokens,
        Spread(shown * np.sqrt(1.0 + later.cv2), later.cv2),
        _closed_spread(served, tpot, known, prompts, rate).at_least(np.maximum(step, WIDEST * tpot), jitter),
        np.ones_like(shown, dtype=np.bool_),
    )


def _kept_together(
    served: ServedModel, lengths: Lengths, known: Arrivals, batch: Array, asked: Asked
) -> Arrivals:
    """The same where prompts that come in waves (``_in_waves``), or all at once, share their steps."""
    prompts = known.prompts
    step = decode_step(served, batch, mean_context(served, lengths)).total
    spread_s = uneven_share(known.output_cv, asked) * lengths.output_tokens * step
    waves = np.where(asked.rounds > 1.0, _queued_share(served, prompts, batch, spread_s), 1.0)
    work = prompts.work + waves * prompts.more / _in_a_step(prompts, batch)
    return replace(known, prompts=replace(prompts, work=work, more=(1.0 - waves) * prompts.more))


def _in_a_step(prompts: Prompts, batch: Array) -> Array:
    """Waiting prompts of ``batch`` that one step takes."""
    return np.minimum(1.0 / np.minimum(prompts.steps, 1.0), batch)


def _queued_share(served: ServedModel, prompts: Prompts, batch: Array, spread_s: Array) -> Array:
    """Share of the prompts that come as one wave: what prefill cannot follow while answers end."""
    left = np.maximum(1.0 - spread_s / (batch * prompts.work), 0.0)
    share: Array = served.engine.prompts_first * left
    return share


def _queued(batch: Array, asked: Asked, all_at_once: Mask) -> Array:
    """Requests that the shown one waits for before there is a place for it.

    Clients beyond ``batch`` places queue in every round. Requests that come together once get places in turn:
    the median one is the half-way one in the line, the mean wait (N − B)²/2N.
    """
    beyond = np.maximum(asked.batch - batch, 0.0)
    mean = beyond**2 / (2.0 * np.maximum(asked.batch, 1.0))
    median = np.maximum(asked.batch / 2.0 - batch, 0.0)
    return np.where(all_at_once, np.where(asked.of_means > 0, mean, median), beyond)


def _compiled_s(served: ServedModel, asked: Asked) -> Array:
    """What a run's first prompts wait for: kernels compiled and tuned on its shapes, experts' above all."""
    return served.engine.burst_s * np.where(served.shapes.experts > 0, 1.0, asked.burst_dense)


def _in_waves(
    served: ServedModel, prompts: Prompts, batch: Array, spread_s: Array, later: Spread, rate: Array
) -> tuple[Spread, Array]:
    """First tokens after the first round, and the others' prefill that they waited for.

    Where waiting prompts stop decoding until none is left (``prompts_first``), answers that began together
    and are as long end together: all B prompts come at once again, k of them share a step, and a prompt's
    step is on average the (B/k + 1)/2-th: (B + k)/2 prefills. Answers that end over ``spread_s`` bring
    the prompts one by one; a queue is left of what prefill cannot follow meanwhile, 1 − spread/(B·prefill).
    """
    met = np.minimum(rate * prompts.work, SATURATED) * np.maximum(later.mean - prompts.latency, 0.0)
    together = _in_a_step(prompts, batch)
    behind = ((batch + together) / 2.0 - 1.0) * prompts.work
    share = _queued_share(served, prompts, batch, spread_s)
    mean = later.mean + share * np.maximum(behind - met, 0.0)
    return Spread(mean, later.cv2 * (later.mean / mean) ** 2), met + share * np.maximum(behind - met, 0.0)


def _window(
    served: ServedModel, known: Arrivals, prompts: Prompts, asked: Asked, step: Array, requests_per_s: Array
) -> Array:
    """Share of a cycle over which the clients' prompts come, half-way through a run that they start together.

    Their first answers begin one after the other, over w + s·n/M each; then answers of unequal length spread
    them: √12·c·√(rounds/2) of a cycle, as a uniform density of that standard deviation.
    """
    burst = (prompts.work + step * prompts.steps) * requests_per_s
    window: Array = np.hypot(
        burst, uneven_share(known.output_cv, asked, served.calibration.queueing.uneven_least)
    )
    return np.minimum(window, 1.0)


def uneven_share(output_cv: Array, asked: Asked, least: float = 0.0) -> Array:
    """Share of a cycle that answers of unequal length set clients apart, half-way through a run."""
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
    asked: Asked,
) -> Spread:
    """First tokens after the first round, under ``rate`` packed into ``window`` of each cycle.

    Prompts of a whole step budget pace one another: they are not packed.
    """
    constants = served.calibration.queueing
    shared = 1.0 - np.minimum(prompts.steps, 1.0)
    packed = rate * (1.0 + shared * (1.0 / window - 1.0))
    packed = np.minimum(packed, np.maximum(constants.prefill_load_most / prompts.work, rate))
    fixed = Spread(_before(served, asked), as_array(constants.ttft_jitter**2))
    engine = served.engine
    steps = np.where(asked.batch >= MANY_CLIENTS, engine.polled_by_many_steps, engine.polled_steps)
    return first_token(prompts, packed, step, busy, fixed, steps * asked.polled)


def _closed_spread(
    served: ServedModel, tpot: Array, known: Arrivals, prompts: Prompts, rate: Array
) -> Spread:
    """Time between tokens where the sequences in flight do not vary: only the prompts met do."""
    met = rate * prompts.work**2 * (1.0 + prompts.work_cv**2) * (1.0 + known.output_cv**2)
    cv2 = met / (known.output_tokens * tpot) + served.calibration.queueing.itl_jitter**2
    return Spread(tpot, cv2)


def offline(served: ServedModel, lengths: Lengths, asked: Asked) -> Answer:
    """Everything at once, as many in flight as cache, engine and the work itself allow."""
    most = np.minimum(places_of(served, lengths), np.maximum(asked.requests, 1.0))
    load = load_at(served, lengths, most, _before(served, asked))
    unknown = np.full_like(most, np.nan)
    return Answer(
        load.requests_per_s * lengths.output_tokens,
        Spread(unknown, unknown),
        load.itl,
        np.ones_like(most, dtype=np.bool_),
    )


def open_loop(served: ServedModel, lengths: Lengths, asked: Asked) -> Answer:
    """Arrivals at a rate, whatever the answers take; a run of few requests never has more in flight.

    A rate that is said to meet an objective is believed up to ``BELIEVED`` times what the model sustains.
    """
    most = np.minimum(places_of(served, lengths), np.maximum(asked.requests, 1.0))
    load, stable = load_at_rate(served, lengths, asked.rate, most, _before(served, asked))
    believed = asked.rate <= BELIEVED * load.requests_per_s
    chosen = np.isfinite(asked.objective_s) & (stable | believed)
    if chosen.any():
        objective_s = np.where(chosen, asked.objective_s, np.inf)
        load = _at_objective(served, lengths, replace(asked, objective_s=objective_s), load)
    tokens = asked.rate * lengths.output_tokens
    kept = np.where(chosen, tokens, np.minimum(load.requests_per_s * lengths.output_tokens, tokens))
    return Answer(kept, load.ttft, load.itl, stable | chosen)


def _at_objective(served: ServedModel, lengths: Lengths, asked: Asked, load: Load) -> Load:
    """The state under a rate that was chosen as the most that meets an objective on the time between tokens.

    The model's own time at that rate is off by e/(1 − e) times the error of its rates, e the share of it that
    grows with the load: near saturation it says little, and the objective more. Their logs are averaged by
    inverse variance.
    """
    constants = served.calibration.chosen
    known = arrivals(served, lengths)
    grows = np.clip(1.0 - known.alone_s / load.itl.mean, 0.0, SATURATED)
    doubt = (constants.rate_sd / (1.0 - grows)) ** 2
    share = doubt / (doubt + constants.share_sd**2)
    usual = np.log(constants.usual_share * np.where(np.isfinite(asked.objective_s), asked.objective_s, 1.0))
    own = np.log(load.itl.mean)
    wanted = np.where(
        np.isfinite(asked.objective_s), np.exp((1.0 - share) * own + share * usual), load.itl.mean
    )
    return load_at_itl(served, lengths, wanted, known, _before(served, asked))


def fixed_batch(served: ServedModel, lengths: Lengths, asked: Asked) -> Answer:
    """A fixed batch from prefill to the last token, nothing joins."""
    first = prefill(served, lengths.new_tokens)
    step = decode_step(served, asked.batch, mean_context(served, lengths)).total
    begin = first.latency + (asked.batch - 1.0) * first.work * served.replica.pp
    tokens = asked.batch * lengths.output_tokens / (begin + (lengths.output_tokens - 1.0) * step)
    alike = np.zeros_like(step)
    return Answer(tokens, Spread(begin, alike), Spread(step, alike), np.ones_like(step, dtype=np.bool_))


def decode_pool(served: ServedModel, lengths: Lengths, asked: Asked) -> Answer:
    """The decoding half of a disaggregated deployment: prompts are read elsewhere, ``asked.batch`` sequences
    decode, and nothing interrupts them. First tokens are not its own."""
    limit = _limit_for(served, lengths, asked.batch)
    batch = np.minimum(np.maximum(asked.batch, 1.0), limit)
    step = decode_step(served, batch, mean_context(served, lengths)).total
    unknown, jitter = np.full_like(step, np.nan), served.calibration.queueing.itl_jitter
    between = Spread(step, np.zeros_like(step) + jitter**2)
    return Answer(batch / step, Spread(unknown, unknown), between, np.ones_like(step, dtype=np.bool_))


def single_stream(served: ServedModel, lengths: Lengths, asked: Asked) -> Answer:
    """One request at a time."""
    constants = served.calibration.queueing
    known = arrivals(served, lengths)
    none = np.zeros_like(known.alone_s)
    fixed = Spread(_before(served, asked), as_array(constants.ttft_jitter**2))
    first = first_token(known.prompts, none, known.alone_s, none, fixed)
    tokens = lengths.output_tokens / (first.mean + (lengths.output_tokens - 1.0) * known.alone_s)
    between = Spread(known.alone_s, none + constants.itl_jitter**2)
    return Answer(tokens, first, between, np.ones_like(none, dtype=np.bool_))


ANSWERS: Mapping[str, Callable[[ServedModel, Lengths, Asked], Answer]] = {
    "closed": closed_loop,
    "offline": offline,
    "open": open_loop,
    "static": fixed_batch,
    "decode": decode_pool,
    "single": single_stream,
}

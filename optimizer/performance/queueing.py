"""Load: occupancy, waiting, percentiles, and the rate at which a latency objective still holds.

Arguments broadcast over cases; rates are requests/s of one replica, times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.performance import elementwise as np
from optimizer.performance.arrays import Array, Mask, number
from optimizer.performance.roots import crossing
from optimizer.performance.serving import DecodeStep, Prefill, ServedModel, concurrency, decode_step, prefill

LEAST_BATCH = 1e-2
LEAST_RATE = 1e-300
HELD = 1e-9


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens in and out of a request."""

    input_tokens: Array
    output_tokens: Array

    @property
    def mean_context(self) -> Array:
        """Tokens in the cache half-way through the answer."""
        return self.input_tokens + self.output_tokens / 2.0


@dataclass(frozen=True, slots=True)
class Load:
    """State of a replica at a mean number of sequences in flight.

    ``itl``/``ttft``: time between tokens (a request's mean) and to the first one, with mean, p50, p95.
    ``prefill_load``: share of time that prefills take.
    """

    batch: Array
    requests_per_s: Array
    itl_mean_s: Array
    itl_p50_s: Array
    itl_p95_s: Array
    ttft_mean_s: Array
    ttft_p50_s: Array
    ttft_p95_s: Array
    prefill_load: Array
    step: DecodeStep


@dataclass(frozen=True, slots=True)
class Objective:
    """95th percentiles that must hold; inf where nobody asks."""

    ttft_p95_s: Array
    itl_p95_s: Array


def load_at(
    served: ServedModel,
    lengths: Lengths,
    batch: Array,
    batch_most: Array,
    harness_s: Array,
    first: Prefill | None = None,
) -> Load:
    """The replica with ``batch`` sequences in flight, new prompts taking the place of finished ones.

    Time between tokens = step(B) + B·prefill/output: each step carries B/output prefills. ``first``: the
    prefill of these lengths, where a caller asks for many batches.
    """
    first = prefill(served, lengths.input_tokens) if first is None else first
    step = decode_step(served, batch, lengths.mean_context)
    itl = step.total + batch * first.work / lengths.output_tokens
    rate = batch / (lengths.output_tokens * itl)
    return _with_percentiles(served, first, step, batch, rate, itl, batch_most, harness_s)


def _with_percentiles(
    served: ServedModel,
    first: Prefill,
    step: DecodeStep,
    batch: Array,
    rate: Array,
    itl: Array,
    batch_most: Array,
    harness_s: Array,
) -> Load:
    """First token: harness + prefill/(1 − ρ) + half a step + M/D/1 wait ρ/(1 − ρ)·prefill/2."""
    constants = served.calibration.queueing
    rho = np.minimum(rate * first.work, 0.999)
    wait = rho / (1.0 - rho) * first.work / 2.0
    ttft = harness_s + first.latency / (1.0 - rho) + step.total / 2.0 + wait
    occupancy = np.clip(batch / np.maximum(batch_most, 1e-9), 0.0, 1.0)
    return Load(
        batch=batch,
        requests_per_s=rate,
        itl_mean_s=itl,
        itl_p50_s=itl * constants.itl_p50_share,
        itl_p95_s=itl * (constants.itl_p95_idle + constants.itl_p95_load * occupancy),
        ttft_mean_s=ttft,
        ttft_p50_s=ttft * constants.ttft_p50_share,
        ttft_p95_s=ttft * (constants.ttft_p95_idle + constants.ttft_p95_load * rho),
        prefill_load=rho,
        step=step,
    )


def batch_limit(served: ServedModel, lengths: Lengths, engine_most: float) -> Array:
    """Sequences in flight at most: what the cache holds and what the engine takes a rank; 0 unfit."""
    held = concurrency(served, lengths.input_tokens, lengths.output_tokens)
    return np.minimum(held, engine_most * served.replica.dp * served.replica.pp)


def load_at_rate(
    served: ServedModel, lengths: Lengths, rate: Array, batch_most: Array, harness_s: Array
) -> tuple[Load, Mask]:
    """The replica under ``rate`` arrivals/s, and whether it keeps up: B = λ·output·itl(B).

    Over capacity the state at the limit is returned.
    """
    first = prefill(served, lengths.input_tokens)
    high = np.maximum(batch_most, LEAST_BATCH)

    def surplus(batch: Array) -> Array:
        load = load_at(served, lengths, batch, batch_most, harness_s, first)
        return np.log(load.requests_per_s / np.maximum(rate, LEAST_RATE))

    stable = load_at(served, lengths, high, batch_most, harness_s, first).requests_per_s >= rate
    found = crossing(surplus, np.full_like(high, LEAST_BATCH), high)
    return load_at(served, lengths, found, batch_most, harness_s, first), stable


def most_under(
    served: ServedModel,
    lengths: Lengths,
    objective: Objective,
    batch_most: Array,
    load_most: float,
    harness_s: Array,
) -> tuple[Load, Mask]:
    """The largest load that meets ``objective``, at most ``load_most`` of the limit; and where one exists.

    Both percentiles grow with the sequences in flight, and so does the rate.
    """
    first = prefill(served, lengths.input_tokens)
    low = np.full_like(batch_most, LEAST_BATCH)
    high = np.maximum(batch_most * load_most, LEAST_BATCH)

    def at(batch: Array) -> Load:
        return load_at(served, lengths, batch, batch_most, harness_s, first)

    def excess(load: Load) -> Array:
        latency = np.maximum(load.ttft_p95_s / objective.ttft_p95_s, load.itl_p95_s / objective.itl_p95_s)
        busy = load.prefill_load / served.calibration.queueing.prefill_load_most
        worst = np.maximum(latency, np.where(np.isfinite(objective.ttft_p95_s), busy, 0.0))
        return np.log(np.maximum(worst, LEAST_RATE))

    load = at(crossing(lambda batch: excess(at(batch)), low, high))
    return load, (excess(load) <= HELD) & (batch_most >= 1.0)


def harness(served: ServedModel) -> Array:
    """Time before the engine sees a request."""
    return number(served.engine.harness_s)

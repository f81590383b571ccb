"""Load: occupancy, waiting, percentiles, and the rate at which a latency objective still holds.

Arguments broadcast over cases; rates are requests/s of one replica, times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.performance import elementwise as np
from optimizer.performance.arrays import Array, Mask, number
from optimizer.performance.serving import DecodeStep, Prefill, ServedModel, concurrency, decode_step, prefill

BISECTIONS = 44
FIXED_POINT_ROUNDS = 60
LEAST_BATCH = 1e-2


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


def load_at(served: ServedModel, lengths: Lengths, batch: Array, batch_most: Array, harness_s: Array) -> Load:
    """The replica with ``batch`` sequences in flight, new prompts taking the place of finished ones.

    Time between tokens = step(B) + B·prefill/output: each step carries B/output prefills.
    """
    first = prefill(served, lengths.input_tokens)
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
    """The replica under ``rate`` arrivals/s, and whether it keeps up: B = λ·output·itl(B), by bisection.

    Over capacity the state at the limit is returned.
    """
    low, high = np.full_like(rate, LEAST_BATCH), np.maximum(batch_most, LEAST_BATCH)
    stable = load_at(served, lengths, high, batch_most, harness_s).requests_per_s >= rate
    for _ in range(BISECTIONS):
        middle = np.sqrt(low * high)
        enough = load_at(served, lengths, middle, batch_most, harness_s).requests_per_s >= rate
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return load_at(served, lengths, high, batch_most, harness_s), stable


def most_under(
    served: ServedModel,
    lengths: Lengths,
    objective: Objective,
    batch_most: Array,
    load_most: float,
    harness_s: Array,
) -> tuple[Load, Mask]:
    """The largest load that meets ``objective``, at most ``load_most`` of the limit; and where one exists.

    Both percentiles grow with the sequences in flight, and so does the rate: bisection on the former.
    """
    prefill_most = served.calibration.queueing.prefill_load_most
    low = np.full_like(batch_most, LEAST_BATCH)
    high = np.maximum(batch_most * load_most, LEAST_BATCH)

    def holds(load: Load) -> Mask:
        met = (load.ttft_p95_s <= objective.ttft_p95_s) & (load.itl_p95_s <= objective.itl_p95_s)
        unbounded = ~np.isfinite(objective.ttft_p95_s)
        kept: Mask = met & (unbounded | (load.prefill_load <= prefill_most))
        return kept

    possible = holds(load_at(served, lengths, low, batch_most, harness_s)) & (batch_most >= 1.0)
    whole = holds(load_at(served, lengths, high, batch_most, harness_s))
    low = np.where(whole, high, low)
    for _ in range(BISECTIONS):
        middle = np.sqrt(low * high)
        good = holds(load_at(served, lengths, middle, batch_most, harness_s))
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return load_at(served, lengths, low, batch_most, harness_s), possible


def harness(served: ServedModel) -> Array:
    """Time before the engine sees a request."""
    return number(served.engine.harness_s)

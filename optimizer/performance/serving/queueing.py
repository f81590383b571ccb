"""Latency under load: sequences in flight, waiting, percentiles, and the highest rate within a latency
objective.

Arguments broadcast over cases; rates are requests/s of one replica, times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import TINY, Array, Mask, number, smooth_max
from optimizer.performance.serving.first_token import SATURATED, Prompts, Spread, first_token
from optimizer.performance.serving.served_model import ServedModel, concurrency
from optimizer.performance.serving.steps import DecodeStep, decode_step, launch_s, prefill

LEAST_BATCH, MOST_BATCH = 1e-2, 1e5
MOST_RATE = 1e12
HELD = 1e-9
P90, P95, P99 = 1.2816, 1.6449, 2.3263
ROUNDS_MOST = 80
TOLERANCE = 1e-13


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens in and out of a request, their coefficients of variation, and the prompt's share in the
    prefix cache.

    None: the usual variation of real traffic, and nothing cached.
    """

    input_tokens: Array
    output_tokens: Array
    input_cv: Array | None = None
    output_cv: Array | None = None
    cached_share: Array | None = None

    @property
    def new_tokens(self) -> Array:
        """Prompt tokens that prefill computes; always at least the last one."""
        if self.cached_share is None:
            return self.input_tokens
        return xp.maximum(self.input_tokens * (1.0 - self.cached_share), 1.0)


def met_output_tokens(served: ServedModel, lengths: Lengths) -> Array:
    """Mean length of the answers in flight, output·(1 + c²), since long answers stay longer."""
    cv = served.calibration.queueing.output_cv if lengths.output_cv is None else lengths.output_cv
    return lengths.output_tokens * (1.0 + cv**2)


def mean_context(served: ServedModel, lengths: Lengths) -> Array:
    """Cached tokens of a sequence in flight: its prompt, cached prefixes included, and half of its answer."""
    return lengths.input_tokens + met_output_tokens(served, lengths) / 2.0


@dataclass(frozen=True, slots=True)
class Load:
    """State of a replica at a mean number of sequences in flight.

    ``itl``, ``ttft``: inter-token latency (mean of a request) and time to first token, over requests.
    ``prefill_load``: share of time that prefills take.
    """

    batch: Array
    requests_per_s: Array
    itl: Spread
    ttft: Spread
    prefill_load: Array
    step: DecodeStep

    @property
    def itl_mean_s(self) -> Array:
        """Mean inter-token latency."""
        return self.itl.mean

    @property
    def itl_p95_s(self) -> Array:
        """95th percentile over requests of their mean inter-token latency."""
        return self.itl.quantile(P95)

    @property
    def ttft_p95_s(self) -> Array:
        """95th percentile of the time to first token."""
        return self.ttft.quantile(P95)


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits on the 95th percentiles; inf without a limit."""

    ttft_p95_s: Array
    itl_p95_s: Array


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What does not depend on the load: prompts, variation of answers, the step of a lone sequence."""

    prompts: Prompts
    output_tokens: Array
    output_cv: Array
    alone_s: Array

    def batched(self, batch: Array) -> Prompts:
        """The mean prompt with ``batch`` sequences in flight, of which batch/output prompts join each
        step.
        """
        return self.prompts.batched(batch / self.output_tokens)


def arrivals(served: ServedModel, lengths: Lengths) -> Arrivals:
    """Prompts and answers of ``lengths``; a prompt's variation comes from prefills one CV above and below the
    mean.
    """
    constants = served.calibration.queueing
    input_cv = number(constants.input_cv) if lengths.input_cv is None else lengths.input_cv
    output_cv = number(constants.output_cv) if lengths.output_cv is None else lengths.output_cv
    tokens = lengths.new_tokens
    mean = prefill(served, tokens)
    side = xp.minimum(input_cv, 0.9)
    high, low = prefill(served, tokens * (1.0 + side)), prefill(served, tokens * (1.0 - side))
    lone_work = mean.work + mean.rank_wait
    apart = (mean.latency - launch_s(served)) / served.replica.pp - lone_work
    share = xp.where(served.shapes.experts > 0, constants.lone_share_moe, constants.lone_share)
    shapes = served.shapes
    routed = constants.prompt_moe_layer_s * served.engine.prompt_moe
    launched = shapes.layers * constants.prompt_layer_s + shapes.moe_layers * routed
    launched = launched + shapes.state_layers * constants.prompt_state_layer_s
    reduces = xp.where(served.replica.tp > 1.0, 2.0 * served.engine.reduce_host_s, 0.0)
    launched = (launched + shapes.layers * reduces) * served.engine.overhead
    stretch = input_cv / xp.maximum(side, TINY) / 2.0
    latency = smooth_max(mean.latency, launched, served.rates.roofline_norm)
    lone = latency / served.replica.pp - lone_work
    prompts = Prompts(
        latency=latency,
        latency_sd=(high.latency - low.latency) * stretch,
        work=mean.work,
        work_cv=(high.work - low.work) * stretch / mean.work,
        lone_overhead=xp.maximum(share * apart, xp.maximum(served.engine.prefill_stall_share * lone, 0.0)),
        rank_wait=served.rates.ranks_wait * mean.rank_wait,
        gather_steps=xp.where(served.replica.dp > 1.0, served.engine.gather_steps, 0.0),
        steps=tokens / served.rates.prefill_tokens_most,
        ranks=served.replica.dp,
    )
    alone = decode_step(served, xp.ones_like(tokens), mean_context(served, lengths)).total
    return Arrivals(prompts, lengths.output_tokens, output_cv, alone)


def load_at(
    served: ServedModel,
    lengths: Lengths,
    batch: Array,
    client_overhead_s: Array,
    known: Arrivals | None = None,
) -> Load:
    """The replica with ``batch`` sequences in flight, where new prompts replace finished sequences.

      inter-token latency = step(B) + B·prefill/output

    because each step carries B/output prefills. With random arrivals a request also decodes beside the
    prompts that arrived during its own time to first token F, which adds ρ·F/(1 − ρ) in total. (This is too
    much if answers end before those prompts do, at ρ near 0.85.)
    """
    known = known or arrivals(served, lengths)
    step = decode_step(served, batch, mean_context(served, lengths))
    prompts = known.batched(batch)
    even = step.total + batch * prompts.work / lengths.output_tokens
    rate = batch / (lengths.output_tokens * even)
    rho = xp.minimum(rate * prompts.work, SATURATED)
    busy = 1.0 - xp.near_exp(-batch)
    fixed = Spread(client_overhead_s, number(served.calibration.queueing.ttft_jitter**2))
    first = first_token(prompts, rate, step.total, busy, fixed)
    begun = xp.maximum(first.mean - client_overhead_s, 0.0)
    itl = even + rho / (1.0 - rho) * begun / lengths.output_tokens
    return Load(
        batch=batch,
        requests_per_s=rate,
        itl=Spread(itl, itl_cv2(served, batch, itl, known, prompts.work)),
        ttft=first,
        prefill_load=rho,
        step=step,
    )


def itl_cv2(served: ServedModel, batch: Array, itl: Array, known: Arrivals, work: Array) -> Array:
    """Squared CV over requests of their mean inter-token latency, with Poisson arrivals.

    It adds the variation of the prompts that a request meets (larger for short answers) and of the sequences
    in flight.
    """
    rho = xp.minimum(batch * work / (known.output_tokens * itl), SATURATED)
    met = met_cv2(rho, work, known.prompts.work_cv, known.output_tokens * itl) * (1.0 + known.output_cv**2)
    jitter: Array = met + crowd_cv2(batch, itl, known) + served.calibration.queueing.itl_jitter**2
    return jitter


def met_cv2(rho: Array, work: Array, work_cv: Array, stay_s: Array) -> Array:
    """Contribution of the prompts that an answer meets in ``stay_s``: Poisson, with variance ρ·w·(1 +
    c²)/stay.
    """
    met: Array = rho * work * (1.0 + work_cv**2) / stay_s
    return met


def crowd_cv2(batch: Array, itl: Array, known: Arrivals) -> Array:
    """Contribution of the sequences in flight.

    Let e = (itl − itl₁)/itl be the share of the latency that grows with them. Their variance is B/(1 − e) (a
    birth-death process linearized at its mean), of which ⅔ persists over a request's life.
    """
    grows = xp.clip((itl - known.alone_s) / itl, 0.0, SATURATED)
    crowd: Array = grows**2 / xp.maximum(batch, 1.0) / (1.0 - grows) * (2.0 / 3.0)
    return crowd


def batch_limit(served: ServedModel, lengths: Lengths, engine_most: Array | float) -> Array:
    """Limit of sequences in flight: what the cache holds and what the engine takes per rank; 0 if none
    fits.
    """
    met = met_output_tokens(served, lengths)
    held = concurrency(served, lengths.input_tokens, lengths.output_tokens, met)
    return xp.minimum(held, engine_most * served.replica.dp * served.replica.pp)


def load_at_rate(
    served: ServedModel, lengths: Lengths, rate: Array, batch_most: Array, client_overhead_s: Array
) -> tuple[Load, Mask]:
    """The replica with ``rate`` arrivals/s, and whether it is stable: B = λ·output·itl(B).

    Beyond capacity, the state at the limit is returned.
    """
    known = arrivals(served, lengths)
    high = xp.maximum(batch_most, LEAST_BATCH)
    rate = xp.clip(rate, TINY, MOST_RATE)
    stable = rate_at(served, lengths, high, known) >= rate

    def surplus(batch: Array) -> Array:
        return xp.log(rate_at(served, lengths, batch, known) / rate)

    found = crossing(surplus, xp.full_like(high, LEAST_BATCH), high)
    return load_at(served, lengths, found, client_overhead_s, known), stable


def rate_at(served: ServedModel, lengths: Lengths, batch: Array, known: Arrivals) -> Array:
    """Requests/s with ``batch`` sequences in flight: B/(output·step(B) + B·prefill)."""
    step = decode_step(served, batch, mean_context(served, lengths)).total
    rate: Array = batch / (lengths.output_tokens * step + batch * known.batched(batch).work)
    return rate


def most_under(
    served: ServedModel,
    lengths: Lengths,
    objective: Objective,
    batch_most: Array,
    load_most: float,
    client_overhead_s: Array,
) -> tuple[Load, Mask]:
    """The largest load within ``objective`` and ``load_most`` of the limit, and whether one exists.

    Both percentiles and the rate increase with the sequences in flight.
    """
    known = arrivals(served, lengths)
    low = xp.full_like(batch_most, LEAST_BATCH)
    high = xp.maximum(batch_most * load_most, LEAST_BATCH)

    asked = xp.isfinite(objective.ttft_p95_s)
    latest: list[tuple[Load, Array]] = []

    def excess(batch: Array) -> Array:
        load = load_at(served, lengths, batch, client_overhead_s, known)
        latency = xp.maximum(load.ttft_p95_s / objective.ttft_p95_s, load.itl_p95_s / objective.itl_p95_s)
        busy = load.prefill_load / served.calibration.queueing.prefill_load_most
        over = xp.log(xp.maximum(xp.maximum(latency, xp.where(asked, busy, 0.0)), TINY))
        latest[:] = [(load, over)]
        return over

    found = crossing(excess, low, high)
    if latest[0][0].batch is not found:
        excess(found)
    load, over = latest[0]
    return load, (over <= HELD) & (batch_most >= 1.0)


def client_overhead(served: ServedModel) -> Array:
    """Time before the engine receives a request."""
    return number(served.engine.client_overhead_s)


def crossing(function: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Root x of ``function`` in [low, high], both positive, to ``TOLERANCE``.

    It is ``high`` if the function is at most 0 throughout, and ``low`` if it is above 0 throughout. The
    method is regula falsi in log x. If an end of the bracket stays twice, its value is multiplied by 1 −
    f(new)/f(replaced), or by one half if that is not positive, so that the other end moves too (Anderson and
    Björck, BIT 13, 1973). The order is 1.7, and iterates stay inside the bracket.
    """
    at_high = function(high)
    below = at_high <= 0.0
    if xp.all(below):
        return high
    middle = xp.sqrt(low * high)
    at_middle = function(middle)
    right = below | (at_middle <= 0.0)
    if xp.all(right):
        low, at_low = middle, at_middle
    else:
        least = xp.where(right, middle, low)
        at_low = function(least)
        low, high = least, xp.where(right, high, middle)
        at_high = xp.where(right, at_high, at_middle)
    above = (at_low > 0.0) & (at_high > 0.0)
    low, high = xp.where(below, high, low), xp.where(above, low, high)
    if xp.all(below | above):
        return low
    at_low, at_high = xp.minimum(at_low, -TOLERANCE), xp.maximum(at_high, TOLERANCE)
    last, found = xp.zeros_like(at_low), low
    for _ in range(ROUNDS_MOST):
        found = low * xp.power(high / low, at_low / (at_low - at_high))
        value = function(found)
        up = value > 0.0
        if xp.all((abs(value) <= TOLERANCE) | (high - low <= TOLERANCE * high)):
            break
        low, high = xp.where(up, low, found), xp.where(up, found, high)
        shrunk = 1.0 - value / xp.where(up, at_high, xp.minimum(at_low, -TINY))
        side = xp.where(up, 1.0, -1.0)
        shrunk = xp.where(side == last, xp.where(shrunk > 0.0, shrunk, 0.5), 1.0)
        at_low, at_high = xp.where(up, at_low * shrunk, value), xp.where(up, value, at_high * shrunk)
        last = side
    return found

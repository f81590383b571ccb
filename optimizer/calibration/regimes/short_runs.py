"""Finite open loops: latencies of requests, from an empty replica to the last answer.

A run of N requests at λ per second begins with a filling replica, long before a steady state, and may exceed
its capacity; then a queue grows until the last request has arrived. R rows, V values over requests; times are
seconds, rates requests/s.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from statistics import NormalDist

import numpy as np

from optimizer.calibration.regimes.finite_runs import longest_output_tokens
from optimizer.calibration.regimes.fluid import LAST, FluidTrajectory, batched_prompts, stay_s, trajectory_of
from optimizer.calibration.regimes.load import Answer, LoadSpec, before_engine_s, places_of
from optimizer.performance.arrays import Array, Mask, as_array
from optimizer.performance.serving.first_token import Prompts, Spread, first_token
from optimizer.performance.serving.queueing import (
    Arrivals,
    Lengths,
    arrivals,
    crowd_cv2,
    mean_context,
    met_cv2,
)
from optimizer.performance.serving.served_model import ServedModel
from optimizer.performance.serving.steps import decode_step

REQUESTS, DRAWS = 96, 31  # sampled requests, and values of each
GOLDEN = (5.0**0.5 - 1.0) / 2.0
SOONEST = 1e-3  # least duration of the arrivals, in stays at a full replica

SHARES = (np.arange(REQUESTS) + 0.5) / REQUESTS
NORMALS = as_array([NormalDist().inv_cdf((draw + 0.5) / DRAWS) for draw in range(DRAWS)])
# The same values in another order, as independent draws of a second quantity.
OTHERS = NORMALS[np.argsort(np.argsort(np.arange(DRAWS) * GOLDEN % 1.0))]


@dataclass(frozen=True, slots=True)
class Samples:
    """A positive quantity over requests, by ``values`` [R, V] of equal weight."""

    values: Array

    @property
    def mean(self) -> Array:
        """Mean over requests."""
        return as_array(self.values.mean(axis=1))

    @property
    def p50(self) -> Array:
        """Median."""
        return self.quantile(0.0)

    def quantile(self, normal: float) -> Array:
        """The quantile at ``normal``, a quantile of the standard normal distribution."""
        return as_array(np.quantile(self.values, NormalDist().cdf(normal), axis=1))


def short_run(served: ServedModel, lengths: Lengths, asked: LoadSpec) -> Answer:
    """``asked.requests`` at ``asked.rate``; ``stable`` if the replica keeps up with the rate once it is full.

    A request waits for its place, as in the fluid model, and then for its first token beside the prompts of
    that time; its answer takes the time of the time steps of its stay.
    """
    places, known = places_of(served, lengths), arrivals(served, lengths)
    full_s = stay_s(served, lengths, known, places)
    requests = np.maximum(asked.requests, 1.0)
    rate = np.minimum(asked.rate, requests / (SOONEST * full_s))
    course = trajectory_of(served, lengths, replace(asked, requests=requests, rate=rate), known, places)
    asked_s = SHARES * (requests / rate)[:, None]
    begun_s = np.maximum(_interpolated(SHARES * requests[:, None], course.begun, course.clock_s), asked_s)
    waited_s = begun_s - asked_s
    each = _as_columns(known, requests.size)
    others = np.minimum(places, requests)[:, None] - 1.0
    met = _arrival_state(served, asked, course, begun_s, waited_s, each, others)
    ttft = Samples(_flat(waited_s[:, :, None] + _draws(met.first)))
    ended_s = _interpolated((requests - LAST)[:, None], course.done, course.clock_s)[:, 0]
    longest = longest_output_tokens(served, lengths, np.minimum(places, requests), asked)
    ended_s = np.minimum(ended_s, _end_s(course, begun_s[:, -1:], longest[:, None])[:, 0])
    tokens_per_s = requests * lengths.output_tokens / ended_s
    between = _between(served, course, begun_s, met, _slowest_s(served, lengths, known, places))
    return Answer(tokens_per_s, ttft, between, places / full_s >= rate, ttft.mean)


@dataclass(frozen=True, slots=True)
class ArrivalState:
    """The state that requests [R, N] meet when they begin.

    It has the number of ``others`` [R, 1] at most, the time to the first token from then on, the prefill load
    and the ``prompts`` that join it, whether the requests were ``queued`` for a place, the time that others'
    prompts add to the answer (``beside_s``), the squared CV of the load of the sequences in flight
    (``crowd``), and the time of a step that decodes beside a whole budget of prompts.
    """

    known: Arrivals
    others: Array
    prompts: Prompts
    first: Spread
    load: Array
    queued: Mask
    beside_s: Array
    crowd: Array
    full_step_s: Array


def _arrival_state(
    served: ServedModel,
    asked: LoadSpec,
    course: FluidTrajectory,
    begun_s: Array,
    waited_s: Array,
    known: Arrivals,
    others: Array,
) -> ArrivalState:
    """Random waits are those of a steady load up to ``prefill_load_most``: a run is too short for longer
    ones, and excess prefill waits in the fluid model. A request that waited there finds a full replica, and
    the prompts that came during its own first token are in the fluid model, too; there are at most ``others``
    [R, 1] of those."""
    constants = served.calibration.queueing
    moment = np.stack(
        [
            np.searchsorted(starts, begun, side="right") - 1
            for starts, begun in zip(course.start_s, begun_s, strict=True)
        ]
    )
    step, flying, admitted, itl = (
        np.take_along_axis(part, moment, axis=1)
        for part in (course.step_s, course.flying, course.admitted, course.itl_s)
    )
    prompts = batched_prompts(known, admitted * itl)
    rate = np.minimum(admitted, constants.prefill_load_most / prompts.work)
    before = np.broadcast_to(before_engine_s(served, asked), len(begun_s))[:, None]
    fixed = Spread(before, as_array(constants.ttft_jitter**2))
    first = first_token(prompts, rate, step, 1.0 - np.exp(-flying), fixed)
    queued, load = waited_s > step, rate * prompts.work
    apart = others / (1.0 + others)
    full_step = step + (prompts.work / prompts.steps if served.engine.prompts_first == 0.0 else np.inf)
    beside = load / (1.0 - load) * np.maximum(first.mean - before, 0.0)
    beside = np.minimum(beside, others * prompts.work)
    crowd = crowd_cv2(np.maximum(flying, 1.0), itl + beside / known.output_tokens, known)
    return ArrivalState(
        known,
        others,
        prompts,
        first,
        load * apart,
        queued,
        np.where(queued, 0.0, beside),
        np.where(queued, 0.0, crowd * apart),
        full_step,
    )


def _slowest_s(served: ServedModel, lengths: Lengths, known: Arrivals, places: Array) -> Array:
    """A step of a full replica with a whole budget of prompts, s + w·M/n: no token takes longer, unless
    waiting prompts stop decoding."""
    step = decode_step(served, places, mean_context(served, lengths)).total
    slowest = step + known.prompts.work / known.prompts.steps
    return slowest if served.engine.prompts_first == 0.0 else np.full_like(slowest, np.inf)


def _between(
    served: ServedModel, course: FluidTrajectory, begun_s: Array, met: ArrivalState, slowest_s: Array
) -> Samples:
    """Times between tokens: each request begins lognormal answers of ``DRAWS`` lengths, and short ones vary
    more through the prompts that they meet.

    Only prompts of others slow an answer down. Among those of the fluid model, one is its own if places are
    taken in turn; otherwise it is one out of as many as there are places.
    """
    known = met.known
    width = np.sqrt(np.log1p(known.output_cv**2))
    tokens = np.maximum(known.output_tokens * np.exp(width * OTHERS - width**2 / 2.0), 1.0)[:, None, :]
    at_begin, size = begun_s[:, :, None], (*begun_s.shape, DRAWS)
    begins, written = (_flat(np.broadcast_to(part, size)) for part in (at_begin, tokens))
    end_s = _end_s(course, begins, written).reshape(size)
    work, work_cv = met.prompts.work, met.prompts.work_cv[:, :, None]
    own = (work * np.where(met.queued, 1.0, 1.0 / (1.0 + met.others)))[:, :, None]
    itl = np.maximum((end_s - at_begin - own) / tokens, known.alone_s[:, :, None])
    full_step = np.maximum(met.full_step_s[:, :, None], itl)
    itl = np.minimum(itl + met.beside_s[:, :, None] / tokens, full_step)
    cv2 = met_cv2(met.load[:, :, None], work[:, :, None], work_cv, tokens * itl) + met.crowd[:, :, None]
    jitter = served.calibration.queueing.itl_jitter
    width = np.sqrt(np.log1p(cv2 + jitter**2))
    drawn = _flat(itl * np.exp(NORMALS * width - width**2 / 2.0))
    return Samples(np.clip(drawn, known.alone_s * np.exp(-2.0 * jitter), slowest_s[:, None]))


def _end_s(course: FluidTrajectory, begun_s: Array, tokens: Array) -> Array:
    """The end of answers of ``tokens`` tokens that began at ``begun_s`` [R, N]; the last time step is
    extended."""
    until = _interpolated(begun_s, course.clock_s, course.written) + tokens
    beyond = np.maximum(until - course.written[:, -1:], 0.0) * course.itl_s[:, -1:]
    return _interpolated(until, course.written, course.clock_s) + beyond


def _as_columns(known: Arrivals, rows: int) -> Arrivals:
    """The same as columns [R, 1]."""

    def column(values: Array) -> Array:
        return np.broadcast_to(values, (rows,))[:, None]

    prompts = Prompts(*(column(getattr(known.prompts, part.name)) for part in fields(Prompts)))
    return Arrivals(prompts, column(known.output_tokens), column(known.output_cv), column(known.alone_s))


def _draws(spread: Spread) -> Array:
    """Lognormal values [..., DRAWS]."""
    width = np.sqrt(np.log1p(np.broadcast_to(spread.cv2, spread.mean.shape)))[..., None]
    return as_array(spread.p50[..., None] * np.exp(NORMALS * width))


def _interpolated(wanted: Array, known: Array, values: Array) -> Array:
    """``values`` [R, S] interpolated at ``wanted`` [R, N] of the increasing ``known`` [R, S]."""
    rows = zip(wanted, known, values, strict=True)
    return np.stack([np.interp(*row) for row in rows])


def _flat(values: Array) -> Array:
    return values.reshape(len(values), -1)

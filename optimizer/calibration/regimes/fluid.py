"""The course of an open loop that ends, as a fluid: what is in flight and what it takes, moment by moment.

R rows, S time_steps, K stages of an answer; times are seconds, rates requests/s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.calibration.regimes.load import LoadSpec
from optimizer.performance.arrays import TINY, Array
from optimizer.performance.serving.first_token import SATURATED, Prompts
from optimizer.performance.serving.queueing import Arrivals, Lengths, mean_context
from optimizer.performance.serving.served_model import ServedModel
from optimizer.performance.serving.steps import decode_step

COMING, ENDING = 96, 160  # time_steps while requests come, and after the last one came
STAGES_MOST = 16
EVEN = 1e-3  # CV below which answers are of one length
DRAINED = 2.5  # stays of a full replica in which its last answers end
LAST = 0.5  # requests that are left when a run counts as ended
ENTERED, ENDED, MOST_PATIENCE = 1.0 - 1e-6, 0.9, 4.0**12


@dataclass(frozen=True, slots=True)
class FluidTrajectory:
    """A run moment by moment [R, S]: at ``start_s``, for ``length_s``, ``flying`` sequences took ``step_s``
    to decode and ``itl_s`` a token beside prompts of ``admitted`` requests/s. [R, S + 1], from 0 on: requests
    ``begun`` and ``done`` in all, tokens ``written`` by a sequence that was there all the time."""

    start_s: Array
    length_s: Array
    flying: Array
    step_s: Array
    itl_s: Array
    admitted: Array
    begun: Array
    done: Array

    @property
    def clock_s(self) -> Array:
        """Start of each moment and end of the last."""
        return np.concatenate([self.start_s, self.start_s[:, -1:] + self.length_s[:, -1:]], axis=1)

    @property
    def written(self) -> Array:
        """Tokens since the start."""
        return _from_zero(np.cumsum(self.length_s / self.itl_s, axis=1))


def stay_s(served: ServedModel, lengths: Lengths, known: Arrivals, batch: Array) -> Array:
    """How long an answer takes where ``batch`` of them are always in flight."""
    step = decode_step(served, batch, mean_context(served, lengths)).total
    stay: Array = lengths.output_tokens * step + batch * known.batched(batch).work
    return stay


def trajectory_of(
    served: ServedModel, lengths: Lengths, asked: LoadSpec, known: Arrivals, places: Array
) -> FluidTrajectory:
    """The run as a fluid (``_played``). Rows that are not through in the time that a full replica would take
    (slow prompts of few at a time) are given more of it."""
    patience = np.ones_like(asked.requests)
    while True:
        course = _played(served, lengths, asked, known, places, patience)
        begun, done = course.begun[:, -1], course.done[:, -1]
        late = (begun < ENTERED * asked.requests) | (done < ENDED * asked.requests - LAST)
        if not late.any() or patience.max() >= MOST_PATIENCE:
            return course
        patience = np.where(late, 4.0 * patience, patience)


def _played(
    served: ServedModel, lengths: Lengths, asked: LoadSpec, known: Arrivals, places: Array, patience: Array
) -> FluidTrajectory:
    """Moment by moment.

    An answer passes Erlang stages, as many as its spread says (1/CV²), at stages/(output·itl) each; implicit
    Euler keeps every count right at any length of a moment. Requests enter while places and prefill are free:
    itl = step/(1 − a·w) with a admissions/s of work w, and a at most 1/(w + s·n/M) where each step of a
    budget M also decodes for s; engines that take waiting prompts first give them all of the time. Prompts
    that take the places of ended answers keep others from ending: of f free places and d that decoding alone
    would free, (f + d)/(1 + d·w/length) are taken.
    """
    requests, rate, tokens = asked.requests, asked.rate, lengths.output_tokens
    full = np.minimum(places, requests)
    full_s, coming_s = stay_s(served, lengths, known, full), requests / rate
    ending_s = patience * (np.maximum(requests / full * full_s - coming_s, 0.0) + DRAINED * full_s)
    stages = np.clip(np.round(1.0 / np.maximum(known.output_cv, EVEN) ** 2), 1.0, STAGES_MOST)
    decoding = 1.0 - served.engine.prompts_first
    inside = np.zeros((requests.size, int(stages.max())))
    now, begun, admitted, itl = (np.zeros_like(requests) for _ in range(4))
    time_steps: list[tuple[Array, ...]] = []
    for moment in range(COMING + ENDING):
        length = coming_s / COMING if moment < COMING else ending_s / ENDING
        flying = inside.sum(axis=1)
        step = decode_step(served, np.maximum(flying, 1.0), mean_context(served, lengths)).total
        prompts = batched_prompts(known, admitted * np.maximum(itl, step))
        asked_for = np.minimum(rate * (now + length), requests) - begun
        prefilled = length / (prompts.work + step * prompts.steps * decoding)
        free = np.maximum(places - flying, 0.0)
        freed = np.maximum(_room(places, *_passed(inside, length / (tokens * step), stages)) - free, 0.0)
        taken = (free + freed) / (1.0 + freed * prompts.work / length)
        taken = np.minimum(np.minimum(asked_for, prefilled), taken)
        itl = step / (1.0 - np.minimum(taken * prompts.work / length, SATURATED))
        stayed, entered = _passed(inside, length / (tokens * itl), stages)
        taken = np.minimum(taken, _room(places, stayed, entered))
        inside, begun, admitted = stayed + taken[:, None] * entered, begun + taken, taken / length
        time_steps.append((now, length, flying, step, itl, admitted, begun, begun - inside.sum(axis=1)))
        now = now + length
    starts, spans, flying, step, itl, admitted, begun, done = (
        np.stack(column, axis=1) for column in zip(*time_steps, strict=True)
    )
    return FluidTrajectory(starts, spans, flying, step, itl, admitted, _from_zero(begun), _from_zero(done))


def batched_prompts(known: Arrivals, together: Array) -> Prompts:
    """Prompts of which ``together`` come to each step, at most what it takes."""
    return known.prompts.batched(np.maximum(known.prompts.in_a_step(together), TINY))


def _passed(inside: Array, answers: Array, stages: Array) -> tuple[Array, Array]:
    """Sequences in each stage [R, K] that are left of those ``inside`` when ``answers`` [R] could have been
    written, and of one that enters meanwhile: stage j has r^(j − i)/(1 + m) of what stage i had,
    m = stages·answers, r = m/(1 + m)."""
    number = np.arange(inside.shape[1])
    ahead = number[:, None] - number[None, :]
    passing = (stages * answers)[:, None, None]
    moved = np.where(ahead >= 0, (passing / (1.0 + passing)) ** np.maximum(ahead, 0), 0.0) / (1.0 + passing)
    used = number < stages[:, None]
    return np.where(used, (moved @ inside[:, :, None])[:, :, 0], 0.0), np.where(used, moved[:, :, 0], 0.0)


def _room(places: Array, stayed: Array, entered: Array) -> Array:
    """Requests that can enter a moment at whose end no more than ``places`` are inside."""
    room: Array = np.maximum(places - stayed.sum(axis=1), 0.0) / entered.sum(axis=1)
    return room


def _from_zero(values: Array) -> Array:
    return np.concatenate([np.zeros((len(values), 1)), values], axis=1)

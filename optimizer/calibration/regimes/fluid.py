"""An open loop that ends, as a fluid model: sequences in flight and times, by time step.

R rows, S time steps, K stages of an answer; times are seconds, rates requests/s.
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

COMING, ENDING = 96, 160  # time steps while requests arrive, and after the last arrival
STAGES_MOST = 16
EVEN = 1e-3  # CV below which answers count as of equal length
DRAINED = 2.5  # time for the last answers to end, in stays at a full replica
LAST = 0.5  # requests that are left when a run counts as finished
ENTERED, ENDED, MOST_PATIENCE = 1.0 - 1e-6, 0.9, 4.0**12


@dataclass(frozen=True, slots=True)
class FluidTrajectory:
    """A run by time step [R, S]: at ``start_s``, for ``length_s``, ``flying`` sequences took ``step_s`` to
    decode and ``itl_s`` per token beside prompts of ``admitted`` requests/s.

    Cumulative counts [R, S + 1], from 0 on: requests ``begun`` and ``done``, and tokens ``written`` by a
    sequence that is present all the time.
    """

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
        """The start of each time step and the end of the last."""
        return np.concatenate([self.start_s, self.start_s[:, -1:] + self.length_s[:, -1:]], axis=1)

    @property
    def written(self) -> Array:
        """Cumulative tokens since the start."""
        return _from_zero(np.cumsum(self.length_s / self.itl_s, axis=1))


def stay_s(served: ServedModel, lengths: Lengths, known: Arrivals, batch: Array) -> Array:
    """The duration of an answer if ``batch`` answers are always in flight."""
    step = decode_step(served, batch, mean_context(served, lengths)).total
    stay: Array = lengths.output_tokens * step + batch * known.batched(batch).work
    return stay


def trajectory_of(
    served: ServedModel, lengths: Lengths, asked: LoadSpec, known: Arrivals, places: Array
) -> FluidTrajectory:
    """The run as a fluid (``_simulated``). Rows that are not finished in the time that a full replica would
    need (slow prompts, few at a time) get more time."""
    patience = np.ones_like(asked.requests)
    while True:
        course = _simulated(served, lengths, asked, known, places, patience)
        begun, done = course.begun[:, -1], course.done[:, -1]
        late = (begun < ENTERED * asked.requests) | (done < ENDED * asked.requests - LAST)
        if not late.any() or patience.max() >= MOST_PATIENCE:
            return course
        patience = np.where(late, 4.0 * patience, patience)


def _simulated(
    served: ServedModel, lengths: Lengths, asked: LoadSpec, known: Arrivals, places: Array, patience: Array
) -> FluidTrajectory:
    """Simulates the run by time step.

    An answer passes Erlang stages, their number 1/CV² of its length, at the rate stages/(output·itl) each;
    implicit Euler keeps every count correct for any length of a time step. Requests enter while places and
    prefill are free: itl = step/(1 − a·w) for a admissions/s of work w, with a at most 1/(w + s·n/M) if each
    step with a budget of M tokens also decodes for s; engines that prefer waiting prompts give them all of
    the time. Prompts that take the places of ended answers delay the end of others: of f free places and d
    that decoding alone would free, (f + d)/(1 + d·w/length) are taken.
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
        freed = np.maximum(
            _room(places, *_stage_transition(inside, length / (tokens * step), stages)) - free, 0.0
        )
        taken = (free + freed) / (1.0 + freed * prompts.work / length)
        taken = np.minimum(np.minimum(asked_for, prefilled), taken)
        itl = step / (1.0 - np.minimum(taken * prompts.work / length, SATURATED))
        stayed, entered = _stage_transition(inside, length / (tokens * itl), stages)
        taken = np.minimum(taken, _room(places, stayed, entered))
        inside, begun, admitted = stayed + taken[:, None] * entered, begun + taken, taken / length
        time_steps.append((now, length, flying, step, itl, admitted, begun, begun - inside.sum(axis=1)))
        now = now + length
    starts, spans, flying, step, itl, admitted, begun, done = (
        np.stack(column, axis=1) for column in zip(*time_steps, strict=True)
    )
    return FluidTrajectory(starts, spans, flying, step, itl, admitted, _from_zero(begun), _from_zero(done))


def batched_prompts(known: Arrivals, together: Array) -> Prompts:
    """The prompts if ``together`` of them come to each step, at most as many as a step takes."""
    return known.prompts.batched(np.maximum(known.prompts.in_a_step(together), TINY))


def _stage_transition(inside: Array, answers: Array, stages: Array) -> tuple[Array, Array]:
    """Sequences in each stage [R, K] that remain of those ``inside`` after the time in which ``answers`` [R]
    could have been written, and the same for one that enters meanwhile: stage j has r^(j − i)/(1 + m) of what
    stage i had, with m = stages·answers and r = m/(1 + m)."""
    number = np.arange(inside.shape[1])
    ahead = number[:, None] - number[None, :]
    passing = (stages * answers)[:, None, None]
    moved = np.where(ahead >= 0, (passing / (1.0 + passing)) ** np.maximum(ahead, 0), 0.0) / (1.0 + passing)
    used = number < stages[:, None]
    return np.where(used, (moved @ inside[:, :, None])[:, :, 0], 0.0), np.where(used, moved[:, :, 0], 0.0)


def _room(places: Array, stayed: Array, entered: Array) -> Array:
    """The number of requests that can enter in a time step, so that at most ``places``
    are inside at its end."""
    room: Array = np.maximum(places - stayed.sum(axis=1), 0.0) / entered.sum(axis=1)
    return room


def _from_zero(values: Array) -> Array:
    return np.concatenate([np.zeros((len(values), 1)), values], axis=1)

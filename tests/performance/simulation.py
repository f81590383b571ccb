"""A discrete-event simulation of continuous batching with chunked prefill, step by step.

Each step decodes one token of every running sequence and takes waiting prompts, first come first served, up
to the engine's budget of tokens. Its time is that of the core's own ``decode_step`` and ``prefill``: only
queueing is simulated, so that the closed form in ``queueing.py`` can be held against it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.performance.arrays import Array, as_array
from optimizer.performance.serving.queueing import Lengths, arrivals, mean_context
from optimizer.performance.serving.served_model import ServedModel
from optimizer.performance.serving.steps import decode_step, prefill

CLIENT_S = 0.001
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class StepTimes:
    """Step times in seconds: ``decode[B]`` of B sequences, ``alone[n // GRID]`` of n prompt tokens alone."""

    decode: Array
    alone: Array
    work_per_token: float
    lone: float
    budget: int

    def step(self, batch: int, tokens: int) -> float:
        """A step that decodes ``batch`` sequences and takes ``tokens`` of prompts."""
        decoding = float(self.decode[min(batch, len(self.decode) - 1)]) if batch else 0.0
        if not tokens:
            return decoding
        alone = float(self.alone[min(tokens // GRID, len(self.alone) - 1)])
        return max(alone, decoding + self.work_per_token * tokens + self.lone)


GRID = 64


@dataclass(frozen=True)
class Run:
    """What each request met, seconds [requests]; ``span`` from the first arrival to the last token."""

    ttft: Array
    itl: Array
    span: float

    @property
    def throughput(self) -> float:
        """Requests/s."""
        return len(self.ttft) / self.span


def step_times(served: ServedModel, lengths: Lengths, most: int = 1024) -> StepTimes:
    """The core's times for ``lengths`` on one replica."""
    known = arrivals(served, lengths)
    batches = as_array(np.arange(1, most + 1))
    decode = decode_step(served, batches, np.broadcast_to(mean_context(served, lengths), batches.shape)).total
    budget = int(served.rates.prefill_tokens_most)
    sizes = as_array(np.maximum(np.arange(0, budget + GRID, GRID), 1))
    extra = known.prompts.latency - prefill(served, lengths.new_tokens).latency
    return StepTimes(
        np.concatenate([[0.0], decode]),
        prefill(served, sizes).latency + float(extra.flat[0]),
        float((known.prompts.work / lengths.new_tokens).flat[0]),
        float(known.prompts.lone_overhead.flat[0]),
        budget,
    )


def lognormal_tokens(mean: float, cv: float, count: int, rng: np.random.Generator) -> Tokens:
    """Lengths in tokens with this coefficient of variation, at least one; their own mean is ``mean``."""
    width = np.sqrt(np.log1p(cv**2))
    drawn = rng.lognormal(0.0, width, count)
    return np.asarray(np.maximum(np.rint(drawn * mean / drawn.mean()), 1), dtype=np.int64)


class Replica:
    """One replica; requests are numbered in the order in which they are sent."""

    def __init__(self, times: StepTimes, prompts: Tokens, answers: Tokens, batch_most: int) -> None:
        self._times, self._answers, self._most = times, answers, batch_most
        self._whole, self._left = prompts, prompts.copy()
        count = len(prompts)
        self._arrived, self._first, self._end = np.zeros(count), np.zeros(count), np.zeros(count)
        self._coming: list[tuple[float, int]] = []
        self._waiting: deque[int] = deque()
        self._running: dict[int, int] = {}
        self._admitted, self._done, self._unsent = 0, 0, count

    def open_loop(self, rate: float, rng: np.random.Generator) -> Run:
        """Poisson arrivals at ``rate`` a second."""
        at = np.cumsum(rng.exponential(1.0 / rate, len(self._answers)))
        self._coming = [(float(time), index) for index, time in enumerate(at)]
        return self._run()

    def closed_loop(self, clients: int) -> Run:
        """``clients`` that start together and send their next request when the last is answered."""
        self._coming, self._unsent = [(0.0, index) for index in range(clients)], clients
        return self._run()

    def _run(self) -> Run:
        now = 0.0
        while self._done < len(self._answers):
            self._receive(now)
            if not self._running and not self._waiting:
                now = self._coming[0][0]
                continue
            taken, ready = self._take()
            now += self._times.step(len(self._running), taken)
            self._finish(now, ready)
        steps = np.maximum(self._answers - 1, 1)
        itl = (self._end - self._first) / steps
        return Run(self._first - self._arrived, itl, float(self._end.max()))

    def _receive(self, now: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            time, request = heapq.heappop(self._coming)
            self._arrived[request] = time
            self._waiting.append(request)

    def _take(self) -> tuple[int, list[int]]:
        """Prompt tokens of the next step, and the requests whose prompts end in it."""
        room, taken = self._times.budget - len(self._running), 0
        ready: list[int] = []
        while self._waiting and taken < room:
            request = self._waiting[0]
            if self._left[request] == self._whole[request]:
                if self._admitted >= self._most:
                    break
                self._admitted += 1
            part = min(room - taken, int(self._left[request]))
            self._left[request] -= part
            taken += part
            if self._left[request]:
                break
            ready.append(self._waiting.popleft())
        return taken, ready

    def _finish(self, now: float, ready: Sequence[int]) -> None:
        """One token for everyone who decoded, the first for those whose prompts ended."""
        for request in self._running:
            self._running[request] -= 1
        for request in ready:
            self._first[request] = now
            self._running[request] = int(self._answers[request]) - 1
        for request in [request for request, left in self._running.items() if left <= 0]:
            del self._running[request]
            self._end[request] = now
            self._admitted, self._done = self._admitted - 1, self._done + 1
            if self._unsent < len(self._answers):
                heapq.heappush(self._coming, (now + CLIENT_S, self._unsent))
                self._unsent += 1

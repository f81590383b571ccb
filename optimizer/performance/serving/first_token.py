"""Time to first token of prompts that share steps with decoding: mean and variance, in closed form.

Continuous batching admits every prompt that arrived during a step to the next one, together with decoding
(Orca, OSDI'22; Sarathi-Serve, OSDI'24). Steps are then the cycles of a gated server with vacations, of length
S = s + N·w, where

  s: length of a step without prompts
  N: prompts that arrived during the previous step, at rate λ
  w: work of a prompt, c its coefficient of variation, ρ = λ·w

  E[S] = s/(1 − ρ),  E[S²]/E[S] = s/(1 − ρ) + w·ρ·(1 + c²)/(1 − ρ²) =: X

A prompt waits X/2 for the end of the current step, and then shares a step with other prompts of total work
ρ·X. Arrays broadcast over cases; times are seconds, rates requests/s.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array

SATURATED = 0.98
FEWEST = 1e-6


@dataclass(frozen=True, slots=True)
class Prompts:
    """A mean prompt of the load, without the part in the prefix cache.

    - ``latency``, ``latency_sd``: on an idle replica, and its standard deviation over prompts.
    - ``work``, ``work_cv``: time taken from decoding if many prompts share a step, and its coefficient of
      variation.
    - ``lone_overhead``: additional time of a prompt that is the only one in its step.
    - ``rank_wait``: additional time of the other attention ranks if only one of them has a prompt.
    - ``steps``: share of a step's token budget (above 1: chunks).
    - ``ranks``: attention ranks, which take prompts in parallel; a prompt waits ``gather_steps`` decode steps
      for the others.
    """

    latency: Array
    latency_sd: Array
    work: Array
    work_cv: Array
    lone_overhead: Array
    rank_wait: Array
    steps: Array
    ranks: Array
    gather_steps: Array

    def batched(self, together: Array) -> Prompts:
        """The mean prompt if ``together`` prompts share a step, so that they share the cost of partly filled
        tiles.

        Attention ranks step together: of k Poisson prompts at once, k/(1 − e^(−k)) share one wait. If prompts
        are gathered, there are at least as many as ranks.
        """
        if not xp.any(self.ranks > 1.0):
            return self._costing(self.work + self.lone_overhead / xp.maximum(together, 1.0))
        together = xp.where(self.gather_steps > 0.0, xp.maximum(together, self.ranks), together)
        at_once = xp.maximum(together * xp.maximum(self.steps, 1.0), FEWEST)
        waited = self.rank_wait * (1.0 - xp.near_exp(-at_once)) / at_once
        return self._costing(self.work + self.lone_overhead / xp.maximum(together, 1.0) + waited)

    def _costing(self, work: Array) -> Prompts:
        """The same prompt with other ``work`` and no additional cost when alone."""
        none, waits = 0.0 * self.lone_overhead, 0.0 * self.rank_wait
        spread = self.latency_sd, work, self.work_cv, none, waits
        return Prompts(self.latency, *spread, self.steps, self.ranks, self.gather_steps)

    def in_a_step(self, waiting: Array) -> Array:
        """How many of the waiting prompts one step of all ranks takes."""
        return xp.minimum(self.ranks / xp.minimum(self.steps, 1.0), waiting)


@dataclass(frozen=True, slots=True)
class Spread:
    """A positive random quantity over requests: its mean and squared coefficient of variation.

    It is treated as lognormal: the p90, p95 and p99 over p50 of MLPerf and AccelMark fit a single width.
    """

    mean: Array
    cv2: Array

    @property
    def p50(self) -> Array:
        """Median: mean/√(1 + CV²)."""
        return self.mean / xp.sqrt(1.0 + self.cv2)

    def times(self, factor: Array) -> Spread:
        """The same distribution with every value multiplied by ``factor``."""
        return Spread(self.mean * factor, self.cv2)

    def at_least(self, least: Array, jitter: float) -> Spread:
        """The same mean with a width limited so that the median is at least ``least`` (the CV stays at least
        ``jitter``).
        """
        room = xp.maximum((self.mean / least) ** 2 - 1.0, xp.full_like(self.mean, jitter**2))
        return Spread(self.mean, xp.minimum(self.cv2, room))

    def quantile(self, normal: float) -> Array:
        """The quantile of a standard normal value: median·exp(normal·√ln(1 + CV²))."""
        return self.p50 * xp.near_exp(normal * xp.sqrt(xp.log1p(self.cv2)))


def budget_load(prompts: Prompts, rate: Array, step_s: Array) -> Array:
    """Utilization by prefill under the token budget, since each full step also decodes.

      λ·(w + s·n/M)

    with n prompt tokens and a budget of M tokens per step.
    """
    return rate * (prompts.work + step_s * prompts.steps)


def first_token(
    prompts: Prompts,
    rate: Array,
    step_s: Array,
    busy: Array,
    fixed: Spread,
    polled_steps: Array | float = 0.0,
) -> Spread:
    """Time to first token with arrivals at ``rate``, between decode steps of ``step_s``.

    ``busy``: probability that others decode when a prompt arrives; ``fixed``: an additional time, independent
    of the load; ``polled_steps``: decode steps between two polls of the queue, half of which a prompt waits.

    The prompt's own step takes the larger of its latency alone and its work beside decoding. Prompts of a
    whole token budget or more are served one by one, so that the wait is that of M/G/1 with service w +
    s·n/M. For shorter prompts the two waits are averaged by their share of the budget.
    """
    rho = xp.minimum(rate * prompts.work, SATURATED)
    load = xp.minimum(budget_load(prompts, rate, step_s), SATURATED)
    own = prompts.latency + busy * xp.maximum(beside_decoding(prompts, step_s) - prompts.latency, 0.0)
    gated, gated_var = _gated_wait(prompts, rho, step_s)
    slower = (1.0 - rho) / (1.0 - load)
    single, single_var = _single_wait(prompts, load, step_s)
    alone = xp.minimum(prompts.steps, 1.0)
    wait = busy * ((1.0 - alone) * gated * slower + alone * single)
    mean = fixed.mean + own + wait + busy * (polled_steps / 2.0 + prompts.gather_steps) * step_s
    varies = busy * ((1.0 - alone) * gated_var * slower**2 + alone * single_var)
    variance = prompts.latency_sd**2 + varies + fixed.cv2 * mean**2
    return Spread(mean, variance / mean**2)


def _gated_wait(prompts: Prompts, rho: Array, step_s: Array) -> tuple[Array, Array]:
    """Mean and variance of the wait for one's own step: the residual cycle, and the other prompts of the
    step.

    The residual of a cycle S has the mean E[S²]/2E[S] = X/2 and the second moment E[S³]/3E[S]. With m = E[S],
    N Poisson of mean ν = ρ·m/w and lognormal work, the third moment is

      E[S³] = m³ + 3m·σ² + ν·w³(1 + c²)³

    and never below E[S²]²/E[S]. The other prompts are Poisson of mean ρ·X/w.
    """
    work, uneven = prompts.work, 1.0 + prompts.work_cv**2
    mean = step_s / (1.0 - rho)
    cycle = mean + work * rho * uneven / (1.0 - rho**2)
    third = mean**3 + 3.0 * mean**2 * (cycle - mean) + rho * mean * work**2 * uneven**3
    rest_var = xp.maximum(third / mean, cycle**2) / 3.0 - cycle**2 / 4.0
    return (0.5 + rho) * cycle, rest_var + rho * work * uneven * cycle


def _single_wait(prompts: Prompts, load: Array, step_s: Array) -> tuple[Array, Array]:
    """Mean and variance of the wait if prompts are served one by one: M/G/1 with service D = w + s·n/M and
    utilization U.

      mean = λE[D²]/2(1 − U),  variance = λE[D³]/3(1 − U) + mean²

    Added are the residual of a decode step if the server is idle, and half a budget, with which the next
    prompt fills the last step.
    """
    uneven = 1.0 + prompts.work_cv**2
    service = prompts.work + step_s * prompts.steps
    queue = load * service * uneven / (2.0 * (1.0 - load))
    variance = load * service**2 * uneven**3 / (3.0 * (1.0 - load)) + queue**2
    idle = (1.0 - load) * step_s
    filled = load * prompts.work / xp.maximum(prompts.steps, 1.0) / 2.0
    return queue + idle / 2.0 + filled, variance + idle * step_s / 12.0


def beside_decoding(prompts: Prompts, step_s: Array) -> Array:
    """Time of the steps that carry a prompt beside decoding: its work, and a decode step for each chunk."""
    return xp.maximum(prompts.steps, 1.0) * step_s + prompts.work

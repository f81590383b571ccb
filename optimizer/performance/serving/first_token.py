"""First tokens of prompts that share steps with decoding: mean and spread, in closed form.

Continuous batching lets every prompt that arrived during a step into the next one, with the decoding of
those in flight (Orca, OSDI'22; Sarathi-Serve, OSDI'24). Steps are then the cycles of a gated server with
vacations: of length S = s + N·w, s without prompts, N those that came during the step before. With arrivals
at rate λ, ρ = λ·w and c the coefficient of variation of a prompt's work

    E[S] = s/(1 − ρ),  E[S²]/E[S] = s/(1 − ρ) + w·ρ·(1 + c²)/(1 − ρ²) =: X

A prompt waits for the rest of its step, X/2, and then shares a step with what came beside it, ρ·X. Arrays
broadcast over cases; times are seconds, rates requests/s.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array

SATURATED = 0.98
FEWEST = 1e-6


@dataclass(frozen=True, slots=True)
class Prompts:
    """A mean prompt of the load, without what the prefix cache holds of it.

    ``latency`` alone on an idle replica and its standard deviation over prompts; ``work`` that it takes from
    decoding where many prompts share a step, and its coefficient of variation; ``lone_overhead``: what a
    prompt takes beyond when it joins a step alone; ``rank_wait``: what the other ranks of attention data
    parallelism wait for besides where only one of them has a prompt; ``steps``: share of a step's token
    budget (above 1: chunks); ``ranks`` take prompts side by side, for which one waits ``gather_steps``
    decode steps.
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
        """The same where ``together`` prompts share a step: their tiles fill one another's. Ranks step
        together: of k Poisson prompts at once one in k/(1 − e^(−k)) is waited for by all. Those that gather
        come as many as there are ranks."""
        if not xp.any(self.ranks > 1.0):
            return self._costing(self.work + self.lone_overhead / xp.maximum(together, 1.0))
        together = xp.where(self.gather_steps > 0.0, xp.maximum(together, self.ranks), together)
        at_once = xp.maximum(together * xp.maximum(self.steps, 1.0), FEWEST)
        waited = self.rank_wait * (1.0 - xp.near_exp(-at_once)) / at_once
        return self._costing(self.work + self.lone_overhead / xp.maximum(together, 1.0) + waited)

    def _costing(self, work: Array) -> Prompts:
        """The same that take ``work``, and nothing more when alone."""
        none, waits = 0.0 * self.lone_overhead, 0.0 * self.rank_wait
        spread = self.latency_sd, work, self.work_cv, none, waits
        return Prompts(self.latency, *spread, self.steps, self.ranks, self.gather_steps)

    def in_a_step(self, waiting: Array) -> Array:
        """Of so many waiting prompts, those that one step of every rank takes."""
        return xp.minimum(self.ranks / xp.minimum(self.steps, 1.0), waiting)


@dataclass(frozen=True, slots=True)
class Spread:
    """A positive quantity over requests: its mean and squared coefficient of variation.

    Read as lognormal, which MLPerf's and AccelMark's p90, p95 and p99 over p50 follow with one width.
    """

    mean: Array
    cv2: Array

    @property
    def p50(self) -> Array:
        """Median: mean/√(1 + CV²)."""
        return self.mean / xp.sqrt(1.0 + self.cv2)

    def times(self, factor: Array) -> Spread:
        """The same shape, every value ``factor`` times as large."""
        return Spread(self.mean * factor, self.cv2)

    def at_least(self, least: Array, jitter: float) -> Spread:
        """The same mean, no wider than a median of ``least`` allows (and a CV of ``jitter``)."""
        room = xp.maximum((self.mean / least) ** 2 - 1.0, xp.full_like(self.mean, jitter**2))
        return Spread(self.mean, xp.minimum(self.cv2, room))

    def quantile(self, normal: float) -> Array:
        """Where the standard normal has ``normal``: median·exp(normal·√ln(1 + CV²))."""
        return self.p50 * xp.near_exp(normal * xp.sqrt(xp.log1p(self.cv2)))


def budget_load(prompts: Prompts, rate: Array, step_s: Array) -> Array:
    """Load of prefill under the token budget, λ·(w + s·n/M): each full step also decodes."""
    return rate * (prompts.work + step_s * prompts.steps)


def first_token(
    prompts: Prompts,
    rate: Array,
    step_s: Array,
    busy: Array,
    fixed: Spread,
    polled_steps: Array | float = 0.0,
) -> Spread:
    """Time to first token under arrivals at ``rate`` beside decode steps of ``step_s``.

    ``busy``: chance that others decode when a prompt comes; ``fixed``: what comes on top, whatever the load;
    ``polled_steps``: decode steps between two looks at the queue, half of which a prompt waits.
    Own step: the larger of the prefill alone and of its work beside decoding. Prompts of a whole budget or
    more are served one by one: there the wait is M/G/1 with service w + s·n/M, between the two a mean by
    share of the budget.
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
    """Mean and variance of the wait for one's own step: its rest, and what is taken into it beside one.

    Rest of a cycle S: mean E[S²]/2E[S] = X/2, second moment E[S³]/3E[S]; with N Poisson of mean ρ·E[S]/w the
    third moment is m³ + 3m·σ² + ν·w³(1 + c²)³ (lognormal work), and never below E[S²]²/E[S]. Those beside are
    Poisson of mean ρ·X/w.
    """
    work, uneven = prompts.work, 1.0 + prompts.work_cv**2
    mean = step_s / (1.0 - rho)
    cycle = mean + work * rho * uneven / (1.0 - rho**2)
    third = mean**3 + 3.0 * mean**2 * (cycle - mean) + rho * mean * work**2 * uneven**3
    rest_var = xp.maximum(third / mean, cycle**2) / 3.0 - cycle**2 / 4.0
    return (0.5 + rho) * cycle, rest_var + rho * work * uneven * cycle


def _single_wait(prompts: Prompts, load: Array, step_s: Array) -> tuple[Array, Array]:
    """M/G/1 with service D = w + s·n/M (mean λE[D²]/2(1 − U), variance λE[D³]/3(1 − U) + mean²), the rest of
    a decode step where it is idle, and half a budget that the next prompt fills the last step with."""
    uneven = 1.0 + prompts.work_cv**2
    service = prompts.work + step_s * prompts.steps
    queue = load * service * uneven / (2.0 * (1.0 - load))
    variance = load * service**2 * uneven**3 / (3.0 * (1.0 - load)) + queue**2
    idle = (1.0 - load) * step_s
    filled = load * prompts.work / xp.maximum(prompts.steps, 1.0) / 2.0
    return queue + idle / 2.0 + filled, variance + idle * step_s / 12.0


def beside_decoding(prompts: Prompts, step_s: Array) -> Array:
    """Time of the steps that carry a prompt beside decoding: its work and a decode step for each chunk."""
    return xp.maximum(prompts.steps, 1.0) * step_s + prompts.work

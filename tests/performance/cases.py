"""Models on replicas with a mean prompt and answer, which closed forms and simulations are compared for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.calibration.regimes.load import Answer, LoadSpec, places_of
from optimizer.calibration.regimes.regimes import capacity
from optimizer.calibration.regimes.short_runs import short_run
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import load_priors
from optimizer.performance.serving.queueing import Lengths
from optimizer.performance.serving.served_model import ServedModel
from tests.performance import simulation
from tests.performance.builders import served

ENGINE_MOST = 1024.0
NO_HARNESS = as_array([0.0])


@dataclass(frozen=True)
class Case:
    """A model on a replica, its mean prompt and answer."""

    model: str
    gpu: str
    tp: int
    precision: str
    tokens: tuple[int, int]

    def served(self) -> ServedModel:
        priors = load_priors().with_values({"engines.vllm.burst_s": 0.0})
        return served(self.model, self.gpu, self.tp, precision=self.precision, calibration=priors)

    def lengths(self, input_cv: float = 0.0, output_cv: float = 0.0) -> Lengths:
        prompt, answer = self.tokens
        return Lengths(*(as_array([value]) for value in (prompt, answer, input_cv, output_cv)))


CHAT = Case("Llama-3.1-8B", "H100-SXM-80GB", 1, "bf16", (1500, 300))
SHORT = Case("Llama-3.1-70B", "H100-SXM-80GB", 8, "fp8", (500, 200))
SUMMARY = Case("Llama-3.1-8B", "L40S", 1, "bf16", (4000, 100))
EXPERTS = Case("Mixtral-8x7B", "H100-SXM-80GB", 2, "fp8", (1000, 150))
LONG = Case("Llama-3.1-70B", "H100-SXM-80GB", 4, "fp8", (12000, 60))
DOCUMENTS = Case("Llama-3.1-8B", "H100-SXM-80GB", 1, "fp8", (32000, 200))


def one(value: Array) -> float:
    return float(np.asarray(value).flat[0])


def near(found: float, simulated: float, share: float) -> bool:
    return bool(abs(np.log(found / simulated)) <= np.log1p(share))


def asked(
    batch: float = 0.0,
    rate: float = 0.0,
    requests: float = np.inf,
    rounds: float = 10.0,
    of_means: float = 0.0,
    objective_s: float = np.inf,
) -> LoadSpec:
    return LoadSpec(*(as_array([value]) for value in (batch, rate, requests, rounds, of_means, objective_s)))


def asked_all(rate: Array, requests: Array) -> LoadSpec:
    """Open loops of several rows."""
    none = np.zeros_like(rate)
    return LoadSpec(none, rate, requests, none + 1.0, none, none + np.inf)


CASES = [CHAT, SHORT, SUMMARY, EXPERTS, LONG]


def run_at(case: Case, lengths: Lengths, load: float, count: int) -> tuple[Answer, float]:
    """A run of ``count`` requests at ``load`` of what the replica gives, and its rate."""
    served = case.served()
    rate = load * one(capacity(served, lengths))
    return short_run(served, lengths, asked(rate=rate, requests=float(count))), rate


def played(case: Case, lengths: Lengths, rate: float, count: int) -> simulation.Run:
    """The same run, simulated three times over."""
    served = case.served()
    places = int(one(places_of(served, lengths)))
    times = simulation.step_times(served, lengths, places + 1)
    spreads = [0.0 if cv is None else one(cv) for cv in (lengths.input_cv, lengths.output_cv)]
    runs = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        prompts, answers = (
            simulation.lognormal_tokens(mean, cv, count, rng)
            for mean, cv in zip(case.tokens, spreads, strict=True)
        )
        runs.append(simulation.Replica(times, prompts, answers, places).open_loop(rate, rng))
    spans = float(np.mean([run.span for run in runs]))
    return simulation.Run(
        np.concatenate([run.ttft for run in runs]), np.concatenate([run.itl for run in runs]), spans
    )

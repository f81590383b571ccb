"""What workloads say of prefix caches and drafts: rates, intervals, and both ways to ask."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.catalogue import load_gpus
from broker.domain.basics.estimate import Provenance
from broker.domain.planning.workload import Batch, Serving, SpeculativeDecoding
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from tests.depth import examples
from tests.performance.builders import batch, serving, sku

ESTIMATOR = Estimator(load_gpus(), load_calibration())
NODE = sku("H100-SXM-80GB")
DRAFT = SpeculativeDecoding(drafted_tokens=3, acceptance=0.7, draft_cost=0.05)


def best_rate(*workloads: Serving | Batch) -> list[float]:
    rates = ESTIMATOR.serving(workloads, [NODE]).requests_per_s
    return [float(rate) for rate in rates.max(axis=(1, 2))]


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=4), st.integers(500, 20_000))
def test_more_hits_of_the_prefix_cache_never_serve_less(shares: list[float], prompt: int) -> None:
    services = [serving("Llama-3.1-8B", prompt, 200, prefix_cache_hit_share=s) for s in sorted(shares)]
    rates = best_rate(*services)
    assert all(less <= more * (1 + 1e-9) for less, more in pairwise(rates))


def test_long_prompts_gain_most_from_what_is_cached() -> None:
    def gain(prompt: int) -> float:
        plain, cached = best_rate(
            serving("Llama-3.1-70B", prompt, 200),
            serving("Llama-3.1-70B", prompt, 200, prefix_cache_hit_share=0.8),
        )
        return cached / plain

    assert 1.0 < gain(500) < gain(8000)
    plain, cached = best_rate(batch("Llama-3.1-8B"), batch("Llama-3.1-8B", prefix_cache_hit_share=0.8))
    assert cached > plain


def test_drafts_that_are_kept_serve_more_under_a_tight_objective_and_useless_ones_less() -> None:
    plain = serving("Llama-3.1-70B")
    useless = replace(DRAFT, acceptance=0.0)
    rates = best_rate(plain, replace(plain, speculation=DRAFT), replace(plain, speculation=useless))
    assert rates[1] > rates[0] > rates[2]


@pytest.mark.parametrize("draft", [None, DRAFT])
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_the_table_and_a_single_answer_agree(draft: SpeculativeDecoding | None, share: float) -> None:
    """Beside others that decode in another way, and one that differs in nothing else."""
    plain = serving("Llama-3.1-8B")
    mine = replace(plain, name="mine", speculation=draft, prefix_cache_hit_share=share)
    others = (plain, replace(plain, speculation=replace(DRAFT, drafted_tokens=1)))
    table = ESTIMATOR.serving([*others, mine, batch("Llama-3.1-8B", speculation=DRAFT)], [NODE])
    (place, *_) = np.flatnonzero(table.fits[2, 0])
    told = table.estimate(2, 0, int(place), 10.0)
    asked = ESTIMATOR.serving_at(
        mine, NODE, table.configs[place].precision, table.layout(2, 0, int(place)), 10.0
    )
    assert asked == told
    assert told["requests_per_s_per_replica"] == pytest.approx(float(table.requests_per_s[2, 0, place]))
    assert told.provenance is (Provenance.CALIBRATED if draft is None else Provenance.MODELLED)


def test_drafts_widen_the_interval() -> None:
    """How often they are kept is the team's word; no published row tells what comes of it."""
    plain = serving("Llama-3.1-8B")
    table = ESTIMATOR.serving([plain, replace(plain, speculation=DRAFT)], [NODE])
    (place, *_) = np.flatnonzero(table.fits[:, 0].all(axis=0))
    widths = []
    for row in (0, 1):
        found, name = table.estimate(row, 0, int(place), 10.0), "requests_per_s_per_replica"
        widths.append(found.high[name] / found.low[name])
    assert widths[1] > widths[0]

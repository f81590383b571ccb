"""Attention ranks: GPUs of a node that keep requests and caches of their own and share a model's experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from broker.domain.basics.estimate import Parallelism
from broker.domain.planning.workload import Measurement, Precision, Serving, Slo
from optimizer.performance.serving.estimate import ServingConfig
from optimizer.performance.serving.table import ServingTable
from tests.performance.builders import batch, estimator, serving, sku

H200 = "H200-SXM-141GB"
FP8 = (Precision.FP8,)


def deepseek(**changes: Any) -> Serving:
    return replace(serving("DeepSeek-R1", 1500, 300, precisions=FP8, slo=Slo(2000, 80)), **changes)


def best_of(table: ServingTable, parted: bool) -> tuple[float, ServingConfig]:
    """Most requests/s of one replica of the first workload on the first kind, with or without ranks."""
    mine = [c for c, config in enumerate(table.configs) if (config.dp > 1) is parted]
    place = max(mine, key=lambda c: float(table.requests_per_s[0, 0, c]))
    return float(table.requests_per_s[0, 0, place]), table.configs[place]


def test_latent_caches_are_kept_once_and_serve_more() -> None:
    """A tensor group of eight copies DeepSeek's latent cache to every GPU; ranks keep it once. Where cache
    is what batch work lacks, that is worth more than what ranks wait for one another."""
    work = batch("DeepSeek-R1", input_tokens=1000, output_tokens=1000, precisions=FP8)
    table = estimator().serving([work], [sku(H200)])
    (group, whole), (ranks, parted) = best_of(table, parted=False), best_of(table, parted=True)
    assert parted.layout == Parallelism(tp=8, dp=8, ep=8)
    assert 1.2 * group < ranks < 4.0 * group
    told = [table.estimate(0, 0, table.configs.index(config), 40.0) for config in (whole, parted)]
    assert told[1]["requests_per_s_per_replica"] == pytest.approx(ranks)
    assert told[1]["kv_tokens"] > 3.0 * told[0]["kv_tokens"]


def test_ranks_that_wait_for_lone_prompts_are_no_way_to_short_answers_at_once() -> None:
    """Prompts of 8,000 tokens and a first token within a second: eight GPUs together read one in time, a rank
    alone does not."""
    work = replace(deepseek(), traffic=replace(deepseek().traffic, input_tokens=8000), slo=Slo(1000, 60))
    table = estimator().serving([work], [sku(H200)])
    assert best_of(table, parted=True)[0] < best_of(table, parted=False)[0]


def test_models_without_experts_have_no_ranks() -> None:
    works = [serving("Llama-3.1-70B", precisions=FP8), deepseek()]
    table = estimator().serving(works, [sku(H200)])
    parted = np.array([config.dp > 1 for config in table.configs])
    assert not table.fits[0, 0, parted].any()
    assert table.fits[1, 0, parted].any()
    assert table.candidates[0, 0] < table.candidates[1, 0]
    alone = estimator().serving(works[:1], [sku(H200)])
    assert all(config.dp == 1 for config in alone.configs)
    assert table.requests_per_s[0, 0, ~parted] == pytest.approx(alone.requests_per_s[0, 0])
    layout = Parallelism(tp=8, dp=8, ep=8)
    assert estimator().serving_at(works[0], sku(H200), Precision.FP8, layout, 40.0) is None


@pytest.mark.parametrize(("gpus", "ranks"), [(8, {8}), (4, {4}), (16, set()), (1, set())])
def test_ranks_are_the_gpus_of_a_whole_node(gpus: int, ranks: set[int]) -> None:
    work = serving("Qwen3-30B-A3B", precisions=FP8, slo=Slo(3000, 100))
    table = estimator().serving([work], [sku(H200, gpus)])
    fits = table.fits[0, 0]
    assert {c.dp for c, fit in zip(table.configs, fits, strict=True) if fit and c.dp > 1} == ranks


def test_own_measurements_of_a_node_are_its_tensor_group_s() -> None:
    """Who measured eight GPUs is not told that ranks would do more."""
    work = deepseek(measured=(Measurement(gpu=H200, gpus=8, requests_per_s=3.0),))
    table = estimator().serving([work], [sku(H200)])
    assert best_of(table, parted=True)[0] == 0.0
    assert best_of(table, parted=False)[0] == 3.0

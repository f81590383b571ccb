"""What the grid says of hand-overs that stall: runs alike but for their luck."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import numpy as np

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.evaluation.ranking import RATE, STALLED
from optimizer.calibration.own.predictions import predict_rows
from optimizer.performance.constants.calibrated import load_calibration
from tests.bench.calibration.bundled import table_rows
from tests.performance.builders import FIXTURES

LAYOUT = ("model", "gpus_total", "tp", "pp", "dp", "micro_batch", "grad_accum", "global_batch")


def ran() -> list[dict[str, str]]:
    return [row for row in table_rows(FIXTURES / "train_grid.csv.gz") if row["status"] == "ok"]


def test_pipelines_that_differ_in_zero_alone_stall_by_chance() -> None:
    rows = [row for row in ran() if int(row["pp"]) > 1 and int(row["gpus_total"]) > 8]
    answers = predict_rows(rows, load_calibration(), load_gpus(), load_models())
    stalled: dict[tuple[str, ...], dict[str, bool]] = defaultdict(dict)
    for row, answer in zip(rows, answers, strict=True):
        predicted = float(answer[RATE] or "nan")
        alike = tuple(row[name] for name in LAYOUT)
        stalled[alike][row["zero"]] = predicted >= STALLED * float(row["tokens_per_s_per_gpu"])
    pairs = [pair for pair in stalled.values() if len(pair) == 2]
    assert len(pairs) == 81
    assert 28 <= sum(pair["0"] != pair["1"] for pair in pairs) <= 36


def test_what_ran_more_than_once_is_up_to_a_quarter_apart() -> None:
    rates: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in ran():
        rates[(*(row[name] for name in LAYOUT), row["zero"])].append(float(row["tokens_per_s_per_gpu"]))
    again = [runs for runs in rates.values() if len(runs) > 1]
    assert len(again) == 4
    apart = [max(pair) / min(pair) - 1 for runs in again for pair in combinations(runs, 2)]
    assert 0.01 < np.median(apart) < 0.16
    assert 0.2 < max(apart) < 0.3

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.evaluation.evaluate import evaluate_rows
from optimizer.calibration.own.predictions import predict_rows
from optimizer.calibration.tables.rows import COLUMNS
from optimizer.performance.constants.calibrated import load_calibration
from tests.performance.builders import rows_of


def predict(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return predict_rows(rows, load_calibration(), load_gpus(), load_models())


def serving_row(**changes: str) -> dict[str, str]:
    row = {
        "id": "one",
        "kind": "serving",
        "model": "Llama-3.1-8B",
        "weight_precision": "bf16",
        "gpu": "H100-SXM-80GB",
        "gpus": "1",
        "tp": "1",
        "isl": "1024",
        "osl": "256",
        "concurrency_or_batch": "16",
        "regime": "closed_loop",
    }
    return row | changes


def test_ids_order_and_columns() -> None:
    rows = rows_of("serving.csv")[:5] + rows_of("training.csv")[:5] + rows_of("training_grid.csv")[:3]
    found = predict(rows)
    assert [p["id"] for p in found] == [r["id"] for r in rows]
    assert all(tuple(p) == COLUMNS for p in found)
    for p in found:
        for name in COLUMNS:
            if name.startswith("pred_") and not name.endswith(("_low", "_high")) and p[name]:
                assert float(p[f"{name}_low"]) <= float(p[name]) <= float(p[f"{name}_high"])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"gpu": "H1000"}, "unknown GPU"),
        ({"model": "Nobody"}, "unknown model"),
        ({"regime": "dreaming"}, "regime"),
        ({"isl": "many"}, "isl"),
        ({"weight_precision": "fp3"}, "precision"),
        ({"concurrency_or_batch": ""}, "concurrency"),
    ],
)
def test_rows_that_cannot_be_read_stay_blank_with_a_reason(changes: dict[str, str], word: str) -> None:
    found = predict([serving_row(**changes), serving_row(id="two")])
    assert word in found[0]["note"]
    assert all(not value for name, value in found[0].items() if name.startswith("pred_"))
    assert found[1]["id"] == "two"
    assert found[1]["fits"] == "true"


def test_training_rows_that_cannot_be_read() -> None:
    row = dict(rows_of("training.csv")[0])
    assert "unknown GPU" in predict([row | {"gpu": "X"}])[0]["note"]
    assert "seq_len" in predict([row | {"seq_len": ""}])[0]["note"]
    assert "no fp8" in predict([row | {"precision": "FP8"}])[0]["note"]
    assert "not a known model" in predict([row | {"layers": "", "hidden": ""}])[0]["note"]


def test_measured_columns_are_never_read() -> None:
    """Nor whether they are there: of every table of runs, those that tell only means among them."""
    kinds = ("training", "serving")
    tables = (f"{told}{kind}.csv" for told in ("", "reported_", "published_") for kind in kinds)
    rows = [row for table in tables for row in rows_of(table)]
    measured = ("step_time_s", "mfu", "tokens_per_s_per_gpu", "mem_gib", "output_tokens_per_s_total")
    wiped = [{k: "" if k in measured or "_ms_" in k else v for k, v in row.items()} for row in rows]
    assert predict(wiped) == predict(rows)


def test_a_blank_layout_is_searched_and_not_worse_than_the_given_one() -> None:
    row = dict(rows_of("training.csv")[3])
    free = row | {"tp": "", "pp": "", "dp": "", "micro_batch": "", "recompute": "", "interleave": ""}
    given, found = predict([row, free])
    assert float(found["pred_step_time_s"]) <= float(given["pred_step_time_s"]) * 1.0001


def test_a_given_layout_is_used_as_it_is() -> None:
    row = dict(rows_of("training_grid.csv")[0])
    """Eight-fold tensor slices of a small model hold an eighth of its states and wait for one another."""
    sliced, whole = predict([row | {"tp": "8", "pp": "1", "dp": ""}, row | {"tp": "1", "pp": "1", "dp": ""}])
    assert float(sliced["pred_step_time_s"]) > 2 * float(whole["pred_step_time_s"])
    assert float(sliced["pred_mem_gib"]) < float(whole["pred_mem_gib"]) / 2
    (doubled,) = predict([row | {"tp": "2", "pp": "1", "dp": "4"}])
    (left_out,) = predict([row | {"tp": "2", "pp": "1", "dp": ""}])
    assert doubled == left_out, "eight GPUs leave four data-parallel ranks"


def test_regimes_agree_where_they_meet() -> None:
    single = serving_row(regime="single_stream", concurrency_or_batch="")
    closed = serving_row(concurrency_or_batch="1")
    static = serving_row(regime="static_batch", concurrency_or_batch="1")
    opened = serving_row(regime="open_loop", concurrency_or_batch="", request_rate="0.01")
    times = [float(p["pred_tpot_ms_p50"]) for p in predict([single, closed, static, opened])]
    assert max(times) / min(times) < 1.1


def test_overload_is_said() -> None:
    found = predict([serving_row(regime="open_loop", request_rate="10000"), serving_row(gpu="L4")])
    assert "over capacity" in found[0]["note"]
    assert found[1]["fits"] == "true"
    assert predict([serving_row(model="Llama-3.1-70B")])[0]["fits"] == "false"


def lines(name: str) -> list[Any]:
    return list(evaluate_rows(rows_of(name), load_calibration(), load_gpus(), load_models()).lines)


def test_decode_time_on_published_rows() -> None:
    found = [line for line in lines("serving.csv") if line.metric == "time per output token"]
    closed = [line for line in found if line.regime.startswith("closed_loop")]
    assert np.average([line.median_percent for line in closed], weights=[line.rows for line in closed]) < 30


def test_offline_throughput_on_published_rows() -> None:
    found = [line for line in lines("serving.csv") if line.regime == "offline_max"]
    assert all(line.median_percent < 30 for line in found)
    assert all(line.unpredicted == 0 for line in found)


def test_report_counts_rows_and_fit_decisions() -> None:
    rows = rows_of("training_grid.csv")
    report = evaluate_rows(rows, load_calibration(), load_gpus(), load_models())
    sensible = [r for r in rows if r["status"] == "ok" and float(r["mfu_reported"] or 0) > 0.2]
    shown = sum(line.rows for line in report.lines if line.metric == "step time")
    assert shown == sum(bool(row["step_time_s"]) and float(row["tp"]) <= 8 for row in sensible)
    assert report.grid is not None
    assert 0 < report.grid.fit_right <= report.grid.fit_told <= len(rows)

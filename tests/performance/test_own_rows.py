from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.errors import InputError
from broker.domain.basics.estimate import Provenance
from broker.domain.planning.workload import Measurement, Precision
from optimizer.calibration.own.evidence import evidence_of
from optimizer.calibration.own.predictions import predict_rows
from optimizer.calibration.own.rows import (
    check_rows,
    completed,
    joined,
    load_own_rows,
    report_of,
    save_own_rows,
)
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.performance.own.shift import OwnShift, load_kernels
from tests.performance.builders import estimator, serving, sku, training

Row = dict[str, str]
SKUS = [sku("H100-SXM-80GB"), sku("H200-SXM-141GB"), sku("A100-SXM-80GB")]


def row(**changes: str) -> Row:
    values = {
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
        "engine": "vLLM",
    }
    return values | changes


def plain(rows: list[Row]) -> list[Row]:
    return predict_rows(rows, load_calibration(), load_gpus(), load_models())


def own_of(rows: list[Row]) -> OwnShift:
    evidence = evidence_of(completed(rows), load_calibration(), load_gpus(), load_models())
    return OwnShift(evidence, load_kernels())


def with_own(rows: list[Row], own: OwnShift) -> list[Row]:
    return predict_rows(rows, load_calibration(), load_gpus(), load_models(), own)


def checked(rows: list[Row]) -> list[Row]:
    return check_rows(rows, "mine.csv", load_calibration(), load_gpus(), load_models())


def slower(times: float, **changes: str) -> Row:
    found = plain([row(**changes)])[0]
    return row(**changes, tpot_ms_p50=repr(times * float(found["pred_tpot_ms_p50"])))


def ratio(after: Row, before: Row, column: str = "pred_tpot_ms_p50") -> float:
    return float(after[column]) / float(before[column])


def width(cells: Row, column: str = "pred_tpot_ms_p50") -> float:
    return float(cells[f"{column}_high"]) / float(cells[column])


def test_predictions_follow_own_rows_nearby_and_no_others() -> None:
    asked = [
        row(),
        row(id="load", concurrency_or_batch="32"),
        row(id="gpu", gpu="H200-SXM-141GB"),
        row(id="far", gpu="L4", model="Qwen2.5-0.5B", engine="TensorRT-LLM"),
    ]
    before, after = plain(asked), with_own(asked, own_of([slower(1.3)]))
    moved = [ratio(a, b) for a, b in zip(after, before, strict=True)]
    assert 1.2 < moved[0] <= 1.3
    assert moved[0] >= moved[1] > moved[2] > moved[3]
    assert moved[3] == pytest.approx(1.0, abs=0.03)
    assert width(after[0]) < 0.98 * width(before[0])
    assert width(after[3]) == pytest.approx(width(before[3]), rel=1e-3)
    assert "own measurements" in after[0]["note"]


def test_without_own_rows_nothing_changes() -> None:
    asked = [row(), row(id="train", kind="training")]
    assert with_own(asked, own_of([])) == plain(asked)


def test_a_row_of_another_source_is_still_the_users_own() -> None:
    own = own_of([slower(1.3, source="bench")])
    named, nameless = with_own([row(source="elsewhere"), row()], own)
    assert named["pred_tpot_ms_p50"] == nameless["pred_tpot_ms_p50"]


def test_arrivals_of_an_open_loop_are_never_shifted() -> None:
    asked = [row(regime="open_loop", request_rate="1", concurrency_or_batch="")]
    after = with_own(asked, own_of([slower(1.5)]))
    assert ratio(after[0], plain(asked)[0], "pred_output_tokens_per_s_total") == 1.0


def test_faults_name_line_and_column() -> None:
    rows = [
        row(tpot_ms_p50="12"),
        row(id="bad", gpu="H1000", tpot_ms_p50="fast"),
        row(id="blank"),
        row(id="load", tpot_ms_p50="12", concurrency_or_batch=""),
    ]
    with pytest.raises(InputError) as caught:
        checked(rows)
    found = [(p.line, p.pointer) for p in caught.value.problems]
    assert found == [(3, "/bad/gpu"), (3, "/bad/tpot_ms_p50"), (4, "/blank/"), (5, "/load/")]
    assert "concurrency_or_batch" in str(caught.value)
    assert caught.value.problems[0].column == 1 + list(row()).index("gpu")
    with pytest.raises(InputError, match="no rows"):
        checked([])


def test_nothing_is_lost_and_an_id_takes_its_place(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "own.csv"
    first = checked([row(tpot_ms_p50="12", colour="blue"), row(id="two", ttft_ms_p50="90", note=" x ")])
    save_own_rows(file, first)
    assert load_own_rows(file) == first
    fresh = checked([row(tpot_ms_p50="13")])
    save_own_rows(file, joined(load_own_rows(file), fresh))
    kept = load_own_rows(file)
    assert [(r["id"], r.get("tpot_ms_p50")) for r in kept] == [("two", None), ("one", "13")]
    assert load_own_rows(tmp_path / "none.csv") == []


def test_tokens_per_second_of_a_run_are_its_step_time() -> None:
    run = {"id": "t", "seq_len": "4096", "global_batch": "128", "gpus_total": "16"}
    (found,) = completed([run | {"tokens_per_s_per_gpu": "1000"}])
    assert float(found["step_time_s"]) == pytest.approx(4096 * 128 / 16000)
    assert completed([run]) == [run]


def test_the_report_predicts_each_row_from_the_others() -> None:
    rows = [slower(1.3, id=f"r{c}", concurrency_or_batch=c) for c in ("8", "16", "32")]
    rows.append(row(id="odd", tpot_ms_p50="9", notes="SUSPECT twin"))
    report = report_of(rows, load_calibration(), load_kernels(), load_gpus(), load_models())
    (line,) = (line for line in report.lines if line.metric == "time per output token")
    assert line.rows == 3
    assert line.after_percent < 0.5 * line.before_percent
    assert set(report.unused) == {"odd"}
    assert all(0.0 <= left <= 1.0 for reach in report.reach for left in reach.left.values())


def test_a_measured_run_shifts_its_neighbours_in_plans_and_alone_alike() -> None:
    before = estimator().training([training("Llama-3.1-8B")], SKUS, [4, 8])
    rate = before.estimate(0, 0, 1)["tokens_per_s"]
    slow = training("Llama-3.1-8B", measured=(Measurement("H100-SXM-80GB", 64, tokens_per_s=0.7 * rate),))
    after = estimator().training([slow], SKUS, [4, 8])
    moved = after.hours[0, :, 1] / before.hours[0, :, 1]
    assert moved[0] > 1.4 > moved[1] > 1.02
    for s in range(len(SKUS)):
        alone = estimator().training_at(slow, SKUS[s], 8, after.layout(0, s, 1))
        assert alone is not None
        assert alone["hours"] == after.hours[0, s, 1]
        assert alone == after.estimate(0, s, 1)


def test_a_measured_replica_shifts_other_sizes_and_formats() -> None:
    formats = (Precision.BF16, Precision.FP8)
    asked = serving("Llama-3.1-8B", precisions=formats)
    before = estimator().serving([asked], SKUS)
    half = 0.5 * float(before.requests_per_s[0, 0, 0])
    slow = serving(
        "Llama-3.1-8B", precisions=formats, measured=(Measurement("H100-SXM-80GB", 1, requests_per_s=half),)
    )
    after = estimator().serving([slow], SKUS)
    fits = before.fits[0]
    moved = after.requests_per_s[0][fits] / before.requests_per_s[0][fits]
    assert np.all(moved < 1.0)
    for s, c in np.argwhere(fits).tolist():
        alone = after.estimate(0, s, c, 2.0)
        assert alone["requests_per_s_per_replica"] == pytest.approx(after.requests_per_s[0, s, c], rel=1e-10)


def test_own_rows_reach_plans_and_say_so() -> None:
    rows = [slower(1.4, id=c, concurrency_or_batch=c) for c in ("8", "32", "128")]
    shifted = Estimator(load_gpus(), load_calibration(), own_of(rows))
    asked = serving("Llama-3.1-8B", input_tokens=1024, output_tokens=256)
    before, after = (core.serving([asked], SKUS[:1]) for core in (estimator(), shifted))
    first, second = before.estimate(0, 0, 0, 2.0), after.estimate(0, 0, 0, 2.0)
    assert second["requests_per_s_per_replica"] < 0.85 * first["requests_per_s_per_replica"]
    assert second["itl_p95_ms"] <= asked.slo.itl_p95_ms
    assert second["ttft_p95_ms"] <= asked.slo.ttft_p95_ms
    narrow, wide = (e.high["tokens_per_s"] / e["tokens_per_s"] for e in (second, first))
    assert narrow < wide
    assert second.provenance in {Provenance.CALIBRATED, Provenance.MEASURED}

"""What a serving row tells of how its makers asked: lengths, means or medians."""

from __future__ import annotations

import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.table_constants import load_table_constants
from optimizer.calibration.tables.observations import observations
from optimizer.calibration.tables.rows import predictions, read_rows
from optimizer.calibration.tables.serving_reading import LaunchOptions, options_of
from optimizer.calibration.tables.serving_words import BENCHMARKS, client_of
from optimizer.performance.constants.calibrated import load_calibration

CLOSED = {
    "kind": "serving",
    "source": "somebody",
    "engine": "vLLM",
    "model": "Llama-3.1-70B",
    "gpu": "H100-SXM-80GB",
    "gpus": "4",
    "tp": "4",
    "regime": "closed_loop",
    "concurrency_or_batch": "64",
    "isl": "1024",
    "osl": "1024",
}


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        pytest.param({}, "fixed", id="whole lengths"),
        pytest.param({"isl": "921.6", "osl": "7372.8"}, "ranged", id="means of the last fifth of 1024, 8192"),
        pytest.param({"isl": "508.23", "osl": "511.9"}, "drawn", id="means that somebody drew"),
        pytest.param({"isl": "921.6", "osl": "511.9"}, "drawn", id="one of the two is no such mean"),
        pytest.param({"notes": "ShareGPT, 1,000 prompts", "isl": "215.3"}, "chats", id="a named data set"),
        pytest.param({"source": "inferencex-pr-1"}, "inferencemax", id="a source whose ways are known"),
    ],
)
def test_lengths_and_words_tell_the_harness(cells: dict[str, str], name: str) -> None:
    found, known = client_of(CLOSED | cells), load_table_constants().clients[name]
    assert (found.input_cv, found.output_cv) == (known.input_cv, known.output_cv)
    assert found.longest_output == known.longest_output


def test_a_mean_length_is_not_cut_to_the_mean_of_nominal_ones_again() -> None:
    nominal = client_of(CLOSED | {"source": "inferencemax"})
    told = client_of(CLOSED | {"source": "inferencemax", "isl": "921.6", "osl": "921.6"})
    assert (nominal.mean_share, told.mean_share) == (0.9, 1.0)


def test_means_are_compared_with_means_and_no_measured_cell_is_read() -> None:
    """A mean over a run from its start holds a tenth of the first burst, in which all clients' prompts wait
    for each other."""
    told = [CLOSED, CLOSED | {"ttft_ms_mean": "400"}, CLOSED | {"ttft_ms_mean": "400", "ttft_ms_p50": "90"}]
    calibration, gpus = load_calibration(), load_gpus()
    blank, mean, median = predictions(read_rows(told, calibration, gpus, load_models()), calibration, gpus)
    assert blank == mean == median
    assert blank.values["pred_ttft_ms_mean"] > 1.5 * blank.values["pred_ttft_ms_p50"]
    assert blank.spread["pred_ttft_ms_mean"] == blank.spread["pred_ttft_ms_p50"]
    found = [(o.place, o.column, o.measured) for o in observations(told)]
    assert found == [(1, "pred_ttft_ms_mean", 400.0), (2, "pred_ttft_ms_p50", 90.0)]


@pytest.mark.parametrize(
    ("isl", "osl", "prompts_vary", "answers_vary"),
    [("1024", "250", False, False), ("467", "16", True, False), ("202", "214", True, True)],
)
def test_lengths_that_nobody_asks_for_are_means_of_chats(
    isl: str, osl: str, prompts_vary: bool, answers_vary: bool
) -> None:
    chats = load_table_constants().clients["chats"]
    found = client_of(CLOSED | {"isl": isl, "osl": osl})
    assert found.input_cv == (chats.input_cv if prompts_vary else 0.0)
    assert found.output_cv == (chats.output_cv if answers_vary else 0.0)
    assert client_of(CLOSED | {"source": "aic-lab", "isl": isl, "osl": osl}).output_cv == 0.0


@pytest.mark.parametrize(
    ("notes", "told"),
    [
        ("mem-fraction-static 0.8, range ratio 1", (0.8, 0.0)),
        ("--gpu-memory-utilization=0.95 --max-num-seqs 500", (0.95, 500.0)),
        ("DP attention 8, mem-fraction 0.85, max-running-requests 64", (0.85, 16.0)),
        ("memory told by nobody", (0.0, 0.0)),
        ("CNN-DailyMail, beam 4", (0.0, 0.0, 4.0)),
        ("beam_width=2, beam search", (0.0, 0.0, 2.0)),
    ],
)
def test_notes_tell_an_engine_s_options(notes: str, told: tuple[float, ...]) -> None:
    """vLLM counts sequences on each data-parallel rank, SGLang on all, here of four."""
    assert options_of({"notes": notes}, 4) == LaunchOptions(*told)


def test_a_benchmark_s_lengths_stand_in_for_those_that_a_row_leaves_open() -> None:
    open_row = CLOSED | {
        "isl": "",
        "osl": "",
        "model": "Mixtral-8x7B-Instruct-v0.1",
        "weight_precision": "fp8",
    }
    calibration, gpus = load_calibration(), load_gpus()
    rows = [open_row | {"source": "mlperf-v5.1"}, open_row | {"source": "somebody"}]
    asked, usual = read_rows(rows, calibration, gpus, load_models()).serving.values()
    benchmarks = load_table_constants().benchmarks
    mlperf = benchmarks["mlperf"]
    assert asked.input_tokens == mlperf.input_tokens["Mixtral-8x7B"]
    assert asked.output_tokens == mlperf.output_tokens["Mixtral-8x7B"]
    assert (usual.input_tokens, usual.output_tokens) == (512.0, 256.0)
    assert "365 assumed" in asked.note
    assert set(BENCHMARKS) == set(benchmarks)


def test_rows_of_a_benchmark_count_whether_they_tell_lengths_or_not() -> None:
    row = CLOSED | {"isl": "", "tpot_ms_p50": "20"}
    assert [len(observations([row | {"source": source}])) for source in ("mlperf-v5.1", "somebody")] == [1, 0]


@pytest.mark.parametrize(
    ("degrees", "read"),
    [
        pytest.param({"tp": "8", "dp": "8", "ep": "1"}, (1, 8, 1), id="ranks inside the tensor group"),
        pytest.param({"tp": "8", "dp": "4", "ep": "4"}, (2, 4, 4), id="pairs of them"),
        pytest.param({"tp": "1", "dp": "8", "ep": "8"}, (1, 8, 8), id="ranks beside each other"),
        pytest.param({"tp": "1", "dp": "8", "ep": ""}, (1, 8, 8), id="whole experts unless told"),
        pytest.param({"tp": "2", "dp": "4", "ep": "1"}, (2, 4, 1), id="slices of experts"),
        pytest.param({"tp": "1", "dp": "32", "ep": "1", "gpus": "32"}, (1, 32, 32), id="not over four nodes"),
        pytest.param({"tp": "8", "dp": "", "ep": ""}, (8, 1, 1), id="one group"),
    ],
)
def test_attention_ranks_are_counted_once(degrees: dict[str, str], read: tuple[int, int, int]) -> None:
    """SGLang and TensorRT-LLM say tp 8, dp 8 of eight GPUs; vLLM says tp 1, dp 8."""
    row = CLOSED | {"model": "DeepSeek-R1", "gpu": "H200-SXM-141GB", "gpus": "8"} | degrees
    found = read_rows([row], load_calibration(), load_gpus(), load_models()).serving[0]
    assert (found.tp, found.dp, found.ep) == read
    assert found.copies == 1.0


def test_ranks_of_a_model_without_experts_are_copies() -> None:
    row = CLOSED | {"gpus": "8", "tp": "2", "dp": "4", "ep": ""}
    found = read_rows([row], load_calibration(), load_gpus(), load_models()).serving[0]
    assert (found.tp, found.dp, found.copies) == (2, 1, 4.0)


def test_an_engine_that_is_told_its_options_takes_no_more() -> None:
    """Without, who runs out of cache is believed to have raised the share to 0.95."""
    crowded = CLOSED | {"engine": "SGLang", "concurrency_or_batch": "512", "isl": "16384"}
    rows = [crowded | {"notes": notes} for notes in ("", "mem-fraction-static 0.7", "max-running-requests 8")]
    calibration, gpus = load_calibration(), load_gpus()
    read = read_rows(rows, calibration, gpus, load_models())
    usual, less, few = (p.values["pred_tpot_ms_p50"] for p in predictions(read, calibration, gpus))
    assert few < less < usual
    slower = [p.values["pred_ttft_ms_p50"] for p in predictions(read, calibration, gpus)]
    assert slower == sorted(slower)

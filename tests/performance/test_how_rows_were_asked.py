"""What a serving row tells of how its makers asked: lengths, means or medians."""

from __future__ import annotations

import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.performance.calibration import load_calibration
from optimizer.performance.rows import predict_rows
from optimizer.performance.serving_words import harness_of

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
    calibration = load_calibration()
    found, known = harness_of(CLOSED | cells, calibration), calibration.harnesses[name]
    assert (found.input_cv, found.output_cv) == (known.input_cv, known.output_cv)
    assert found.longest_output == known.longest_output


def test_a_mean_length_is_not_cut_to_the_mean_of_nominal_ones_again() -> None:
    calibration = load_calibration()
    nominal = harness_of(CLOSED | {"source": "inferencemax"}, calibration)
    told = harness_of(CLOSED | {"source": "inferencemax", "isl": "921.6", "osl": "921.6"}, calibration)
    assert (nominal.mean_share, told.mean_share) == (0.9, 1.0)


def test_a_row_that_tells_means_alone_is_answered_with_means() -> None:
    """They hold a tenth of the first burst, in which all clients' prompts wait for each other."""

    def first_s(**cells: str) -> float:
        row = CLOSED | cells
        found = predict_rows([row], load_calibration(), load_gpus(), load_models())[0]
        return float(found["pred_ttft_ms_p50"])

    medians = [first_s(), first_s(ttft_ms_p50="90"), first_s(ttft_ms_p50="90", ttft_ms_mean="400")]
    assert len(set(medians)) == 1
    mean = first_s(ttft_ms_mean="400")
    assert mean > 1.5 * medians[0]
    assert mean == first_s(ttft_ms_mean="4000")

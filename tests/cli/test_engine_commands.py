"""``perf`` and ``providers``: the engines alone, through the real command."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from providers.registry import SPECS
from tests.cli.running import ROOT, broker


def test_predict_keeps_every_row_and_its_order(tmp_path: Path) -> None:
    measured = (ROOT / "fixtures" / "performance" / "training.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(measured)))[:3]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows([*rows, {**dict.fromkeys(rows[0], ""), "id": "odd", "kind": "training"}])
    done = broker("perf", "predict", tmp_path / "in.csv", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    out = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert [row["id"] for row in out] == [*(row["id"] for row in rows), "odd"]
    assert out[-1]["note"]
    assert float(out[0]["pred_step_time_s_low"]) <= float(out[0]["pred_step_time_s"])


SERVED = "id,kind,model,weight_precision,gpu,gpus,tp,isl,osl,concurrency_or_batch,regime,engine,tpot_ms_p50\n"
LOOP = "one,serving,Llama-3.1-8B,bf16,H100-SXM-80GB,1,1,1024,256,16,closed_loop,vLLM,"


def test_calibrate_keeps_rows_that_later_predictions_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_CALIBRATION_FILE", str(tmp_path / "kept" / "own.csv"))
    (tmp_path / "mine.csv").write_text(f"{SERVED}{LOOP}40\n")

    def predicted() -> float:
        assert broker("perf", "predict", tmp_path / "mine.csv", tmp_path / "out.csv").exit_code == 0
        (row,) = csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text()))
        return float(row["pred_tpot_ms_p50"])

    before = predicted()
    done = broker("perf", "calibrate", tmp_path / "mine.csv", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["rows"], told["added"], told["lines"][0]["rows"]) == (1, 1, 1)
    assert before < predicted() <= 40.0
    assert json.loads(broker("perf", "calibrate", tmp_path / "mine.csv", "--json").stdout)["replaced"] == 1


def test_calibrate_refuses_a_table_with_one_bad_row_whole(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(f"{SERVED}{LOOP}40\n{LOOP}fast\n")
    done = broker("perf", "calibrate", tmp_path / "mine.csv", "--output", tmp_path / "own.csv")
    assert done.exit_code == 2
    assert "line 3, column 13" in done.stderr
    assert "tpot_ms_p50" in done.stderr
    assert not (tmp_path / "own.csv").exists()


@pytest.mark.parametrize("text", ["", "gpu,model\nH100,x\n"])
def test_a_table_without_ids_is_bad_input(tmp_path: Path, text: str) -> None:
    (tmp_path / "in.csv").write_text(text)
    done = broker("perf", "predict", tmp_path / "in.csv", tmp_path / "out.csv")
    assert done.exit_code == 2
    assert "at least id" in done.stderr
    assert not (tmp_path / "out.csv").exists()


def test_evaluate_reports_by_source_and_regime(tmp_path: Path) -> None:
    lines = (ROOT / "fixtures" / "performance" / "training.csv").read_text().splitlines()[:6]
    (tmp_path / "measured.csv").write_text("\n".join(lines))
    done = broker("perf", "evaluate", tmp_path / "measured.csv", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)["lines"]
    assert report
    assert {"regime", "metric", "median_percent", "coverage"} <= set(report[0])
    assert "step time" in broker("perf", "evaluate", tmp_path / "measured.csv", width=140).stdout


def test_providers_are_listed_with_their_variables() -> None:
    listed = json.loads(broker("providers", "list", "--json").stdout)["items"]
    assert {row["provider"] for row in listed} == set(SPECS)
    assert any("BROKER_LAMBDA_API_KEY" in row["variables"] for row in listed)
    assert "BROKER_LAMBDA_API_KEY" in "".join(broker("providers", "list", width=140).stdout.split())


def test_providers_are_listed_with_what_keeps_orders_away() -> None:
    env = {"BROKER_GCP_CREDENTIALS": "ya29.token", "BROKER_LAMBDA_API_KEY": "k"}
    done = broker("providers", "list", "--json", env=env)
    rows = {row["provider"]: row for row in json.loads(done.stdout)["items"]}
    assert rows["lambda"]["orderable"]
    assert rows["lambda"]["missing_settings"] == []
    assert not rows["gcp"]["orderable"]
    (missing,) = rows["gcp"]["missing_settings"]
    assert missing["variables"] == ["BROKER_GCP_PROJECT"]
    assert not rows["skypilot"]["orderable"]
    shown = broker("providers", "list", env=env).stdout
    assert "gcp takes no orders until a setting is made: BROKER_GCP_PROJECT " in shown
    assert "lambda takes no orders" not in shown


def test_a_recorded_payload_is_parsed_without_a_network() -> None:
    payload = ROOT / "fixtures" / "providers" / "lambda" / "instance_types.json"
    done = broker("providers", "parse", "lambda", payload)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["offers"]
    assert set(document) == {"offers", "rejected"}


def test_a_recorded_payload_is_read_as_of_its_recording() -> None:
    """The offers of a host whose term ends with 2026 are there the day before, and not the day after."""
    payload = ROOT / "fixtures" / "providers" / "vast" / "bundles_on_demand.json"
    before, after = (
        json.loads(broker("providers", "parse", "vast", payload, "--at", day).stdout)
        for day in ("2026-12-31", "2027-01-02")
    )
    assert len(before["offers"]) == len(after["offers"]) + 2
    assert "its host's offer has ended" in {row["reason"] for row in after["rejected"]}
    assert broker("providers", "parse", "vast", payload, "--at", "later").exit_code == 2


def test_a_file_of_a_catalogue_is_parsed_by_the_cloud_that_is_told(tmp_path: Path) -> None:
    folder = ROOT / "fixtures" / "providers"
    copies = {
        "skypilot": ("vms.csv", "skypilot/aws-vms.csv"),
        "gpuhunt": ("catalog.csv", "gpuhunt/csv/aws.csv"),
    }
    for name, (copy, recorded) in copies.items():
        (tmp_path / copy).write_bytes((folder / recorded).read_bytes())
        done = broker("providers", "parse", name, tmp_path / copy, "--cloud", "aws")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["offers"]
    packed = folder / "gpuhunt" / "aws-20261121-42.zip"
    (tmp_path / "catalog.zip").write_bytes(packed.read_bytes())
    told, named = (
        json.loads(broker("providers", "parse", "gpuhunt", *words).stdout)["offers"]
        for words in ((tmp_path / "catalog.zip", "--cloud", "aws"), (packed,))
    )
    assert [offer["offer_id"] for offer in told] == [offer["offer_id"] for offer in named]
    for words, said in (
        (("lambda", packed, "--cloud", "aws"), "gpuhunt, skypilot have"),
        (("skypilot", packed, packed, "--cloud", "aws"), "the one file of that cloud"),
        (("skypilot", packed, "--cloud", "AWS!"), "such as aws"),
    ):
        done = broker("providers", "parse", *words)
        assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_a_payload_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("<html>")
    done = broker("providers", "parse", "lambda", tmp_path / "x.json")
    assert done.exit_code == 2
    assert "x.json" in done.stderr


def test_an_unknown_provider_names_the_known_ones() -> None:
    done = broker("providers", "parse", "lamda", ROOT / "README.md")
    assert done.exit_code == 4
    assert "lambda" in done.stderr

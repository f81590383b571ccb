"""``broker init``: a document from flags, from what a team has, and from questions in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from api.schemas.workloads.workloads import read_workloads
from broker.domain.planning.workload import Training
from tests.cli.running import broker, write_market
from tests.domain.test_model_config import NAMED
from tests.fakes.clock import NOON


def test_flags_make_a_document_that_plans(tmp_path: Path) -> None:
    file, market = tmp_path / "w.yaml", write_market(tmp_path)
    made = broker(
        "init", file, "--model", "Llama-3.1-8B", "--set", "tokens=3e8", "--set", "policy.geography=us",
        "--set", "horizon.start=2026-11-24T00:00:00Z", "--market", market, "--yes",
    )  # fmt: skip
    assert made.exit_code == 0, made.stderr
    assert "training: " in made.stderr
    assert "× H100-SXM-80GB for" in made.stderr
    (run,) = yaml.safe_load(file.read_text())["workloads"]
    assert (run["model"], run["policy"]) == ("Llama-3.1-8B", {"geography": "us"})
    assert "tokens: 3e8\n" in file.read_text()
    planned = broker("plan", file, "--market", market, "--time-limit", "5", "--json")
    assert planned.exit_code == 0, planned.stderr


def test_amounts_and_times_may_be_words(tmp_path: Path) -> None:
    file, market = tmp_path / "w.yaml", write_market(tmp_path)
    told = ("tokens=300 million", "horizon.start=2026-11-24", "deadline=Dec 1 18:00", "budget.usd=$50k")
    made = broker(
        "init", file, "--yes", "--market", market, *(word for one in told for word in ("--set", one))
    )
    assert made.exit_code == 0, made.stderr
    assert "Tokens to train on: 300,000,000 tokens\n" in made.stderr
    assert "Done by: Tue 1 Dec 2026 18:00 UTC\n" in made.stderr
    assert "Budget, USD: $50,000\n" in made.stderr
    document = read_workloads(file.read_text(), source="w", base=None, now=NOON)
    (run,) = document.workloads
    assert isinstance(run, Training)
    assert run.deadline == datetime(2026, 12, 1, 18, tzinfo=UTC)
    assert document.budget_usd == 50_000


def test_a_source_is_filled_in_and_what_it_lacks_is_listed(tmp_path: Path) -> None:
    source = tmp_path / "serve.sh"
    source.write_text("#!/bin/sh\nvllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2\n")
    told = {"BROKER_DATABASE_URL": f"sqlite:///{tmp_path / 'none.db'}"}
    made = broker("init", "-", "--from", source, "--set", "traffic.peak_requests_per_s=12", env=told)
    assert made.exit_code == 0, made.stderr
    (service,) = yaml.safe_load(made.stdout)["workloads"]
    assert (service["model"], service["traffic"]["peak_requests_per_s"]) == ("Llama-3.1-8B", 12)
    missing = made.stderr.partition("in their place: ")[2].splitlines()[0]
    assert "Input tokens each" in missing
    assert "Requests per second at the peak" not in missing
    assert "left out: --tensor-parallel-size" in made.stderr


def test_the_config_of_an_own_model_stays_a_file_beside_the_document(tmp_path: Path) -> None:
    config = {**NAMED["Llama-3.1-70B"], "num_hidden_layers": 12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = tmp_path / "w.yaml"
    made = broker("init", file, "--from", tmp_path / "config.json", "--yes")
    assert made.exit_code == 0, made.stderr
    assert yaml.safe_load(file.read_text())["workloads"][0]["model"] == "config.json"


def test_without_a_market_neither_planner_nor_store_is_loaded(tmp_path: Path) -> None:
    """They take seconds to load, and a document needs none of them."""
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen3-8B")
    code = (
        "import sys; from api.cli.main import main\n"
        "sys.argv = ['broker', 'init', '-', '--from', 'serve.sh']\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert "model: Qwen3-8B" in done.stdout
    loaded = set(done.stderr.split())
    assert "api.schemas.imports.starting_points" in loaded
    assert not loaded & {"ortools", "numba", "sqlalchemy", "fastapi", "api.bootstrap", "optimizer.planner"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "tokens=lots"], "/workloads/0/tokens"),
        (["--set", "tokns=3"], "one of team, horizon.start"),
        (["--model", "Lama-3.1-8B"], "nearest: Llama-3.1-8B"),
        (["--kind", "surfing"], "surfing"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    file = tmp_path / "w.yaml"
    made = broker("init", file, "--yes", *arguments)
    assert made.exit_code == 2
    assert said in made.stderr
    assert not file.exists()


def test_a_file_is_written_over_only_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("mine")
    assert broker("init", file, "--yes").exit_code == 2
    assert file.read_text() == "mine"
    assert broker("init", file, "--yes", "--force").exit_code == 0
    assert file.read_text().startswith("team: research")


@pytest.mark.timeout(300)
def test_a_terminal_is_asked_and_asked_again_for_what_is_wrong(tmp_path: Path) -> None:
    """The real command on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "NO_COLOR": "1", "BROKER_DATABASE_URL": f"sqlite:///{tmp_path / 'none.db'}"}
    command = [sys.executable, "-c", "from api.cli.main import main; main()", "init", "w.yaml"]
    asked = subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    os.close(theirs)
    answers = ["ml", "", "21", "", "tune", "Lama-3.1-8B", "1e9", "+3d", "16", "eu", "h100", "Llama-3.1-8B"]
    os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
    told, _ = asked.communicate(timeout=240)
    os.close(ours)
    assert asked.returncode == 0, told.decode()
    assert "nearest: Llama-3.1-8B" in told.decode()
    document = read_workloads((tmp_path / "w.yaml").read_text(), source="w", base=None, now=NOON)
    (run,) = document.workloads
    assert (document.team, run.name, run.model.name) == ("ml", "tune", "Llama-3.1-8B")
    assert document.horizon.hours == 21 * 24
    assert run.policy.gpus.only == ("H100-*",)


def test_json_says_what_is_left_out_and_the_kind_is_binding(tmp_path: Path) -> None:
    source, file = tmp_path / "serve.sh", tmp_path / "w.yaml"
    source.write_text("vllm serve Qwen/Qwen3-32B-FP8 -tp 2 --port 80\n")
    told = {"BROKER_DATABASE_URL": f"sqlite:///{tmp_path / 'none.db'}"}
    made = broker("init", file, "--from", source, "--yes", "--json", env=told)
    assert made.exit_code == 0, made.stderr
    answer = json.loads(made.stdout)
    assert (answer["file"], answer["source"]) == (str(file), "a vllm serve line")
    assert answer["document"] == file.read_text()
    assert [one["what"] for one in answer["left_out"]] == ["--tensor-parallel-size 2", "--port"]
    assert "Input tokens each" in answer["missing"]
    for kind, expected in (("training", 2), ("batch", 0)):
        other = broker("init", tmp_path / kind, "--from", source, "--yes", "--kind", kind, env=told)
        assert other.exit_code == expected, other.stderr
    source.write_text("torchrun --nproc_per_node 8 train.py --adapter ia3\n")
    lora = broker("init", tmp_path / "lora", "--from", source, "--yes", env=told)
    assert (lora.exit_code, (tmp_path / "lora").exists()) == (2, False)
    assert "--adapter ia3" in lora.stderr

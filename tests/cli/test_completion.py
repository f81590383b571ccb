"""Tab completes values at once, without the modules of commands: in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from api.cli.commands import COMMANDS
from api.cli.completion_values import TIERS
from broker.domain.market.offer import Tier
from tests.cli.running import broker, fake_server

BROKER = Path(sys.executable).parent / "broker"
PLANS = ("GET", "/v1/plans")
HEAVY = ("typer", "rich", "structlog", "numpy", "pydantic", "sqlalchemy", "fastapi", "httpx", "ortools")


def completed(line: str, shell: str = "bash", **environment: str) -> list[str]:
    """What Tab offers at the end of ``line``, from the installed command."""
    asked = {
        "_BROKER_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - (not line.endswith(" "))),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
    done = subprocess.run(
        [str(BROKER)],
        env={**kept, **asked, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize("shell", ["bash", "fish"])
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("broker offers --gpu H100-N", ["H100-NVL-94GB"]),
        ("broker offers --gpu L4,H200-S", ["L4,H200-SXM-141GB"]),
        ("broker offers --provider lam", ["lambda"]),
        ("broker prices --tier s", ["spot"]),
        ("broker poll over", []),
    ],
)
def test_names_come_from_the_packaged_data(shell: str, line: str, found: list[str]) -> None:
    assert [word for word in completed(line, shell) if word] == found


def test_zsh_gets_its_own_form() -> None:
    assert completed("broker prices --tier s", "zsh") == ["""_arguments '*: :(("spot"))'"""]


@pytest.mark.parametrize("line", ["broker reserve ", "broker plans plan-", "broker reservations --plan "])
def test_ids_come_from_the_server(line: str) -> None:
    rows = [{"plan_id": "plan-b", "team": "x"}, {"plan_id": "plan-a", "team": "y"}]
    with fake_server({PLANS: [(200, {"items": rows})]}) as server:
        assert completed(line, **server.env) == ["plan-b", "plan-a"]
        assert completed("broker budgets --team ", **server.env) == ["x", "y"]
    assert server.seen[0][2]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("answer", [(401, {"title": "no"}), (200, "no JSON"), (200, {"items": []})])
def test_what_a_server_does_not_say_is_not_completed(answer: tuple[int, object]) -> None:
    with fake_server({PLANS: [answer]}) as server:
        assert completed("broker plans ", **server.env) == [""]


def test_without_a_server_nothing_is_completed() -> None:
    assert completed("broker plans ", BROKER_URL="http://127.0.0.1:1") == [""]


def test_options_are_left_to_typer() -> None:
    assert "--tier" in completed("broker offers --ti")


@pytest.mark.parametrize("line", ["broker ", "broker -v re"])
def test_names_of_commands_come_from_the_table(line: str) -> None:
    begun = line.rpartition(" ")[2]
    known = [name for name in COMMANDS if name.startswith(begun)]
    assert completed(line) == known
    assert completed(line, "fish") == [f"{name}\t{COMMANDS[name].summary}" for name in known]
    said = " ".join(f'"{name}":"{COMMANDS[name].summary.replace(":", chr(92) + ":")}"' for name in known)
    assert completed(line, "zsh") == [f"_arguments '*: :(({said}))'"]


def test_a_command_that_does_not_exist_is_not_completed() -> None:
    assert completed("broker nothing") == [""]


def test_tiers_are_all_tiers() -> None:
    assert list(TIERS) == list(Tier)


@pytest.mark.parametrize("line", ["broker pol", "broker poll ovh"])
def test_completing_a_name_imports_no_command(line: str) -> None:
    script = (
        "import sys; from api.cli.main import main; main(); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    asked: Mapping[str, str] = {
        "_BROKER_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == f"{'ovh' if 'ovh' in line else 'poll'}\n[]\n"


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("prices", "--gpu", "L4", "--tier", "ondemand"), "on_demand"),
        (("spend", "--group-by", "tem"), "team"),
    ],
)
def test_a_word_that_an_option_does_not_take_gets_the_nearest(words: tuple[str, ...], near: str) -> None:
    refused = broker(*words, width=200)
    assert refused.exit_code == 2
    assert f"Did you mean {near}" in refused.stderr

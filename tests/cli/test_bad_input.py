"""Bad input through the real command: a clear message, the right exit code, never a traceback."""

from __future__ import annotations

import json
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from api.cli.configuration import check_variables
from api.cli.errors import tell
from broker.domain.basics.errors import NotAuthenticated
from tests.cli.running import QUICKSTART, broker, fake_server, market_document, write_market


def plan(tmp_path: Path, text: str, **more: str) -> Result:
    """Plans ``text`` over the small market."""
    (tmp_path / "workloads.yaml").write_text(text)
    return broker("plan", tmp_path / "workloads.yaml", "--market", write_market(tmp_path))


def quickstart(**fields: Any) -> str:
    """The quickstart with fields of its training run changed."""
    document = yaml.load(QUICKSTART.read_text(), Loader=yaml.BaseLoader)
    document["workloads"][0] |= fields
    return yaml.safe_dump(document, sort_keys=False)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "Llama-9"}, ["/workloads/0/model", "'Llama-9'", "nearest", "Llama-3"]),
        ({"measured": [{"gpu": "H100", "tokens_per_s": 1}]}, ["/measured/0/gpu", "'H100'", "H100-SXM-80GB"]),
        ({"earliest_start": "+5d"}, ["/workloads/0/deadline", '"+4d"', "after the earliest start"]),
        ({"tokens": "-3e9"}, ["/workloads/0/tokens", "-3", "at least 1"]),
        ({"unplaced_usd": "1e30"}, ["/workloads/0/unplaced_usd", "at most 1000000000000"]),
        ({"name": "../a"}, ["/workloads/0/name", "letters, digits"]),
        ({"tokns": "3e9"}, ["unknown field 'tokns'", "'tokens'"]),
        ({"precision": "fp32"}, ["/workloads/0/precision", "fp32", "bf16"]),
    ],
)
def test_a_wrong_field_is_named_with_what_was_found_and_expected(
    tmp_path: Path, fields: dict[str, Any], said: list[str]
) -> None:
    made = plan(tmp_path, quickstart(**fields))
    assert made.exit_code == 2
    assert "workloads.yaml" in made.stderr
    assert "(line " in made.stderr
    assert all(word in made.stderr for word in said), made.stderr
    assert "Traceback" not in made.stderr
    assert made.stdout == ""


def test_malformed_yaml_says_line_and_column(tmp_path: Path) -> None:
    made = plan(tmp_path, "team: a\nhorizon: {start: now\nworkloads: []\n")
    assert made.exit_code == 2
    assert "(line 3, column 10)" in made.stderr
    assert "malformed YAML" in made.stderr


@pytest.mark.parametrize(
    "text", ["[]", '{"team": "a"}', "gpu,price\nH100,2\n", json.dumps({"plan_id": "p", "placements": []})]
)
def test_a_market_of_another_form_is_told_the_form(tmp_path: Path, text: str) -> None:
    (tmp_path / "market.json").write_text(text)
    made = broker("plan", QUICKSTART, "--market", tmp_path / "market.json")
    assert made.exit_code == 2
    assert "market.json" in made.stderr


def test_a_wrong_price_in_a_market_is_named(tmp_path: Path) -> None:
    market = market_document()
    market["offers"][2]["price_usd_per_node_hour"] = "cheap"
    (tmp_path / "market.json").write_text(json.dumps(market))
    made = broker("plan", QUICKSTART, "--market", tmp_path / "market.json")
    assert made.exit_code == 2
    assert "/offers/2/price_usd_per_node_hour (line 1, column" in made.stderr
    assert 'found "cheap"' in made.stderr


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "workloads.yaml"
    if content is not None:
        path.write_bytes(content)
    made = broker("plan", path, "--market", write_market(tmp_path))
    assert made.exit_code == 2
    assert "workloads.yaml" in made.stderr


def test_a_folder_is_no_file_and_no_output(tmp_path: Path) -> None:
    market = write_market(tmp_path)
    assert broker("plan", tmp_path, "--market", market).exit_code == 2
    for output in (tmp_path, tmp_path / "no" / "plan.json"):
        made = broker("plan", QUICKSTART, "--market", market, "--time-limit", "2", "--output", output)
        assert made.exit_code == 2
        assert "can be written" in made.stderr
        assert "planning" not in made.stderr, "told only after the search"


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("plan",),
        ("plan", "w.yaml", "--gap", "7"),
        ("plan", "w.yaml", "--time-limit", "0"),
        ("plan", "w.yaml", "--seed", "-1"),
        ("offers", "--tier", "weekly"),
        ("spend", "--group-by", "colour"),
        ("sandbox", "--port", "70000"),
    ],
)
def test_bad_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert broker(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("spend --bands --csv x.csv", "--csv: found --bands beside it, expected one of both"),
        ("spend --bands --units --json", "--units: found --bands beside it, expected one of both"),
        ("spend --focus x.csv --csv y.csv", "--csv: found --focus beside it, expected one of both"),
        ("spend --units --comment x", "--comment: found --units beside it, expected it beside --close"),
        ("spend --focus-version 1.4", "--focus-version: found it alone, expected it beside --focus"),
        ("approvals --approve a --reject b", "--reject: found --approve beside it, expected one of both"),
        ("approvals --comment a", "--comment: found it alone, expected it beside --approve or --reject"),
        ("budgets --usd 5", "--usd: found it alone, expected it beside --set"),
        ("keys --team a", "--team: found it alone, expected it beside --new or --invite"),
        ("reservations --history a --open", "--open: found --history beside it, expected one of both"),
        ("prices --gpu L4 --offer a", "--gpu: found --offer beside it, expected one of both"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(line: str, said: str) -> None:
    refused = broker(*line.split(), env={"BROKER_URL": "http://127.0.0.1:1", "BROKER_KEY": "k"})
    assert refused.exit_code == 2
    assert refused.stderr == f"error: command line: {said}\n"
    assert refused.stdout == ""


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (("sandbox", "--port", port), ("serve", "--port", port), ("up", "--port", port)):
            told = broker(*command)
            assert told.exit_code == 5, told.output
            assert port in told.stderr


def database(path: Path, revision: str) -> dict[str, str]:
    """A SQLite file that says it is at ``revision``."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES (?)", (revision,))
    connection.close()
    return {"BROKER_DATABASE_URL": f"sqlite:///{path}"}


@pytest.mark.parametrize("command", [("poll",), ("offers",), ("plan", str(QUICKSTART))])
def test_a_database_of_a_newer_version_is_told(tmp_path: Path, command: tuple[str, ...]) -> None:
    told = broker(*command, env=database(tmp_path / "broker.db", "9999"))
    assert told.exit_code == 5
    assert "9999" in told.stderr
    assert "Traceback" not in told.stderr


def test_no_database_yet_says_what_to_do(tmp_path: Path) -> None:
    told = broker("offers", env={"BROKER_DATABASE_URL": f"sqlite:///{tmp_path / 'none.db'}"})
    assert told.exit_code == 4
    assert "poll" in told.stderr


def test_a_setting_that_cannot_be_is_named() -> None:
    told = broker("reservations", env={"BROKER_PORT": "many"})
    assert told.exit_code == 2
    assert "BROKER_PORT" in told.stderr


def test_a_slip_in_the_settings_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broker.toml").write_text('poll_second = 5\nlambda_api_key = "x"\n')
    done = broker("providers", "list")
    assert done.exit_code == 2
    assert "broker.toml: /poll_second: found 5, expected the setting 'poll_seconds'" in done.stderr
    assert "lambda_api_key" not in done.stderr
    (tmp_path / "broker.toml").write_text('admin_keys = "hunter2"\n')
    done = broker("providers", "list")
    assert "/admin_keys: " in done.stderr
    assert "hunter2" not in done.stderr
    (tmp_path / "broker.toml").write_text("poll_seconds = \n")
    assert broker("providers", "list").exit_code == 2


@pytest.mark.parametrize("key", ["é", "a b", "a\nb"])
def test_what_is_no_key_is_told_before_anybody_is_asked(key: str) -> None:
    refused = broker("plans", env={"BROKER_URL": "http://127.0.0.1:1", "BROKER_KEY": key})
    assert refused.exit_code == 2
    assert "BROKER_KEY: found characters that are not allowed in a key" in refused.stderr


def test_a_provider_that_nobody_knows_is_no_empty_market() -> None:
    refused = broker("offers", "--provider", "lamda")
    assert refused.exit_code == 2
    assert "--provider: found 'lamda', expected a provider's key (nearest: lambda" in refused.stderr


def test_an_unknown_command_is_told_with_the_nearest() -> None:
    refused = broker("plam")
    assert refused.exit_code == 2
    assert "No such command 'plam'. Did you mean plan" in refused.stderr
    assert "Did you mean" not in broker("zzzz").stderr


def test_a_wrong_word_of_a_filter_is_told_with_the_nearest() -> None:
    refused = broker("offers", "--tier", "ondemand", "--gpus-per-node", "many")
    assert refused.exit_code == 2
    assert "(nearest: on_demand)" in refused.stderr
    assert "--gpus-per-node: found 'many'" in refused.stderr


def test_a_missing_key_is_told_with_the_variable_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    tell(NotAuthenticated("the request has no bearer key; send a key in the header Authorization"))
    told = capsys.readouterr().err
    assert "export BROKER_KEY=…" in told
    assert "redacted" not in told


def test_a_slip_in_a_variable_s_name_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("BROKER_DEBOUNCE_SECOND", "BROKER_SERVICE_HOST", "BROKER_PORT", "BROKER_LAMBDA_API_KEY")
    check_variables(dict.fromkeys((*names, "HOME"), "1"))
    assert capsys.readouterr().err.splitlines() == [
        "warning: BROKER_DEBOUNCE_SECOND is no setting and changes nothing;"
        " is BROKER_DEBOUNCE_SECONDS meant?",
        "warning: BROKER_SERVICE_HOST is no setting and changes nothing",
    ]


def test_a_providers_key_may_stand_in_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BROKER_LAMBDA_API_KEY", raising=False)
    (tmp_path / "broker.toml").write_text('lambda_api_key = "x"\n')
    rows = json.loads(broker("providers", "list", "--json").stdout)["items"]
    assert [row["provider"] for row in rows if row["configured"]] == ["lambda"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("reserve", "--offer", "o", "--nodes", "two"), "'two' is not a whole number."),
        (("reserve", "--offer", "o", "--nodes", "-2"), "'-2' is not a number of at least 1."),
        (("serve", "--port", "99999"), "'99999' is not a number of at most 65535."),
        (("simulate", "plan-1", "--draws", "many"), "'many' is not a whole number."),
        (("hold", "rsv-1", "--timeout", "soon"), "'soon' is not a number."),
    ],
)
def test_a_value_that_is_no_number_is_told_in_plain_words(arguments: tuple[str, ...], told: str) -> None:
    done = broker(*arguments, width=200)
    assert done.exit_code == 2
    assert told in done.stderr
    assert "Input should" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "arguments", "path", "command"),
    [
        ("plan", ("plans", "plan-x"), "/v1/plans/plan-x", "broker plans"),
        ("reservation", ("done", "rsv-x"), "/v1/reservations/rsv-x/release", "broker reservations"),
    ],
)
def test_what_is_not_found_names_the_command_that_lists_it(
    kind: str, arguments: tuple[str, ...], path: str, command: str
) -> None:
    problem = {"title": "t", "status": 404, "code": "not-found", "detail": f"{kind} 'x' not found"}
    with fake_server({("GET", path): [(404, problem)]}) as server:
        done = broker(*arguments, env=server.env)
    assert done.exit_code == 4
    assert f"hint: `{command}` lists those that there are" in done.stderr


def test_a_file_is_named_without_an_empty_pointer(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    done = broker("plan", missing, width=300)
    assert f"{missing}: found no such file, expected the path of a file" in done.stderr

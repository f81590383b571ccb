"""Settings that are given but empty, too short, or misspelt where that would leave a door open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.cli.configuration import check_variables
from api.given_settings import read_settings
from broker.domain.basics.errors import InputError
from broker.settings import Settings
from providers.registry import SPECS, configured
from tests.cli.running import QUICKSTART, broker

LONG = "q7Yx0m4T9bC2vK8sL5nW1zR6"


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
@pytest.mark.parametrize("text", ["", " \t"])
def test_an_empty_variable_is_refused_by_its_name(name: str, text: str) -> None:
    variable = f"BROKER_{name.upper()}"
    done = broker("providers", "list", env={variable: text})
    assert done.exit_code == 2
    assert f"{variable}: " in done.stderr
    assert "; unset it " in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("name", ["admin_key", "host", "approval_limit_usd"])
def test_an_empty_name_in_the_file_or_option_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broker.toml").write_text(f'{name} = ""\n')
    done = broker("providers", "list")
    assert done.exit_code == 2
    assert f"BROKER_{name.upper()}: " in done.stderr
    with pytest.raises(InputError, match=f"BROKER_{name.upper()}"):
        read_settings(**{name: " "})


def test_commands_without_a_server_refuse_it_too(tmp_path: Path) -> None:
    for command in (("plan", str(QUICKSTART)), ("perf", "predict", "in.csv", str(tmp_path / "out.csv"))):
        done = broker(*command, env={"BROKER_CALIBRATION_FILE": ""})
        assert done.exit_code == 2, done.output
        assert "Traceback" not in done.output


@pytest.mark.parametrize("key", ["x", LONG[:23], f" {LONG}", f"{LONG}\n"])
def test_a_short_admin_key_is_refused_without_being_shown(key: str) -> None:
    done = broker("providers", "list", env={"BROKER_ADMIN_KEY": key})
    assert done.exit_code == 2
    assert "BROKER_ADMIN_KEY: " in done.stderr
    assert "expected 24 or more characters without spaces around them" in done.stderr
    with pytest.raises(InputError, match=f"BROKER_ADMIN_KEY: found {len(key)} characters") as caught:
        read_settings(admin_key=key)
    for told in (done.stderr, str(caught.value)):
        assert f" {key.strip()}" not in told
        assert LONG[:23] not in told


def test_an_admin_key_of_24_characters_is_taken() -> None:
    assert read_settings(admin_key=LONG).admin_key is not None


@pytest.mark.parametrize("keys", ["short", ",", f"{LONG * 2},", f",{LONG * 2}", f"{LONG * 2},short"])
def test_every_key_that_seals_is_long(keys: str) -> None:
    with pytest.raises(InputError, match=f"BROKER_SECRETS_KEY: found {len(keys)} characters, expected 32"):
        read_settings(secrets_key=keys)


def test_a_setting_in_json_that_is_none_is_named() -> None:
    done = broker("providers", "list", env={"BROKER_PROVIDER_QUOTAS": "{"})
    assert done.exit_code == 2
    assert 'BROKER_PROVIDER_QUOTAS: found "{", expected an object' in done.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"provider_quotas": {"lambada": {"gpus": 8}}},
            'BROKER_PROVIDER_QUOTAS: found "lambada", expected the key of a provider (nearest: lambda',
        ),
        ({"provider_quotas": {"lambda": {}}}, "BROKER_PROVIDER_QUOTAS_LAMBDA: .* expected a limit"),
        ({"approval_limit_usd": "inf"}, "BROKER_APPROVAL_LIMIT_USD: .* expected a finite number"),
        ({"poll_seconds": float("inf")}, "BROKER_POLL_SECONDS: .* expected a finite number"),
        (
            {"history_kept_days": 3},
            "BROKER_HISTORY_KEPT_DAYS: .* at least the 90 days of BROKER_HISTORY_FULL",
        ),
    ],
)
def test_a_setting_that_would_protect_nothing_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message).replace(r"\.\*", ".*")):
        read_settings(**given)


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("BROKER_ADMINKEY", "BROKER_ADMIN_KEY"),
        ("BROKER_ADMIN_KEYS", "BROKER_ADMIN_KEY"),
        ("BROKER_SECRET_KEY", "BROKER_SECRETS_KEY"),
        ("BROKER_APROVAL_LIMIT_USD", "BROKER_APPROVAL_LIMIT_USD"),
        ("BROKER_APPROVAL_LIMIT", "BROKER_APPROVAL_LIMIT_USD"),
        ("BROKER_FOUR_EYE", "BROKER_FOUR_EYES"),
        ("BROKER_SANDBOX", "BROKER_SANDBOX_URL"),
    ],
)
def test_a_slip_in_a_name_that_guards_is_refused(slip: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"{slip}: found no such setting, expected {meant}$"):
        check_variables({slip: "1"})


@pytest.mark.parametrize(
    "name", ["BROKER_SERVICE_HOST", "BROKER_SERVICE_PORT", "BROKER_PORT_8080_TCP_ADDR", "BROKER_HOSTNAME"]
)
def test_names_that_orchestrators_put_there_are_no_slips(name: str) -> None:
    check_variables({name: "10.0.0.1"})


def test_a_secret_for_starts_is_no_slip(capsys: pytest.CaptureFixture[str]) -> None:
    check_variables({"BROKER_SECRET_HF_TOKEN": "1"})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("provider", sorted(SPECS))
def test_an_empty_credential_is_none_and_nothing_else_may_be_empty(provider: str) -> None:
    spec = SPECS[provider]
    empty = {spec.variable(name): " " for name in (*spec.credentials, *spec.optional_credentials)}
    assert provider not in configured(empty)
    for name in ("base_url", "timeout_s", "min_interval_s", *spec.options):
        with pytest.raises(InputError, match=f'{spec.variable(name)}: found "", expected a value; unset it'):
            configured({spec.variable(name): ""})


def test_half_a_credential_that_is_empty_is_refused() -> None:
    half = {"BROKER_VERDA_CLIENT_ID": "id", "BROKER_VERDA_CLIENT_SECRET": ""}
    with pytest.raises(InputError, match="BROKER_VERDA_CLIENT_SECRET: found"):
        configured(half, "http://127.0.0.1:9000")


def test_a_slip_in_a_providers_variable_is_refused() -> None:
    with pytest.raises(
        InputError, match="BROKER_VAST_BASEURL: found no such setting, expected BROKER_VAST_BASE"
    ):
        configured({"BROKER_VAST_API_KEY": "k", "BROKER_VAST_BASEURL": "http://127.0.0.1:9"})

"""``broker settings``: each setting with its value, where it comes from, and no secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.catalogue import load_setting_meanings
from broker.settings import Settings
from providers.registry import SPECS
from providers.spec import EVERY_PROVIDER_HAS
from tests.cli.running import broker

SECRET = "q7Yx0m4T9bC2vK8sL5nW1zR6"


def test_every_setting_has_its_meaning_and_no_other_name_has_one() -> None:
    told = load_setting_meanings()
    assert set(told["settings"]) == set(Settings.model_fields)
    assert set(told["provider_settings"]) == set(EVERY_PROVIDER_HAS)


def test_sources_are_told_and_secrets_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broker.toml").write_text('poll_seconds = 30\ncrusoe_access_key = "' + SECRET + '"\n')
    given = {
        "BROKER_ADMIN_KEY": SECRET,
        "BROKER_LAMBDA_API_KEY": SECRET,
        "BROKER_DATABASE_URL": f"postgresql://ada:{SECRET}@db/broker?sslpassword={SECRET}",
        "BROKER_PROVIDER_QUOTAS": '{"aws": {"gpus": 8}}',
    }
    done = broker("settings", "--all", "--json", env=given)
    assert done.exit_code == 0, done.output
    rows = {row["variable"]: row for row in json.loads(done.stdout)["items"]}
    variables = {f"BROKER_{name.upper()}" for name in Settings.model_fields}
    for spec in SPECS.values():
        variables |= {spec.variable(name) for name in spec.names}
    assert rows.keys() == variables
    told = {name: (rows[name]["value"], rows[name]["source"]) for name in rows}
    assert told["BROKER_POLL_SECONDS"] == ("30.0", "broker.toml")
    assert told["BROKER_ADMIN_KEY"] == told["BROKER_LAMBDA_API_KEY"] == ("set, not shown", "environment")
    assert told["BROKER_CRUSOE_ACCESS_KEY"] == ("set, not shown", "broker.toml")
    assert told["BROKER_PROVIDER_QUOTAS"] == ('{"aws": {"gpus": 8}}', "environment")
    assert told["BROKER_PORT"] == ("8080", "default")
    assert "@db/broker" in told["BROKER_DATABASE_URL"][0]
    plain = broker("settings", env=given, width=160)
    assert SECRET not in done.output + plain.output
    assert "BROKER_LAMBDA_API_KEY" in plain.stdout
    assert "BROKER_LAMBDA_BASE_URL" not in plain.stdout
    assert "BROKER_LAMBDA_BASE_URL" in broker("settings", "lambda", width=160).stdout

"""Which environment configures which provider, and how."""

from __future__ import annotations

import pytest

from broker.domain.basics.errors import InputError, NotFound
from providers.http import HttpPolicy, Operation
from providers.registry import SPECS, build_adapters, configured, find_spec
from providers.spec import Secret, settings_from_environment

SANDBOX = "http://127.0.0.1:9000/"
LAMBDA = SPECS["lambda"]
VERDA = SPECS["verda"]


def test_nothing_is_configured_by_nothing() -> None:
    assert configured({}) == {}


def test_the_sandbox_stands_in_for_every_provider() -> None:
    found = configured({"BROKER_SANDBOX_URL": SANDBOX})
    assert set(found) == set(SPECS)
    assert found["verda"].base_url == "http://127.0.0.1:9000/verda"
    assert all(settings.sandbox for settings in found.values())
    assert found["verda"].secret("client_id")


def test_own_credentials_go_to_the_real_provider_beside_the_sandbox() -> None:
    found = configured({"BROKER_LAMBDA_API_KEY": "k"}, SANDBOX)
    assert (found["lambda"].base_url, found["lambda"].secret("api_key")) == ("https://cloud.lambda.ai", "k")
    assert not found["lambda"].sandbox
    assert found["vast"].sandbox


def test_half_of_a_credential_is_none() -> None:
    assert settings_from_environment(VERDA, {"BROKER_VERDA_CLIENT_ID": "id"}, None) is None


def test_a_base_url_of_its_own_is_used() -> None:
    found = settings_from_environment(LAMBDA, {"BROKER_LAMBDA_BASE_URL": "http://localhost:1/x/"}, SANDBOX)
    assert found is not None
    assert found.base_url == "http://localhost:1/x"


@pytest.mark.parametrize(
    ("base", "is_sandbox"),
    [
        ("http://127.0.0.1:9000/lambda", True),
        ("http://127.0.0.1:9000", True),
        ("http://127.0.0.1:90001/lambda", False),
        ("https://cloud.lambda.ai", False),
    ],
)
def test_a_base_url_in_the_sandbox_is_the_sandbox(base: str, is_sandbox: bool) -> None:
    environ = {"BROKER_LAMBDA_API_KEY": "k", "BROKER_LAMBDA_BASE_URL": base}
    found = settings_from_environment(LAMBDA, environ, SANDBOX)
    alone = settings_from_environment(LAMBDA, environ, None)
    assert found is not None
    assert alone is not None
    assert (found.sandbox, alone.sandbox) == (is_sandbox, False)


def test_open_feeds_are_used_only_when_wished() -> None:
    found = configured({}, keyless=True)
    assert {"runpod", "vast"} <= set(found)
    assert "lambda" not in found
    assert found["vast"].keyless
    assert found["vast"].secret("api_key") == ""


def test_options_have_defaults_and_variables() -> None:
    plain = configured({}, SANDBOX)["lambda"]
    named = configured({"BROKER_LAMBDA_SSH_KEY": "mine"}, SANDBOX)["lambda"]
    assert (plain.options["ssh_key"], named.options["ssh_key"]) == ("broker", "mine")


def test_pace_and_patience_can_be_set() -> None:
    policy = HttpPolicy(interval_s={Operation.ORDER: 12.0}, any_interval_s=1.0)
    real = {"BROKER_LAMBDA_API_KEY": "k"}
    default = settings_from_environment(LAMBDA, real, None)
    quick = settings_from_environment(
        LAMBDA, {**real, "BROKER_LAMBDA_MIN_INTERVAL_S": "0.5", "BROKER_LAMBDA_TIMEOUT_S": "2"}, None
    )
    sandbox = settings_from_environment(LAMBDA, {}, SANDBOX)
    assert default is not None
    assert quick is not None
    assert sandbox is not None
    assert default.tuned(policy) == policy
    assert quick.tuned(policy).interval_s == {Operation.ORDER: 0.5}
    assert (quick.tuned(policy).read_s, quick.tuned(policy).total_s) == (2.0, 2.0)
    assert sandbox.tuned(policy).interval_s == {Operation.ORDER: 0.0}
    assert sandbox.tuned(policy).any_interval_s == 0.0


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_a_pace_that_is_no_number_names_the_variable(text: str) -> None:
    with pytest.raises(InputError, match="BROKER_LAMBDA_MIN_INTERVAL_S"):
        configured({"BROKER_LAMBDA_MIN_INTERVAL_S": text}, SANDBOX)


def test_a_secret_does_not_show_itself() -> None:
    settings = configured({"BROKER_LAMBDA_API_KEY": "k3y"})["lambda"]
    assert "k3y" not in f"{settings!r} {settings} {Secret('k3y')}"


async def test_adapters_are_built_for_what_is_configured() -> None:
    adapters = build_adapters(configured({}, SANDBOX))
    assert {name: adapter.provider for name, adapter in adapters.items()} == {name: name for name in SPECS}
    for adapter in adapters.values():
        await adapter.aclose()


def test_an_unknown_provider_is_told_the_known_ones() -> None:
    with pytest.raises(NotFound, match="lambda"):
        find_spec("nobody")

"""Settings for commands. An error names the variable that is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import SecretStr

from api.cli.output import say
from api.given_settings import FILE, PREFIX, load_environment, read_file, read_settings
from api.schemas.base.document import describe
from broker import logs
from broker.domain.basics.errors import FieldProblem, InputError
from broker.provider_facts import load_provider_names
from broker.redaction import password_of, register_environment, register_secret
from broker.settings import Settings

GUARDS = (
    "admin_key",
    "approval_limit_usd",
    "four_eyes",
    "max_usd_per_day",
    "max_usd_per_hour",
    "orders",
    "provider_quotas",
    "sandbox_url",
    "secrets_key",
    "team_caps",
    "team_secrets",
)
"""Settings without which more may happen: a slip in such a name would leave a door open."""
NEAR, NEAR_ENOUGH_TO_REFUSE = 0.6, 0.75


STARTUP_SECRET = "secret_"  # noqa: S105  the begin of names
"""Names that begin so are secrets for the start of machines."""


def load_settings(**given: Any) -> Settings:
    """Settings from options (None: not given), then the environment, then ``broker.toml``. Raises
    InputError."""
    register_environment(load_environment())
    _require_known(read_file())
    settings = read_settings(**{name: value for name, value in given.items() if value is not None})
    logs.begin(as_json=settings.log_format == "json")
    register_settings(settings)
    return settings


def register_settings(settings: Settings) -> None:
    """Tells the log which settings are secret, so that it masks them."""
    for _, value in settings:
        if isinstance(value, SecretStr):
            secret = value.get_secret_value()
            register_secret(secret, *secret.split(","))
        elif isinstance(value, str):
            register_secret(password_of(value))


def check_variables(environment: Mapping[str, str]) -> None:
    """Warns of each BROKER_ variable that is no setting. Raises InputError for a misspelt name of GUARDS.

    The others get a line on stderr only, because orchestrators set variables of that form themselves:
    Kubernetes sets BROKER_SERVICE_HOST for a service called broker.
    """
    slips = []
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX).lower()
        if not _is_unknown(name):
            continue
        if guard := _nearest(name, GUARDS, NEAR_ENOUGH_TO_REFUSE):
            slips.append(FieldProblem(variable, "no such setting", f"{PREFIX}{guard.upper()}"))
            continue
        if name.startswith(STARTUP_SECRET):
            continue
        near = _nearest(name)
        meant = f"; is {PREFIX}{near.upper()} meant?" if near else ""
        told = f"warning: {variable} is no setting and changes nothing{meant}"
        say(told)
    if slips:
        raise InputError("environment", tuple(slips))


def _require_known(said: Mapping[str, Any]) -> None:
    """A misspelt name would silently leave the default in force."""
    problems = []
    for name in filter(_is_unknown, said):
        near = _nearest(name)
        other = "a setting, or one of a provider (broker providers list)"
        expected = f"the setting {near!r}" if near else other
        found = "a text" if isinstance(said[name], str) else describe(said[name])  # which may be a secret
        problems.append(FieldProblem(f"/{name}", found, expected))
    if problems:
        raise InputError(str(FILE), tuple(problems))


def _is_unknown(name: str) -> bool:
    of_a_provider = any(name.startswith(f"{provider}_") for provider in load_provider_names())
    is_startup_secret = name.startswith("secret_") and name != "secret_key"  # a slip of secrets_key
    return name not in Settings.model_fields and not of_a_provider and not is_startup_secret


def _nearest(
    name: str, among: Collection[str] = tuple(Settings.model_fields), cutoff: float = NEAR
) -> str | None:
    return next(iter(difflib.get_close_matches(name, among, n=1, cutoff=cutoff)), None)

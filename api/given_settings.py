"""Reads the settings of the installation; errors name the environment variable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from api.schemas.base.document import describe
from api.schemas.base.validation import expected_of
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.near_words import with_nearest
from broker.provider_facts import load_provider_names
from broker.settings import Settings, is_secret


def read_settings(**given: Any) -> Settings:
    """The settings: ``given`` before environment before ``broker.toml``. Raises InputError with every
    problem.
    """
    try:
        settings = Settings(**given)
    except ValidationError as error:
        problems = tuple(
            FieldProblem(f"BROKER_{'_'.join(map(str, row['loc'])).upper()}", _found(row), expected_of(row))
            for row in error.errors(include_url=False)
        )
        raise InputError("environment or broker.toml", problems) from None
    if strange := tuple(_unknown_quotas(settings)):
        raise InputError("environment or broker.toml", strange)
    return settings


def _unknown_quotas(settings: Settings) -> Iterator[FieldProblem]:
    """Quotas that limit nothing, as no provider has that name."""
    for name in sorted(settings.provider_quotas.keys() - load_provider_names()):
        expected = with_nearest("the key of a provider", name, load_provider_names())
        yield FieldProblem("BROKER_PROVIDER_QUOTAS", describe(name), expected)


def _found(row: ErrorDetails) -> str:
    """The value that was found; for a secret only its length."""
    value = row["input"]
    if not is_secret(str(row["loc"][0])):
        return describe(value)
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str):
        return "a value that is not text"
    around = "" if text == text.strip() else " with spaces around them"
    return f"{len(text)} characters{around}" if text else '""'

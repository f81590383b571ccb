"""Reads the settings of the installation; errors name the environment variable."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from api.schemas.base.document import describe
from api.schemas.base.validation import expected_of
from broker.domain.basics.errors import FieldProblem, InputError
from broker.settings import Settings, is_secret


def read_settings(**given: Any) -> Settings:
    """The settings: ``given`` before environment before ``broker.toml``. Raises InputError with every
    problem.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        problems = tuple(
            FieldProblem(f"BROKER_{'_'.join(map(str, row['loc'])).upper()}", _found(row), expected_of(row))
            for row in error.errors(include_url=False)
        )
        raise InputError("environment or broker.toml", problems) from None


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

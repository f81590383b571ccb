"""Reads the settings of the installation; errors name the environment variable."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from api.schemas.base.document import describe
from api.schemas.base.validation import expected_of
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.near_words import with_nearest
from broker.provider_facts import load_provider_names
from broker.settings import Settings, is_secret

FILE = Path("broker.toml")
PREFIX = "BROKER_"


def read_file() -> Mapping[str, Any]:
    """What ``broker.toml`` says; nothing where there is none. Raises InputError."""
    try:
        return tomllib.loads(FILE.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(str(FILE), (FieldProblem("", str(error), "TOML"),)) from error
    except OSError as error:
        raise InputError(str(FILE), (FieldProblem("", str(error.strerror), "a file to be read"),)) from error


def load_environment() -> Mapping[str, str]:
    """Variables of the environment, then of ``broker.toml`` (``lambda_api_key`` there is
    BROKER_LAMBDA_API_KEY). Raises InputError."""
    said = {f"{PREFIX}{name.upper()}": str(value) for name, value in read_file().items()}
    return {**said, **os.environ}


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

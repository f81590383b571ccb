"""Settings for commands: what cannot be is told by the variable's name."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from api.schemas.document import describe
from api.schemas.validation import expected_of
from broker.catalogue import load_provider_names
from broker.domain.errors import FieldProblem, InputError
from broker.settings import Settings

FILE = Path("broker.toml")


def load_settings(**given: Any) -> Settings:
    """Options that were given (None: not) over environment over ``broker.toml``; InputError."""
    _require_known(_read_file())
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = tuple(
            FieldProblem(
                f"BROKER_{'_'.join(map(str, row['loc'])).upper()}", describe(row["input"]), expected_of(row)
            )
            for row in error.errors(include_url=False)
        )
        raise InputError("environment or broker.toml", problems) from error


def load_environment() -> Mapping[str, str]:
    """The environment over ``broker.toml`` (``lambda_api_key`` is BROKER_LAMBDA_API_KEY); InputError."""
    said = {f"BROKER_{name.upper()}": str(value) for name, value in _read_file().items()}
    return {**said, **os.environ}


def _read_file() -> Mapping[str, Any]:
    try:
        return tomllib.loads(FILE.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(str(FILE), (FieldProblem("", str(error), "TOML"),)) from error
    except OSError as error:
        raise InputError(str(FILE), (FieldProblem("", str(error.strerror), "a file to be read"),)) from error


def _require_known(said: Mapping[str, Any]) -> None:
    """A slip in a name would leave the default in force, and nobody would know."""
    own, providers = set(Settings.model_fields), load_provider_names()
    problems = []
    for name, value in said.items():
        if name in own or any(name.startswith(f"{provider}_") for provider in providers):
            continue
        near = difflib.get_close_matches(name, own, n=1)
        expected = (
            f"the setting {near[0]!r}" if near else "a setting, or one of a provider (broker providers list)"
        )
        problems.append(FieldProblem(f"/{name}", describe(value), expected))
    if problems:
        raise InputError(str(FILE), tuple(problems))

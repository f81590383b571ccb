"""Settings for commands: what cannot be is told by the variable's name."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from api.cli.output import stderr
from api.schemas.document import describe
from api.schemas.validation import expected_of
from broker.catalogue import load_provider_names
from broker.domain.errors import FieldProblem, InputError
from broker.settings import Settings

FILE = Path("broker.toml")
PREFIX = "BROKER_"


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


def warn_of_unknown_variables(environment: Mapping[str, str]) -> None:
    """A line on stderr for each variable with our prefix that no setting has.

    No error: orchestrators put names of their own there (BROKER_SERVICE_HOST, for a service called broker).
    """
    said = [name.removeprefix(PREFIX).lower() for name in environment if name.startswith(PREFIX)]
    for name in filter(_is_unknown, sorted(said)):
        near = _nearest(name)
        meant = f"; is {PREFIX}{near.upper()} meant?" if near else ""
        told = f"warning: {PREFIX}{name.upper()} is no setting and changes nothing{meant}"
        stderr().print(told, markup=False, soft_wrap=True)


def _require_known(said: Mapping[str, Any]) -> None:
    """A slip in a name would leave the default in force, and nobody would know."""
    problems = []
    for name in filter(_is_unknown, said):
        near = _nearest(name)
        other = "a setting, or one of a provider (broker providers list)"
        expected = f"the setting {near!r}" if near else other
        problems.append(FieldProblem(f"/{name}", describe(said[name]), expected))
    if problems:
        raise InputError(str(FILE), tuple(problems))


def _is_unknown(name: str) -> bool:
    of_a_provider = any(name.startswith(f"{provider}_") for provider in load_provider_names())
    return name not in Settings.model_fields and not of_a_provider


def _nearest(name: str) -> str | None:
    return next(iter(difflib.get_close_matches(name, Settings.model_fields, n=1)), None)

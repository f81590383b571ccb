"""Settings for commands: what cannot be is told by the variable's name."""

from __future__ import annotations

import tomllib
from typing import Any

from pydantic import ValidationError

from api.schemas.document import describe
from broker.domain.errors import FieldProblem, InputError
from broker.settings import Settings


def load_settings(**given: Any) -> Settings:
    """Options that were given (None: not) over environment over ``broker.toml``; InputError."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = tuple(
            FieldProblem(
                f"BROKER_{'_'.join(map(str, row['loc'])).upper()}", describe(row["input"]), row["msg"]
            )
            for row in error.errors(include_url=False)
        )
        raise InputError("environment or broker.toml", problems) from error
    except tomllib.TOMLDecodeError as error:
        raise InputError("broker.toml", (FieldProblem("", str(error), "TOML"),)) from error

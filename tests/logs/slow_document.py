"""``python -m tests.logs.slow_document serve``: the command line with an API document of several seconds."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from api.cli.main import main
from api.http import openapi

DERIVATIONS = 6
build_document = openapi.build_document


def derive_often(app: FastAPI) -> dict[str, Any]:
    """As a slow machine would: the same native code runs for longer."""
    return [build_document(app) for _ in range(DERIVATIONS)][-1]


if __name__ == "__main__":
    openapi.build_document = derive_often
    main()

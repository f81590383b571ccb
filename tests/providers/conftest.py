"""A sandbox market for each module of tests, on a port of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from providers.sandbox.server import start_in_background

SEED = 11


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[str]:
    """Its address. ``SANDBOX_SEED`` of the module, where there is one, draws its stock and prices."""
    handle = start_in_background(0, getattr(request.module, "SANDBOX_SEED", SEED))
    yield handle.url
    handle.stop()

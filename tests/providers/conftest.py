"""A sandbox market for each module of tests, on a port of its own."""

from __future__ import annotations

import pytest

from providers.sandbox import SandboxHandle


@pytest.fixture(scope="module")
def sandbox(sandbox_market: SandboxHandle) -> str:
    """Its address."""
    return sandbox_market.url

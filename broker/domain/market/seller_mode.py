"""Whether a seller is real: orders at a real seller cost money, those in the sandbox market do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class SellerMode(StrEnum):
    """Where orders go: to the ``sandbox`` market, where no money moves, or to the ``real`` seller."""

    SANDBOX = "sandbox"
    REAL = "real"


Modes = Mapping[str, SellerMode]
"""The mode of each seller that the installation reaches, by provider."""


def real_sellers(modes: Modes, providers: Iterable[str]) -> tuple[str, ...]:
    """Those of ``providers`` that are not the sandbox's, sorted; one without a mode is real."""
    return tuple(sorted({name for name in providers if modes.get(name) is not SellerMode.SANDBOX}))

"""How thorough the proofs are: quick with every run of the suite, whole with ``TEST_PROFILE=nightly``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import pytest
from _pytest.mark import ParameterSet

NIGHTLY = os.environ.get("TEST_PROFILE") == "nightly"

USUAL = ("lambda", "oci", "hotaisle")
"""A seller of each class (tag, token, neither). Matrices of the others take minutes: they are ``slow``."""


def matrix(sellers: Iterable[str], usual: Sequence[str] = USUAL) -> list[ParameterSet]:
    """Sellers as parameters of a matrix; only ``usual`` ones run with every run of the tests."""
    return [pytest.param(s, marks=() if NIGHTLY or s in usual else pytest.mark.slow) for s in sellers]

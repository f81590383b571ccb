"""How thorough the proofs are: quick with every run of the suite, whole with ``TEST_PROFILE=nightly``."""

from __future__ import annotations

import os

NIGHTLY = os.environ.get("TEST_PROFILE") == "nightly"

"""Inner loops over small arrays, compiled by Numba when first called and kept on disk.

Functions marked so take and return arrays and numbers only. They call each other across modules, and Numba
looks at a function's own file alone to see whether what it kept is still right. So what is kept lies in a
folder that is named after all of these sources: where ``NUMBA_CACHE_DIR`` says, in ``__pycache__`` beside
them, or in the user's cache folder where that cannot be written.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

HERE = Path(__file__).parent.parent
PREFIX = "compiled-"
MARK = b"@compiled"
ALL, LOCK = "all-compiled", "lock"

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function as machine code: the same result for the same arguments."""
    config = cast("Any", numba.config)
    before, config.CACHE_DIR = config.CACHE_DIR, str(kept_in())
    try:
        return cast("Function", numba.njit(cache=True, nogil=True)(function))
    finally:
        config.CACHE_DIR = before


@cache
def kept_in() -> Path:
    """The folder for what today's sources become."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(given) if given else HERE / "__pycache__"
    if not given and not os.access(base if base.exists() else HERE, os.W_OK):
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "broker"
    return base / (PREFIX + fingerprint(HERE))


def fingerprint(folder: Path) -> str:
    """Of all sources in a folder that have compiled functions."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        if MARK in source:
            found.update(path.name.encode() + b"\0" + source)
    return found.hexdigest()[:16]


def is_complete() -> bool:
    """Whether all that plans call has been compiled and kept."""
    return (kept_in() / ALL).exists()


def mark_complete() -> None:
    """Leaves the mark that all has been compiled."""
    kept_in().mkdir(parents=True, exist_ok=True)
    (kept_in() / ALL).touch()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Lets one process compile; others wait, and find what it kept."""
    kept_in().mkdir(parents=True, exist_ok=True)
    with (kept_in() / LOCK).open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        yield


def forget_others() -> None:
    """Removes what other sources became."""
    for other in kept_in().parent.glob(PREFIX + "*"):
        if other != kept_in():
            shutil.rmtree(other, ignore_errors=True)

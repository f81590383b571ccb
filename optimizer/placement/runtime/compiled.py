"""Inner loops over small arrays, compiled by Numba on first call and cached on disk.

Compiled functions take and return arrays and numbers only. They call each other across modules, but Numba
invalidates its cache by a function's own file alone. So the cache folder is named by a hash of all compiled
modules and of the tuned numbers, which they read as constants. It lies where ``NUMBA_CACHE_DIR`` says, in
``__pycache__`` next to the modules, or in the user's cache folder if that is not writable.
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

from optimizer.placement.runtime.tuning import CONFIG

HERE = Path(__file__).parent.parent
PREFIX = "compiled-"
MARK = b"@compiled"
ALL, LOCK = "all-compiled", "lock"

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles a function to machine code with the same results."""
    config = cast("Any", numba.config)
    before, config.CACHE_DIR = config.CACHE_DIR, str(kept_in())
    try:
        return cast("Function", numba.njit(cache=True, nogil=True)(function))
    finally:
        config.CACHE_DIR = before


@cache
def kept_in() -> Path:
    """The cache folder of the present sources."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(given) if given else HERE / "__pycache__"
    if not given and not os.access(base if base.exists() else HERE, os.W_OK):
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "broker"
    return base / (PREFIX + fingerprint(HERE))


def fingerprint(folder: Path) -> str:
    """A hash of the tuned numbers and of all sources in a folder that contain compiled functions."""
    found = hashlib.sha256(CONFIG.read_bytes())
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        if MARK in source:
            found.update(path.name.encode() + b"\0" + source)
    return found.hexdigest()[:16]


def is_complete() -> bool:
    """Whether everything that plans call has been compiled and cached."""
    return (kept_in() / ALL).exists()


def mark_complete() -> None:
    """Records that everything has been compiled."""
    kept_in().mkdir(parents=True, exist_ok=True)
    (kept_in() / ALL).touch()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """A lock between processes: one compiles while the others wait and then find the result."""
    kept_in().mkdir(parents=True, exist_ok=True)
    with (kept_in() / LOCK).open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        yield


def forget_others() -> None:
    """Removes the caches of other versions of the sources."""
    for other in kept_in().parent.glob(PREFIX + "*"):
        if other != kept_in():
            shutil.rmtree(other, ignore_errors=True)

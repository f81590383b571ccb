"""Inner loops over small arrays, compiled by Numba when first called and kept on disk.

Functions marked so take and return arrays and numbers only. What is compiled lies in ``__pycache__`` beside
the module, or in the user's cache folder where that cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function as machine code: the same result for the same arguments."""
    return cast("Function", numba.njit(cache=True, nogil=True)(function))

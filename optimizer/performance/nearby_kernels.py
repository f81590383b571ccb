"""Hyper-parameters of the shift by nearby rows: ``config/performance_nearby.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import date
from functools import cache

from optimizer.performance.calibration import CONFIG
from optimizer.performance.measured import data_sha256
from optimizer.performance.nearby import Kernel

KERNELS = CONFIG.with_name("performance_nearby.toml")
DIGITS = 3


@cache
def load_kernels() -> Mapping[str, Kernel]:
    """The kernel of each block of metrics."""
    data = tomllib.loads(KERNELS.read_text())
    return {
        name: Kernel(
            float(entry["variance"]), float(entry["noise"]), dict(entry["lengths"]), float(entry["narrowing"])
        )
        for name, entry in data["kernels"].items()
    }


def kernels_sha256() -> str:
    """The fingerprint of the data that the kernels were fitted to."""
    return str(tomllib.loads(KERNELS.read_text())["data_sha256"])


def save_kernels(kernels: Mapping[str, Kernel], on: date) -> None:
    """Writes the file that ``load_kernels`` reads."""
    lines = [
        "# Written by `broker perf fit`: how far a measured row shifts predictions (nearby.py). Chosen by",
        "# leave-group-out likelihood on fixtures/performance. Variances of natural logs; lengths: distance",
        "# of two rows that differ in a word, or by one doubling of a number. Not edited by hand.",
        f'data_sha256 = "{data_sha256()}"',
        f"fitted_on = {on.isoformat()}",
        'command = "broker perf fit"',
    ]
    for block, kernel in kernels.items():
        lines += ["", f"[kernels.{block}]", f"variance = {_short(kernel.variance)}"]
        lines += [f"noise = {_short(kernel.noise)}", f"narrowing = {_short(kernel.narrowing)}"]
        lines += [f"lengths = {_inline(kernel.lengths)}"]
    KERNELS.write_text("\n".join(lines) + "\n")
    load_kernels.cache_clear()


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS - 1}e}")


def _inline(lengths: Mapping[str, float]) -> str:
    return "{ " + ", ".join(f"{name} = {_short(length)}" for name, length in lengths.items()) + " }"

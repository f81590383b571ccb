"""80 % intervals of sources that they were not made of: ``python -m tests.bench.interval_sources``.

Every half-width is made again without each of its sources, from the other sources' held-out errors, and the
rows of that source are looked for inside it. Sources without another in their regime are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.table_constants import other_sources
from optimizer.performance.constants.calibrated import load_calibration
from tests.bench.calibration.bundled import BESIDE, FOLDER, beside_rows, bundled_rows, table_rows
from tests.bench.calibration.fitted_store import (
    ENOUGH,
    half_width,
    interval_samples,
    pooled,
    regime_path,
)

Sample = tuple[str, float]


def main() -> int:
    """Prints the table."""
    fitted, beside = bundled_rows(), beside_rows()
    samples = interval_samples(fitted + beside, load_calibration(), load_gpus(), load_models())
    told = {row["source"] for name in BESIDE for row in table_rows(FOLDER / name)}
    shown = Table("half-width", "sources", "rows", "± of all", "± least", "± most", "inside, %")
    every: list[tuple[str, float, int]] = []
    for path, found in pooled(samples).items():
        regime = samples.get(regime_path(path), found)
        left = list(_left_out(found, regime))
        if not left:
            continue
        every += [(source, share, rows) for source, rows, _, share in left]
        widths = [width for _, _, width, _ in left]
        shown.add_row(
            path.removeprefix("intervals."),
            str(len(left)),
            str(sum(rows for _, rows, _, _ in left)),
            f"{half_width(found, regime):.2f}",
            f"{min(widths):.2f}",
            f"{max(widths):.2f}",
            f"{_mean([(share, rows) for _, rows, _, share in left]):.0f}",
        )
    out = Console(width=110)
    out.print(shown)
    kinds = (
        ("all sources", every),
        ("sources of the fits", [e for e in every if e[0] not in told]),
        ("sources in no fit", [e for e in every if e[0] in told]),
    )
    for kind, part in kinds:
        mean = _mean([(share, rows) for _, share, rows in part])
        out.print(f"{kind}: {len(part)} pairs of half-width and source, {mean:.0f} % inside")
    return 0


def _left_out(samples: Sequence[Sample], regime: Sequence[Sample]) -> Iterator[tuple[str, int, float, float]]:
    """Each source, its rows, the half-width without it, and the share of its rows inside."""
    for source in sorted({source for source, _ in samples} - other_sources()):
        rest = [sample for sample in samples if sample[0] != source]
        if len(rest) < ENOUGH:
            continue
        sizes = np.asarray([size for found, size in samples if found == source])
        width = half_width(rest, [sample for sample in regime if sample[0] != source])
        yield source, sizes.size, width, float(np.mean(sizes <= np.log1p(width)))


def _mean(shares: Sequence[tuple[float, int]]) -> float:
    """Percent, a source counting as the root of its rows."""
    return 100.0 * float(
        np.average([share for share, _ in shares], weights=[rows**0.5 for _, rows in shares])
    )


if __name__ == "__main__":
    sys.exit(main())

"""Services with several request sizes: every replica serves them in the same proportions.

A replica that serves r_i requests/s of size i alone is busy for s_i/r_i seconds with the share s_i of one
request. Loads add up, as in Mélange (arXiv 2404.14527), so the rate of the mix is

  1 / Σ_i s_i/r_i

The objective holds if it holds for each size; latencies are those of the slowest size. W workloads, S SKUs, C
configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from broker.domain.basics.estimate import Estimate, Parallelism, Provenance
from broker.domain.market.sku import Sku
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Batch, Serving
from optimizer.performance.arrays import Array, Mask
from optimizer.performance.serving.estimate import ServingConfig, ServingCore
from optimizer.performance.serving.table import ServingTable

Part = tuple[float, Serving | Batch]
LEAST_SURE = (Provenance.MODELLED, Provenance.CALIBRATED, Provenance.MEASURED)


def is_mixed(workload: Serving | Batch) -> bool:
    """Whether requests have several sizes."""
    return isinstance(workload, Serving) and bool(workload.traffic.mix)


def parts_of(workload: Serving | Batch) -> tuple[Part, ...]:
    """The workload with each of its sizes alone, and their shares."""
    if not isinstance(workload, Serving) or not workload.traffic.mix:
        return ((1.0, workload),)
    traffic = workload.traffic
    return tuple(
        (
            size.share,
            replace(
                workload,
                traffic=replace(
                    traffic, input_tokens=size.input_tokens, output_tokens=size.output_tokens, mix=()
                ),
            ),
        )
        for size in traffic.mix
    )


class MixedTable(ServingTable):
    """A serving table for workloads with several request sizes, built on a table with one row for each
    size.
    """

    def __init__(self, core: ServingCore, workloads: Sequence[Serving | Batch], skus: Sequence[Sku]) -> None:
        self._parts = [parts_of(workload) for workload in workloads]
        self._first = np.cumsum([0, *(len(parts) for parts in self._parts)])
        self._table = ServingTable(core, [one for parts in self._parts for _, one in parts], skus)
        self.configs: tuple[ServingConfig, ...] = self._table.configs
        rows = [self._rows(w) for w in range(len(workloads))]
        starts = self._table.cold_start_s
        empty = np.zeros((0, *starts.shape[1:]))

        def together(rates: Array) -> Array:
            each = [self._together(rates[mine], w) for w, mine in enumerate(rows)]
            return np.stack(each) if each else empty

        self.requests_per_s: Array = together(self._table.requests_per_s)
        self.median_requests_per_s: Array = together(self._table.median_requests_per_s)
        self.low_requests_per_s: Array = together(self._table.low_requests_per_s)
        self.cold_start_s: Array = np.stack([starts[mine].max(axis=0) for mine in rows]) if rows else empty
        self.mean_share: Array = (
            np.stack([self._table.mean_share[mine][0] for mine in rows]) if rows else np.ones_like(empty)
        )
        self.fits: Mask = self.requests_per_s > 0
        self._without_room: Mask = np.zeros(self.fits.shape[:2], dtype=np.bool_)

    def _rows(self, w: int) -> slice:
        return slice(int(self._first[w]), int(self._first[w + 1]))

    def _together(self, rates: Array, w: int) -> Array:
        """Requests/s of the mix [S, C] from those of each size alone; 0 if one of them is not served."""
        shares = np.array([share for share, _ in self._parts[w]])[:, None, None]
        with np.errstate(divide="ignore"):
            found: Array = 1.0 / (shares / rates).sum(axis=0) if len(shares) > 1 else rates[0]
        return found

    @property
    def candidates(self) -> NDArray[np.int64]:
        """Number of configurations [W, S] that were compared."""
        tried = [self._table.candidates[self._rows(w)].sum(axis=0) for w in range(len(self._parts))]
        return np.array(tried, dtype=np.int64)

    def layout(self, w: int, s: int, c: int) -> Parallelism:
        """The parallel degrees of configuration ``c``, equal for every workload and SKU."""
        return self._table.layout(w, s, c)

    def estimate(self, w: int, s: int, c: int, usd_per_replica_hour: float) -> Estimate:
        """The contract's metrics with their intervals. Raises ValueError if the configuration does not
        fit.
        """
        rows = range(int(self._first[w]), int(self._first[w + 1]))
        found = [self._table.estimate(row, s, c, usd_per_replica_hour) for row in rows]
        return mixed_estimate(self._parts[w], found)

    def bottleneck(self, w: int, s: int, c: int) -> str:
        """What limits the rate of the size that takes most of a replica's time."""
        first = int(self._first[w])
        time = [
            share / self._table.requests_per_s[first + i, s, c] for i, (share, _) in enumerate(self._parts[w])
        ]
        return self._table.bottleneck(first + int(np.argmax(time)), s, c)

    def obstacle(self, w: int, s: int) -> Obstacle | None:
        """Why no configuration fits, for the first size without one; None if one fits all."""
        if bool(self.fits[w, s].any()):
            return None
        if self._without_room[w, s]:
            return Obstacle.DISK
        rows = range(int(self._first[w]), int(self._first[w + 1]))
        found = [obstacle for row in rows if (obstacle := self._table.obstacle(row, s)) is not None]
        return found[0] if found else Obstacle.LATENCY


def mixed_estimate(parts: Sequence[Part], found: Sequence[Estimate]) -> Estimate:
    """Combines the estimates of each size."""
    if len(found) == 1:
        return found[0]
    sure = [one.at_confidence for one in found]
    return Estimate(
        _mixed(parts, [one.value for one in found]),
        _mixed(parts, [one.low for one in found]),
        _mixed(parts, [one.high for one in found]),
        min((one.provenance for one in found), key=LEAST_SURE.index),
        _worst(parts, sure) if all(sure) else {},
    )


def _mixed(parts: Sequence[Part], metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    tokens = [share * one.traffic.output_tokens for share, one in parts if isinstance(one, Serving)]
    usd = sum(part * one["usd_per_million_tokens"] for part, one in zip(tokens, metrics, strict=True))
    worst = _worst(parts, metrics)
    return worst | {
        "tokens_per_s": worst["requests_per_s_per_replica"] * sum(tokens),
        "usd_per_million_tokens": usd / sum(tokens),
    }


def _worst(parts: Sequence[Part], metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The rate of the mix, and all other metrics of the size that is worst in each."""
    rate = 1.0 / sum(
        share / one["requests_per_s_per_replica"] for (share, _), one in zip(parts, metrics, strict=True)
    )
    over: Mapping[str, Callable[[Sequence[float]], float]] = {"kv_tokens": min}
    names = dict.fromkeys(name for one in metrics for name in one)
    worst = {name: over.get(name, max)([one[name] for one in metrics if name in one]) for name in names}
    return worst | {"requests_per_s_per_replica": rate}

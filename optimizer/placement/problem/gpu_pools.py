"""Offers of one seller that are cut from the same GPUs: nodes taken from one reduce the others.

O offers, P pools that are shared by more than one offer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broker.domain.market.offer import Offer, fewest_gpus
from broker.domain.planning.assumed_stock import most_gpus

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class GpuPools:
    """``of`` [O]: pool of each offer, -1 for none; ``gpus`` [P]: GPUs in each pool; ``members``: offers of
    each pool.
    """

    of: Ints
    gpus: Ints
    members: tuple[Ints, ...]

    def reach(self, offer: int) -> tuple[int, ...]:
        """The offer and all others that are cut from the same GPUs."""
        pool = int(self.of[offer])
        return (offer,) if pool < 0 else tuple(int(member) for member in self.members[pool])

    def left(self, free_nodes: Ints, gpus_per_node: Ints) -> Ints:
        """GPUs [P] left in each pool, given the free nodes of each offer [O]."""
        mine = (free_nodes[members] * gpus_per_node[members] for members in self.members)
        return np.array([int(gpus.max()) for gpus in mine], dtype=np.int64)


def build_pools(offers: Sequence[Offer], assumed_nodes: int) -> GpuPools:
    """The pools that several offers share. If these disagree on a pool's GPUs, the fewest count; if none
    says, an assumption does.
    """
    members: defaultdict[str, list[int]] = defaultdict(list)
    said: defaultdict[str, list[int | None]] = defaultdict(list)
    for index, offer in enumerate(offers):
        pool = offer.stock.pool
        if pool is not None:
            members[pool.pool_id].append(index)
            said[pool.pool_id].append(pool.gpus)
    shared = [pool_id for pool_id in sorted(members) if len(members[pool_id]) > 1]
    gpus = []
    for pool_id in shared:
        known = fewest_gpus(said[pool_id])
        sizes = list({offers[index].offer_id: offers[index] for index in members[pool_id]}.values())
        gpus.append(most_gpus(sizes, assumed_nodes) if known is None else known)
    of = np.full(len(offers), -1, dtype=np.int64)
    for number, pool_id in enumerate(shared):
        of[members[pool_id]] = number
    return GpuPools(
        of,
        np.array(gpus, dtype=np.int64),
        tuple(np.array(members[pool_id], dtype=np.int64) for pool_id in shared),
    )


def no_pools(offers: int) -> GpuPools:
    """No two of ``offers`` offers share GPUs."""
    return GpuPools(np.full(offers, -1, dtype=np.int64), np.zeros(0, dtype=np.int64), ())

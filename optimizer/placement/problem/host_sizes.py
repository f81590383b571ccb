"""Sizes of offers whose disk or memory the buyer chooses.

Each offer becomes a row for each size that a workload of the document needs of it: the smallest amounts
that suffice, rounded up to a round number, since fewer sizes are fewer rows. The rows of one offer share its
stock, and a workload uses the cheapest sufficient row for each of its needs (``host_room.rows_for``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from broker.domain.market.offer import GpuPool, Offer
from broker.domain.market.sku import Sku, SoldAmount
from broker.domain.planning.workload import Training, Workload
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.host_needs import HostNeeds, serving_needs, training_needs

NODE_COUNTS = tuple(sorted(base << power for base in (1, 3) for power in range(10)))
WEIGHT_BYTES = 2
"""Of a parameter in training, at least."""
Size = tuple[float | None, float | None]
DEFAULT: Size = (None, None)


def with_sizes(workloads: Sequence[Workload], offers: Iterable[Offer]) -> Iterator[Offer]:
    """``offers`` with a row for each size that some of ``workloads`` needs."""
    for offer in offers:
        if offer.window is not None or (offer.disk is None and offer.memory is None):
            yield offer
        else:
            sizes = _sizes_of(offer.sized(*DEFAULT), workloads)
            pooled = _in_own_pool(offer) if len(sizes) > 1 else offer
            yield from (pooled.sized(*size) for size in sizes)


def _sizes_of(offer: Offer, workloads: Sequence[Workload]) -> list[Size]:
    """The sizes that workloads need; the default where one needs no more, or no size suffices for it."""
    found: dict[Size, None] = {}
    for workload in workloads:
        needs = needs_of(workload, offer.sku, offer.max_nodes_in_one_run)
        sizes = [size for need in needs if (size := _size(offer, need)) is not None]
        found |= dict.fromkeys(sizes or [DEFAULT])
    return sorted(found, key=lambda size: (size[0] or 0.0, size[1] or 0.0)) or [DEFAULT]


def needs_of(workload: Workload, sku: Sku, joined: int) -> list[HostNeeds]:
    """The needs of a node at each number format or node count at which its GPUs could hold the model."""
    calibration, gpus = load_calibration(), sku.gpus_per_node
    if isinstance(workload, Training):
        weights_gb = WEIGHT_BYTES * workload.model.total_params / 1e9
        able = [n for n in NODE_COUNTS if n <= joined and weights_gb <= n * gpus * sku.gpu_memory_gb]
        return [training_needs(workload, n, gpus, calibration) for n in able]
    most = joined * gpus * sku.gpu_memory_gb + calibration.host.image_gb
    each = [serving_needs(workload.model, p, gpus, calibration) for p in workload.precisions]
    return [needs for needs in each if needs.disk_gb <= most]


def _size(offer: Offer, needs: HostNeeds) -> Size | None:
    """What to order for ``needs`` beyond the default; None if no amount on sale suffices."""
    disk = _amount(offer.disk, offer.sku.disk_gb, needs.disk_gb)
    memory = _amount(offer.memory, offer.sku.memory_gb, needs.memory_gb)
    return None if math.inf in (disk, memory) else (disk, memory)


def _amount(sold: SoldAmount | None, has: float | None, needs: float) -> float | None:
    """The amount to order; None: the default suffices; inf: no amount does."""
    if has is None or has >= needs:
        return None
    if sold is None:
        return math.inf
    least = sold.least(rounded_up(needs))
    least = sold.least(needs) if least is None else least
    return math.inf if least is None else least


def rounded_up(gb: float) -> float:
    """The next round amount: about eight steps for each power of ten."""
    unit = 10.0 ** math.floor(math.log10(max(gb, 10.0)))
    step = unit * (0.1 if gb <= 2 * unit else 0.25 if gb <= 5 * unit else 0.5)
    return math.ceil(gb / max(step, 10.0) - 1e-9) * max(step, 10.0)


def _in_own_pool(offer: Offer) -> Offer:
    """The offer in a pool, its own if it shares its GPUs with no other offer: its sizes share them."""
    if offer.stock.pool is not None:
        return offer
    nodes = offer.stock.nodes
    pool = GpuPool(offer.offer_id, None if nodes is None else nodes * offer.sku.gpus_per_node)
    return replace(offer, stock=replace(offer.stock, pool=pool))

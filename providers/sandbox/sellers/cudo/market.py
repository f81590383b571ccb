"""What CUDO sells in the sandbox: GPUs of machine types by data centre, with their cores and memory.

The catalogue recorded whole sizes. Two sizes of one machine type tell what a GPU costs and what a core with
two GiB costs, exactly; that half of the latter is for the core is the sandbox's own, as are disk and
addresses. Sizes with two GiB a core therefore add up to what was recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from providers.sandbox.market import (
    ILLUSTRATIVE,
    InventoryItem,
    Recorded,
    draw_count,
    drawn_once,
    recorded_prices,
)

STORAGE_GIB_USD, IPV4_USD = Decimal("0.00013"), Decimal("0.0056")
_SIZE = re.compile(r"(?P<type>.+)_(?P<gpus>\d+)x(?P<vcpus>\d+)v(?P<gib>\d+)gb")
_MODELS = {
    "A100-PCIe-80GB": "A100 80GB PCIe",
    "A40": "A40 (compute mode)",
    "H100-SXM-80GB": "H100 SXM",
    "L40S": "L40S (graphics mode)",
    "RTX-A6000": "RTX A6000",
}
_CPUS = {"epyc-genoa": "EPYC-Genoa", "sapphire-rapids": "SapphireRapids"}
_ODD = (
    ("epyc-milan", "gb-bournemouth-1", "", "0", 64),
    ("epyc-genoa-q9000", "us-carlsbad-1", "Q9000 PCIe", "1.11", 8),
    ("epyc-genoa-l40s-compute", "us-carlsbad-1", "L40S (compute mode)", "0", 8),
    ("sapphire-rapids-h100", "us-santaclara-1", "H100 SXM", "2.25", 0),
)
"""Machine type, data centre, model, USD of a GPU, stock: no GPU, an unknown one, no price, none left."""


@drawn_once
def cudo_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item for each machine type and data centre; its units are GPUs (cores where there are none)."""
    sizes: dict[tuple[str, str], list[tuple[Mapping[str, str], Recorded]]] = {}
    for row in recorded_prices("cudo"):
        found = _SIZE.fullmatch(row.sku)
        if found is not None:
            sizes.setdefault((found["type"], row.region), []).append((found.groupdict(), row))
    for (kind, region), rows in sizes.items():
        gpu_usd, core_usd = _parts(rows)
        newest = max((row for _, row in rows), key=lambda row: row.recorded_on)
        source = f"a GPU's share of {len(rows)} recorded sizes; {newest.source}"
        gpus = draw_count(6, 40, seed, kind, region)
        yield _item(kind, region, _MODELS[newest.gpu], (gpu_usd, core_usd), gpus, newest.recorded_on, source)
    for kind, region, model, usd, gpus in _ODD:
        yield _item(kind, region, model, (Decimal(usd), Decimal("0.0112")), gpus, "", ILLUSTRATIVE)


def _parts(rows: list[tuple[Mapping[str, str], Recorded]]) -> tuple[Decimal, Decimal]:
    """USD of a GPU, and of a core with two GiB, by two sizes that differ in cores per GPU."""
    ordered = sorted(rows, key=lambda pair: int(pair[0]["vcpus"]) / int(pair[0]["gpus"]))
    (small, low), (large, high) = ordered[0], ordered[-1]
    count, more = int(small["gpus"]), int(large["gpus"])
    per_gpu = high.usd_per_node_hour / more - low.usd_per_node_hour / count
    core_usd = per_gpu / (Decimal(large["vcpus"]) / more - Decimal(small["vcpus"]) / count)
    return low.usd_per_node_hour / count - core_usd * int(small["vcpus"]) / count, core_usd


def _item(
    kind: str,
    region: str,
    model: str,
    usd: tuple[Decimal, Decimal],
    units: int,
    recorded_on: str,
    source: str,
) -> InventoryItem:
    gpu_usd, core_usd = usd
    cpu = next((name for word, name in _CPUS.items() if kind.startswith(word)), "Icelake-Server")
    labels: dict[str, Any] = {"cpu": cpu, "vcpu_usd": core_usd / 2, "memory_usd": core_usd / 4}
    return InventoryItem(
        provider="cudo",
        sku=kind,
        region=region,
        gpu=model or "no GPU",
        gpus=1 if model else 0,
        usd_per_hour=gpu_usd,
        capacity=units,
        recorded_on=recorded_on,
        source=source,
        price_key=f"cudo|{kind}|{region}",
        unit="gpu" if model else "node",
        labels=labels,
    )

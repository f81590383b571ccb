"""What Vast.ai sells in the sandbox: slices of machines, one offer each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from providers.sandbox.market import (
    InventoryItem,
    Recorded,
    draw,
    drawn_once,
    recorded_item,
    recorded_prices,
)

_NAMES = {"A100-PCIe": "A100 PCIE", "A100-SXM": "A100 SXM4", "H100-SXM": "H100 SXM", "B200-SXM": "B200"}


@dataclass(frozen=True, slots=True)
class _Odd:
    name: str
    gpus: int
    geolocation: str
    usd: str
    cpu_cores: int | None = 16
    rented: bool = False
    verified: bool = True
    cuda: float = 12.8
    ports: int = 250


_ODD_OFFERS = (
    _Odd("", 0, "Sweden, SE", "0.05"),
    _Odd("Q9000 XT", 2, "Ontario, CA", "0.75"),
    _Odd("RTX 4090", 1, "Quebec, CA", "0"),
    _Odd("RTX 4090", 4, "Spain, ES", "1.52", rented=True),
    _Odd("RTX 4090", 1, "Poland, PL", "0.35", cpu_cores=None, verified=False),
    _Odd("RTX 4090", 1, "Norway, NO", "0.21", cuda=12.2),
    _Odd("RTX 4090", 1, "Czechia, CZ", "0.22", ports=0),
)
"""A CPU-only machine, an unknown GPU, a price of zero, a rented machine, one without a core count, an old
driver, a host without open ports."""


@drawn_once
def vast_inventory(seed: int) -> list[InventoryItem]:
    """An item per recorded offer; offers of one GPU and place lie on one machine."""
    rows = recorded_prices("vast")
    bids = {_offer_name(row.sku): row for row in rows if row.tier == "spot"}
    on_demand = [row for row in rows if row.tier == "on_demand"]
    machines: dict[tuple[str, str], int] = {}
    for row in on_demand:
        if not row.sku.startswith("offer"):
            place = (row.gpu, row.region)
            machines[place] = max(machines.get(place, 0), row.gpus)
    items = [_item(seed, row, machines, bids.get(_offer_name(row.sku))) for row in on_demand]
    return items + [_odd_item(odd, number) for number, odd in enumerate(_ODD_OFFERS)]


def _offer_name(sku: str) -> str:
    return sku.removesuffix(" (min_bid)")


def _item(
    seed: int, row: Recorded, machines: Mapping[tuple[str, str], int], bid: Recorded | None
) -> InventoryItem:
    alone = row.sku.startswith("offer")
    machine_gpus = row.gpus if alone else machines[row.gpu, row.region]
    machine = f"{row.sku}|{row.region}" if alone else f"{row.gpu}|{row.region}"
    name = _gpu_name(row)
    offer_id = int(row.sku.split()[1]) if alone else _number("offer", row.sku, row.region)
    return recorded_item(
        row,
        _geolocation(row.region),
        1,
        sku=f"{row.gpus}x {name}",
        zone=str(offer_id),
        tier="on_demand",
        price_key=f"vast|{offer_id}",
        aliases=frozenset({name, str(offer_id)}),
        labels={
            "gpu_name": name,
            "machine": _number("machine", machine),
            "machine_gpus": machine_gpus,
            "bid": None if bid is None else str(bid.usd_per_node_hour),
            "datacenter": draw(seed, machine, "hosting") < 0.6,
            "reliability": round(0.95 + 0.0499 * draw(seed, machine, "reliability"), 4),
            "rented": False,
            "verified": True,
            "cuda": 12.8,
            "ports": 250,
        },
    )


def _odd_item(odd: _Odd, number: int) -> InventoryItem:
    offer_id = 90_000_000 + number
    return InventoryItem(
        provider="vast",
        sku=f"{odd.gpus}x {odd.name}",
        region=odd.geolocation,
        zone=str(offer_id),
        gpu=odd.name,
        gpus=odd.gpus,
        usd_per_hour=Decimal(odd.usd),
        capacity=1,
        price_key=f"vast|{offer_id}",
        gpu_memory_gb=24 if odd.gpus else 0,
        vcpus=odd.cpu_cores,
        memory_gb=64,
        aliases=frozenset({str(offer_id)}),
        labels={
            "gpu_name": odd.name,
            "machine": 990_000 + number,
            "machine_gpus": odd.gpus,
            "bid": None,
            "datacenter": False,
            "reliability": 0.97,
            "rented": odd.rented,
            "verified": odd.verified,
            "cuda": odd.cuda,
            "ports": odd.ports,
        },
    )


def _gpu_name(row: Recorded) -> str:
    """The wire's name: spaces, the form factor spelled as Vast does."""
    catalogue = re.fullmatch(r"\d+x-(.+)-\d+-\d+", row.sku)
    if catalogue:
        return catalogue[1].replace("_", " ")
    form = row.gpu.rsplit("-", 1)[0]
    return _NAMES.get(form, form.replace("-", " ").removesuffix(" SXM"))


def _geolocation(region: str) -> str:
    """Place and country; the catalogue's continent is not on the wire."""
    parts = region.split(", ")
    return ", ".join(parts[:-1]) if parts[-1] in {"NA", "EU", "AS", "OC", "SA", "AF"} else region


def _number(*parts: str) -> int:
    digest = hashlib.sha256("|".join(parts).encode()).digest()
    return 20_000_000 + int.from_bytes(digest[:4], "big") % 20_000_000

"""What TensorDock sells in the sandbox: GPUs of single hosts. No price of it was recorded: all are
illustrative.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from providers.sandbox.market import InventoryItem, draw, draw_count, drawn_once

HOSTS_PER_TYPE = 3
_PLACES = (
    ("Ashburn", "VA", "USA"),
    ("New York City", "NY", "USA"),
    ("Chubbuck", "ID", "USA"),
    ("Dallas", "TX", "USA"),
    ("Winnipeg", "MB", "Canada"),
    ("Frankfurt", "HE", "Germany"),
    ("Manchester", "ENG", "United Kingdom"),
    ("Warsaw", "MZ", "Poland"),
    ("Stockholm", "", "Sweden"),
    ("Mumbai", "MH", "India"),
    ("Osaka", "", "Japan"),
)
_TYPES = (
    ("geforcertx3090-pcie-24gb", "GeForce RTX 3090", "0.20", 8),
    ("geforcertx4090-pcie-24gb", "GeForce RTX 4090", "0.37", 8),
    ("geforcertx5090-pcie-32gb", "GeForce RTX 5090", "0.55", 8),
    ("rtxa6000-pcie-48gb", "RTX A6000", "0.45", 8),
    ("rtx6000ada-pcie-48gb", "RTX 6000 Ada", "0.75", 8),
    ("l40s-pcie-48gb", "L40S", "0.80", 8),
    ("a100-pcie-80gb", "A100 PCIe", "1.10", 8),
    ("a100-sxm4-80gb", "A100 SXM4", "1.50", 8),
    ("h100-sxm5-80gb", "H100 SXM5", "2.25", 8),
)
_ODD = (
    ("q9000-pcie-64gb", "Q9000", "1.00", 2),
    ("l40s-pcie-48gb", "L40S", "0", 2),
    ("h100-pcie-80gb", "H100 PCIe", "1.90", 0),
)
"""Type, name, USD, GPUs: an unknown GPU, no price, none left."""


@drawn_once
def tensordock_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item for each host: one type of GPU, at a price that its owner chose within 15 % of the type's."""
    for index, place in enumerate(_PLACES):
        for word, name, usd, most in _TYPES:
            for number in range(HOSTS_PER_TYPE):
                lot = (seed, word, place[0], number)
                if draw(*lot, "host") < 0.6:
                    price = Decimal(usd) * Decimal(85 + draw_count(0, 30, *lot, "price")) / 100
                    kind = (word, name, price.quantize(Decimal("0.001")))
                    host = f"host-{index:02d}-{number}-{word}"
                    yield _item(seed, host, place, kind, draw_count(1, most, *lot))
    for word, name, usd, gpus in _ODD:
        yield _item(seed, f"host-odd-{word}", _PLACES[0], (word, name, Decimal(usd)), gpus)


def _item(
    seed: int, host: str, place: tuple[str, str, str], kind: tuple[str, str, Decimal], gpus: int
) -> InventoryItem:
    word, name, usd = kind
    labels: dict[str, Any] = {
        "place": place,
        "name": name,
        "per_gpu": (16, 64 if usd < 1 else 192),
        "parts": (Decimal("0.003"), Decimal("0.002"), Decimal("0.00005")),
        "address": draw(seed, host, "address") < 0.7,
        "owner": f"Sandbox Hosting {draw_count(1, 9, seed, host, 'owner')}",
    }
    return InventoryItem(
        provider="tensordock",
        sku=word,
        region=place[0],
        zone=host,
        gpu=name,
        gpus=1,
        usd_per_hour=usd,
        capacity=gpus,
        price_key=f"tensordock|{host}",
        unit="gpu",
        places=frozenset({place[2]}),
        labels=labels,
    )

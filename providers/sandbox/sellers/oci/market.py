"""What OCI sells in the sandbox: shapes by availability domain, and the parts of its price list.

Prices per GPU-hour and part numbers: Oracle's public price list of 2026-08-14 (recorded by
getcomputable/gpu-index, ``oracle/products_usd.json``), which is the same for every region. Which domains
have a shape, and how many, is drawn by seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from providers.sandbox.market import (
    ILLUSTRATIVE,
    InventoryItem,
    Recorded,
    draw,
    draw_count,
    drawn_once,
    recorded_item,
    recorded_prices,
)

DOMAINS = {
    "us-ashburn-1": ("US-ASHBURN-AD-1", "US-ASHBURN-AD-2", "US-ASHBURN-AD-3"),
    "us-phoenix-1": ("PHX-AD-1", "PHX-AD-2", "PHX-AD-3"),
    "us-chicago-1": ("US-CHICAGO-1-AD-1",),
    "us-sanjose-1": ("US-SANJOSE-1-AD-1",),
    "ca-toronto-1": ("CA-TORONTO-1-AD-1",),
    "sa-saopaulo-1": ("SA-SAOPAULO-1-AD-1",),
    "uk-london-1": ("UK-LONDON-1-AD-1", "UK-LONDON-1-AD-2", "UK-LONDON-1-AD-3"),
    "eu-frankfurt-1": ("EU-FRANKFURT-1-AD-1", "EU-FRANKFURT-1-AD-2", "EU-FRANKFURT-1-AD-3"),
    "eu-amsterdam-1": ("EU-AMSTERDAM-1-AD-1",),
    "eu-stockholm-1": ("EU-STOCKHOLM-1-AD-1",),
    "af-casablanca-1": ("AF-CASABLANCA-1-AD-1",),
    "af-johannesburg-1": ("AF-JOHANNESBURG-1-AD-1",),
    "ap-tokyo-1": ("AP-TOKYO-1-AD-1",),
    "ap-singapore-1": ("AP-SINGAPORE-1-AD-1",),
    "ap-mumbai-1": ("AP-MUMBAI-1-AD-1",),
    "ap-sydney-1": ("AP-SYDNEY-1-AD-1",),
}
"""Availability domains by region; their real names begin with a prefix of the tenancy."""
PREFIX = "Uocm"


@dataclass(frozen=True, slots=True)
class Part:
    """A line of the price list that prices shapes of the sandbox."""

    number: str
    display_name: str
    shapes: tuple[str, ...]


PARTS = (
    Part("B89734", "Compute - GPU Standard - V2", ("VM.GPU3.1", "VM.GPU3.4", "BM.GPU3.8")),
    Part("B93544", "OCI - Compute - GPU - E4", ("BM.GPU4.8",)),
    Part("B95907", "Compute - GPU - A100 - v2", ("BM.GPU.A100-v2.8",)),
    Part("B95909", "Compute  - GPU - A10", ("VM.GPU.A10.1", "VM.GPU.A10.2", "BM.GPU.A10.4")),
    Part("B98415", "Oracle Cloud Infrastructure - Compute - GPU - H100", ("BM.GPU.H100.8",)),
    Part("B109479", "Compute - GPU - L40S", ("BM.GPU.L40S.4",)),
    Part("B109485", "OCI - Compute - GPU - MI300X", ("BM.GPU.MI300X.8",)),
    Part("B110519", "OCI - Compute - GPU - H200", ("BM.GPU.H200.8",)),
    Part("B110978", "OCI - Compute - GPU - B200", ("BM.GPU.B200.8",)),
    Part("B110979", "OCI - Compute - GPU - GB200", ("BM.GPU.GB200.4",)),
    Part("B111758", "OCI- Compute - GPU - MI355X", ("BM.GPU.MI355X.8",)),
    Part("B112140", "OCI - Compute - GPU - GB300", ("BM.GPU.GB300.4",)),
    Part("B112237", "Oracle Cloud Infrastructure - Compute - GPU - B300", ("BM.GPU.B300.8",)),
    Part("B112613", "OCI - Compute - GPU - RTX PRO 6000", ("BM.GPU.RTXPRO.8",)),
)

OTHER_PARTS = (
    ("B88517", "Compute - Bare Metal GPU Standard - X7", "GPU Per Hour", "Compute - GPU", 1.275),
    ("B92740", "Compute - GPU - E3", "GPU Per Hour", "Compute - GPU", 3.05),
    ("B109480", "OCI - Compute - GPU - H100T", "GPU Per Hour", "Compute - GPU - Other", 10.75),
    ("B111824", "OCI - NVIDIA AI Enterprise - H100", "GPU Per Hour", "Compute - GPU", 2.5),
    (
        "B110965",
        "Oracle Compute Cloud@Customer - Compute - GPU.L40S",
        "GPU Per Hour",
        "Compute Cloud@Customer",
        3.5,
    ),
    ("B108806", "Oracle Cloud VMware Solution - BM.GPU.A10.64", "Node Per Hour", "Compute - VMware", 16),
    ("B108776", "WebCenter Imaging For OCI", "OCPU Per Hour", "WebCenter For OCI", 0.6394),
    ("B199990", f"OCI - Compute - GPU - Q9000 ({ILLUSTRATIVE})", "GPU Per Hour", "Compute - GPU", 7.5),
    ("B199991", f"Compute - Standard - Z9 - OCPU ({ILLUSTRATIVE})", "OCPU Per Hour", "Compute", 0.03),
)
"""Number, name, metric, category and price of lines that price no shape here: licences, other products, an
unknown GPU, CPUs."""


@drawn_once
def oci_inventory(seed: int) -> Iterator[InventoryItem]:
    """Items by (shape, availability domain); bare metal has fabrics in some domains only."""
    part_of = {shape: part.number for part in PARTS for shape in part.shapes}
    uniform = [row for row in recorded_prices("oci") if not row.region and row.sku in part_of]
    for row in uniform:
        for region, domains in DOMAINS.items():
            for domain in domains:
                yield _item(seed, row, region, domain)


def _item(seed: int, row: Recorded, region: str, domain: str) -> InventoryItem:
    lot = (seed, row.sku, domain)
    unknown_there = draw(*lot, "hardware") < 0.25
    return recorded_item(
        row,
        region,
        0 if unknown_there or draw(*lot, "none") < 0.3 else draw_count(1, 48 // row.gpus + 4, *lot),
        zone=f"{PREFIX}:{domain}",
        tier="on_demand",
        labels={"supported": not unknown_there},
    )

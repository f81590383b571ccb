"""SkyPilot's hosted catalogue v8: ``vms.csv`` of each cloud, at the paths of GitHub and of the S3 mirror.

Columns and their order differ by cloud; numbers may be ``8.0``; ``GpuInfo`` is a Python literal; a place that
does not sell a tier has an empty cell. Google's machines and GPUs are rows of their own: recorded prices are
the sums, of which the GPUs' part here is four fifths (the split is ours). Sources: stored files of
skypilot-org/skypilot-catalog, SkyPilot 0.14.1 (its reader of them).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from providers.sandbox.faults import FaultKind
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, ProtocolHandler, Reply, Route, SandboxState, text_reply
from providers.sandbox.sellers.price_lists.market import hosted_inventory

CLOUDS = ("aws", "azure", "gcp", "oci", "lambda", "nebius", "verda", "hyperstack", "mithril", "cudo")
_COMMON = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB"
_COLUMNS = {
    "aws": f"{_COMMON},GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch",
    "azure": f"{_COMMON},GpuInfo,Price,SpotPrice,Region,Generation",
    "gcp": "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,"
    "Price,SpotPrice",
    "oci": f"{_COMMON},GpuInfo,Price,SpotPrice,Region,AvailabilityZone",
}
_OTHERS = f"{_COMMON},Price,Region,GpuInfo,SpotPrice"
_GPU_SHARE = Decimal("0.8")
_MIB_PER_GB = 1024


@dataclass
class _Line:
    """A type in one place, with its prices by tier."""

    item: InventoryItem
    zone: str
    prices: dict[str, Decimal] = field(default_factory=dict)


class SkyPilot(ProtocolHandler):
    """Public files; nothing can be bought."""

    name = "skypilot"

    def __init__(self, sandbox: SandboxState) -> None:
        super().__init__(sandbox)
        sandbox.market.add(hosted_inventory(self.name, CLOUDS))

    def make_routes(self) -> Iterable[Route]:
        """The catalogue's path at both hosts."""
        path = "/catalogs/v8/{cloud}/vms.csv"
        github = f"/skypilot-org/skypilot-catalog/master{path}"
        return (
            Route("GET", github, "list", self._file, public=True),
            Route("GET", path, "list", self._file, public=True),
        )

    def authorise(self, call: Call) -> None:
        """Accepts every call: the files are public."""

    def unknown_path(self) -> Reply:
        """GitHub's words."""
        return text_reply("404: Not Found", 404)

    def malformed_body(self, reason: str) -> Reply:
        """GitHub's words for a request that makes no sense."""
        return text_reply("400: Invalid request", 400)

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """Plain text, as GitHub's file host answers."""
        if kind is FaultKind.RATE_LIMITED:
            return text_reply("429: Too Many Requests", 429)
        return text_reply("500: Internal Server Error", 500)

    def _file(self, call: Call) -> Reply:
        cloud = call.parts["cloud"]
        if cloud not in CLOUDS:
            return self.unknown_path()
        lines = self._lines(cloud)
        rows = _google_rows(lines) if cloud == "gcp" else (_row(cloud, line) for line in lines)
        out = io.StringIO()
        columns = _COLUMNS.get(cloud, _OTHERS).split(",")
        writer = csv.DictWriter(out, columns, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text_reply(out.getvalue())

    def _lines(self, cloud: str) -> list[_Line]:
        """A line a type and place; an on-demand price without a zone holds in every zone of its region."""
        items = [item for item in self.sandbox.market.inventory(self.name) if item.labels["cloud"] == cloud]
        found: dict[tuple[str, str, str], _Line] = {}
        for item in items:
            line = found.setdefault((item.sku, item.region, item.zone), _Line(item, item.zone))
            price = self.sandbox.market.price(item)
            if price is not None:
                line.prices[item.tier] = price
        zoned = {(sku, region) for sku, region, zone in found if zone}
        for (sku, region, zone), line in found.items():
            regional = found.get((sku, region, ""))
            if zone and regional is not None:
                line.prices = {**regional.prices, **line.prices}
        return [line for (sku, region, zone), line in found.items() if zone or (sku, region) not in zoned]


def _row(cloud: str, line: _Line) -> dict[str, str]:
    item = line.item
    spell = str if cloud in {"azure", "oci", "nebius"} else lambda count: f"{count}.0"
    return {
        "InstanceType": item.labels["type"],
        "AcceleratorName": item.gpu if item.gpus else "",
        "AcceleratorCount": spell(item.gpus) if item.gpus else "",
        "vCPUs": f"{item.vcpus}" if item.vcpus else "",
        "MemoryGiB": f"{item.memory_gb}" if item.memory_gb else "",
        "GpuInfo": _gpu_info(item, spell(item.gpus)) if item.gpus else "",
        "Price": _money(line.prices.get("on_demand")),
        "SpotPrice": _money(line.prices.get("spot")),
        "Region": item.region,
        "AvailabilityZone": line.zone,
        "Arch": "x86_64",
        "Generation": "V2",
    }


def _google_rows(lines: Iterable[_Line]) -> Iterator[dict[str, str]]:
    """Machines first, then their GPUs, once for each kind, number and zone."""
    cards: dict[tuple[str, int, str], dict[str, Decimal]] = {}
    for line in lines:
        item, row = line.item, _row("gcp", line)
        if not item.gpus:
            yield row
            continue
        key = (item.gpu, item.gpus, line.zone)
        shares = {tier: (usd * _GPU_SHARE).quantize(Decimal("0.00001")) for tier, usd in line.prices.items()}
        gpus = cards.setdefault(key, shares)
        machine = {tier: usd - gpus[tier] for tier, usd in line.prices.items() if tier in gpus}
        row |= {"Price": _money(machine.get("on_demand")), "SpotPrice": _money(machine.get("spot"))}
        yield row | {"AcceleratorName": "", "AcceleratorCount": "", "GpuInfo": ""}
    for (word, count, zone), prices in cards.items():
        yield {
            "AcceleratorName": word,
            "AcceleratorCount": str(count),
            "Region": zone[:-2],
            "AvailabilityZone": zone,
            "Price": _money(prices.get("on_demand")),
            "SpotPrice": _money(prices.get("spot")),
        }


def _gpu_info(item: InventoryItem, count: str) -> str:
    mib = item.gpu_memory_gb * _MIB_PER_GB
    memory = f"{{'SizeInMiB': {mib}}}"
    gpu = f"{{'Name': '{item.gpu}', 'Manufacturer': 'NVIDIA', 'Count': {count}, 'MemoryInfo': {memory}}}"
    return f"{{'Gpus': [{gpu}], 'TotalGpuMemoryInMiB': {mib * item.gpus}}}"


def _money(usd: Decimal | None) -> str:
    return "" if usd is None else f"{usd:f}"

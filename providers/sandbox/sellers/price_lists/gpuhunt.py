"""gpuhunt's hosted catalogue v3: a version text and a zipped CSV file for each cloud.

The version's date is the sandbox's today: prices in it are recorded ones all the same. A place is a region,
of Google a zone; of AWS's zones the cheapest spot price stands for the region; RunPod's types are ids of
GPUs. Source: gpuhunt 0.1.34 (its writer and reader of the files).
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable
from decimal import Decimal

from providers.sandbox.faults import FaultKind
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, ProtocolHandler, Reply, Route, SandboxState, text_reply
from providers.sandbox.sellers.price_lists.market import hosted_inventory

CLOUDS = {
    "aws": "aws",
    "azure": "azure",
    "gcp": "gcp",
    "oci": "oci",
    "lambdalabs": "lambda",
    "nebius": "nebius",
    "runpod": "runpod",
    "verda": "verda",
}
"""The list's word for a cloud, and the word of the recorded prices."""
COLUMNS = (
    "instance_name",
    "location",
    "price",
    "cpu",
    "memory",
    "gpu_count",
    "gpu_name",
    "gpu_memory",
    "spot",
    "disk_size",
    "gpu_vendor",
    "flags",
    "cpu_arch",
    "provider_data",
)
_RUNPOD_IDS = {"A100-80GB_SECURE": "NVIDIA A100 80GB PCIe"}
_NO_KEY = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{code}</Message></Error>'
)


class GpuHunt(ProtocolHandler):
    """Public files; nothing can be bought."""

    name = "gpuhunt"

    def __init__(self, sandbox: SandboxState) -> None:
        super().__init__(sandbox)
        sandbox.market.add(hosted_inventory(self.name, tuple(CLOUDS.values())))

    def make_routes(self) -> Iterable[Route]:
        """The two files of a cloud."""
        return (
            Route("GET", "/v3/{cloud}/version", "list", self._version, public=True),
            Route("GET", "/v3/{cloud}/{version}/catalog.zip", "list", self._catalogue, public=True),
        )

    def authorise(self, call: Call) -> None:
        """Accepts every call: the files are public."""

    def unknown_path(self) -> Reply:
        """S3's answer for a key that is not there."""
        return _xml("NoSuchKey", 404)

    def malformed_body(self, reason: str) -> Reply:
        """S3's answer to a request that makes no sense."""
        return _xml("InvalidRequest", 400)

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """S3's XML errors."""
        if kind is FaultKind.RATE_LIMITED:
            return _xml("SlowDown", 429)
        return _xml("InternalError", 500)

    @property
    def _today(self) -> str:
        return f"{self.now:%Y%m%d}-1"

    def _version(self, call: Call) -> Reply:
        return text_reply(f"{self._today}\n") if call.parts["cloud"] in CLOUDS else self.unknown_path()

    def _catalogue(self, call: Call) -> Reply:
        cloud = call.parts["cloud"]
        if cloud not in CLOUDS or call.parts["version"] not in {self._today, "latest"}:
            return self.unknown_path()
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows(CLOUDS[cloud]))
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{cloud}.csv", text.getvalue())
        return Reply(200, packed.getvalue(), "application/zip")

    def _rows(self, cloud: str) -> list[dict[str, str]]:
        cheapest: dict[tuple[str, str, str], tuple[Decimal, InventoryItem]] = {}
        for item in self.sandbox.market.inventory(self.name):
            price = self.sandbox.market.price(item)
            if item.labels["cloud"] != cloud or price is None:
                continue
            place = item.zone if cloud == "gcp" and item.zone else item.region
            key = (item.sku, place, item.tier)
            if key not in cheapest or price < cheapest[key][0]:
                cheapest[key] = (price, item)
        rows = [_row(place, usd, item) for (_, place, _), (usd, item) in cheapest.items()]
        pods = (row for row in rows if cloud == "runpod" and row["gpu_name"] and row["spot"] == "False")
        return [*rows, *map(_cluster, pods)]


def _row(place: str, usd: Decimal, item: InventoryItem) -> dict[str, str]:
    word = item.gpu.removesuffix("-80GB").removesuffix("-32GB")
    return {
        "instance_name": _instance_name(item),
        "location": place,
        "price": f"{usd:f}",
        "cpu": str(int(item.vcpus or 0)),
        "memory": str(float(item.memory_gb or 0)),
        "gpu_count": str(item.gpus),
        "gpu_name": word if item.gpus else "",
        "gpu_memory": str(float(item.gpu_memory_gb)) if item.gpus else "",
        "spot": str(item.tier == "spot"),
        "gpu_vendor": ("amd" if word.startswith("MI") else "nvidia") if item.gpus else "",
        "cpu_arch": "x86",
        "provider_data": "{}",
    }


def _cluster(row: dict[str, str]) -> dict[str, str]:
    """The row of a cluster of such pods, which its flag alone tells from a pod; its price is illustrative."""
    usd = Decimal(row["price"]) * Decimal("1.2")
    return {**row, "price": f"{usd:f}", "flags": "runpod-cluster", "provider_data": '{"pod_counts": [2, 8]}'}


def _instance_name(item: InventoryItem) -> str:
    name: str = item.labels["type"]
    if item.labels["cloud"] == "nebius":
        return name.replace("_", " ", 1)
    return _RUNPOD_IDS.get(name.partition("x_")[2], name)


def _xml(code: str, status: int) -> Reply:
    return Reply(status, _NO_KEY.format(code=code).encode(), "application/xml")

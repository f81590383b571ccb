"""Reads ``config/providers/<provider>.toml``: what a provider's names mean, and what its API does not say."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cache
from typing import Any

import msgspec

from broker.catalogue import CONFIG, load_gpus
from broker.domain.market.offer import WindowBilling
from broker.domain.market.sku import Fabric, Form, IntraNode, LinkKind


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Published facts of a provider's node type that its API does not state.

    ``gpu`` (canonical) and ``gpus_per_node`` are set if the API states only the name of the node type.
    """

    gpu: str | None = None
    gpus_per_node: int | None = None
    form: Form | None = None
    intra_node: IntraNode | None = None
    fabric: Fabric | None = None
    vcpus: float | None = None
    memory_gb: float | None = None
    disk_gb: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class ListPrice:
    """A published price per GPU-hour, for a provider whose API states none."""

    usd_per_gpu_hour: Decimal
    on: date
    source: str


@dataclass(frozen=True, slots=True)
class WindowBill:
    """When a provider bills a kind of window. ``source`` says where it states that, else ``assumed`` why."""

    billed: WindowBilling
    source: str = ""
    assumed: str = ""


@dataclass(frozen=True, slots=True)
class Billing:
    """How a provider rounds the time that it bills outside windows, and when it bills each kind of window.

    ``minimum_s`` is billed at least. ``source`` says where the provider states it; empty if it is assumed,
    and ``assumed`` then says why. ``exceptions``: other increments by prefix of the SKU's name.
    """

    increment_s: int
    minimum_s: int = 0
    source: str = ""
    assumed: str = ""
    exceptions: Mapping[str, int] = field(default_factory=dict, hash=False)
    windows: Mapping[str, WindowBill] = field(default_factory=dict, hash=False)

    def window_billed(self, kind: str) -> WindowBilling:
        """When a window of ``kind`` is billed."""
        return self.windows[kind].billed

    @property
    def min_hours(self) -> float:
        """``minimum_s`` in hours."""
        return self.minimum_s / 3600

    def increment_of(self, sku: str) -> int:
        """The increment of one SKU in seconds."""
        return next((s for prefix, s in self.exceptions.items() if sku.startswith(prefix)), self.increment_s)


@dataclass(frozen=True, slots=True)
class AddressPrice:
    """What the public address of a machine costs beside it, in the seller's ``currency``.

    ``spot_per_hour``: of a machine on spot, if it differs.
    """

    per_hour: Decimal
    source: str
    spot_per_hour: Decimal | None = None
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class ProviderFacts:
    """The contents of ``config/providers/<provider>.toml``.

    ``silicon``: canonical names by the provider's GPU names. ``nodes``: facts by the provider's SKU name.
    ``countries``: ISO countries by region or its prefix. ``compliance``: tags of all its offers. ``search``:
    queries for a provider that only answers searches; its adapter documents the keys. ``prices``: published
    prices by SKU and tier, for a provider whose API states none. ``billing``: None for a price list, whose
    offers cannot be ordered. ``address``: None where a machine's price contains its public address.
    """

    silicon: Mapping[str, str] = field(default_factory=dict, hash=False)
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict, hash=False)
    countries: Mapping[str, str] = field(default_factory=dict, hash=False)
    compliance: frozenset[str] = field(default_factory=frozenset)
    search: Mapping[str, Any] = field(default_factory=dict, hash=False)
    prices: Mapping[str, Mapping[str, ListPrice]] = field(default_factory=dict, hash=False)
    billing: Billing | None = None
    address: AddressPrice | None = None

    @property
    def billed(self) -> Billing:
        """``billing`` of a provider that takes orders."""
        assert self.billing is not None, "config/providers has no [billing] for it"
        return self.billing

    def country_of(self, region: str) -> str | None:
        """Country of ``region`` by its name, or by the longest known prefix."""
        if region in self.countries:
            return self.countries[region]
        prefixes = [known for known in self.countries if region.startswith(known)]
        return self.countries[max(prefixes, key=len)] if prefixes else None


@cache
def load_provider_names() -> frozenset[str]:
    """Keys of all providers that have an adapter."""
    return frozenset(file.stem for file in (CONFIG / "providers").glob("*.toml"))


@cache
def load_provider_facts(provider: str) -> ProviderFacts:
    """Facts of one provider. Missing tables are empty."""
    text = (CONFIG / "providers" / f"{provider}.toml").read_text()
    return msgspec.convert(tomllib.loads(text), ProviderFacts)


def infer_intra_node(gpu: str, gpus_per_node: int) -> IntraNode | None:
    """The link within a node that the form factor implies; None for one GPU or an unknown GPU.

    SXM and OAM boards always have their own switch or mesh, with the datasheet rate of ``config/gpus.csv``
    (both directions). PCIe cards use PCIe; bridges are not assumed.
    """
    spec = load_gpus().get(gpu)
    if spec is None or gpus_per_node < 2:
        return None
    if spec.vendor == "AMD" and spec.scaleup_gbyte_s_per_dir:
        return IntraNode(LinkKind.XGMI, 2 * spec.scaleup_gbyte_s_per_dir)
    switched = "NVLink" in spec.scaleup_kind and "bridge" not in spec.scaleup_kind
    if switched and spec.scaleup_gbyte_s_per_dir:
        return IntraNode(LinkKind.NVLINK, 2 * spec.scaleup_gbyte_s_per_dir)
    if spec.pcie_gbyte_s_per_dir:
        return IntraNode(LinkKind.PCIE, 2 * spec.pcie_gbyte_s_per_dir)
    return None

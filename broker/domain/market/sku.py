"""A SKU: a kind of node, without price, place or time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum


class Form(StrEnum):
    """How the node is delivered."""

    BARE_METAL = "bare_metal"
    VM = "vm"
    CONTAINER = "container"


class GpuVendor(StrEnum):
    """Makers of accelerators."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    GOOGLE = "google"


class GpuClass(StrEnum):
    """The market for which a vendor makes a GPU: servers, workstations, or games."""

    DATACENTER = "datacenter"
    WORKSTATION = "workstation"
    CONSUMER = "consumer"


class LinkKind(StrEnum):
    """The link between the GPUs of one node."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    XGMI = "xgmi"


class FabricKind(StrEnum):
    """The network between nodes."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    ETHERNET = "ethernet"


@dataclass(frozen=True, slots=True)
class IntraNode:
    """The link inside a node; ``gbyte_s`` per GPU, both directions together."""

    kind: LinkKind
    gbyte_s: float


@dataclass(frozen=True, slots=True)
class Fabric:
    """The network between nodes; ``gbit_s_per_node`` is the nominal rate in one direction.

    ``measured_gbit_s_per_node`` is a measured rate (large messages, one direction). If it is known, it
    replaces the nominal rate with its usual losses.
    """

    kind: FabricKind
    gbit_s_per_node: float
    max_nodes: int
    domain: str | None = None
    measured_gbit_s_per_node: float | None = None


@dataclass(frozen=True, slots=True)
class SoldAmount:
    """Disk or memory of a node that the buyer chooses, in GB (10⁹ bytes).

    The offer's price contains ``default_gb``; each GB more or less costs ``usd_per_gb_hour``. ``max_gb``
    None: unlimited. Amounts are whole multiples of ``step_gb``, which is the seller's own unit.
    """

    default_gb: float
    min_gb: float
    max_gb: float | None
    usd_per_gb_hour: Decimal
    step_gb: float = 1.0

    def least(self, gb: float) -> float | None:
        """The smallest amount on sale that is at least ``gb``; None if that is more than ``max_gb``."""
        units = math.ceil(round(max(gb, self.min_gb) / self.step_gb, 6))
        amount = round(units * self.step_gb, 6)
        return None if self.max_gb is not None and amount > self.max_gb + 1e-6 else amount


@dataclass(frozen=True, slots=True)
class Sku:
    """A kind of node.

    ``name`` is the provider's own name; ``gpu`` is the canonical name in ``config/gpus.csv``.
    ``gpu_memory_gb`` is per GPU; ``memory_gb`` and ``disk_gb`` are per node, and what the price contains
    where the buyer chooses them. ``intra_node`` is None if it is unknown, ``fabric`` if nodes are not
    connected, and ``form`` if the provider does not state it.
    """

    name: str
    gpu: str
    gpus_per_node: int
    gpu_memory_gb: float
    vcpus: float | None = None
    memory_gb: float | None = None
    disk_gb: float | None = None
    form: Form | None = None
    intra_node: IntraNode | None = None
    fabric: Fabric | None = None

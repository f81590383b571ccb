"""A SKU: a kind of node, without price, place or time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Form(StrEnum):
    """How the node is delivered."""

    BARE_METAL = "bare_metal"
    VM = "vm"
    CONTAINER = "container"


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
class Sku:
    """A kind of node.

    ``name`` is the provider's own name; ``gpu`` is the canonical name in ``config/gpus.csv``.
    ``gpu_memory_gb`` is per GPU; ``memory_gb`` and ``disk_gb`` are per node. ``intra_node`` is None if it is
    unknown, ``fabric`` if nodes are not connected, and ``form`` if the provider does not state it.
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

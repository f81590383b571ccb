"""A SKU: a kind of node, whoever sells it. No price, no place, no time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Form(StrEnum):
    """How the node is delivered."""

    BARE_METAL = "bare_metal"
    VM = "vm"
    CONTAINER = "container"


class LinkKind(StrEnum):
    """What joins the GPUs of one node."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    XGMI = "xgmi"


class FabricKind(StrEnum):
    """What joins nodes."""

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
    """The network between nodes; ``gbit_s_per_node`` in one direction, as the provider says it.

    ``measured_gbit_s_per_node``: what a node really got (large messages, one direction), where someone
    measured it; it then counts instead of the nominal rate and its usual losses.
    """

    kind: FabricKind
    gbit_s_per_node: float
    max_nodes: int
    domain: str | None = None
    measured_gbit_s_per_node: float | None = None


@dataclass(frozen=True, slots=True)
class Sku:
    """A kind of node.

    ``name`` is the provider's own; ``gpu`` the canonical name of ``config/gpus.csv``;
    ``gpu_memory_gb`` per GPU; ``memory_gb`` and ``disk_gb`` of the node. ``intra_node`` None means
    unknown, ``fabric`` None that nodes are not joined, ``form`` None that the provider does not say.
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

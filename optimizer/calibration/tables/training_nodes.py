"""Nodes of published training rows: form factor, links, and the fabric between them."""

from __future__ import annotations

from collections.abc import Mapping

from broker.domain.market.sku import Fabric, FabricKind, Form, IntraNode, LinkKind, Sku
from broker.domain.workloads.model_shape import GpuSpec
from optimizer.calibration.tables.cells import number
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.hardware.sku_arrays import implied_link

NODE_GPUS, RACK_NODE_GPUS = 8, 4
NDR_GBIT_S, NDR_LEAST_GBIT_S = 400.0, 200.0
FABRIC_WORDS = {
    "roce": FabricKind.ROCE,
    "efa": FabricKind.EFA,
    "slingshot": FabricKind.ROCE,
    "ethernet": FabricKind.ETHERNET,
    "omnipath": FabricKind.ETHERNET,
}


def row_sku(
    row: Mapping[str, str], spec: GpuSpec, total: int, calibration: Calibration
) -> tuple[Sku, tuple[str, ...]]:
    """The node of a row with ``total`` GPUs in all, and the assumptions about its fabric."""
    usual = RACK_NODE_GPUS if spec.gpu in calibration.network.link_domain else NODE_GPUS
    per_node = int(number(row, "gpus_per_node") or min(usual, total))
    link = number(row, "intra_node_gbps")
    kind = implied_link(spec, calibration.network.unknown_pcie_bytes_per_s).kind
    nodes = -(-total // per_node)
    usual_rate = calibration.network.usual_fabric_gbit_s.get(spec.arch, NDR_GBIT_S)
    fabric, notes = _row_fabric(row, per_node, nodes, usual_rate)
    sku = Sku(
        name="",
        gpu=spec.gpu,
        gpus_per_node=per_node,
        gpu_memory_gb=number(row, "gpu_mem_gb") or spec.memory_gb,
        form=_form(row.get("virt", "")),
        intra_node=IntraNode(_link_kind(kind, link), 2 * link / 8) if link else None,
        fabric=fabric,
    )
    return sku, notes


def _link_kind(implied: LinkKind, gbit_s: float) -> LinkKind:
    return LinkKind.NVLINK if implied is LinkKind.PCIE and gbit_s > 600 else implied


def _row_fabric(
    row: Mapping[str, str], per_node: int, nodes: int, usual_gbit_s: float
) -> tuple[Fabric | None, tuple[str, ...]]:
    if nodes <= 1:
        return None, ()
    words = row.get("fabric", "").lower()
    kind = next((kind for word, kind in FABRIC_WORDS.items() if word in words), FabricKind.INFINIBAND)
    rate, measured = number(row, "inter_node_gbps_per_gpu"), number(row, "inter_node_measured_gbps_per_gpu")
    notes: tuple[str, ...] = ()
    if rate is not None and rate < NDR_LEAST_GBIT_S and "ndr" in words:
        rate, notes = NDR_GBIT_S, ("NDR ports run at 400 Gbit/s: taken instead of the row's rate",)
    if rate is None and not measured:
        notes = (f"fabric rate not given, {usual_gbit_s:.0f} Gbit/s per GPU assumed",)
    got = measured * per_node if measured else None
    nominal = (rate or usual_gbit_s) * per_node
    return Fabric(kind, nominal, nodes, measured_gbit_s_per_node=got), notes


def _form(text: str) -> Form | None:
    word = text.lower()
    if "bare" in word and "or" not in word.split():
        return Form.BARE_METAL
    return Form.VM if word.startswith("vm") and " or " not in word else None

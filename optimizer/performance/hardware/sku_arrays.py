"""SKUs as arrays: compute rates, memory and link rates of a GPU, in SI units.

S kinds of SKU; every array has the shape ``(S,)`` unless reshaped by ``Hardware.across``. A single SKU has
plain numbers (``SingleHardware``). Rates are per GPU and, for links, per direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker.domain.market.sku import IntraNode, LinkKind, Sku
from broker.domain.workloads.model_shape import GpuSpec
from optimizer.performance.arrays import Array, as_array, number
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.groups import Compute, Table

GIB = float(2**30)
NO_FABRIC_BYTES_PER_S = 1e3
SKUS_REMEMBERED = 8192
FORMATS = ("bf16", "fp16", "fp8", "fp4", "int8")
AS_WIDE = {"bf16": 1.0, "fp16": 1.0, "fp8": 2.0, "fp4": 4.0}


@dataclass(frozen=True, slots=True)
class Hardware:
    """Kinds of SKU, one entry each.

    - ``peak``: dense rate of the data sheet; ``gemm``: best measured matrix rate; both in FLOP/s by number
      format, 0 if the GPU lacks it. ``trains_fp4`` 1: training runs in FP4 were published.
    - ``link_*`` and ``fabric_*`` rates: bytes/s per GPU and direction after protocol overhead (``link_raw``:
      before). Without a fabric ``nodes_most`` is 1 and the rate is close to 0. ``link_ramp_s``,
      ``fabric_ramp_s``: loss of short messages (``collectives.ramped``). ``switch_share``: share of the raw
      link rate if the switch does the addition, 0 if it cannot. ``link_domain``: ranks connected by the fast
      link. ``mesh`` 1: the link rate grows with the number of peers used.
    - Serving kernels: ``hbm_reach`` of the bandwidth and ``product_reach`` of the matrix rate;
      ``generic_kernel_share`` of the best matrix rate with instructions of every GPU; ``large`` 1: engines
      treat it as a large card; ``fused_experts`` 1: an expert layer is one launch; ``narrow_experts``:
      relative efficiency of experts in 8 bits or fewer; ``non_native_slowdown`` of engines with third-party
      kernels there; ``state_buffers`` 1: engines allocate buffers of recurrent states.
    - Serving all-reduces: start (``reduce_start_s``, ``reduce_growth``) and rate; ``peers`` 1: ranks read
      each other's memory.
    - ``host_bytes_per_s``: link to the host's memory, one direction.
    - ``vm_slowdown``: a share of time; ``serving_slowdown``: a factor on time.
    """

    gpus_per_node: Array
    memory_bytes: Array
    hbm_bytes_per_s: Array
    hbm_reach: Array
    product_reach: Array
    large: Array
    fused_experts: Array
    narrow_experts: Array
    non_native_slowdown: Array
    state_buffers: Array
    generic_kernel_share: Array
    peak: Mapping[str, Array]
    gemm: Mapping[str, Array]
    trains_fp4: Array
    attention_share: Array
    long_run_share: Array
    link_raw_bytes_per_s: Array
    link_bytes_per_s: Array
    link_start_s: Array
    link_ramp_s: Array
    switch_share: Array
    reduce_start_s: Array
    reduce_growth: Array
    peers: Array
    reduce_bytes_per_s: Array
    link_domain: Array
    mesh: Array
    fabric_bytes_per_s: Array
    fabric_start_s: Array
    fabric_hop_s: Array
    fabric_ramp_s: Array
    nodes_most: Array
    host_bytes_per_s: Array
    vm_slowdown: Array
    serving_slowdown: Array
    calibrated: Array

    def across(self, extra_axes: int) -> Hardware:
        """A copy with trailing axes of length one, to broadcast against other dimensions."""
        return self._each(lambda array: array.reshape(array.shape + (1,) * extra_axes))

    def take(self, indices: NDArray[np.intp]) -> Hardware:
        """The kinds at ``indices``, in that order."""
        return self._each(lambda array: array[indices])

    def _each(self, change: Callable[[Array], Array]) -> Hardware:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {
            name: {key: change(array) for key, array in value.items()}
            if isinstance(value, Mapping)
            else change(value)
            for name, value in values.items()
        }
        return Hardware(**changed)


def kind_of(sku: Sku) -> Sku:
    """The SKU without fields that the physics ignores: name, CPUs, host memory, disk, fabric domain."""
    fabric = replace(sku.fabric, domain=None) if sku.fabric is not None else None
    return replace(sku, name="", vcpus=None, memory_gb=None, disk_gb=None, fabric=fabric)


def kinds_of(skus: Sequence[Sku]) -> tuple[list[Sku], NDArray[np.intp]]:
    """The distinct kinds of ``skus`` in order of appearance, and the index of each SKU's kind."""
    place: dict[Sku, int] = {}
    of_sku = {sku: place.setdefault(kind_of(sku), len(place)) for sku in dict.fromkeys(skus)}
    return list(place), np.asarray([of_sku[sku] for sku in skus], dtype=np.intp)


def build_hardware(skus: Sequence[Sku], gpus: Mapping[str, GpuSpec], calibration: Calibration) -> Hardware:
    """Arrays over ``skus``; every GPU must be in ``gpus``."""
    rows = [_entry(sku, gpus[sku.gpu], calibration) for sku in skus]
    return _hardware({name: as_array([row[name] for row in rows]) for name in rows[0]})


class SingleHardware:
    """Hardware of single SKUs in plain numbers; each is computed once."""

    def __init__(self, gpus: Mapping[str, GpuSpec], calibration: Calibration) -> None:
        self._gpus, self._calibration = gpus, calibration
        self._known: dict[Sku, Hardware] = {}

    def of(self, sku: Sku) -> Hardware:
        """The hardware of a SKU, whose GPU must be in the table."""
        found = self._known.get(sku)
        if found is None:
            row = _entry(sku, self._gpus[sku.gpu], self._calibration)
            found = _hardware({name: number(value) for name, value in row.items()})
            if len(self._known) >= SKUS_REMEMBERED:
                self._known.clear()
            self._known[sku] = found
        return found


def _hardware(columns: dict[str, Array]) -> Hardware:
    peak = {name: columns.pop(f"peak_{name}") for name in FORMATS}
    gemm = {name: columns.pop(f"gemm_{name}") for name in FORMATS}
    return Hardware(peak=peak, gemm=gemm, **columns)


def usable_memory_bytes(sku_gb: float, spec: GpuSpec, calibration: Calibration) -> float:
    """Memory that the driver reports. Vendors write GB for GiB; inline ECC takes a sixteenth of GDDR cards.

    A provider's figure close to the data sheet's means the same part; another figure (a slice) is used as it
    is.
    """
    memory = calibration.memory
    same = abs(sku_gb - spec.memory_gb) <= memory.nominal_tolerance * spec.memory_gb
    nominal = spec.memory_gb if same else sku_gb
    share = memory.gddr_gib_per_nominal_gb if spec.gpu in memory.gddr_gpus else memory.gib_per_nominal_gb
    return nominal * share * GIB


def _entry(sku: Sku, spec: GpuSpec, calibration: Calibration) -> dict[str, float]:
    return {
        "gpus_per_node": float(sku.gpus_per_node),
        "memory_bytes": usable_memory_bytes(sku.gpu_memory_gb, spec, calibration),
        "hbm_bytes_per_s": spec.hbm_gbyte_s * 1e9,
        "hbm_reach": _reach(spec, calibration.serving.hbm_reach, calibration),
        "product_reach": _reach(spec, calibration.serving.product_reach, calibration),
        "large": float(_is_large(sku, spec, calibration)),
        "fused_experts": calibration.serving.fused_experts.get(spec.arch, 0.0),
        "narrow_experts": calibration.serving.narrow_experts.get(spec.arch, 1.0),
        "non_native_slowdown": calibration.serving.non_native_slowdown.get(spec.arch, 1.0),
        "state_buffers": calibration.serving.state_buffers.get(spec.vendor, 0.0),
        "generic_kernel_share": calibration.serving.generic_kernel_share.get(spec.arch, 1.0),
        "vm_slowdown": calibration.compute.vm_slowdown[sku.form.value if sku.form else "unknown"],
        "serving_slowdown": calibration.serving.vendor_slowdown.get(spec.vendor, 1.0),
        "calibrated": float(spec.gpu in calibration.calibrated_gpus),
        "host_bytes_per_s": _host_link(spec, calibration),
        **_rates(spec, calibration),
        **_link(sku, spec, calibration),
        **_fabric(sku, calibration),
    }


def _is_large(sku: Sku, spec: GpuSpec, calibration: Calibration) -> bool:
    large = usable_memory_bytes(sku.gpu_memory_gb, spec, calibration) >= calibration.serving.large_gib * GIB
    return large and spec.gpu not in calibration.serving.never_large


def _reach(spec: GpuSpec, table: Table, calibration: Calibration) -> float:
    return 1.0 if spec.gpu in calibration.serving.one_die_gpus else table.get(spec.arch, 1.0)


def _host_link(spec: GpuSpec, calibration: Calibration) -> float:
    network = calibration.network
    bus = spec.pcie_gbyte_s_per_dir * 1e9 if spec.pcie_gbyte_s_per_dir else network.unknown_pcie_bytes_per_s
    return network.host_link_share * network.coherent_host_bytes_per_s.get(spec.gpu, bus)


def _rates(spec: GpuSpec, calibration: Calibration) -> dict[str, float]:
    compute = calibration.compute
    peaks = {
        "bf16": spec.bf16_tflops,
        "fp16": spec.fp16_tflops,
        "fp8": spec.fp8_tflops,
        "fp4": spec.fp4_tflops,
        "int8": int8_tflops(spec, calibration),
    }
    best = {"bf16": spec.matmul_best_bf16_tflops, "fp8": spec.matmul_best_fp8_tflops}
    best["fp16"] = best["bf16"]
    tables = {"fp8": compute.gemm_share_fp8, "fp4": compute.gemm_share_fp4}
    rates = {
        "attention_share": compute.attention_share.get(spec.arch, min(compute.attention_share.values())),
        "long_run_share": compute.long_run_share.get(spec.arch, 1.0),
        "trains_fp4": float(spec.vendor == "NVIDIA" and spec.arch in compute.gemm_share_fp4),
    }
    for name in FORMATS:
        table = tables.get(name, compute.gemm_share_bf16)
        share = table.get(spec.arch, min(table.values()))
        if name == "int8":  # integer kernels unpack and rescale, so they never reach the power limit
            share = compute.units_share
        elif name in tables and spec.matmul_best_bf16_tflops:
            share = share * _own_share(spec, compute.gemm_share_bf16)
        else:
            share = powered_share(share, spec, (peaks[name] or 0.0) / AS_WIDE[name], compute)
        peak = (peaks[name] or 0.0) * 1e12
        rates[f"peak_{name}"] = peak
        rates[f"gemm_{name}"] = ((best.get(name) or 0.0) * 1e12 or peak * share) if peak else 0.0
    return rates


def _own_share(spec: GpuSpec, shares: Mapping[str, float]) -> float:
    """Ratio of the GPU's best measured 16-bit product rate to the usual one of its architecture; 1 without a
    measurement.

    Power and clocks that limit a board (MI300X, 750 W) or do not (MI325X, 1,000 W) act in every format.
    """
    best, peak = spec.matmul_best_bf16_tflops, spec.bf16_tflops
    usual = shares.get(spec.arch)
    return best / (peak * usual) if best and peak and usual else 1.0


def powered_share(share: float, spec: GpuSpec, wide_tflops: float, compute: Compute) -> float:
    """Share of peak that products reach on a board whose power differs from the one ``share`` is for.

    Compute units limit the share to ``units_share``, and power limits the rate in proportion to the rated
    watts:

      share = (units⁻ᵖ + powered⁻ᵖ)^(−1/p)

    ``wide_tflops``: the peak as 16-bit TFLOPS. ``share`` is unchanged if the watts are unknown.
    """
    reference, norm = compute.reference_w_per_tflops.get(spec.arch), compute.power_norm
    if reference is None or not spec.tdp_w or not wide_tflops or share >= compute.units_share:
        return share
    ahead = compute.units_share**-norm
    powered = (share**-norm - ahead) * (reference * wide_tflops / spec.tdp_w) ** norm
    return float((ahead + powered) ** (-1.0 / norm))


def int8_tflops(spec: GpuSpec, calibration: Calibration) -> float:
    """Peak of 8-bit integer products in TFLOPS: a multiple of the 16-bit rate, before the halving on cards
    that accumulate in FP32 at half rate.
    """
    serving = calibration.serving
    wide = max(spec.bf16_tflops or 0.0, spec.fp16_tflops or 0.0)
    return wide * serving.int8_factor * serving.halved_gpus.get(spec.gpu, 1.0)


def _link(sku: Sku, spec: GpuSpec, calibration: Calibration) -> dict[str, float]:
    network = calibration.network
    link = sku.intra_node or implied_link(spec, network.unknown_pcie_bytes_per_s)
    raw = link.gbyte_s / 2 * 1e9
    wide = network.link_domain.get(spec.gpu, 1.0) if sku.fabric is not None else 1.0
    return {
        "link_raw_bytes_per_s": raw,
        "link_bytes_per_s": raw * network.link_share[link.kind.value],
        "link_start_s": network.link_start_s[link.kind.value],
        "link_ramp_s": network.link_ramp_s[link.kind.value],
        "switch_share": network.switch_share.get(spec.arch, 0.0) if link.kind is LinkKind.NVLINK else 0.0,
        "reduce_start_s": calibration.serving.reduce_start_s[link.kind.value],
        "reduce_growth": calibration.serving.reduce_growth[link.kind.value],
        "reduce_bytes_per_s": raw * calibration.serving.reduce_share[link.kind.value],
        "peers": float(link.kind is not LinkKind.PCIE),
        "link_domain": max(float(sku.gpus_per_node), wide),
        "mesh": network.mesh_vendors.get(spec.vendor, 0.0),
    }


def implied_link(spec: GpuSpec, unknown_pcie_bytes_per_s: float) -> IntraNode:
    """The link implied by a form factor: SXM and OAM boards have a switch or mesh, cards have PCIe."""
    scaleup = spec.scaleup_gbyte_s_per_dir
    if spec.vendor == "AMD" and scaleup:
        return IntraNode(LinkKind.XGMI, 2 * scaleup)
    if scaleup and "bridge" not in spec.scaleup_kind:
        return IntraNode(LinkKind.NVLINK, 2 * scaleup)
    return IntraNode(LinkKind.PCIE, 2 * (spec.pcie_gbyte_s_per_dir or unknown_pcie_bytes_per_s / 1e9))


def _fabric(sku: Sku, calibration: Calibration) -> dict[str, float]:
    network, fabric = calibration.network, sku.fabric
    if fabric is None:
        return {
            "fabric_bytes_per_s": NO_FABRIC_BYTES_PER_S,
            "fabric_start_s": 0.0,
            "fabric_hop_s": 0.0,
            "fabric_ramp_s": network.fabric_ramp_s["infiniband"],
            "nodes_most": 1.0,
        }
    kind = fabric.kind.value
    usable = fabric.measured_gbit_s_per_node or fabric.gbit_s_per_node * network.fabric_share[kind]
    return {
        "fabric_bytes_per_s": usable / 8 * 1e9 / sku.gpus_per_node,
        "fabric_start_s": network.fabric_start_s[kind],
        "fabric_hop_s": network.fabric_hop_s[kind],
        "fabric_ramp_s": network.fabric_ramp_s[kind],
        "nodes_most": float(fabric.max_nodes),
    }

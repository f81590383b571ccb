"""Kinds of GPU as JSON: their data sheets, and how many offers have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field

from api.schemas.base.forms import From
from broker.catalogue import other_names
from broker.domain.market.sku import GpuClass
from broker.domain.workloads.model_shape import GpuSpec

DensePeak = Annotated[
    float | None,
    Field(description="Dense peak in TFLOP/s, without sparsity; null: none", examples=[989.4]),
]


@dataclass(frozen=True, slots=True)
class GpuOnSale:
    """A kind of GPU, and the number of current offers of nodes with it."""

    spec: GpuSpec
    offers: int


class GpuForm(BaseModel):
    """A kind of GPU: its data sheet, other names that are read for it, and how many offers there are now."""

    gpu: Annotated[str, From("spec.gpu"), Field(description="Canonical name", examples=["H100-SXM-80GB"])]
    aliases: Annotated[
        list[str],
        From(lambda one: list(other_names(one.spec.gpu))),
        Field(description="Other names that workloads documents may use", examples=[["A10G-24GB"]]),
    ]
    vendor: Annotated[str, From("spec.vendor"), Field(description="Manufacturer", examples=["NVIDIA"])]
    product_class: Annotated[
        GpuClass,
        From("spec.product_class"),
        Field(description="What its vendor makes it for", examples=[GpuClass.DATACENTER]),
    ]
    architecture: Annotated[str, From("spec.arch"), Field(description="Architecture", examples=["Hopper"])]
    memory_gb: Annotated[
        float, From("spec.memory_gb"), Field(description="Memory in GB as sold", examples=[80])
    ]
    memory_gbyte_s: Annotated[
        float, From("spec.hbm_gbyte_s"), Field(description="Memory bandwidth in GB/s", examples=[3350])
    ]
    bf16_tflops: Annotated[DensePeak, From("spec.bf16_tflops")]
    fp16_tflops: Annotated[DensePeak, From("spec.fp16_tflops")]
    fp8_tflops: Annotated[DensePeak, From("spec.fp8_tflops")]
    fp4_tflops: Annotated[DensePeak, From("spec.fp4_tflops")]
    scaleup_kind: Annotated[
        str,
        From("spec.scaleup_kind"),
        Field(description="Link to GPUs of its node", examples=["NVLink4"]),
    ]
    scaleup_gbyte_s_per_dir: Annotated[
        float | None,
        From("spec.scaleup_gbyte_s_per_dir"),
        Field(description="That link in one direction in GB/s; null: none or unknown", examples=[450]),
    ]
    pcie_gbyte_s_per_dir: Annotated[
        float | None,
        From("spec.pcie_gbyte_s_per_dir"),
        Field(description="PCIe in one direction in GB/s; null: unknown", examples=[64]),
    ]
    tdp_w: Annotated[
        float | None, From("spec.tdp_w"), Field(description="Rated power in W; null: unknown", examples=[700])
    ]
    offers: Annotated[int, Field(description="Current offers of nodes with it", examples=[41])]

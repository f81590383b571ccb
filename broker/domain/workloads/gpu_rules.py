"""Which GPUs a policy allows: by name, memory, vendor and product class. Pure.

What nobody asks for is not used: by default GPUs of NVIDIA for servers and workstations are allowed. Whoever
writes vendors or classes, or the names of the allowed GPUs, replaces that default.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from broker.domain.market.sku import GpuClass, GpuVendor, Sku
from broker.domain.workloads import document_fields as doc
from broker.domain.workloads.model_shape import GpuSpec

DEFAULT_VENDORS = frozenset({GpuVendor.NVIDIA})
DEFAULT_CLASSES = frozenset({GpuClass.DATACENTER, GpuClass.WORKSTATION})
Word = TypeVar("Word", GpuVendor, GpuClass)


@dataclass(frozen=True, slots=True)
class GpuRules:
    """The rules of one policy on GPUs. A missing rule excludes nothing.

    ``only`` and ``exclude`` are names of ``config/gpus.csv``, or beginnings of names with ``*`` at the end.
    ``min_memory_gb`` is per GPU, in 10⁹ bytes.
    """

    only: doc.GpuPatterns = ()
    exclude: doc.GpuPatterns = ()
    min_memory_gb: doc.SomeGigabytes | None = None
    vendor: Annotated[tuple[GpuVendor, ...], doc.NotEmpty(), doc.OneOrList()] | None = None
    classes: Annotated[tuple[GpuClass, ...], doc.NotEmpty(), doc.OneOrList()] | None = None

    def names(self, gpu: str) -> bool:
        """Whether the lists of names allow a GPU."""
        return (not self.only or is_named(gpu, self.only)) and not is_named(gpu, self.exclude)


def is_named(gpu: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of the patterns, or begins like one of those that end with ``*``."""
    return any(
        gpu.startswith(pattern[:-1]) if pattern.endswith("*") else gpu == pattern for pattern in patterns
    )


@dataclass(frozen=True, slots=True)
class AllowedGpus:
    """The GPUs that several policies and the defaults allow together.

    ``is_written``: some policy asks for vendors or classes, so that a GPU without a data sheet is out.
    """

    policies: tuple[GpuRules, ...]
    vendors: frozenset[GpuVendor]
    classes: frozenset[GpuClass]
    is_written: bool

    def allow(self, sku: Sku, spec: GpuSpec | None) -> bool:
        """Whether the GPUs of a kind of node are allowed; ``spec`` is their data sheet, if there is one."""
        least_gb = max((one.min_memory_gb or 0.0 for one in self.policies), default=0.0)
        return sku.gpu_memory_gb >= least_gb and self.allow_gpu(sku.gpu, spec)

    def allow_gpu(self, gpu: str, spec: GpuSpec | None) -> bool:
        """Whether the rules but those on memory allow a GPU."""
        if not all(one.names(gpu) for one in self.policies):
            return False
        if spec is None:
            return not self.is_written
        return spec.maker in self.vendors and spec.product_class in self.classes


def allowed_gpus(policies: Sequence[GpuRules]) -> AllowedGpus:
    """The GPUs that the rules of ``policies`` and the defaults allow."""
    vendors = [one.vendor for one in policies if one.vendor is not None]
    classes = [one.classes for one in policies if one.classes is not None]
    by_name = any(one.only for one in policies)
    return AllowedGpus(
        policies=tuple(policies),
        vendors=_common(vendors, frozenset(GpuVendor) if by_name else DEFAULT_VENDORS),
        classes=_common(classes, frozenset(GpuClass) if by_name else DEFAULT_CLASSES),
        is_written=bool(vendors or classes),
    )


def _common(written: Sequence[tuple[Word, ...]], default: frozenset[Word]) -> frozenset[Word]:
    return frozenset.intersection(*map(frozenset, written)) if written else default

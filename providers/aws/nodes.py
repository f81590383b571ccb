"""What an EC2 instance type is: its GPU, size and links, from ``config/providers/aws.toml``."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import time
from decimal import Decimal, InvalidOperation
from functools import cache

from broker.catalogue import load_gpus
from broker.domain.market.sku import Sku
from broker.provider_facts import Billing, infer_intra_node, load_provider_facts
from providers.payload import RowRejected, require_price

PROVIDER = "aws"
ML = "ml."
BLOCK_ANCHOR_UTC = time(11, 30)
_REGION_OF_ZONE = re.compile(r"^([a-z]{2}(?:-[a-z]+)+-\d+)(?:-[a-z0-9-]+)?[a-z]$")


def billing() -> Billing:
    """How EC2 rounds the time of a Linux instance."""
    return load_provider_facts(PROVIDER).billed


@cache
def sku_of(instance_type: str) -> Sku:
    """The SKU of an instance type; RowRejected when the configuration does not know it."""
    node = load_provider_facts(PROVIDER).nodes.get(instance_type)
    if node is None or node.gpu is None or node.gpus_per_node is None:
        raise RowRejected(f"unknown GPU instance type {instance_type!r}")
    gpu = load_gpus().get(node.gpu)
    if gpu is None:
        raise RowRejected(f"unknown GPU {node.gpu!r} of instance type {instance_type!r}")
    return Sku(
        name=instance_type,
        gpu=gpu.gpu,
        gpus_per_node=node.gpus_per_node,
        gpu_memory_gb=gpu.memory_gb,
        vcpus=node.vcpus,
        memory_gb=node.memory_gb,
        disk_gb=node.disk_gb,
        form=node.form,
        intra_node=node.intra_node or infer_intra_node(gpu.gpu, node.gpus_per_node),
        fabric=node.fabric,
    )


def ml_sku_of(ml_type: str) -> Sku:
    """The SKU of a SageMaker type (``ml.`` and the EC2 type's name): the EC2 type's hardware under its own
    name."""
    if not ml_type.startswith(ML):
        raise RowRejected(f"not a SageMaker instance type: {ml_type!r}")
    return replace(sku_of(ml_type.removeprefix(ML)), name=ml_type)


def known_types() -> tuple[str, ...]:
    """Every instance type of the configuration, in its order."""
    return tuple(load_provider_facts(PROVIDER).nodes)


def country_of(region: str) -> str | None:
    """ISO country of a region."""
    return load_provider_facts(PROVIDER).country_of(region)


def compliance() -> frozenset[str]:
    """Compliance attestations that cover EC2."""
    return load_provider_facts(PROVIDER).compliance


def region_of(zone: str) -> str:
    """``us-east-2`` of ``us-east-2a`` (also of Local Zones); RowRejected for another form."""
    match = _REGION_OF_ZONE.match(zone)
    if match is None:
        raise RowRejected(f"not an Availability Zone: {zone!r}")
    return match.group(1)


def parse_usd(text: str, currency: str | None) -> Decimal:
    """A positive, finite amount of US dollars; RowRejected otherwise."""
    if currency not in ("USD", None):
        raise RowRejected(f"currency is {currency}, not USD")
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise RowRejected(f"price {text[:40]!r} is not a number") from None
    return require_price(amount)

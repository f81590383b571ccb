"""Hyperstack (NexGen Infrahub): virtual machines, on demand and spot.

Sold: flavors by region, by the hour. On the wire three lists that must be joined: the price book (US dollars
per *GPU* and hour, by GPU word, one price for all regions), the stocks (how many machines of each size fit
now, as ``configurations`` ``1x``, ``2x`` …; sizes overlap: those of one GPU word and region are cut from the
same GPUs, as many as the machines of any one size hold) and the flavors (size, vCPUs, memory and disks in
GB). Form factor, NVLink and spot are suffixes of names. ``-NVLink`` means bridges between pairs of PCIe
cards: a link of two of them, while larger machines go at the rate of PCIe between pairs. The region of an
order is that of its environment. An order may be accepted and then end in status ``ERROR``, which is not
billed. An order names one key pair of its environment, and a rule that opens the SSH port, which is closed
otherwise. Not said: the network between machines (no fabric). Reserved capacity is contracts, not orderable.

Unverified: which error means "no stock" (told by words); the names of spot flavors and that they end in
``spot``; billing by the minute; the states while deleting; whether pages count from 0 or 1 (the answer's own
number is followed). Names have at most 50 characters (hyperstack-sdk-python 1.56).

Environment: ``BROKER_HYPERSTACK_API_KEY``; ``BROKER_HYPERSTACK_ENVIRONMENTS`` (``REGION=name,…``; a region
without one uses ``default-<region>``), ``BROKER_HYPERSTACK_KEY_NAME`` (a key pair of that name in every
environment, for orders without a key of their own), ``BROKER_HYPERSTACK_IMAGE``.
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.hyperstack.adapter import Hyperstack
from providers.hyperstack.offers import NAME, ROWS, parse
from providers.spec import HOLDING, Capability, ProviderSpec

__all__ = ["SPEC"]

BASE_URL = "https://infrahub-api.nexgencloud.com"

SPEC = ProviderSpec(
    name=NAME,
    title="Hyperstack",
    base_url=BASE_URL,
    credentials={"api_key": "an API key of the Hyperstack console"},
    options={
        "environments": "",
        "key_name": "broker",
        "image": "Ubuntu Server 22.04 LTS R535 CUDA 12.2",
    },
    capabilities=HOLDING | {Capability.SPOT},
    idempotency=Idempotency.TAG,
    adapter=Hyperstack,
    build=Hyperstack,
    parse=parse,
    rows=ROWS,
)

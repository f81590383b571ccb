"""Vast.ai: a marketplace of hosts that rent out containers, on demand and by bid.

Sold: single offers; an offer's id is the unit of stock (one node), and offers of one machine overlap (the
same GPUs as one offer of eight and eight of one), so machines must not be summed: ``reference`` carries
the machine. On the wire: USD per hour for the whole offer; ``dph_total`` holds the disk that the search
asked for, ``dph_base`` and ``min_bid`` do not; GPU memory in MiB per GPU, host memory in MB of the whole
host (the offer's share is that of its CPU cores). Traffic is billed apart.
The list of own instances has pages of 25 rows at most. An offer ends with its host's own term (``end_date``),
and so does every rental of it.
Not said: the network between machines (no fabric); the link between GPUs unless ``bw_nvlink`` is measured.

Keys come with the start script (``onstart``, at most 16 KiB, run as root at each start): a registered key
would open every instance of the account, those of other teams too. Port 22 is mapped to another one of the
host's, or reached by Vast's proxy. An order that names an image runs it as it is (``runtype`` ``args``): its
command is ``args_str``, its variables ``env``, and nobody enters it. Vast's document says that ``env`` is a
text, its page on instances and its own client send an object.

Environment: ``BROKER_VAST_API_KEY``; ``BROKER_VAST_IMAGE``, ``BROKER_VAST_DISK_GB``.
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.spec import HOLDING, Capability, ProviderSpec
from providers.vast.adapter import Vast
from providers.vast.offers import NAME, ROWS, parse

__all__ = ["SPEC"]

BASE_URL = "https://console.vast.ai"

SPEC = ProviderSpec(
    name=NAME,
    title="Vast.ai",
    base_url=BASE_URL,
    credentials={"api_key": "an API key of the account"},
    options={"image": "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-devel", "disk_gb": "50"},
    capabilities=HOLDING | {Capability.SPOT, Capability.LEASE_PRICE},
    idempotency=Idempotency.TAG,
    adapter=Vast,
    build=Vast,
    parse=parse,
    rows=ROWS,
    keyless=True,
)

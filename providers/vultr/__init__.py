"""Vultr: virtual machines and bare metal, on demand, and what is left over as preemptible.

Sold: plans by region, from two lists that need no key (``/v2/plans``, ``/v2/plans-metal``), paged by a
cursor. On the wire: dollars per machine and hour as JSON numbers (``location_cost`` overrides them by
region), memory in MB of 2²⁰ bytes, disks in GB each, GPU memory as the *total* of the plan, the GPU count
as a number, a text, a fraction ("1/4" is a vGPU, which is not sold on as a GPU), or not at all: then it
follows from the memory, from the id (``…-8-h100-gpu``), or from ``config/providers/vultr.toml``. A plan
lists the regions that have it now.

Preemptible: an order has no field that asks for it (as far as is documented), so the preemptible price is
only taken from plans that cannot be had on demand, where an order can mean nothing else. Not said: how
many are in stock, links, any network between machines (no fabric); the cap after which a month costs no
more is not modelled. Not verified against the live API: status codes of create and delete, and the
wording of a sold-out bare-metal order.

Environment: ``BROKER_VULTR_API_KEY``; ``BROKER_VULTR_OS_ID`` (default 2284, Ubuntu 24.04),
``BROKER_VULTR_SSH_KEY_ID`` (for orders without a key of their own).
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.spec import HOLDING, Capability, ProviderSpec
from providers.vultr.adapter import Vultr
from providers.vultr.offers import NAME, ROWS, parse

__all__ = ["SPEC"]

BASE_URL = "https://api.vultr.com"

SPEC = ProviderSpec(
    name=NAME,
    title="Vultr",
    base_url=BASE_URL,
    credentials={"api_key": "a personal access token of the account"},
    options={"os_id": "2284", "ssh_key_id": ""},
    capabilities=HOLDING | {Capability.SPOT},
    idempotency=Idempotency.TAG,
    adapter=Vultr,
    build=Vultr,
    parse=parse,
    rows=ROWS,
    keyless=True,
)

"""Latitude.sh: bare metal by the hour or by the month.

Sold: whole servers at a site. On the wire (JSON:API): dollars per server and hour, month or year, by region
of several sites; memory per GPU in GB; node memory in GB, disks as text ("3.8 TB"). What is in stock is said
by site (``locations.in_stock``, newer answers with ``in_stock_count``) and as a level of the whole region;
``deploys_instantly`` lists operating systems, not sites. A price of null or 0 means that the term is not sold
there. ``interconnect`` is free text: a rate with RoCE or InfiniBand is the network between servers, other
words are not read. Not said: how many servers that network joins (config names the least that is certain),
the form of some GPUs. The month is sold as a committed term of 730 hours, each one begun owed whole; years
need a reserved project and are not sold here, nor are the virtual machines of ``/plans/virtual_machines``.
``vcpus`` counts cores. Monthly servers are not deleted but scheduled for deletion at the end of what is paid.

Host names have at most 32 characters, as the seller's Terraform provider wants them (one longer was seen).

Keys and scripts (*user data*, Base64) are stored in the team before an order, which names them by their ids.
The user is named as the first word of the operating system; the API tells it only together with a password.

Unverified: rate limits and their body (no pace is documented), the answer to a delete
that comes too early, and to a plain delete of a monthly server. Orders have no idempotency key.

Environment: ``BROKER_LATITUDE_API_KEY``; ``BROKER_LATITUDE_PROJECT`` (id or slug, default ``broker``),
``BROKER_LATITUDE_OPERATING_SYSTEM``, ``BROKER_LATITUDE_SSH_KEY_ID`` (for orders without a key of their own).
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.latitude.adapter import Latitude
from providers.latitude.offers import NAME, ROWS, parse
from providers.spec import HOLDING, ProviderSpec

__all__ = ["SPEC"]

BASE_URL = "https://api.latitude.sh"

SPEC = ProviderSpec(
    name=NAME,
    title="Latitude.sh",
    base_url=BASE_URL,
    credentials={"api_key": "an API key of the Latitude.sh dashboard"},
    options={"project": "broker", "operating_system": "ubuntu_24_04_x64_lts", "ssh_key_id": ""},
    capabilities=HOLDING,
    idempotency=Idempotency.TAG,
    adapter=Latitude,
    build=Latitude,
    parse=parse,
    rows=ROWS,
)

"""Verda (formerly DataCrunch): virtual machines and bare metal, on demand and spot.

Sold: instance types by location. On the wire: prices as *strings*, USD per instance and hour; GPU memory
is the *total* of the instance; the form is the last letter of the type (V virtual, M metal); the link
between GPUs is free text (``p2p``). Types and stock are two feeds: a type is in stock where
``instance-availability`` lists it, separately for spot. An order without capacity is refused with HTTP
503 and words ("Not enough resources …"), or accepted and then fails with status ``no_capacity``. The
system volume has the size of the order and is charged beside the instance, at the monthly price of
``volume-types`` (730 hours); a release deletes it with the instance. Not said:
how many are in stock, the network between instances (no fabric; clusters are another product). Billing by
ten minutes is not in the API. Keys and start scripts are stored in the account before an order, which names
them by their ids. Unverified: when an instance has read its script (it is removed once the instance runs).

Environment: ``BROKER_VERDA_CLIENT_ID`` and ``BROKER_VERDA_CLIENT_SECRET`` (OAuth2 client credentials);
``BROKER_VERDA_SSH_KEY_ID`` (for orders without a key of their own), ``BROKER_VERDA_IMAGE``,
``BROKER_VERDA_DISK_GB``.
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.spec import HOLDING, Capability, ProviderSpec
from providers.verda.adapter import Verda
from providers.verda.offers import DISK_GB, NAME, ROWS, parse

__all__ = ["SPEC"]

BASE_URL = "https://api.verda.com"

SPEC = ProviderSpec(
    name=NAME,
    title="Verda",
    base_url=BASE_URL,
    credentials={
        "client_id": "id of OAuth2 client credentials",
        "client_secret": "their secret",
    },
    options={"ssh_key_id": "", "image": "ubuntu-24.04", "disk_gb": str(DISK_GB)},
    capabilities=HOLDING | {Capability.SPOT, Capability.LEASE_PRICE},
    idempotency=Idempotency.TAG,
    adapter=Verda,
    build=Verda,
    parse=parse,
    rows=ROWS,
)

"""CUDO Compute: virtual machines in sizes that the buyer chooses, on demand.

Sold: cores, memory, GPUs, disk and addresses by the hour, within each machine type's limits; config names
the sizes that are asked for here, and a node's price is the sum of its parts. On the wire: camelCase,
decimals as ``{"value": "0.45"}``, memory and disk in GiB, what is free exactly: in the largest single
machine (``max…Free``) and in the whole pool (``total…Free``). Not said: memory per GPU, the link between
GPUs (inferred from the card's form), any network between machines (no fabric), how billing is rounded
(whole hours are assumed). The number of nodes is what the pool would hold if it were not split over hosts,
and sizes of one pool share it, so that an order may find less. Machine types are readable without a key.
Commitment terms (one more call for each type) and bare metal are not read.

The buyer chooses a machine's id: it is the tag, so that an order whose answer was lost is found by it; the
tag also stands in the metadata, unchanged. An id that exists already is treated as such an order.

Unverified: error bodies (gRPC gateway: ``{"code", "message", "details"}``), words of a lack of capacity, the
longest id, the user of an image (root is assumed), whether a stopped machine is owed in full, rate limits. A
machine is terminated only from some states; otherwise later.

Environment: ``BROKER_CUDO_API_KEY``; ``BROKER_CUDO_PROJECT`` (default ``broker``), ``BROKER_CUDO_IMAGE``,
``BROKER_CUDO_SSH_KEY`` (a public key for orders without one of their own; default: those of the project).
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.cudo.adapter import Cudo
from providers.cudo.offers import NAME, ROWS, parse
from providers.spec import HOLDING, Capability, ProviderSpec

__all__ = ["SPEC"]

BASE_URL = "https://rest.compute.cudo.org"

SPEC = ProviderSpec(
    name=NAME,
    title="CUDO Compute",
    base_url=BASE_URL,
    credentials={"api_key": "an API key of the CUDO console"},
    options={"project": "broker", "image": "ubuntu-nvidia-docker", "ssh_key": ""},
    capabilities=HOLDING | {Capability.LEASE_PRICE},
    idempotency=Idempotency.TAG,
    adapter=Cudo,
    build=Cudo,
    parse=parse,
    rows=ROWS,
    keyless=True,
)

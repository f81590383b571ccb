"""TensorDock: virtual machines on other people's hosts, in sizes that the buyer chooses, on demand (API v2).

Sold: GPUs, cores, memory and disk of one host by the hour; config names the sizes that are asked for here,
and a node's price is the sum of its parts. On the wire: dollars as numbers, per GPU, core, GB of memory and
GB of disk; what is free on each host exactly; form and memory of a GPU in its type's name
(``h100-sxm5-80gb``). Sizes of one host share its GPUs, so that an order may find less. Not said: the link
between GPUs (inferred from the card's form), any network between machines (no fabric). Billed by the
second. ``/locations`` sums hosts up and is not read.

Errors may come with HTTP 200 and a body ``{"error", "status"}``; every answer is looked at for that. Of a
stopped machine whose GPUs went back to the host (``stoppeddisassociated``) the disk is still owed: it is
shown as unknown, not as ended.

Unverified (API v2 is read from its clients): the form of the list of machines, words of errors but
"Hostnode unavailable" and the longest name.

Environment: ``BROKER_TENSORDOCK_API_TOKEN``; ``BROKER_TENSORDOCK_IMAGE``, ``BROKER_TENSORDOCK_SSH_KEY`` (a
public key) or ``BROKER_TENSORDOCK_SSH_KEY_ID`` (a key of the account), for orders without a key of their
own: TensorDock refuses an order with none or with both.
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.spec import HOLDING, Capability, Need, ProviderSpec
from providers.tensordock.adapter import HELD, TensorDock
from providers.tensordock.offers import NAME, ROWS, parse

__all__ = ["SPEC"]

BASE_URL = "https://dashboard.tensordock.com/api/v2"

SPEC = ProviderSpec(
    name=NAME,
    title="TensorDock",
    base_url=BASE_URL,
    credentials={"api_token": "an API token of the TensorDock dashboard"},
    options={"image": "ubuntu2404", "ssh_key": "", "ssh_key_id": ""},
    needs=(
        Need(
            ("ssh_key", "ssh_key_id"),
            "a public SSH key, or the id of a key of the account",
            "ssh-ed25519 AAAA sandbox",
            in_order=True,
        ),
    ),
    capabilities=HOLDING | {Capability.LEASE_PRICE},
    idempotency=Idempotency.TAG,
    adapter=TensorDock,
    build=TensorDock,
    parse=parse,
    rows=(*ROWS, HELD),
)

"""Prime Intellect: other clouds' machines and clusters through one API, on demand and spot.

Sold: fixed configurations ("pods") by the hour; the seller is the upstream cloud, and a cloud's id is unique
only together with it. On the wire: the price of the whole configuration, in dollars or euros, as
``onDemand`` or (community cloud) ``communityPrice``, which holds the default disk, vCPUs and memory (a quoted
1.7568 is 1.74 of the card and 120 GB at 0.00014, whatever ``defaultIncludedInPrice`` says); GPU memory in GB
per GPU; stock as a level; ``prepaidTime`` hours
are owed whatever is used. A configuration over several nodes gives the total of GPUs, and the speed (Gbit/s)
and type of the network between nodes; how many GPUs a node has stands in the provider's configuration file.
It is sold whole: the sizes of one cluster at one price of a node are one offer, an order must be for one of
them, and the largest is what is known to be in stock, shared with the same machines one by one or at another
price. Whether vCPUs, memory and disk of a cluster are those of a node is not said, hence unknown. Not said at
all: virtual or bare metal, how billing is rounded (whole hours are assumed), which other types share GPUs.

An order has no word for spot: the configuration and its price as ``maxPrice`` must tell the two apart. On
demand ``maxPrice`` is sent only where the buyer has a limit; the price that is charged is read back.

Unverified: that a price is the configuration's (the provider's own client prints it so); that
``interconnect`` is per node; status and body of the errors about capacity (told by words), an unknown pod
(404 or words) and a rate limit; the longest name.

A pod opens to one registered key; the API has no start script (environment variables go to templates alone).

Environment: ``BROKER_PRIME_INTELLECT_API_KEY`` (may read availability, read and write instances and SSH
keys); ``BROKER_PRIME_INTELLECT_IMAGE``, ``BROKER_PRIME_INTELLECT_SSH_KEY_ID`` (for orders without a key of
their own), ``BROKER_PRIME_INTELLECT_TEAM_ID``.
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.prime_intellect.adapter import PrimeIntellect
from providers.prime_intellect.offers import NAME, ROWS, parse
from providers.spec import HOLDING, Capability, ProviderSpec

__all__ = ["SPEC"]

BASE_URL = "https://api.primeintellect.ai"

SPEC = ProviderSpec(
    name=NAME,
    title="Prime Intellect",
    base_url=BASE_URL,
    credentials={
        "api_key": "an API key that may read availability and read and write instances and SSH keys"
    },
    options={"image": "ubuntu_22_cuda_12", "ssh_key_id": "", "team_id": ""},
    capabilities=HOLDING | {Capability.SPOT, Capability.MULTI_NODE, Capability.LEASE_PRICE},
    idempotency=Idempotency.TAG,
    adapter=PrimeIntellect,
    build=PrimeIntellect,
    parse=parse,
    rows=ROWS,
)

"""Crusoe Cloud: virtual machines with counted stock and InfiniBand networks.

Sold: instance types by location, on demand. On the wire: capacities as counts of a type in a location (the
same pair may come twice: the larger counts), types with the GPU as text (memory stands in it), InfiniBand
networks with how many of a type each can join. Every call is signed (HMAC-SHA256). A create is an
operation that goes on: a lack of capacity shows in it afterwards (``out_of_stock``), also after the order
was taken. Machines of types with InfiniBand or RoCE (``-ib``, ``-roce``) need a partition of a network; the
broker keeps a partition named ``broker`` in each network that it uses.

Not said: any price (published ones stand in ``config/providers/crusoe.toml``; without one a type is
rejected), the fabric's rate, the country. Contracts (reservations) are shown and not sold by the API, so
there are no windows, and an order says ``on_demand`` lest it use up a contract of the organisation (the
default takes the cheapest); spot has a price list and no documented order, so there are no spot offers.
Unverified: most words of ``gpu_type``, the list of operations (asked only for what became of a machine
that is not there), the increment of billing, whether the image for AMD has Docker, and that a page is larger
than what one project holds (pages are followed by their tokens).

Environment: ``BROKER_CRUSOE_ACCESS_KEY``, ``BROKER_CRUSOE_SECRET_KEY`` (as Crusoe prints it, base64url),
``BROKER_CRUSOE_PROJECT_ID``; ``BROKER_CRUSOE_SSH_PUBLIC_KEY`` (for orders without a key of their own: no
machine is made without any), ``BROKER_CRUSOE_IMAGE`` (default: the one with Docker for the form of the GPU,
of ``config/providers/crusoe.toml``).
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.crusoe.adapter import Crusoe
from providers.crusoe.offers import NAME, ROWS, parse
from providers.spec import HOLDING, Need, ProviderSpec

__all__ = ["SPEC"]

SPEC = ProviderSpec(
    name=NAME,
    title="Crusoe Cloud",
    base_url="https://api.crusoecloud.com",
    credentials={
        "access_key": "id of an API access key",
        "secret_key": "its secret, base64url",
        "project_id": "the project that pays",
    },
    options={"ssh_public_key": "", "image": ""},
    needs=(
        Need(
            ("ssh_public_key",),
            "a public SSH key, as in an authorized_keys file",
            "ssh-ed25519 AAAA",
            in_order=True,
        ),
    ),
    capabilities=HOLDING,
    idempotency=Idempotency.TAG,
    adapter=Crusoe,
    build=Crusoe,
    parse=parse,
    rows=ROWS,
)

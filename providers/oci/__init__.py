"""Oracle Cloud Infrastructure: GPU shapes by the hour, held by compute capacity reservations.

Sold: bare metal and virtual shapes, on demand. On the wire: a price list for everybody (JSON numbers, USD
per *GPU*-hour and part number; the same in every region) and, signed, a capacity report per availability
domain: how many of a shape can be had there now. Not said: which shape a part number prices and what is
in a shape (``config/providers/oci.toml``), the network, and how finely a reservation is billed (the hour
of the list is taken). Preemptible capacity cannot be reserved and is not sold here.

An order makes one capacity reservation: it starts now, has no end, and holds any number of nodes until it
is deleted. ``opc-retry-token`` makes a repeat safe for 24 hours. No capacity is an ``InternalError`` with
status 500 whose message says so. How a reservation shows that capacity was lost after it was accepted is
not documented; there is no such state.

It holds capacity alone: the tenancy's owner launches instances into it, with keys and a script of their own.

Environment: ``BROKER_OCI_TENANCY``, ``BROKER_OCI_USER`` (their OCIDs), ``BROKER_OCI_FINGERPRINT`` and
``BROKER_OCI_PRIVATE_KEY`` (PEM text) of an API signing key; ``BROKER_OCI_COMPARTMENT`` (where to reserve;
default: the tenancy), ``BROKER_OCI_HOME_REGION`` (asked for the list of regions), ``BROKER_OCI_REGIONS``
(comma-separated; default: all that are subscribed to). ``BROKER_OCI_BASE_URL`` takes the place of all of
OCI's hosts, whose names then lead the path. Without keys the price list alone can be read.
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.oci.adapter import REAL_ROOT, Oci
from providers.oci.offers import NAME, ROWS, parse
from providers.spec import HOLDING, Capability, ProviderSpec

__all__ = ["SPEC"]

SPEC = ProviderSpec(
    name=NAME,
    title="Oracle Cloud Infrastructure",
    base_url=REAL_ROOT,
    credentials={
        "tenancy": "OCID of the tenancy",
        "user": "OCID of the user",
        "fingerprint": "fingerprint of the user's API signing key",
        "private_key": "that key (PEM text)",
    },
    options={"compartment": "", "home_region": "us-ashburn-1", "regions": ""},
    capabilities=HOLDING | {Capability.MULTI_NODE},
    idempotency=Idempotency.TOKEN,
    adapter=Oci,
    build=Oci,
    parse=parse,
    rows=ROWS,
    keyless=True,
)

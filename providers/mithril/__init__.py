"""Mithril (formerly Foundry): spot bids and reservations of windows.

Sold: instances by type and region, two ways. *Spot*: a standing bid with a limit price; the market's price
is paid while the bid is allocated. *Reservations*: so many instances for 3 hours to 2 weeks in whole hours,
now or later, paid whole and upfront (``window`` offers of kind ``slots``). On the wire: an instance type has
one FID per region; auction prices are strings with a dollar sign per instance and hour (``"$8.00"``),
reserved prices integer US cents per instance and hour, memory of one GPU in GB; a count of InfiniBand ports
(``ib_count``). Lists of what is held have cursors, the market's lists are bare.

Limits: a bid is the buyer's limit, and a reservation carries it as ``max_unit_price``. The reserved price
depends on the quantity, so it is asked for one instance and for as many as are free at once. A reservation
ends early by ``terminate-instances``, for a credit at the seller's buyback price; its instances exist only
once it has started.

Not said: the ports' rate and the size of an InfiniBand domain (``config/providers/mithril.toml``), the
country, and whether a bid for several instances is filled in part: one bid is sent for each node. Unverified:
the unit of ``max_unit_price`` (taken as cents, like ``unit_price_cents``), the words of refusals for
capacity, quota and price (read by meaning), the meaning of ``Canceled`` (before the start: capacity was
lost), and that ``name`` may be 64 characters long. Pause credits are not used.

Machines open to registered keys of the project, any number of them, and run a start script once; a list of
their own says how each is entered. A key that a bid or a reservation still names cannot be removed.

Environment: ``BROKER_MITHRIL_API_KEY``, ``BROKER_MITHRIL_PROJECT`` (FID of the project);
``BROKER_MITHRIL_SSH_KEY`` (FID of a key, for orders without a key of their own).
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.mithril.adapter import Mithril
from providers.mithril.offers import NAME, ROWS, parse
from providers.spec import HOLDING, Capability, ProviderSpec

__all__ = ["SPEC"]

SPEC = ProviderSpec(
    name=NAME,
    title="Mithril",
    base_url="https://api.mithril.ai",
    credentials={"api_key": "an API key", "project": "FID of the project that pays"},
    options={"ssh_key": ""},
    capabilities=HOLDING | {Capability.SPOT, Capability.WINDOWS, Capability.MULTI_NODE},
    idempotency=Idempotency.TAG,
    adapter=Mithril,
    build=Mithril,
    parse=parse,
    rows=ROWS,
)

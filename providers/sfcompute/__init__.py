"""SF Compute: blocks of 8-GPU nodes, bought on an order book.

Sold: any number of nodes of one zone over whole hours, prepaid (``window`` offers of kind ``orderbook``);
unwanted blocks are sold back at the market. On the wire: availability as rectangles over time in nodes
and unix seconds; prices as TOTAL integer cents of a quoted block. Not said: the GPU's form, vCPU, memory
and disk, the rate of the fabric (``config/providers/sfcompute.toml``), countries (regions are
continents), and any price without a window.

Spoken is the API under ``/v0`` (zones, quotes, orders, contracts). SF Compute's documents of July 2026
describe ``/preview/v2``, where orders fill a capacity (lately called a pool) that instances run on: a public
preview, whose names still change and which its service level leaves out. The seller's own command line of
May 2026 (0.32.5) reads zones, quotes and contracts of ``/v0`` and buys by ``nodes``, no longer by orders.
Whether ``/v0/orders`` still takes an order, and until when, could not be checked.

An order takes neither keys nor a script: virtual machines boot with a start script of the whole account
(``/v0/vms/script``), which the broker leaves alone, since another team's blocks boot with it too. Nothing
says which machine is of which contract.

Environment: ``BROKER_SFCOMPUTE_API_KEY`` (``sf tokens create``), ``BROKER_SFCOMPUTE_BASE_URL``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import PurePath

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.holding.reservation import Idempotency
from broker.domain.market.offer import OfferBatch
from providers.payload import join_batches
from providers.sfcompute.adapter import SfCompute
from providers.sfcompute.offers import PROVIDER, ROWS, QuoteAnswer, parse_offers, read_quote
from providers.spec import HOLDING, Capability, NamedPayload, ProviderSpec

__all__ = ["SPEC", "parse"]

POLL_EVERY_S = 300.0
"""A poll makes a hundred quote requests, so prices are polled less often than every minute."""


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded zones and quotes: files named ``quote-<zone>`` (a quote without one says no zone itself)."""
    quotes: defaultdict[str, list[QuoteAnswer]] = defaultdict(list)
    lists: list[bytes] = []
    for name, raw in payloads:
        stem = PurePath(name).name.partition(".")[0]
        if not stem.startswith("quote-"):
            lists.append(raw)
            continue
        answer = read_quote(raw)
        zone = answer.quote.zone if answer.quote is not None and answer.quote.zone else None
        quotes[zone or stem.split("-")[1]].append(answer)
    if not lists:
        raise PayloadUnreadable(PROVIDER, "no list of zones among the payloads")
    return join_batches(parse_offers(raw, quotes, observed_at) for raw in lists)


SPEC = ProviderSpec(
    name=PROVIDER,
    title="SF Compute",
    base_url="https://api.sfcompute.com",
    credentials={"api_key": "a token of `sf tokens create`"},
    capabilities=HOLDING | {Capability.MULTI_NODE, Capability.WINDOWS},
    idempotency=Idempotency.TOKEN,
    adapter=SfCompute,
    build=SfCompute,
    parse=parse,
    rows=ROWS,
    poll_every_s=POLL_EVERY_S,
)

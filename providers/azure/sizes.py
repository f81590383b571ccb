"""Which sizes a subscription may order: ``Microsoft.Compute/skus``, one region at a time.

Capability values are strings. A size that is not listed for a region, or is restricted there
(``NotAvailableForSubscription``), cannot be ordered. Restrictions of single zones are ignored, because no
order names a zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from broker.domain.market.offer import Offer, OfferBatch, RejectedRow, Tier
from providers.azure.prices import held
from providers.azure.windows import PROVIDER
from providers.payload import PayloadModel, as_payload
from providers.schema import Rows

API_VERSION = "2021-07-01"
SOURCE = "Microsoft.Compute/skus"


class _Capability(PayloadModel):
    name: str = ""
    value: str | None = None


class _Restriction(PayloadModel):
    type: str = ""
    values: tuple[str, ...] | None = None
    reasonCode: str | None = None


class _Row(PayloadModel):
    resourceType: str = ""
    name: str = ""
    capabilities: tuple[_Capability, ...] | None = None
    restrictions: tuple[_Restriction, ...] | None = None


@dataclass(frozen=True, slots=True)
class SizeFacts:
    """Reservation types of a size, and the reason why it cannot be ordered ("" when it can)."""

    reservation_types: frozenset[str]
    restriction: str


Sizes = Mapping[str, SizeFacts]


def query_of_region(region: str) -> dict[str, str]:
    """Parameters of the list for one region."""
    return {"api-version": API_VERSION, "$filter": f"location eq '{region}'"}


def read_sizes(rows: Iterable[Any], region: str) -> dict[str, SizeFacts]:
    """Sizes with accelerators of one region, by lower-case name; PayloadUnreadable for other answers."""
    found = {}
    for each in rows:
        row = as_payload(PROVIDER, each, _Row)
        if row.resourceType == "virtualMachines" and row.name.lower().startswith("standard_n"):
            found[row.name.lower()] = SizeFacts(_reservation_types(row), _restriction(row, region))
    return found


def _reservation_types(row: _Row) -> frozenset[str]:
    said = {capability.name: capability.value or "" for capability in row.capabilities or ()}
    named = said.get("SupportedCapacityReservationTypes", "")
    if named:
        return frozenset(part.strip() for part in named.split(","))
    is_supported = said.get("CapacityReservationSupported", "").lower() == "true"
    return frozenset({"Targeted"} if is_supported else ())


def _restriction(row: _Row, region: str) -> str:
    for restriction in row.restrictions or ():
        places = {place.lower().replace(" ", "") for place in restriction.values or ()}
        if restriction.type == "Location" and region in places:
            return restriction.reasonCode or "restricted"
    return ""


def checked(batch: OfferBatch, sizes: Mapping[str, Sizes], observed_at: datetime) -> OfferBatch:
    """``batch`` without the sizes that the subscription cannot order; reservation types decide how an offer
    is held.

    ``sizes`` is keyed by region; offers of a region that is not in it stay as they are.
    """
    items = tuple(item for offer in batch.offers for item in _checked(offer, sizes, observed_at))
    return OfferBatch(
        tuple(item for item in items if isinstance(item, Offer)),
        (*batch.rejected, *(item for item in items if isinstance(item, RejectedRow))),
    )


def _checked(
    offer: Offer, sizes: Mapping[str, Sizes], observed_at: datetime
) -> Iterator[Offer | RejectedRow]:
    region = sizes.get(offer.region)
    if region is None:
        yield offer
        return
    if offer.tier is Tier.WINDOW:
        return
    named = f"{offer.sku.name} {offer.region} {offer.tier}"
    facts = region.get(offer.sku.name.lower())
    if facts is None:
        yield RejectedRow(named, "not among the subscription's sizes in the region")
    elif facts.restriction:
        yield RejectedRow(named, f"not available to this subscription: {facts.restriction[:80]}")
    else:
        seen = replace(offer, source=f"{offer.source}; {SOURCE}")
        yield from held(seen, facts.reservation_types, observed_at)


ROWS = Rows("GET Microsoft.Compute/skus", "value[]", _Row)

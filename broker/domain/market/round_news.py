"""What a round of a provider tells that was not known: pure.

A round of tens of thousands of offers mostly repeats the one before. An offer is recognized by a fingerprint
of everything that it says, so that what did not change is neither read nor written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, time
from decimal import Decimal
from functools import cache
from hashlib import blake2b
from operator import attrgetter

from broker.domain.market.offer import Offer


@dataclass(frozen=True, slots=True)
class OfferMark:
    """How a current offer is recognized: its fingerprint, and the price on its seller's list."""

    fingerprint: str
    list_usd_per_node_hour: Decimal


@dataclass(frozen=True, slots=True)
class RoundNews:
    """What a round changes: offers that are new or say something else, and ids that are gone.

    ``fingerprints`` by offer id, of ``offers``. Everything else of the provider was seen again as it was.
    """

    offers: tuple[Offer, ...]
    fingerprints: Mapping[str, str]
    gone: tuple[str, ...]

    @property
    def touched(self) -> tuple[str, ...]:
        """Ids of everything that is written or removed."""
        return (*self.fingerprints, *self.gone)


def round_news(marks: Mapping[str, OfferMark], offers: Iterable[Offer], round_at: datetime) -> RoundNews:
    """What ``offers``, all of a provider at ``round_at``, change of what ``marks`` says.

    The last of several with one id counts.
    """
    seen = {offer.offer_id: offer for offer in offers}
    changed: list[Offer] = []
    fingerprints: dict[str, str] = {}
    for offer_id, offer in seen.items():
        found = fingerprint(offer, round_at)
        mark = marks.get(offer_id)
        if mark is None or mark.fingerprint != found:
            changed.append(offer)
            fingerprints[offer_id] = found
    return RoundNews(tuple(changed), fingerprints, tuple(key for key in marks if key not in seen))


def dated(offer: Offer, round_at: datetime) -> datetime | None:
    """When the seller says that the offer was seen, None where that is the round itself."""
    return None if offer.observed_at == round_at else offer.observed_at


def fingerprint(offer: Offer, round_at: datetime) -> str:
    """128 bits, in hexadecimal, of all that ``offer`` says; being seen in the round says nothing."""
    said = (dated(offer, round_at), *_values_but_time(offer))
    return blake2b(_ENCODE(said).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_values_but_time: Callable[[Offer], tuple[object, ...]] = attrgetter(
    *(field.name for field in fields(Offer) if field.name != "observed_at")
)


@cache
def _values_of(kind: type) -> Callable[[object], object]:
    return attrgetter(*(field.name for field in fields(kind)))


def _plain(value: object) -> object:
    """What JSON does not know, as something that it does; unambiguous for the fields of an offer."""
    if isinstance(value, Decimal):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _values_of(type(value))(value)
    if isinstance(value, datetime | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Collection):
        return sorted(value)
    raise TypeError(f"an offer cannot carry {type(value).__name__}")


_ENCODE = json.JSONEncoder(default=_plain, check_circular=False, ensure_ascii=False, sort_keys=True).encode

"""The changes that a poll round makes to the stored offers. Pure.

A round of tens of thousands of offers mostly repeats the previous one. Offers are compared by a fingerprint
of all their fields, so unchanged offers are neither read from nor written to the database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import cache
from hashlib import blake2b
from operator import attrgetter

from broker.domain.market.offer import Offer


@dataclass(frozen=True, slots=True)
class OfferMark:
    """The fingerprint of a stored offer, and its list price."""

    fingerprint: str
    list_usd_per_node_hour: Decimal


@dataclass(frozen=True, slots=True)
class RoundNews:
    """The changes of a round: new or changed ``offers``, and the ids of offers that are ``gone``.

    ``fingerprints`` are those of ``offers``, by id. All other offers of the provider are unchanged.
    """

    offers: tuple[Offer, ...]
    fingerprints: Mapping[str, str]
    gone: tuple[str, ...]

    @property
    def touched(self) -> tuple[str, ...]:
        """Ids of all offers that are written or removed."""
        return (*self.fingerprints, *self.gone)


def round_news(marks: Mapping[str, OfferMark], offers: Iterable[Offer], round_at: datetime) -> RoundNews:
    """The changes from the stored ``marks`` to ``offers``, all offers of a provider at ``round_at``.

    Of several offers with the same id the last one counts.
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
    """When the provider itself observed the offer; None if it states no time other than the round's."""
    return None if offer.observed_at == round_at else offer.observed_at


def fingerprint(offer: Offer, round_at: datetime) -> str:
    """A hash (128 bits, hexadecimal) of all fields of ``offer``, except an ``observed_at`` of this round."""
    said = (dated(offer, round_at), *_values_but_time(offer))
    return blake2b(_ENCODE(said).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_values_but_time: Callable[[Offer], tuple[object, ...]] = attrgetter(
    *(field.name for field in fields(Offer) if field.name != "observed_at")
)


@cache
def _values_of(kind: type) -> Callable[[object], object]:
    return attrgetter(*(field.name for field in fields(kind)))


def _plain(value: object) -> object:
    """A JSON form of values that JSON has no type for; it is unambiguous for the fields of an offer."""
    if isinstance(value, Decimal):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _values_of(type(value))(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Collection):
        return sorted(value)
    raise TypeError(f"an offer cannot have a value of type {type(value).__name__}")


_ENCODE = json.JSONEncoder(default=_plain, check_circular=False, ensure_ascii=False, sort_keys=True).encode

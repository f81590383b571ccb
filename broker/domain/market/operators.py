"""Operators of data centres, and the places of offers. Pure.

A *place* is one data centre of one operator, or its region if the data centre is not stated. Two sellers of
the same data centre get the same place; two regions of one operator are two places. A spelling that no
operator maps becomes a place of its own under the seller's name, so it is never confused with another place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from broker.domain.market.offer import HostKind, Offer

Site = tuple[str, HostKind | None]
"""A place, and the kind of host of its machines (None: unknown)."""
SHORT_ZONE = 2
"""A zone name of at most this length ("1", "a") is unique only within its region."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of data centres.

    ``names`` are the names under which sellers list it, including its own. ``places`` maps sellers' spellings
    of its data centres to its own names. ``host`` applies if a payload does not state it (None: unknown).
    """

    key: str
    names: frozenset[str] = frozenset()
    places: Mapping[str, str] = field(default_factory=dict, hash=False)
    host: HostKind | None = None


@dataclass(frozen=True, slots=True)
class Operators:
    """The known operators, and the marketplaces.

    ``marketplaces`` maps a provider whose sellers are their own operators to the kind of host that applies if
    a payload does not state it. Its zones are single machines, so the place of a seller is its region.
    """

    known: tuple[Operator, ...] = ()
    marketplaces: Mapping[str, HostKind | None] = field(default_factory=dict, hash=False)
    _by_name: dict[str, Operator] = field(init=False, default_factory=dict, hash=False, compare=False)
    _by_place: dict[tuple[str, str], str] = field(init=False, default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        """Indexes operators by names and spellings. Raises ValueError if two operators share a name."""
        for operator in self.known:
            for name in {operator.key, *operator.names}:
                if self._by_name.setdefault(_folded(name), operator) is not operator:
                    other = self._by_name[_folded(name)].key
                    raise ValueError(f"operators {other} and {operator.key} both have the name {name!r}")
            for spelling, place in operator.places.items():
                self._by_place[operator.key, _folded(spelling)] = place
                self._by_place[operator.key, _folded(place)] = place

    def operator_of(self, provider: str, seller: str | None) -> Operator | None:
        """The operator of machines that ``provider`` sells for ``seller``; None if it is unknown."""
        if provider in self.marketplaces:
            return None
        return self._by_name.get(_folded(seller or provider))

    def place_of(self, provider: str, seller: str | None, region: str, zone: str | None) -> str:
        """The place: operator and data centre (or region), the same for every seller of it."""
        if provider in self.marketplaces:
            return "/".join(_word(part) for part in (provider, seller, region) if part)
        operator = self.operator_of(provider, seller)
        key = operator.key if operator is not None else _word(seller or provider)
        for word in (zone, region):
            known = None if word is None else self._by_place.get((key, _folded(word)))
            if known is not None:
                return f"{key}/{known}"
        return f"{key}/{_word(_data_centre(region, zone))}"

    def host_of(self, provider: str, seller: str | None) -> HostKind | None:
        """The kind of host if the payload does not state it; None if it is unknown."""
        if provider in self.marketplaces:
            return self.marketplaces[provider]
        operator = self.operator_of(provider, seller)
        return None if operator is None else operator.host

    def sites(self, offers: Iterable[Offer]) -> tuple[Site, ...]:
        """The place and the kind of host of each of ``offers``."""
        place_of, host_of = cache(self.place_of), cache(self.host_of)
        return tuple(
            (
                place_of(offer.provider, offer.seller, offer.region, offer.zone),
                offer.host or host_of(offer.provider, offer.seller),
            )
            for offer in offers
        )

    def with_hosts(self, offers: Iterable[Offer]) -> tuple[Offer, ...]:
        """``offers``, where a missing kind of host is filled in from the operator."""
        return tuple(offer if offer.host is not None else self._with_host(offer) for offer in offers)

    def _with_host(self, offer: Offer) -> Offer:
        host = self.host_of(offer.provider, offer.seller)
        return offer if host is None else replace(offer, host=host)


def _data_centre(region: str, zone: str | None) -> str:
    """The zone without the account-specific prefix before a colon; a short zone is joined to its region."""
    name = (zone or "").rpartition(":")[2].strip()
    if not name:
        return region
    return f"{region}-{name}" if len(name) <= SHORT_ZONE else name


def _folded(name: str) -> str:
    """A name for comparison: sellers differ in case, spaces and hyphens."""
    return re.sub(r"[\s_.-]+", "", name).casefold()


def _word(name: str) -> str:
    """A name in the form that is used in a place."""
    return re.sub(r"[\s/,]+", "-", name.strip()).strip("-") or "unknown"

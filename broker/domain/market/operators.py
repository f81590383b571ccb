"""Who runs the data centre that an offer stands in, whoever sells it: pure.

A *place* is one operator's data centre, or its region where nobody names the data centre. Two sellers of one
data centre name one place; two regions of one operator are two. What nobody maps stays under the seller's own
words, so that an unknown spelling is a place of its own and never another one's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from broker.domain.market.offer import HostKind, Offer

Site = tuple[str, HostKind | None]
"""A place, and where its machines stand; None: nobody says."""
SHORT_ZONE = 2
"""A zone of so many characters ("1", "a") means something only inside its region."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Whoever runs data centres under a name.

    ``names``: under which sellers list it, its own among them. ``places``: the spelling that sellers use of
    one of its data centres → its own name. ``host``: where its machines stand if no payload says it; None if
    nobody knows. ``runs_data_centres``: its own or leased halls, as it says itself.
    """

    key: str
    names: frozenset[str] = frozenset()
    places: Mapping[str, str] = field(default_factory=dict, hash=False)
    host: HostKind | None = None
    runs_data_centres: bool = False


@dataclass(frozen=True, slots=True)
class Operators:
    """All that are known, and the providers whose sellers are operators of their own.

    ``marketplaces``: provider → where its hosts' machines stand unless a payload says it. Their zones are
    machines, so that a host's place is its region.
    """

    known: tuple[Operator, ...] = ()
    marketplaces: Mapping[str, HostKind | None] = field(default_factory=dict, hash=False)
    _by_name: dict[str, Operator] = field(init=False, default_factory=dict, hash=False, compare=False)
    _by_place: dict[tuple[str, str], str] = field(init=False, default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        """Sorts what is known by names and spellings; ValueError for a name of two operators."""
        for operator in self.known:
            for name in {operator.key, *operator.names}:
                if self._by_name.setdefault(_folded(name), operator) is not operator:
                    raise ValueError(f"{name!r} is a name of {self._by_name[_folded(name)].key} already")
            for spelling, place in operator.places.items():
                self._by_place[operator.key, _folded(spelling)] = place
                self._by_place[operator.key, _folded(place)] = place

    def operator_of(self, provider: str, seller: str | None) -> Operator | None:
        """Who runs the machines that ``provider`` sells for ``seller``; None for one that is not known."""
        if provider in self.marketplaces:
            return None
        return self._by_name.get(_folded(seller or provider))

    def place_of(self, provider: str, seller: str | None, region: str, zone: str | None) -> str:
        """Operator and data centre, or region: one name for whoever sells it."""
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
        """Where the machines stand where no payload says: what is known of the operator, else None."""
        if provider in self.marketplaces:
            return self.marketplaces[provider]
        operator = self.operator_of(provider, seller)
        return None if operator is None else operator.host

    def sites(self, offers: Iterable[Offer]) -> tuple[Site, ...]:
        """The places of ``offers``, and their hosts where no payload said them."""
        place_of, host_of = cache(self.place_of), cache(self.host_of)
        return tuple(
            (
                place_of(offer.provider, offer.seller, offer.region, offer.zone),
                offer.host or host_of(offer.provider, offer.seller),
            )
            for offer in offers
        )

    def with_hosts(self, offers: Iterable[Offer]) -> tuple[Offer, ...]:
        """``offers`` of a market that says no hosts, with what is known of their operators."""
        return tuple(offer if offer.host is not None else self._with_host(offer) for offer in offers)

    def _with_host(self, offer: Offer) -> Offer:
        host = self.host_of(offer.provider, offer.seller)
        return offer if host is None else replace(offer, host=host)


def _data_centre(region: str, zone: str | None) -> str:
    """The zone without what only its seller's account says before a colon; a short one with its region."""
    name = (zone or "").rpartition(":")[2].strip()
    if not name:
        return region
    return f"{region}-{name}" if len(name) <= SHORT_ZONE else name


def _folded(name: str) -> str:
    """A name as it is compared: sellers differ in case, spaces and hyphens."""
    return re.sub(r"[\s_.-]+", "", name).casefold()


def _word(name: str) -> str:
    """A name as one part of a place."""
    return re.sub(r"[\s/,]+", "-", name.strip()).strip("-") or "unknown"

"""Words that come from a list: countries, sets of countries, compliance tags, provider keys, time zones.

Case is ignored. An unknown word is an error with the nearest known word, because it would exclude every
offer, or none of the intended ones.
"""

from __future__ import annotations

import difflib
import zoneinfo
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any, Protocol

from broker.catalogue import load_compliance_tags, load_countries, load_geographies
from broker.domain.basics.near_words import near_words, with_nearest
from broker.domain.planning.workload import Policy
from broker.domain.workloads.document_fields import Told
from broker.provider_facts import load_provider_names


class Report(Protocol):
    """Reports a problem at a pointer. Without ``found``, it shows the value there."""

    def __call__(self, pointer: str, expected: str, found: str | None = None) -> None:
        """Adds the problem."""


class Unknown(Exception):
    """A text that names nothing: what was expected and found (None: the value), and a stand-in for it."""

    def __init__(self, *problems: tuple[str, str | None], stand_in: Any) -> None:
        super().__init__(*problems)
        self.problems = problems
        self.stand_in = stand_in


OTHER_CODES: Mapping[str, str] = {"UK": "GB", "EL": "GR", "AN": "CW", "SU": "RU", "YU": "RS", "FX": "FR"}
"""Codes that are not in ISO 3166-1 but in use: those of the European Union, and withdrawn ones."""


def word_of(told: Told, word: str) -> str:
    """A country code, a set of countries, a tag, a provider's key or a time zone as its list has it. Raises
    Unknown.
    """
    known, expected = _LISTS[told]
    found = {one.lower(): one for one in known()}.get(word.strip().lower())
    if found is None:
        raise Unknown((expected(word), repr(word)), stand_in=word)
    return found


def outside(policy: Policy) -> str | None:
    """What is expected where two rules have no country in common, because that excludes every offer."""
    if not policy.countries or not policy.geography:
        return None
    inside = frozenset().union(*(load_geographies()[name] for name in policy.geography))
    if inside & frozenset(policy.countries):
        return None
    named = ", ".join(policy.geography)
    return f"countries of {named}, as in geography; or leave one of the two fields out"


def _country_expected(word: str) -> str:
    names = load_countries()
    code = OTHER_CODES.get(word.upper())
    if code is not None:
        return f"{code}, the ISO 3166-1 code of {names[code]}"
    if word.lower() in load_geographies():
        return f"codes of single countries; the set {word.lower()} is written as geography: [{word.lower()}]"
    by_name = {name.lower(): code for code, name in names.items()}
    near = difflib.get_close_matches(word.lower(), by_name, n=3, cutoff=0.6)
    if len(word) == 2:
        near_codes = [c for c in names if set(c) == set(word.upper()) or c[0] == word[0].upper()][:3]
        hints = [f"{c} ({names[c]})" for c in near_codes]
    else:
        hints = [f"{by_name[name]} ({names[by_name[name]]})" for name in near]
    nearest = f" (nearest: {', '.join(hints)})" if hints else ""
    return f"an ISO 3166-1 alpha-2 code such as DE or US{nearest}"


def provider_expected(word: str) -> str:
    """The expected value in place of an unknown provider key, with the nearest keys."""
    known = load_provider_names()
    told = with_nearest("a provider's key", word, known)
    return told if near_words(word, known) else f"{told} (`broker providers list`)"


def _expected(what: str, word: str, known: Collection[str]) -> str:
    if near_words(word, known):
        return with_nearest(what, word, known)
    return f"{what}, such as soc2, iso27001, hipaa, gdpr"


def _geography_expected(_: str) -> str:
    known = ", ".join(load_geographies())
    return f"a set of countries: {known}; write single countries in the field countries"


def _tag_expected(word: str) -> str:
    return _expected("a tag of config/compliance.toml", word, load_compliance_tags())


def _time_zone_expected(word: str) -> str:
    return with_nearest("an IANA time zone such as Europe/Berlin", word, _time_zones())


@cache
def _time_zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


_LISTS: Mapping[Told, tuple[Callable[[], Iterable[str]], Callable[[str], str]]] = {
    Told.COUNTRY: (load_countries, _country_expected),
    Told.GEOGRAPHY: (load_geographies, _geography_expected),
    Told.TAG: (load_compliance_tags, _tag_expected),
    Told.PROVIDER: (load_provider_names, provider_expected),
    Told.TIME_ZONE: (_time_zones, _time_zone_expected),
}

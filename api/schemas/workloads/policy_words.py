"""Words of a policy that come from a list: countries, sets of countries, compliance tags, provider keys.

Case is ignored. An unknown word is an error with the nearest known word, because it would exclude every
offer, or none of the intended ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from api.schemas.base.document import pointer_of
from api.schemas.workloads.workload_forms import QuotaForm
from broker.catalogue import load_compliance_tags, load_countries, load_geographies
from broker.domain.basics.near_words import near_words, with_nearest
from broker.domain.planning.workload import Quota
from broker.provider_facts import load_provider_names


class Report(Protocol):
    """Reports a problem at a pointer. Without ``found``, it shows the value there."""

    def __call__(self, pointer: str, expected: str, found: str | None = None) -> None:
        """Adds the problem."""


OTHER_CODES: Mapping[str, str] = {"UK": "GB", "EL": "GR", "AN": "CW", "SU": "RU", "YU": "RS", "FX": "FR"}
"""Codes that are not in ISO 3166-1 but in use: those of the European Union, and withdrawn ones."""


class PolicyWords:
    """Reads lists of words, and reports unknown ones."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def countries(self, told: Iterable[str] | None, at: str) -> tuple[str, ...] | None:
        """Country codes in capitals; None if the field is missing."""
        if told is None:
            return None
        known = load_countries()
        return self._read(told, at, {code.lower(): code for code in known}, _country_expected)

    def geographies(self, told: Iterable[str] | None, at: str) -> tuple[str, ...] | None:
        """Names of sets of countries; None if the field is missing."""
        if told is None:
            return None
        known = load_geographies()
        hint = f"a set of countries: {', '.join(known)}; write single countries in the field countries"
        return self._read(told, at, {name.lower(): name for name in known}, lambda _: hint)

    def check_inside(
        self, countries: tuple[str, ...] | None, geography: tuple[str, ...] | None, at: str
    ) -> None:
        """Reports a policy whose two rules have no country in common, because it excludes every offer."""
        if not countries or not geography:
            return
        inside = frozenset().union(*(load_geographies()[name] for name in geography))
        if not inside & frozenset(countries):
            named = ", ".join(geography)
            self._report(at, f"countries of {named}, as in geography; or leave one of the two fields out")

    def tags(self, told: Iterable[str], at: str) -> tuple[str, ...]:
        """Compliance tags."""
        known = load_compliance_tags()
        return self._read(
            told,
            at,
            {tag.lower(): tag for tag in known},
            lambda word: _expected("a tag of config/compliance.toml", word, known),
        )

    def providers(self, told: Iterable[str], at: str) -> tuple[str, ...]:
        """Provider keys."""
        known = load_provider_names()
        return self._read(told, at, {key.lower(): key for key in known}, provider_expected)

    def quotas(self, told: Mapping[str, QuotaForm], at: str) -> tuple[Quota, ...]:
        """Quotas by provider, in the order of their keys."""
        found: dict[str, Quota] = {}
        for name, row in told.items():
            here, key = f"{at}{pointer_of(name)}", name.strip().lower()
            if key not in load_provider_names():
                self._report(here, provider_expected(name), repr(name))
            elif key in found:
                self._report(here, f"each provider once, but {key} already has a quota", repr(name))
            if row.gpus is None and row.nodes is None:
                self._report(here, "gpus or nodes, the most that may be held at once")
            found[key] = Quota(key, row.gpus, row.nodes)
        return tuple(quota for _, quota in sorted(found.items()))

    def _read(
        self, told: Iterable[str], at: str, known: Mapping[str, str], expected: Callable[[str], str]
    ) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for index, word in enumerate(told):
            value = known.get(word.strip().lower())
            if value is not None:
                found[value] = None
            else:
                self._report(f"{at}/{index}", expected(word), repr(word))
        return tuple(found)


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

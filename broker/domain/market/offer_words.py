"""Filters of offers as people write them: names, lists by comma, families and patterns. Pure.

``H100`` is the family of all GPUs whose names begin with ``H100-``; ``us-*`` is a pattern. Case is ignored.
A word that names nothing known is a problem with the nearest known words, because it would find nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from broker.domain.basics.errors import FieldProblem
from broker.domain.basics.near_words import with_nearest
from broker.domain.market.offer import Offer, StockLevel, Tier
from broker.domain.market.offer_pages import OfferFilter
from broker.domain.market.sku import Form

NAMED = ("provider", "gpu", "region", "tier")
MOST_GPUS_PER_NODE = 1024


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names that filters may use. Without any known name of a field, its words are taken as they are.

    ``gpu_aliases``: other spellings of canonical GPU names, such as ``A10G-24GB``.
    """

    gpus: Collection[str] = ()
    providers: Collection[str] = ()
    regions: Collection[str] = ()
    countries: Collection[str] = ()
    gpu_aliases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OfferTraits:
    """Conditions on what an offer sells, beside its names; empty ones match any offer.

    ``orderable``: the seller takes an order of it as configured, and does not state that none is left.
    """

    countries: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    gpus_per_node: tuple[int, ...] = ()
    orderable: bool = False

    def admit(self, offer: Offer) -> bool:
        """Whether ``offer`` meets them, but for what only its seller's settings say."""
        return (
            (not self.countries or offer.country in self.countries)
            and (not self.forms or offer.sku.form in self.forms)
            and (not self.gpus_per_node or offer.sku.gpus_per_node in self.gpus_per_node)
            and (not self.orderable or in_stock(offer))
        )


ANY_NAMES = OfferFilter()
ANY_TRAITS = OfferTraits()


@dataclass(frozen=True, slots=True)
class WantedOffers:
    """A filter that was read: names, and the other conditions."""

    names: OfferFilter = ANY_NAMES
    traits: OfferTraits = ANY_TRAITS


def in_stock(offer: Offer) -> bool:
    """Whether the seller does not state that no node is left."""
    return offer.stock.level is not StockLevel.NONE and offer.stock.nodes != 0


def names_of(text: str, known: Collection[str], *, families: bool = False) -> tuple[tuple[str, ...], str]:
    """The names that ``text`` (names or patterns, separated by commas) stands for, in the order of ``known``,
    and the first word that stands for none ("": each does)."""
    if not known:
        return tuple(word.strip() for word in text.split(",") if word.strip()), ""
    folded = {name.casefold(): name for name in known}
    found: dict[str, None] = {}
    for word in text.split(","):
        asked = word.strip().casefold()
        if asked in folded:
            found[folded[asked]] = None
            continue
        matches = [name for key, name in folded.items() if _stands_for(asked, key, families=families)]
        if not matches:
            return (), word.strip() or text
        found.update(dict.fromkeys(matches))
    return tuple(name for name in folded.values() if name in found), ""


def _stands_for(asked: str, key: str, *, families: bool) -> bool:
    if re.search(r"[*?]", asked):
        return fnmatchcase(key, asked.replace("[", "[[]"))
    return bool(asked) and families and key.startswith(f"{asked}-")


def read_offer_words(
    words: Mapping[str, str | None], known: KnownNames, *, orderable: bool = False
) -> tuple[WantedOffers, tuple[FieldProblem, ...]]:
    """The filter of ``words`` (by field: gpu, provider, region, tier, country, form, gpus_per_node; None: not
    asked), and the fields that are wrong, named by their pointers (``/gpu``)."""
    names: dict[str, tuple[str, ...]] = {}
    problems: list[FieldProblem] = []
    of_field: Mapping[str, tuple[Collection[str], str]] = {
        "gpu": (known.gpus, "a GPU, a family such as H100, or a pattern such as H100*"),
        "provider": (known.providers, "a provider's key"),
        "region": (known.regions, "a region on sale now, or a pattern such as us-*"),
        "tier": ([str(one) for one in Tier], f"one of {', '.join(Tier)}"),
        "country": (known.countries, "an ISO 3166-1 alpha-2 code such as DE or US"),
        "form": ([str(one) for one in Form], f"one of {', '.join(Form)}"),
    }
    for name, (choices, expected) in of_field.items():
        text = words.get(name)
        if text is None:
            continue
        if name == "gpu":
            text = ",".join(known.gpu_aliases.get(word.strip(), word) for word in text.split(","))
        found, unknown = names_of(text, choices, families=name == "gpu")
        if unknown or not found:
            problems.append(_problem(name, unknown or text, expected, choices))
        names[name] = found
    counts, wrong = _counts(words.get("gpus_per_node"))
    problems.extend(wrong)
    wanted = OfferFilter(**{name: _one_or_all(names[name]) for name in NAMED if name in names})
    traits = OfferTraits(names.get("country", ()), names.get("form", ()), counts, orderable)
    return WantedOffers(wanted, traits), tuple(problems)


def _one_or_all(names: tuple[str, ...]) -> str | tuple[str, ...]:
    return names[0] if len(names) == 1 else names


def _problem(name: str, word: str, expected: str, known: Collection[str]) -> FieldProblem:
    return FieldProblem(f"/{name}", repr(word), with_nearest(expected, word.strip("*? "), known))


def _counts(text: str | None) -> tuple[tuple[int, ...], tuple[FieldProblem, ...]]:
    if text is None:
        return (), ()
    found = [word.strip() for word in text.split(",")]
    if all(re.fullmatch(r"[0-9]{1,4}", word) and 0 < int(word) <= MOST_GPUS_PER_NODE for word in found):
        return tuple(int(word) for word in found), ()
    expected = f"whole numbers from 1 to {MOST_GPUS_PER_NODE}, separated by commas, such as 8"
    return (), (FieldProblem("/gpus_per_node", repr(text), expected),)

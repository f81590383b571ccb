"""Reads filters of offers for the API, the pages and the command line, with the known names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from broker.catalogue import load_countries, load_gpus
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.market.offer_pages import OfferCount
from broker.domain.market.offer_words import KnownNames, WantedOffers, names_of, read_offer_words
from broker.provider_facts import load_provider_names


def known_names(counts: Iterable[OfferCount]) -> KnownNames:
    """The names of the catalogue and of the offers on sale, which ``counts`` are of."""
    kinds, gpus = tuple(counts), load_gpus()
    return KnownNames(
        gpus=sorted({*gpus, *(kind.gpu for kind in kinds)}),
        providers=sorted({*load_provider_names(), *(kind.provider for kind in kinds)}),
        regions=sorted({kind.region for kind in kinds}),
        countries=tuple(load_countries()),
        gpu_aliases={f"{name}-{gpu.memory_gb:g}GB": name for name, gpu in gpus.items()},
    )


def require_offer_words(
    words: Mapping[str, str | None],
    known: KnownNames,
    *,
    orderable: bool = False,
    source: str = "request",
    prefix: str = "/",
) -> WantedOffers:
    """The filter of ``words``. Raises InputError, whose fields are named as the caller writes them: with
    ``prefix`` (``--`` on the command line)."""
    wanted, problems = read_offer_words(words, known, orderable=orderable)
    if problems:
        raise InputError(source, tuple(replace(one, pointer=_named(one, prefix)) for one in problems))
    return wanted


def _named(problem: FieldProblem, prefix: str) -> str:
    name = problem.pointer.removeprefix("/")
    return f"{prefix}{name.replace('_', '-') if prefix == '--' else name}"


def require_one_gpu(text: str, known: KnownNames) -> str:
    """The one GPU that ``text`` names. Raises InputError for an unknown name and for several GPUs."""
    require_offer_words({"gpu": text}, known)
    alias = known.gpu_aliases.get(text.strip(), text)
    found, _ = names_of(alias, known.gpus, families=True)
    if len(found) == 1:
        return found[0]
    raise InputError("request", (FieldProblem("/gpu", repr(text), f"one GPU: {', '.join(found)}"),))

"""The GPU that a seller's words mean, if they mean one only: ``A100-80G-SXM4``, ``NVIDIA L40S``.

A word is split into its product ("A100"), a form factor (``sxm``, ``pcie``, ``nvl``) and a memory size in
GB. Every part must be known: one more word ("RTX 3090 Ti") means another card. A product that exists in
several form factors needs the form, one that exists in several memory sizes needs the size; neither is
guessed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from broker.catalogue import CONFIG, load_gpus
from broker.domain.workloads.model_shape import GpuSpec

MEMORY_TOLERANCE = 0.12
"""Share by which a payload may differ from a card's nominal memory (Verda prints 268 for B300's 288)."""
_FORM = re.compile(r"sxm\d?|pcie?|nvl")
_SIZE = re.compile(r"(\d{1,3})(?:g|gb|gib)")
_COUNT = re.compile(r"x\d{1,2}|\d{1,2}x")
_SLICE = re.compile(
    r"(?<![\d/])\d/\d{1,2}(?![\d/])|\bvgpu\b|\bmig\b|\b\dg\.\d{1,3}gb\b|\bfraction", re.IGNORECASE
)
_NVL_CARD = frozenset({"nvl", "pcie"})
"""NVL cards are PCIe cards, and some sellers say both."""
SLICE_SHARE = 0.75
"""A stated memory of at most this share of a card's own is that of a slice; the rest is another card's."""
_GLUED = re.compile(r"(?<=rtx)(?=[\da]|pro)|(?<=\d{4})(?=ada|ti$)|(?<=pro)(?=\d)|(?<=[a-z0-9])(?=x\d{1,2}$)")


class UnknownCard(ValueError):
    """The words name no card, or more than one.

    The text says what is ambiguous; it is "" for an unknown product.
    """


@dataclass(frozen=True, slots=True)
class _Word:
    product: tuple[str, ...]
    forms: frozenset[str]
    sizes_gb: frozenset[float]


@dataclass(frozen=True, slots=True)
class _Card:
    """A card.

    ``form`` None: the product exists in one form, which its name leaves out.
    """

    spec: GpuSpec
    form: str | None


def read_card(word: str, memory_gb: float | None = None) -> str:
    """The canonical name of the card that ``word`` names; ``memory_gb``: stated memory of one card.

    UnknownCard says whether the product is unknown, or whether its form or size is missing.
    """
    if is_slice(word):
        raise UnknownCard("a fraction of a GPU")
    product, form, sizes_gb = _named(word)
    if form is None and product in _of_several_forms():
        raise UnknownCard("its form factor (SXM, PCIe) is not stated")
    found = _fitting(product, form, [*sizes_gb, *(() if memory_gb is None else (memory_gb,))])
    if len(found) > 1:
        raise UnknownCard("its memory size is not stated")
    if not found:
        slice_words = memory_of_slice(memory_gb, (card.spec.memory_gb for card in _cards()[product]))
        raise UnknownCard(slice_words or "no card has this form factor and memory")
    return found[0]


def cards_of(word: str) -> tuple[str, ...]:
    """The canonical names of all cards that ``word`` may mean, of every form and size that it leaves out.

    Raises UnknownCard for words that name no product, or parts of one.
    """
    if is_slice(word):
        raise UnknownCard("a fraction of a GPU")
    return tuple(_fitting(*_named(word)))


def _named(word: str) -> tuple[tuple[str, ...], str | None, frozenset[float]]:
    """Product, form and sizes that a word states. Raises UnknownCard for an unknown product."""
    read = _read(word)
    product = _rules()["short"].get(" ".join(read.product), read.product)
    if product not in _cards():
        raise UnknownCard(_rules()["editions"].get(product, ""))
    forms = read.forms - {"pcie"} if read.forms == _NVL_CARD else read.forms
    if len(forms) > 1 or len(read.sizes_gb) > 1:
        raise UnknownCard("several form factors or memory sizes")
    form = next(iter(forms), None) or _rules()["forms"].get(product)
    return product, _rules()["pcie"].get(product, form) if form == "pcie" else form, read.sizes_gb


def _fitting(product: tuple[str, ...], form: str | None, sizes_gb: Iterable[float]) -> list[str]:
    """The cards of a product that have the form, if one is known, and the sizes."""
    of_form = [card.spec for card in _cards()[product] if form is None or card.form in {form, None}]
    sizes = tuple(sizes_gb)
    return [spec.gpu for spec in of_form if all(is_memory_of(size, spec.memory_gb) for size in sizes)]


def is_slice(words: str) -> bool:
    """Whether words name a part of a card: ``1/8 NVIDIA RTX PRO 6000``, ``vGPU``, ``A100 MIG 1g.10gb``."""
    return _SLICE.search(words) is not None


def memory_of_slice(stated_gb: float | None, cards_gb: Iterable[float]) -> str:
    """Why a stated memory per GPU, well below that of each card, is no whole card's; "" for others."""
    least_gb = min(cards_gb)
    if stated_gb is None or stated_gb > SLICE_SHARE * least_gb:
        return ""
    return f"{stated_gb:.4g} GB a GPU, a whole card has {least_gb:.4g}"


def form_words(name: str) -> str:
    """The words of a form factor in an instance type's name, as input for ``read_card``."""
    return " ".join(part for part in _parts(name) if _FORM.fullmatch(part))


def is_memory_of(size_gb: float, nominal_gb: float) -> bool:
    """Whether a stated memory size fits a card: within ``MEMORY_TOLERANCE``."""
    return abs(size_gb - nominal_gb) <= MEMORY_TOLERANCE * nominal_gb


def _parts(text: str) -> list[str]:
    loose = re.sub(r"[^a-z0-9]+", " ", text.lower()).split()
    return [part for word in loose for part in _GLUED.sub(" ", word).split()]


def _read(text: str) -> _Word:
    ignored = _rules()["ignored"]
    product: list[str] = []
    forms: set[str] = set()
    sizes: set[float] = set()
    for part in _parts(text):
        form, size = _FORM.fullmatch(part), _SIZE.fullmatch(part)
        if form:
            forms.add(_form_of(part))
        elif size:
            sizes.add(float(size.group(1)))
        elif part not in ignored and not _COUNT.fullmatch(part):
            product.append(part.upper())
    return _Word(tuple(product), frozenset(forms), frozenset(sizes))


def _form_of(part: str) -> str:
    """``sxm`` of ``sxm5``, ``pcie`` of ``pci``."""
    return part[:3] if part[:3] != "pci" else "pcie"


@cache
def _rules() -> Mapping[str, Any]:
    data = tomllib.loads((CONFIG / "gpu_words.toml").read_text())
    return {
        "ignored": frozenset(data["ignored"]),
        "short": {word: _product(name.split()) for word, name in data["short"].items()},
        "forms": {(name,): form for name, form in data["forms"].items()},
        "pcie": {(name,): form for name, form in data["pcie"].items()},
        "editions": {_product(name.split()): missing for name, missing in data["editions"].items()},
    }


def _product(parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.upper() for part in parts)


@cache
def _cards() -> Mapping[tuple[str, ...], tuple[_Card, ...]]:
    """Cards by the words of their product (the canonical name without form and size)."""
    found: dict[tuple[str, ...], tuple[_Card, ...]] = {}
    for spec in load_gpus().values():
        parts = [part for part in _parts(spec.gpu) if not _SIZE.fullmatch(part)]
        product = _product(part for part in parts if not _FORM.fullmatch(part))
        form = next((_form_of(part) for part in parts if _FORM.fullmatch(part)), None)
        found[product] = (*found.get(product, ()), _Card(spec, form))
    return found


@cache
def _of_several_forms() -> frozenset[tuple[str, ...]]:
    """Products that exist in several form factors, so that a word must name the form."""
    named = {product for product, cards in _cards().items() if any(card.form for card in cards)}
    return frozenset(named - set(_rules()["forms"]))

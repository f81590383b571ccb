"""Parts of a card that Google sells as machine types: eighths, quarters and halves of an RTX PRO 6000 (G4).

``machineTypes`` counts one accelerator for them, too, and the price list's SKU of the whole card would price
them. Their description says the part ("1/8 NVIDIA RTX PRO 6000 GPU"). A type that neither its description nor
the configuration calls whole is one only if its card comes with the vCPUs or the memory that a whole card of
its family comes with. That holds for families that are not known yet, too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from providers.gpu_words import is_slice
from providers.payload import RowRejected

_WHOLE = re.compile(r"(?<![\d/])(\d{1,2}) [^,/]*\bGPUs?\b")
_FRACTION = "a fraction of a GPU"


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """vCPUs and memory that come with one card of a machine type."""

    vcpus: float
    memory_mib: float
    machine_type: str


def shares_of(machines: Iterable[tuple[str, str, int, int, int]]) -> Mapping[str, Share]:
    """The share of a whole card, by machine type without its size.

    ``machines``: name, description, cards, vCPUs, MiB. Only whole cards are sold by the two and more: the
    smallest share of such a type counts. A family without one is measured by its largest type.
    """
    found: defaultdict[str, dict[bool, list[Share]]] = defaultdict(lambda: {True: [], False: []})
    for name, description, cards, vcpus, memory_mib in machines:
        if cards and not is_slice(description):
            share = Share(vcpus / cards, memory_mib / cards, name)
            found[_family(name)][cards > 1].append(share)
    return {family: min(several) if (several := by[True]) else max(by[False]) for family, by in found.items()}


def require_whole_cards(
    name: str, description: str, cards: int, sizes: tuple[int, int], shares: Mapping[str, Share]
) -> None:
    """Raises RowRejected for a machine type with a part of a card, and for one that may have one.

    ``sizes``: vCPUs and MiB.
    """
    if is_slice(description):
        raise RowRejected(_FRACTION)
    whole = _WHOLE.search(description)
    if cards != 1 or (whole is not None and int(whole[1]) == cards):
        return
    share = shares.get(_family(name))
    if share is not None and sizes[0] < share.vcpus and sizes[1] < share.memory_mib:
        raise RowRejected(
            f"maybe {_FRACTION}: {sizes[0]} vCPUs and {sizes[1] / 1024:g} GiB a card, "
            f"{share.machine_type} has {share.vcpus:g} and {share.memory_mib / 1024:g}"
        )


def _family(name: str) -> str:
    return name.rpartition("-")[0]

"""Names of GPUs in tools' files → names that ``policy.gpus.only`` takes.

What a source may use is never widened: a name that no GPU of the catalogue has allows none.
"""

from __future__ import annotations

import re

from broker.catalogue import load_gpus
from providers.gpu_words import UnknownCard, cards_of

SIZED_BY_NAME = frozenset({"skypilot", "kubernetes"})
"""Tools that name a larger memory of a GPU, as A100-80GB beside A100; without a size its smallest memory is
meant. Sources: SkyPilot's list of GPUs, GKE's labels of accelerators.
"""
_NETWORK = re.compile(r"-mega(?=-|$)")
"""Google's name of H100 nodes with a faster network."""
_SIZE = re.compile(r"\d+gb", re.IGNORECASE)
_DIRECTIVE = re.compile(
    r"^\s*#SBATCH\s+(?:--gres[= ]gpu:|--gpus(?:-per-(?:node|task|socket))?[= ]|-G\s*)"
    r"(?P<kind>[A-Za-z][\w.-]*)",
    re.MULTILINE,
)


def gpus_named(kind: str, tool: str) -> tuple[str, ...]:
    """The GPUs of the catalogue that a tool calls ``kind``; a whole family is its name alone."""
    gpus = load_gpus()
    if kind in gpus:
        return (kind,)
    try:
        found = cards_of(_NETWORK.sub("", kind.lower()))
    except UnknownCard:
        return ()
    if tool in SIZED_BY_NAME and not _SIZE.search(kind):
        least_gb = min((gpus[gpu].memory_gb for gpu in found), default=0.0)
        return tuple(gpu for gpu in found if gpus[gpu].memory_gb == least_gb)
    is_family = len(found) > 1 and all(gpu.startswith(f"{kind.upper()}-") for gpu in found)
    return (kind.upper(),) if is_family else found


def gpus_of_directives(text: str) -> list[str]:
    """The kinds of GPU that Slurm's directives of a script ask for."""
    return [one["kind"] for one in _DIRECTIVE.finditer(text)]

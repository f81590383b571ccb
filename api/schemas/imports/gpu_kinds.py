"""Names of GPUs in tools' files → names that ``policy.gpus.only`` takes.

What a source may use is never widened: a name that no GPU of the catalogue has allows none.
"""

from __future__ import annotations

import re

from broker.catalogue import load_gpus

SIZED_BY_NAME = frozenset({"skypilot", "kubernetes"})
"""Tools that name a larger memory of a GPU; without a size its smallest memory is meant."""
IGNORED = frozenset(
    {"nvidia", "amd", "tesla", "geforce", "mega", "oam", "hbm2", "hbm2e", "hbm3", "hbm3e", ""}
)
LONGEST_NAME = 60
_GLUED = re.compile(r"^(rtx)(pro)?(?=\d)")
_SIZE = re.compile(r"(\d+)gb")
_MODEL = re.compile(r"(?!\d+gb$)[a-z]*\d+\w*")
_FORM = re.compile(r"sxm\d")
_DIRECTIVE = re.compile(
    r"^\s*#SBATCH\s+(?:--gres[= ]gpu:|--gpus(?:-per-(?:node|task|socket))?[= ]|-G\s*)"
    r"(?P<kind>[A-Za-z][\w.-]*)",
    re.MULTILINE,
)


def gpus_named(kind: str, tool: str) -> tuple[str, ...]:
    """The GPUs of the catalogue that a tool calls ``kind``; a whole family is its name alone."""
    asked = _words(kind)
    if len(kind) > LONGEST_NAME or not any(map(_MODEL.fullmatch, asked)):
        return ()
    gpus = load_gpus()
    written = {gpu: _words(gpu) for gpu in gpus}
    found = [gpu for gpu, words in written.items() if words == asked]
    found = found or [gpu for gpu, words in written.items() if asked <= words]
    sizes = {int(size[1]) for size in map(_SIZE.fullmatch, asked) if size}
    if not found and sizes:
        rest = {one for one in asked if not _SIZE.fullmatch(one)}
        found = [gpu for gpu, words in written.items() if rest == words and gpus[gpu].memory_gb in sizes]
    if tool in SIZED_BY_NAME and not sizes:
        least_gb = min((gpus[gpu].memory_gb for gpu in found), default=0.0)
        found = [gpu for gpu in found if gpus[gpu].memory_gb == least_gb]
    family = found[0].partition("-")[0] if found else ""
    variants = [gpu for gpu in gpus if gpu.startswith(f"{family}-")]
    return (family,) if len(found) > 1 and found == variants else tuple(found)


def gpus_of_directives(text: str) -> list[str]:
    """The kinds of GPU that Slurm's directives of a script ask for."""
    return [one["kind"] for one in _DIRECTIVE.finditer(text)]


def _words(name: str) -> frozenset[str]:
    """The words of a name in one spelling: ``rtx`` and ``4090`` of ``RTX4090``, ``sxm`` of ``SXM4``."""
    parts = re.split(r"[-_\s]+", _GLUED.sub(r"\1-\2-", name.lower()))
    return frozenset(_FORM.sub("sxm", one) for one in parts) - IGNORED

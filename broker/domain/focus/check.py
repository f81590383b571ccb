"""The checker of FOCUS files: twelve groups of rules over any Cost and Usage data set of 1.2 or 1.4.

The public validator tests values per table and not per row, and no products or sums; this one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from broker.domain.focus.columns import FocusVersion, standard_columns
from broker.domain.focus.facts import mandatory
from broker.domain.focus.rules import Finding, RuleGroup, check_row, read_row
from broker.domain.focus.sums import NoOverlap, OneCurrency, OneParent, UsedAndUnused

HEADER = 0


def version_of(header: Sequence[str]) -> FocusVersion:
    """The version that a header is of: names of sellers changed between them."""
    return FocusVersion.V1_4 if "ServiceProviderName" in header else FocusVersion.V1_2


def check_focus(
    header: Sequence[str], rows: Iterable[Mapping[str, str]], version: FocusVersion | None = None
) -> Iterator[Finding]:
    """Every breach, in the order of rows, those of sums last. Cells are text as in CSV, ``""`` is null.

    ``version`` None: as the header says.
    """
    chosen = version or version_of(header)
    yield from _columns(header, chosen)
    use = UsedAndUnused()
    together = (OneCurrency(), OneParent(), NoOverlap(), use)
    for number, cells in enumerate(rows, start=1):
        row, findings = read_row(number, cells)
        yield from findings
        yield from check_row(row, chosen)
        for rule in together:
            yield from rule.see(row)
    yield from use.end()


def _columns(header: Sequence[str], version: FocusVersion) -> Iterator[Finding]:
    for name in mandatory(version):
        if name not in header:
            yield Finding(RuleGroup.COLUMNS, HEADER, name, "no such column", f"one, in FOCUS {version}")
    for name in sorted({name for name in header if header.count(name) > 1}):
        yield Finding(RuleGroup.COLUMNS, HEADER, name, "two columns", "one")
    known = standard_columns(version)
    for name in header:
        if name not in known and not name.startswith("x_"):
            yield Finding(RuleGroup.ORDER, HEADER, name, "no column of FOCUS", "a name that begins with x_")
    for before, after in pairwise(header):
        if before.startswith("x_") and not after.startswith("x_"):
            yield Finding(RuleGroup.ORDER, HEADER, after, f"after {before}", "columns of FOCUS before others")

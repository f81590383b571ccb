"""The checker of FOCUS files: twelve groups of rules for Cost and Usage data sets of version 1.2 or 1.4.

Unlike the public validator it checks each row, and products and sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from broker.domain.focus.columns import FocusVersion, standard_columns
from broker.domain.focus.facts import mandatory
from broker.domain.focus.rules import Finding, RuleGroup, check_row, read_row
from broker.domain.focus.sums import ExclusiveEnds, NoOverlap, OneCurrency, OneParent, UsedAndUnused

HEADER = 0


def version_of(header: Sequence[str]) -> FocusVersion:
    """The FOCUS version of a header; the names of provider columns differ between versions."""
    return FocusVersion.V1_4 if "ServiceProviderName" in header else FocusVersion.V1_2


def check_focus(
    header: Sequence[str], rows: Iterable[Mapping[str, str]], version: FocusVersion | None = None
) -> Iterator[Finding]:
    """All findings in the order of rows; findings about sums come last.

    Cells are text as in CSV, and ``""`` is null. ``version`` None: it follows from the header.
    """
    chosen = version or version_of(header)
    yield from _columns(header, chosen)
    use, ends = UsedAndUnused(), ExclusiveEnds()
    together = (OneCurrency(), OneParent(), NoOverlap(), use, ends)
    for number, cells in enumerate(rows, start=1):
        row, findings = read_row(number, cells)
        yield from findings
        yield from check_row(row, chosen)
        for rule in together:
            yield from rule.see(row)
    yield from use.end()
    yield from ends.end()


def _columns(header: Sequence[str], version: FocusVersion) -> Iterator[Finding]:
    for name in mandatory(version):
        if name not in header:
            expected = f"a column of a FOCUS {version} file"
            yield Finding(RuleGroup.COLUMNS, HEADER, name, "missing", expected)
    for name in sorted({name for name in header if header.count(name) > 1}):
        yield Finding(RuleGroup.COLUMNS, HEADER, name, "the name of several columns", "the name of one")
    known = standard_columns(version)
    for name in header:
        if name not in known and not name.startswith("x_"):
            expected = f"a column of FOCUS {version}, or have a name that begins with x_"
            yield Finding(RuleGroup.ORDER, HEADER, name, "unknown", expected)
    for before, after in pairwise(header):
        if before.startswith("x_") and not after.startswith("x_"):
            expected = "before all columns whose names begin with x_"
            yield Finding(RuleGroup.ORDER, HEADER, after, f"after {before}", expected)

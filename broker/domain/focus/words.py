"""Which FOCUS rows have the words that sums of spend are narrowed by."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.focus.columns import FocusRow

_COLUMNS = {"provider": "ServiceProviderName", "gpu": "x_AcceleratorType", "region": "RegionId"}
_TAGS = {"workload": "workload", "tier": "broker/tier"}


def row_filter(narrowed: Mapping[str, str]) -> Callable[[FocusRow], bool]:
    """Whether a row has every word of ``narrowed``; InputError for one that rows do not tell (``kind``)."""
    for name in narrowed:
        if name not in _COLUMNS and name not in _TAGS:
            expected = f"one of {', '.join(sorted({*_COLUMNS, *_TAGS}))}: FOCUS rows do not tell the others"
            raise InputError("spend", (FieldProblem(f"/{name}", repr(narrowed[name]), expected),))
    columns = {_COLUMNS[name]: word for name, word in narrowed.items() if name in _COLUMNS}
    tags = {_TAGS[name]: word for name, word in narrowed.items() if name in _TAGS}

    def has_words(row: FocusRow) -> bool:
        if any(row.get(column) != word for column, word in columns.items()):
            return False
        if not tags:
            return True
        told = json.loads(str(row.get("Tags") or "{}"))
        return all(told.get(name) == word for name, word in tags.items())

    return has_words

"""A filter of FOCUS rows by the fields by which spend can be filtered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.focus.columns import FocusRow

_COLUMNS = {"provider": "ServiceProviderName", "gpu": "x_AcceleratorType", "region": "RegionId"}
_TAGS = {"workload": "workload", "tier": "broker/tier"}


def row_filter(narrowed: Mapping[str, str]) -> Callable[[FocusRow], bool]:
    """A filter of rows with all values in ``narrowed``. Raises InputError for a field that rows lack."""
    for name in narrowed:
        if name not in _COLUMNS and name not in _TAGS:
            names = ", ".join(sorted({*_COLUMNS, *_TAGS}))
            expected = f"no such filter, because FOCUS rows have only {names}"
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

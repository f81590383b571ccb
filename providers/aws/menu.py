"""The searches that ``config/providers/aws.toml`` names: windows are found only by asking for some size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, zip_longest
from typing import Any

Asked = tuple[str, str, int, int]
"""Region, instance type, how many, for how many hours."""


def asked(section: Mapping[str, Any], regions: Iterable[str]) -> tuple[Asked, ...]:
    """Every search of a section's ``menu``, in ``regions`` alone.

    Longest menus interleave by entry, so that a bound on calls cuts every type alike.
    """
    wanted = frozenset(regions)
    columns: list[list[Asked]] = [
        [
            (region, str(entry["instance_type"]), int(count), int(hours))
            for region in entry["regions"]
            if region in wanted
            for count in entry["counts"]
            for hours in entry["durations_hours"]
        ]
        for entry in section.get("menu", ())
    ]
    return tuple(each for each in chain.from_iterable(zip_longest(*columns)) if each is not None)

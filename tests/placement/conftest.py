"""What several tests of the planner's bounds share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from optimizer.placement import day_case, fleet_days


@pytest.fixture
def short_days() -> Iterator[None]:
    """Days of two hours and terms from two hours on, so that every fleet of four hours can be looked at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(day_case, "DAY_H", 2)
        patch.setattr(day_case, "LEAST_TERM_H", 2.0)
        patch.setattr(fleet_days, "DAY_H", 2)
        yield

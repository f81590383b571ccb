"""The file of tuned numbers: an error names the field."""

from __future__ import annotations

import pytest
from msgspec import ValidationError

from optimizer.placement.runtime.tuning import CONFIG, TUNING, parse_tuning


@pytest.mark.parametrize(
    ("line", "wrong", "where"),
    [
        ("master_share =", "master_share = 1.5 #", r"search\.master_share"),
        ("most_sets =", "most_sets = 0 #", r"fleets\.most_sets"),
        ("most_sets =", "most_sets = 1.5 #", r"fleets\.most_sets"),
        ("most_sets =", "most_set =", "most_set"),
        ("ample =", "ample = -1.0 #", r"fleets\.ample"),
    ],
)
def test_an_error_names_the_field(line: str, wrong: str, where: str) -> None:
    text = CONFIG.read_text(encoding="utf-8")
    assert parse_tuning(text) == TUNING
    with pytest.raises(ValidationError, match=where):
        parse_tuning(text.replace(line, wrong))

"""Shadeform states how long its types take to boot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.domain.basics.node_launch import LaunchBasis, NodeLaunch
from providers.shadeform import parse_offers
from tests.fakes.clock import NOON

PAYLOAD = Path(__file__).resolve().parents[2] / "fixtures/providers/shadeform/instance_types.json"


def launches(boot_time: Any) -> set[NodeLaunch | None]:
    """What the offers of the first type say when its row states ``boot_time``."""
    row = json.loads(PAYLOAD.read_text())["instance_types"][0] | {"boot_time": boot_time}
    batch = parse_offers(json.dumps({"instance_types": [row]}).encode(), NOON)
    assert batch.offers
    return {offer.launch for offer in batch.offers}


def test_a_launch_is_the_middle_of_the_range_that_the_row_states() -> None:
    said = {"min_boot_in_sec": 600, "max_boot_in_sec": 1200}
    assert launches(said) == {NodeLaunch(900.0, LaunchBasis.STATED)}


@pytest.mark.parametrize("said", [None, {}, {"min_boot_in_sec": 0, "max_boot_in_sec": 0}])
def test_a_row_that_states_none_leaves_it_open(said: Any) -> None:
    assert launches(said) == {None}

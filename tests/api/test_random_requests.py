"""Random requests made from the OpenAPI document, to a broker that is served on loopback."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx

from tests.api.house import ADMIN_KEY, House, api_document
from tests.bench.fuzz_api import fuzz
from tests.depth import examples
from tests.pages.conftest import served
from tests.pages.seeding import OFFERS, seed

TURNS = 2
"""Requests to each operation; ten times as many at night."""


def test_every_answer_to_a_random_request_is_as_the_document_says(
    tmp_path: Path, migrated_sqlite: Path
) -> None:
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    document = api_document()
    calls = sum(len(operations) for operations in document["paths"].values())
    house = House(tmp_path / "broker.db", offers=OFFERS)
    with served(house, seed, {}) as site:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        with httpx.Client(base_url=site.url, headers=headers, timeout=120) as client:
            found = fuzz(client, document, calls * examples(TURNS), seed=1)
    assert found.findings == []
    assert len(found.operations) >= calls - 1

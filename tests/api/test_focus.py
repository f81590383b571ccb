"""The FOCUS export over HTTP: actual charges only, the ledger's sums, a manifest of what was sent."""

from __future__ import annotations

import csv
import hashlib
import io
from decimal import Decimal
from typing import Any

import httpx
import pytest

from broker.domain.focus.columns import FocusVersion, focus_columns
from tests.api.house import Home
from tests.fakes.clock import FakeClock


async def rows_of(client: httpx.AsyncClient, **params: str) -> list[dict[str, str]]:
    answer = await client.get("/v1/spend/focus.csv", params=params)
    assert answer.status_code == 200, answer.text
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


async def actual(client: httpx.AsyncClient) -> Decimal:
    told: dict[str, Any] = (await client.get("/v1/spend/projection")).json()
    return sum((Decimal(row["usd"]) for row in told["items"] if row["basis"] == "actual"), Decimal(0))


async def hold(home: Home, client: httpx.AsyncClient, offer_id: str, nodes: int = 1) -> None:
    body = {"offer_id": offer_id, "nodes": nodes, "workload": "=chat"}
    answer = await client.post("/v1/reservations", json=body)
    assert answer.status_code == 202, answer.text


def advance(home: Home, hours: float) -> None:
    clock = home.house.clock
    assert isinstance(clock, FakeClock)
    clock.advance(hours=hours)


async def test_a_plan_alone_is_no_row(home: Home) -> None:
    client = await home.team("research")
    await home.plan(client)
    assert await rows_of(client) == []


@pytest.mark.parametrize("version", list(FocusVersion))
async def test_rows_sum_to_the_ledger_and_to_the_manifest(home: Home, version: FocusVersion) -> None:
    client = await home.team("research")
    await hold(home, client, "h100-a", 2)
    await hold(home, client, "h100-b")
    advance(home, 50.25)
    rows = await rows_of(client, version=str(version))
    assert len(rows) == 3 * 51
    assert tuple(rows[0]) == focus_columns(version)
    billed = sum(Decimal(row["BilledCost"]) for row in rows)
    assert billed == await actual(client) > 0
    answer = await client.get("/v1/spend/focus.csv", params={"version": str(version)})
    asked = {"version": str(version), "as_of": answer.headers["Broker-As-Of"]}
    told = (await client.get("/v1/spend/focus.manifest.json", params=asked)).json()
    assert told["sha256"] == hashlib.sha256(answer.content).hexdigest()
    assert (told["rows"], Decimal(told["totals_usd"]["BilledCost"])) == (len(rows), billed)


async def test_a_window_of_time_cuts_rows_and_other_teams_see_none(home: Home) -> None:
    ours, theirs = await home.team("research"), await home.team("product")
    await hold(home, ours, "h100-a")
    advance(home, 30)
    assert await rows_of(theirs) == []
    assert len(await rows_of(ours)) == 30
    day = {"from": "2026-11-24", "to": "2026-11-25"}
    assert {row["ChargePeriodStart"][:10] for row in await rows_of(ours, **day)} == {"2026-11-24"}


async def test_a_workload_is_never_a_formula(home: Home) -> None:
    client = await home.team("=team")
    await hold(home, client, "h100-a")
    advance(home, 1)
    (row,) = await rows_of(client)
    assert row["SubAccountId"] == "'=team"


async def test_the_future_is_not_actual(home: Home) -> None:
    answer = await home.client().get("/v1/spend/focus.csv", params={"as_of": "2099-01-01T00:00:00Z"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/as_of"


async def test_the_projection_is_a_data_set_of_its_own(home: Home) -> None:
    client = await home.team("research")
    plan = await home.plan(client)
    answer = await client.get("/v1/spend/projection-rows.csv")
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert {row["x_RecordType"] for row in rows} == {"Projected"}
    assert {row["x_CommitState"] for row in rows} == {"Planned"}
    for column in ("ProjectedBilledCost", "ProjectedEffectiveCost"):
        assert sum(Decimal(row[column]) for row in rows) == Decimal(plan["cost_usd"])
    assert not {"BilledCost", "EffectiveCost"} & set(rows[0])
    await hold(home, client, "h100-b")
    advance(home, 3)
    later = await client.get("/v1/spend/projection-rows.csv")
    found = list(csv.DictReader(io.StringIO(later.text, newline="")))
    planned = [row for row in found if row["x_CommitState"] == "Planned"]
    assert len(planned) == len(rows), "what is owed is no forecast"
    assert {row["x_CommitState"] for row in found} == {"Planned", "Until Released"}

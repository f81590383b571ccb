"""Finance over HTTP: sums equal what plans cost, in JSON, in CSV, at every width."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl import load_workbook

from api.schemas.finance.spend import SpendForm, spend_csv
from broker.domain.spend.spend import GROUPS
from tests.api.house import DOCUMENT, Home

WHOLE = {"from": "2026-11-01", "to": "2027-02-01T00:00:00Z"}


@pytest.mark.parametrize("interval", ["day", "month"])
@pytest.mark.parametrize("group_by", GROUPS)
async def test_sums_equal_the_plans_cost(home: Home, interval: str, group_by: str) -> None:
    client = await home.team("research")
    plan = await home.plan(client)
    params = {**WHOLE, "interval": interval, "group_by": group_by}
    told = (await client.get("/v1/spend/projection", params=params)).json()
    assert told["total_usd"] == plan["cost_usd"]
    assert sum(Decimal(row["usd"]) for row in told["items"]) == Decimal(plan["cost_usd"])
    assert {row["basis"] for row in told["items"]} == {"projected"}
    text = (await client.get("/v1/spend/projection.csv", params=params)).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [Decimal(row["usd"]) for row in rows] == [Decimal(row["usd"]) for row in told["items"]]


async def test_teams_see_their_own_money(home: Home) -> None:
    ours, theirs = await home.team("research"), await home.team("product")
    cost = (await home.plan(ours))["cost_usd"]
    path = "/v1/spend/projection"
    assert (await theirs.get(path)).json()["items"] == []
    assert (await theirs.get(path, params={"team": "research"})).status_code == 403
    assert (await home.client().get(path, params={"team": "research"})).json()["total_usd"] == cost
    await home.plan(theirs, {**DOCUMENT, "team": "product"})
    everyone = (await home.client().get(path, params={"group_by": "team", "interval": "month"})).json()
    assert {row["group"] for row in everyone["items"]} == {"research", "product"}


@pytest.mark.parametrize(
    ("params", "pointer"),
    [
        ({"from": "2026-11-01"}, "/to"),
        ({"to": "2026-11-01"}, "/from"),
        ({"from": "2026-11-02", "to": "2026-11-01"}, "/from"),
        ({"from": "yesterday", "to": "2026-11-01"}, "/from"),
        ({"from": "2026-11-01T00:00:00", "to": "2026-11-02"}, "/from"),
        ({"from": "0001-01-01", "to": "9999-12-31"}, "/from"),
        ({"from": "2026-11-01", "to": "9999-12-31T23:59:59-12:00"}, "/to"),
        ({"group_by": "colour"}, "/group_by"),
        ({"interval": "year"}, "/interval"),
    ],
)
async def test_wrong_questions_are_pointed_at(home: Home, params: dict[str, str], pointer: str) -> None:
    answer = await home.client().get("/v1/spend/projection", params=params)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer


async def test_no_question_asks_for_more_periods_than_memory_holds(home: Home) -> None:
    span = {"from": "2000-01-01", "to": "2199-12-31"}
    client = home.client()
    answer = await client.get("/v1/spend/interval", params=span)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/to"), answer.text
    assert (await client.get("/v1/spend/interval", params={**span, "interval": "month"})).status_code == 200


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula(start: str) -> None:
    row = {"period": "2026-11-01T00:00:00Z", "group": f"{start}1+1", "basis": "actual", "usd": "-5.00"}
    form = SpendForm.model_validate(
        {"interval": "day", "group_by": "workload", "total_usd": "-5.00", "items": [row]}
    )
    (read,) = csv.DictReader(io.StringIO(spend_csv(form), newline=""))
    assert read["group"] == f"'{start}1+1"
    assert read["usd"] == "-5.00"


async def test_the_csv_is_a_file(home: Home) -> None:
    answer = await home.client().get("/v1/spend/projection.csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["Content-Disposition"]
    assert answer.text == "period,group_by,group,basis,usd,taxes,until_released_usd,intended_usd\r\n"


async def test_workbook_and_parquet_have_the_rows_of_the_csv(home: Home) -> None:
    client = await home.team("research")
    await home.plan(client)
    query = {"group_by": "workload", "interval": "day"}
    text = (await client.get("/v1/spend/projection.csv", params=query)).text
    wanted = [Decimal(row["usd"]) for row in csv.DictReader(text.splitlines())]
    assert sum(wanted) > 0
    parquet, workbook = [
        await client.get(f"/v1/spend/projection.{kind}", params=query) for kind in ("parquet", "xlsx")
    ]
    rows = pq.read_table(pa.BufferReader(parquet.content)).to_pylist()
    assert [row["usd"] for row in rows] == wanted
    sheet = load_workbook(io.BytesIO(workbook.content)).active
    amounts = [row[4] for row in sheet.iter_rows(min_row=2, values_only=True)]
    assert [Decimal(str(amount)) for amount in amounts] == wanted
    assert workbook.headers["Content-Disposition"].endswith('filename="projected-spend.xlsx"')
    assert (await client.get("/v1/spend/projection.ods")).status_code in {404, 422}

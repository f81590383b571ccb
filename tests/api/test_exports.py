"""Files that are written in the background: asked for, polled, fetched."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl import load_workbook

from api.export.jobs import SumFile, Wanted
from api.http.dependencies import SESSION_COOKIE
from api.schemas.finance.spend import SpendForm
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.export_jobs import LONGEST, ExportJob, ExportState
from tests.api.house import Home
from tests.fakes.examples import ALICE

WHOLE = {"from": "2026-11-01", "to": "2027-02-01"}


async def followed(client: httpx.AsyncClient, begun: httpx.Response) -> dict[str, Any]:
    """The job once it is over."""
    assert begun.status_code == 202
    assert begun.headers["Retry-After"]
    for _ in range(3000):
        told: dict[str, Any] = (await client.get(begun.headers["Location"])).json()
        if told["state"] != "running":
            return told
        await asyncio.sleep(0.02)
    raise AssertionError(f"still running: {told}")


@pytest.mark.parametrize("form", ["xlsx", "parquet"])
async def test_expected_rows_are_written_in_the_background(home: Home, form: str) -> None:
    client, other = await home.team("research"), await home.team("product")
    plan = await home.plan(client)
    begun = await client.get(f"/v1/spend/projection-rows.{form}", params=WHOLE)
    told = await followed(client, begun)
    assert told["state"] == "done", told
    assert Decimal(told["manifest"]["totals_usd"]["ProjectedEffectiveCost"]) == Decimal(plan["cost_usd"])
    file = await client.get(told["file_url"])
    assert hashlib.sha256(file.content).hexdigest() == told["manifest"]["sha256"]
    if form == "parquet":
        rows = pq.read_table(pa.BufferReader(file.content)).num_rows
    else:
        sheet = load_workbook(io.BytesIO(file.content)).active
        assert sheet is not None
        rows = sheet.max_row - 1
    assert rows == told["manifest"]["rows"] > 0
    visitor = home.client(None, cookies={SESSION_COOKIE: await home.key("research")})
    page = (await visitor.get(told["url"].removeprefix("/v1"))).text
    assert re.search(r"<dt>As of</dt><dd><time [^>]*>\d{4}-\d\d-\d\d \d\d:\d\d ", page), page
    for path in (told["url"], told["file_url"]):
        assert (await other.get(path)).status_code == 404
    assert (await client.get("/v1/spend/exports/exp-nothing")).status_code == 404


async def test_actual_charges_and_many_sums_are_too(home: Home) -> None:
    client = await home.team("research")
    plan = await home.plan(client)
    focus = await followed(client, await client.get("/v1/spend/focus.parquet", params=WHOLE))
    assert (focus["state"], focus["manifest"]["rows"]) == ("done", 0)
    at_once = await client.get("/v1/spend/projection.xlsx", params=WHOLE)
    assert at_once.status_code == 200
    form = SpendForm.model_validate((await client.get("/v1/spend/projection", params=WHOLE)).json())
    job = await home.product.exports.start(ALICE, Wanted("sums", "xlsx", SumFile(form).write))
    url = f"/v1/spend/exports/{job.export_id}"
    assert (await client.get(f"{url}/file")).status_code in (200, 409)
    begun = httpx.Response(202, headers={"Location": url, "Retry-After": "1"})
    sums = await followed(client, begun)
    assert sums["manifest"]["totals_usd"] == {"usd": plan["cost_usd"]}
    cells = [
        list(load_workbook(io.BytesIO(one.content)).worksheets[0].values)
        for one in (at_once, await client.get(sums["file_url"]))
    ]
    assert cells[0] == cells[1]


async def test_a_file_that_nobody_writes_any_more_has_failed(home: Home) -> None:
    client = await home.team("research")
    now = home.product.clock.now()
    job = ExportJob("exp-1", "research", "f.xlsx", "text/plain", now - LONGEST - timedelta(seconds=1))
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        assert await uow.exports.add(job)
        await uow.commit()
    told = (await client.get("/v1/spend/exports/exp-1")).json()
    assert (told["state"], told["file_url"]) == (ExportState.FAILED, None)
    assert "request it again" in told["problem"]
    assert (await client.get("/v1/spend/exports/exp-1/file")).status_code == 409

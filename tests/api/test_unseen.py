"""Characters that nobody sees: refused wherever text comes in, told by their number wherever it is shown."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.table import Table

from api.cli.output import SafeConsole, to_json
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.unseen import ESCAPES, LAYOUT, shown
from tests.api.house import ADMIN_KEY, DOCUMENT, OFFERS, Home, House
from tests.fakes.clock import NOON

OVERRIDE, NAMED = "\u202e", "U+202E (RIGHT-TO-LEFT OVERRIDE)"
TURNED = f"re{OVERRIDE}hcraes"
KEY = {"name": "ci", "team": "research", "scopes": ["plans:read"]}


def first_error(answer: Any) -> tuple[str, str]:
    assert answer.status_code == 422, answer.text
    assert OVERRIDE not in answer.text
    error = answer.json()["errors"][0]
    return error["pointer"], error["found"]


@pytest.mark.parametrize("escaped", [True, False])
async def test_no_call_takes_them(home: Home, escaped: bool) -> None:
    client, kind = home.client(), {"Content-Type": "application/json"}
    for path, body, pointer in (
        ("/v1/keys", {**KEY, "name": TURNED}, "/name"),
        ("/v1/keys", {**KEY, "team": TURNED}, "/team"),
        ("/v1/webhooks", {"url": "https://1.1.1.1", "events": ["plan.*", TURNED]}, "/events/1"),
        ("/v1/reservations", {"offer_id": "h100-a", "nodes": 1, "workload": TURNED}, "/workload"),
        ("/v1/plans", {**DOCUMENT, "team": TURNED}, "/team"),
        ("/v1/plans", {**DOCUMENT, TURNED: 1}, ""),
    ):
        text = json.dumps(body, ensure_ascii=escaped)
        found = first_error(await client.post(path, content=text, headers=kind))
        assert found == (pointer, f'"re\\\\u202ehcraes" with {NAMED}')


async def test_a_document_s_place_is_told(home: Home) -> None:
    with pytest.raises(InputError) as refused:
        read_workloads(f"horizon: x\nteam: {TURNED}\n", source="w.yaml", base=None, now=NOON)
    assert [(p.pointer, p.line, p.column) for p in refused.value.problems] == [("/team", 2, 7)]
    wish = json.dumps({**DOCUMENT, "team": TURNED})
    assert read_workloads(wish, source="w", base=None, now=NOON, stored=True).team == TURNED


async def test_no_address_and_no_form_takes_them(home: Home) -> None:
    client, limit = home.client(), {"limit_usd": "5"}
    answer = await client.put(f"/v1/budgets/{TURNED}/month", json=limit)
    assert (answer.status_code, NAMED in answer.text) == (400, True)
    assert (await client.get("/v1/audit", params={"object_id": TURNED})).status_code == 400
    assert (await client.put("/v1/budgets/a%0Ab/month", json=limit)).status_code == 404
    assert (await client.put("/v1/budgets/a%0Db/month", json=limit)).status_code == 422
    visitor = home.client(None)
    await visitor.post("/signin", data={"key": ADMIN_KEY})
    form = {"team": TURNED, "proof": "", "once": "1"}
    page = await visitor.post("/spend/budgets", data=form)
    assert page.status_code == 422, page.status_code
    assert NAMED in page.text


async def test_pages_tell_those_of_old_rows_by_their_number(house: House) -> None:
    house.provider.offers = (replace(OFFERS[0], region=TURNED),)
    async with house.open() as home:
        visitor = home.client(None)
        await visitor.post("/signin", data={"key": ADMIN_KEY})
        page = (await visitor.get("/market")).text
        assert OVERRIDE not in page
        assert "re\\u202ehcraes" in page
        offers = (await home.client().get("/v1/offers")).json()["items"]
        assert [offer["region"] for offer in offers] == [TURNED]


def test_the_terminal_tells_them_by_their_number() -> None:
    out, table = io.StringIO(), Table("team")
    table.add_row(TURNED)  # a cell has no room for what becomes longer
    console = SafeConsole(file=out, width=60)
    console.print(table)
    console.print("a\x1b[31mb\x9bc\tü")
    assert "│ re\\u202e │" in out.getvalue()
    assert "a\\x1b[31mb\\x9bc" in out.getvalue()
    assert not {chr(code) for code in ESCAPES} - {"\n"} & set(out.getvalue())
    hidden = "".join(chr(code) for code in ESCAPES)
    assert json.loads(to_json({"team": hidden})) == {"team": hidden}
    assert not {chr(code) for code in ESCAPES} - {"\n"} & set(to_json({"team": hidden}))


def test_what_is_seen_stays() -> None:
    for text in ("Zürich", "می\u200cخواهم", "👩\u200d🔬", "two\nlines\tand tabs", "研究"):
        assert shown(text) is text
    assert {chr(code) for code in ESCAPES} > LAYOUT

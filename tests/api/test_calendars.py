"""Windows as calendars: read back by a calendar library, over secret addresses that open nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from icalendar import Calendar

from api.export.environment import environment
from api.export.ical import plan_calendar, reservations_calendar
from api.export.workload_facts import WorkloadFacts
from api.schemas.base.times import format_time
from api.schemas.plans.plan import PLAN
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import Scope
from broker.domain.holding.reservation import ReservationState
from broker.domain.planning.workload import WorkloadKind
from tests.api.house import Home
from tests.api.test_team_isolation import a_row
from tests.cli.running import broker
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer


def events(text: str) -> list[dict[str, Any]]:
    """The events of a calendar as its reader sees them."""
    assert all(len(line.encode()) <= 75 for line in text.split("\r\n")), "lines are folded"
    assert "\n" not in text.replace("\r\n", ""), "lines end as RFC 5545 says"
    calendar = Calendar.from_ical(text)
    assert calendar["version"] == "2.0"
    return [
        {
            "uid": str(event["uid"]),
            "start": event.decoded("dtstart"),
            "end": event.decoded("dtend") if "dtend" in event else None,
            "summary": str(event["summary"]),
            "description": str(event["description"]),
            "status": str(event["status"]),
        }
        for event in calendar.walk("VEVENT")
    ]


def test_a_plan_s_windows_are_its_times_of_holding() -> None:
    segments = [a_segment(0, 10, 2), a_segment(10, 20, 4), a_segment(30, 40, 1)]
    name = "run; with, signs\\ and ümlauts " * 3
    plan = a_plan(a_placement(an_offer("a"), segments, name, WorkloadKind.SERVING))
    first, second = events(plan_calendar(plan))
    assert (first["start"], first["end"]) == (segments[0].start, segments[1].end)
    assert (second["start"], second["end"]) == (segments[2].start, segments[2].end)
    assert first["summary"] == f"{name}: 2 to 4 × 8 H100-SXM-80GB"
    assert first["uid"] != second["uid"]
    longer = (*segments[:2], a_segment(20, 25, 1))
    longer_plan = replace(plan, placements=(replace(plan.placements[0], segments=longer),))
    assert events(plan_calendar(longer_plan))[0]["uid"] == first["uid"], "a changed event keeps its name"


def test_the_first_time_of_a_service_says_from_when_it_answers() -> None:
    service = a_placement(an_offer("a"), [a_segment(0, 10), a_segment(30, 40)], "chat", WorkloadKind.SERVING)
    at = service.segments[0].start + timedelta(minutes=51)
    live = replace(service, live_from=at)
    first, second = events(plan_calendar(a_plan(live)))
    assert f"live from {format_time(at)}; " in first["description"]
    assert "live from" not in second["description"]
    facts = WorkloadFacts(model="Llama-3.1-8B")
    assert environment(live, facts)["BROKER_LIVE_FROM"] == format_time(at)
    assert "BROKER_LIVE_FROM" not in environment(service, facts)


def test_reservations_alike_are_one_event_and_what_failed_is_none() -> None:
    rows = [
        a_row("a", 0, 8),
        a_row("b", 0, 8),
        a_row("c", 8, 9),
        a_row("d", 0, 8, state=ReservationState.FAILED),
    ]
    first, second = events(reservations_calendar(rows, NOON))
    assert first["summary"].split(": ")[1] == "4 × 8 H100-SXM-80GB"
    assert "rsv-a, rsv-b" in first["description"]
    assert second["start"] == first["end"]
    (endless,) = events(reservations_calendar([replace(rows[0], end=None)], NOON))
    assert endless["end"] is None
    assert "until it is released" in endless["description"]


def test_a_reserved_plan_s_windows_are_confirmed_and_say_what_is_promised() -> None:
    plan = a_plan(a_placement(an_offer("a"), [a_segment(0, 10, 2)], "run", WorkloadKind.TRAINING))
    (planned,) = events(plan_calendar(plan))
    assert planned["status"] == "TENTATIVE"
    over = a_row("c", 4, 8, state=ReservationState.RELEASED, released_at=NOON)
    rows = [a_row("a", -1, 8), a_row("b", 1, 8), over]
    held, later, cancelled = events(plan_calendar(plan, rows, NOON))
    assert (held["status"], held["description"]) == ("CONFIRMED", "Reserved, held: rsv-a")
    assert (later["status"], later["description"]) == ("CONFIRMED", "Reserved, ordered at its start: rsv-b")
    assert cancelled["status"] == "CANCELLED", "it was given back before it began"
    steps = [a_row(f"s{at}", at, at + 1 + at % 2) for at in range(1, 9)]
    (fleet,) = events(plan_calendar(plan, steps, NOON))
    assert (fleet["start"], fleet["end"]) == (steps[0].start, steps[-1].end)
    assert fleet["summary"].split(": ")[1] == "2 to 4 × 8 H100-SXM-80GB"
    assert fleet["description"] == "Reserved, ordered at its start: 8 reservations from rsv-s1 on"


async def add(home: Home, *rows: Any) -> None:
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        for row in rows:
            await uow.reservations.add(row)
        await uow.commit()


async def test_a_feed_s_address_shows_the_team_s_windows_and_opens_nothing_else(home: Home) -> None:
    await add(home, a_row("a", 1, 8), replace(a_row("b", 1, 8), team="vision"))
    owner, nobody = await home.team("research", [Scope.PLANS_READ]), home.client(None)
    made = (await owner.post("/v1/calendars", json={"name": "team calendar"})).json()
    seen = await nobody.get(made["url"])
    assert seen.status_code == 200
    assert seen.headers["content-type"] == "text/calendar; charset=utf-8"
    (event,) = events(seen.text)
    assert "rsv-a" in event["description"]
    assert isinstance(event["start"], datetime)
    held = home.client(made["token"])
    for path in ("/v1/offers", "/v1/reservations", "/v1/reservations.ics", "/v1/keys"):
        assert (await held.get(path)).status_code == 401, path
    assert (await nobody.get("/v1/reservations.ics")).status_code == 401
    assert (await nobody.get(made["url"][:-1])).status_code == 401
    signed = await nobody.post("/signin", data={"key": made["token"]})
    assert signed.status_code == 401
    assert "set-cookie" not in signed.headers


async def test_a_plan_is_read_by_the_feed_and_by_a_key(home: Home) -> None:
    owner, stranger, nobody = await home.team("research"), await home.team("vision"), home.client(None)
    plan = await home.plan(owner)
    path = f"/v1/plans/{plan['plan_id']}/windows.ics"
    by_key = await owner.get(path)
    assert len(events(by_key.text)) == len(plan["placements"])
    token = (await owner.post("/v1/calendars")).json()["token"]
    assert {one["status"] for one in events(by_key.text)} == {"TENTATIVE"}
    await add(home, replace(a_row("a", 1, 8), plan_id=plan["plan_id"]))
    by_key = await owner.get(path)
    (event,) = events(by_key.text)
    assert (event["status"], "ordered at its start: rsv-a" in event["description"]) == ("CONFIRMED", True)
    assert (await nobody.get(path, params={"token": token})).text == by_key.text
    other = (await stranger.post("/v1/calendars")).json()["token"]
    assert (await nobody.get(path, params={"token": other})).status_code == 404


async def test_a_feed_is_ended_by_its_team_at_once(home: Home) -> None:
    owner, stranger, nobody = await home.team("research"), await home.team("vision"), home.client(None)
    made = (await owner.post("/v1/calendars")).json()
    path = f"/v1/calendars/{made['key_id']}"
    assert (await stranger.delete(path)).status_code == 404
    assert (await nobody.get(made["url"])).status_code == 200
    assert [(await owner.delete(path)).status_code for _ in range(2)] == [204, 204]
    assert (await nobody.get(made["url"])).status_code == 401
    listed = {one["key_id"]: one for one in (await owner.get("/v1/keys")).json()["items"]}
    assert listed[made["key_id"]]["scopes"] == ["calendar:read"]
    (own,) = [one for one in listed.values() if "plans:write" in one["scopes"]]
    assert (await owner.delete(f"/v1/calendars/{own['key_id']}")).status_code == 409


async def test_a_key_that_opens_more_is_refused_in_an_address(home: Home) -> None:
    key = await home.key("research", [Scope.PLANS_READ, Scope.CALENDAR_READ])
    for token in (key, await home.key("admin", list(Scope))):
        answer = await home.client(None).get("/v1/reservations.ics", params={"token": token})
        assert answer.status_code == 403
        assert "must not stand in an address" in answer.json()["detail"]


async def test_only_an_administrator_makes_another_team_s_feed_and_a_token_is_shown_once(home: Home) -> None:
    owner, boss = await home.team("research"), home.client()
    refused = await owner.post("/v1/calendars", json={"team": "vision"})
    assert refused.status_code == 403
    headers = {"Idempotency-Key": "one"}
    first = await boss.post("/v1/calendars", json={"team": "vision"}, headers=headers)
    again = await boss.post("/v1/calendars", json={"team": "vision"}, headers=headers)
    assert first.json()["team"] == "vision"
    assert (again.json()["key_id"], again.json()["token"]) == (first.json()["key_id"], None)


async def test_no_log_has_the_token(home: Home, capsys: Any, caplog: Any) -> None:
    owner, nobody = await home.team("research"), home.client(None)
    made = (await owner.post("/v1/calendars")).json()
    await nobody.get(made["url"] + "x")
    missing = await nobody.get("/v1/plans/none/windows.ics", params={"token": made["token"]})
    assert missing.status_code == 404
    printed = capsys.readouterr()
    assert made["token"][-20:] not in printed.out + printed.err + caplog.text


def test_the_command_writes_a_calendar(tmp_path: Path) -> None:
    plan = a_plan(a_placement(an_offer("a"), [a_segment(0, 10, 2)], "run", WorkloadKind.TRAINING))
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN.write(plan)))
    done = broker("export", file, "--to", "ical", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    (calendar,) = (tmp_path / "out").iterdir()
    assert len(events(calendar.read_bytes().decode())) == 1
    assert "model" not in done.stderr

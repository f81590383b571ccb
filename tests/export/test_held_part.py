"""Exports of a reserved plan: what runs on machines that are held now, and what is named as not held."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from api.export.held_part import held_part
from api.schemas.holding.reservation import ReservationForm, reservation_to_document
from api.schemas.plans.plan_record import record_to_document
from broker.domain.basics.machines import Access, Machine
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import WorkloadKind
from broker.ports.planning import BusinessStatus
from tests.api.test_team_isolation import a_row
from tests.cli.running import broker, fake_server
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_record, a_segment, an_offer

PLAN_ID = "plan-held"


def reserved_plan() -> Plan:
    """A run that is held, one that is ordered in two days, and one of which a part is ordered later."""
    placements = [
        a_placement(an_offer(name), [a_segment(0, 72, 2)], name, WorkloadKind.TRAINING)
        for name in ("now", "later", "grown")
    ]
    return replace(a_plan(*placements), plan_id=PLAN_ID)


def row_of(name: str, workload: str, begin: float, offer_id: str = "") -> Reservation:
    """Two nodes of an offer; what began before noon has a machine."""
    row = a_row(name, begin, 72, workload=workload, offer=an_offer(offer_id or workload))
    machine = Machine(Access(f"10.0.0.{len(name)}", "ubuntu"))
    units = tuple(replace(unit, machines=(machine,) if begin < 0 else ()) for unit in row.units)
    return replace(row, units=units)


def forms(*rows: Reservation) -> list[dict[str, Any]]:
    return [reservation_to_document(row, NOON) for row in rows]


ROWS = (
    row_of("now", "now", -1),
    row_of("later-a", "later", 48),
    row_of("later-b", "later", 60),
    row_of("grown-a", "grown", -1),
    row_of("grown-b", "grown", 24),
)


def answers(*rows: Reservation) -> dict[tuple[str, str], list[tuple[int, Any]]]:
    body = {**record_to_document(a_record(reserved_plan()), BusinessStatus.RESERVED), "workloads": None}
    listed = {"items": forms(*rows), "next_cursor": None}
    return {
        ("GET", f"/v1/plans/{PLAN_ID}"): [(200, body)],
        ("GET", "/v1/reservations"): [(200, listed)],
        ("GET", f"/v1/plans/{PLAN_ID}/windows.ics"): [(200, "BEGIN:VCALENDAR of the server")],
    }


def test_what_is_not_held_is_named_and_not_exported() -> None:
    with fake_server(answers(*ROWS)) as server:
        done = broker("export", PLAN_ID, "--to", "slurm", "--json", env=server.env, width=300)
        listed = broker("hosts", PLAN_ID, env=server.env)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert set(told["files"]) == {"now.sbatch", "grown.sbatch"}
    assert {host["workload"] for host in json.loads(listed.stdout)["hosts"]} == {"now", "grown"}
    (skipped,) = told["skipped"]
    assert skipped["workload"] == "later"
    states = "2 ordered at their start, the first on 25 Nov 12:00 UTC"
    assert skipped["problems"][0]["found"] == states
    assert f"skipped later: /placements/1: found {states}" in done.stderr
    assert told["notes"] == [
        "grown: of its orders 1 held, 1 ordered at its start, on 24 Nov 12:00 UTC; "
        "its files count all of them"
    ]


def test_a_reserved_plan_without_a_machine_is_refused_with_the_time_of_its_orders() -> None:
    with fake_server(answers(row_of("later", "later", 48))) as server:
        done = broker("export", PLAN_ID, "--to", "skypilot", env=server.env, width=300)
    assert done.exit_code == 2
    assert "found 1 ordered at its start, on 25 Nov 12:00 UTC" in done.output.replace("\n", " ")
    assert "found not reserved" in done.output.replace("\n", " ")


def test_a_machine_without_an_address_is_not_exported() -> None:
    row = row_of("now", "now", -1)
    row = replace(row, units=tuple(replace(unit, machines=()) for unit in row.units))
    rows = [ReservationForm.model_validate(one) for one in forms(row)]
    (first, *_) = held_part(reserved_plan(), rows, NOON).skipped
    assert first.problems[0].found == "its seller has not told its address yet"


def test_a_window_that_is_bought_says_from_when_it_is_held() -> None:
    row = row_of("now", "now", 24)
    units = tuple(replace(one, state=UnitState.HELD, reference="i-1") for one in row.units)
    row = replace(row, state=ReservationState.HELD, units=units)
    rows = [ReservationForm.model_validate(one) for one in forms(row)]
    (first, *_) = held_part(reserved_plan(), rows, NOON).skipped
    assert first.problems[0].found == "held from 24 Nov 12:00 UTC on"


def test_an_offer_taken_in_place_of_a_refused_one_counts() -> None:
    rows = [ReservationForm.model_validate(one) for one in forms(row_of("now", "now", -1, "elsewhere"))]
    found = held_part(reserved_plan(), rows, NOON)
    assert [one.workload for one in found.plan.placements] == ["now"]


def test_what_a_replaced_plan_bought_is_listed_too() -> None:
    kept = answers(*ROWS)
    kept[("GET", f"/v1/plans/{PLAN_ID}")] = [
        (200, {**kept[("GET", f"/v1/plans/{PLAN_ID}")][0][1], "supersedes": "plan-old"})
    ]
    kept[("GET", "/v1/plans/plan-old")] = answers()[("GET", f"/v1/plans/{PLAN_ID}")]
    nothing: tuple[int, Any] = (200, {"items": [], "next_cursor": None})
    kept[("GET", "/v1/reservations")] = [nothing, *kept[("GET", "/v1/reservations")]]
    with fake_server(kept) as server:
        listed = broker("hosts", PLAN_ID, env=server.env)
    assert listed.exit_code == 0, listed.output
    assert {host["workload"] for host in json.loads(listed.stdout)["hosts"]} == {"now", "grown"}


def test_the_calendar_of_a_plan_is_the_servers(tmp_path: Path) -> None:
    with fake_server(answers(*ROWS)) as server:
        done = broker("export", PLAN_ID, "--to", "ical", "--output", tmp_path / "out", env=server.env)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / f"{PLAN_ID}.ics").read_text() == "BEGIN:VCALENDAR of the server"


def test_a_plan_with_many_orders_ahead_is_told_in_a_line_for_each_reason() -> None:
    rows = [row_of(f"r{at}", "later", 24 + at) for at in range(88)]
    with fake_server(answers(row_of("now", "now", -1), *rows)) as server:
        done = broker("hosts", PLAN_ID, env=server.env, width=300)
    lines = done.stderr.splitlines()
    assert lines == [
        "rsv-r0 unit 0 and 87 more: ordered at their start, the first on 24 Nov 12:00 UTC",
        "1 machine of 1 reservation",
    ]

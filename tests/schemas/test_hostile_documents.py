"""Texts that cost much to read are refused early, by a limit that is named, at their line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from api.cli.accuracy.perf import read_rows
from api.export.reading import open_table
from api.http.strict_requests import require_plain
from api.pages.parts.forms import MOST_FIELDS, fields_of
from api.schemas.base.csv_reader import read_table
from api.schemas.base.document import read_document, read_json_document
from api.schemas.base.yaml_reader import MAX_DEPTH, build, require_small
from api.schemas.market.contract_prices import read_contract_prices
from api.schemas.market.history import read_points
from api.schemas.market.market import read_market
from broker.domain.basics.errors import FieldProblem, InputError
from tests.schemas.hostile import Hostile, hostile_json, hostile_yaml


class Counted:
    """Parse events of a text, and how many were taken."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.taken = 0

    def __iter__(self) -> Iterator[yaml.Event]:
        for event in yaml.parse(self.text, yaml.CSafeLoader):
            self.taken += 1
            yield event


def first_problem(hostile: Hostile, counted: Counted) -> FieldProblem:
    try:
        require_small(hostile.text, "text")
        problems = build(counted, "text")[1]
    except InputError as error:
        return error.problems[0]
    return problems[0]


@pytest.mark.parametrize("hostile", hostile_yaml(), ids=lambda hostile: hostile.name)
def test_hostile_yaml_is_refused_after_few_events_at_its_line(hostile: Hostile) -> None:
    counted = Counted(hostile.text)
    problem = first_problem(hostile, counted)
    assert hostile.found in problem.found
    assert problem.line == hostile.line
    assert counted.taken <= hostile.events
    with pytest.raises(InputError) as caught:
        read_document(hostile.text, "text")
    assert caught.value.problems[0] == problem


@pytest.mark.parametrize(
    ("text", "found", "line"), [row[1:] for row in hostile_json()], ids=[row[0] for row in hostile_json()]
)
def test_hostile_json_is_refused_at_its_line(text: str, found: str, line: int | None) -> None:
    with pytest.raises(InputError) as caught:
        read_json_document(text, "text")
    (problem,) = caught.value.problems
    assert found in problem.found
    assert problem.line == line
    with pytest.raises(InputError, match="request"):
        require_plain(text.encode())
    with pytest.raises(InputError):
        read_market(text, "market.json")


def test_a_document_at_the_limits_is_read() -> None:
    nested = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert read_document(nested, "text").data == read_json_document(nested, "text").data
    shared = "a: &a {x: [1, 2]}\nrows:\n" + "- *a\n" * 20_000
    rows = read_document(shared, "text").data["rows"]
    assert len(rows) == 20_000
    assert rows[-1] == {"x": [1, 2]}


def test_five_thousand_workloads_are_read_with_their_places() -> None:
    row = "- {name: job-%d, kind: training, model: m, tokens: 2e9, gpus: {min: 8, max: 64}, deadline: +6d}\n"
    text = "team: a\nworkloads:\n" + "".join(row % number for number in range(5000))
    document = read_document(text, "text")
    assert len(document.data["workloads"]) == 5000
    assert document.data["workloads"][4999]["gpus"] == {"min": 8, "max": 64}
    problem = document.problem("/workloads/4999/gpus/max", "64", "less")
    assert problem.line == 5002
    assert problem.column == row.index("64") + 1 + len("4999") - len("%d")


def test_places_of_merged_and_aliased_fields_are_where_they_were_written() -> None:
    document = read_document("base: &b\n  x: 1\nown:\n  <<: *b\n  y: 2\nlist:\n- *b\n", "text")
    assert document.data["own"] == {"x": 1, "y": 2}
    places = {pointer: document.marks[pointer] for pointer in ("/own/x", "/own/y", "/list/0", "/list/0/x")}
    assert places == {"/own/x": (2, 6), "/own/y": (5, 6), "/list/0": (1, 7), "/list/0/x": (2, 6)}


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("!!str 5", "5"), ('!!int "5"', 5), ("! 5", "5"), ("'5'", "5"), ("5", 5), ("? a\n: b", {"a": "b"}),
        ("{a: &x 1, b: *x}", {"a": 1, "b": 1}), ("{&k a: 1, b: {*k : 2}}", {"a": 1, "b": {"a": 2}}),
        ("<<: [{a: 1, b: 1}, {a: 2, c: 2}]\nb: 3", {"a": 1, "b": 3, "c": 2}), ("'<<': 1", {"<<": 1}),
    ],
)  # fmt: skip
def test_what_is_written_is_what_is_read(text: str, data: object) -> None:
    assert read_document(text, "text").data == data


@pytest.mark.parametrize("text", ["? [a]\n: 1", "{[a]: 1}", "a: !!set {x}", "<<: 5", "a: !!omap [x: 1]"])
def test_what_no_field_can_be_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_document(text, "text")


HEADER = "contract,provider,sku,region,tier,from,to,discount_percent,price_usd_per_node_hour"
HOSTILE_CSV = [
    ("a,b,a\n1,2,3\n", "a second column 'a'", 1),
    (",".join(f"c{i}" for i in range(100_000)) + "\n" + "1\n" * 100, "100,000 columns", 1),
    ("id,a\n1,2\n3," + "x" * 200_000 + "\n", "malformed CSV", 3),
]


@pytest.mark.parametrize(("text", "found", "line"), HOSTILE_CSV, ids=["twice", "columns", "cell"])
def test_hostile_tables_are_refused_at_their_line(text: str, found: str, line: int) -> None:
    with pytest.raises(InputError) as caught:
        list(read_table(text, "rows.csv")[1])
    assert found in caught.value.problems[0].found
    assert caught.value.problems[0].line == line


def test_every_reader_of_tables_refuses_a_column_that_comes_twice(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,kind,id\n1,serving,2\n")
    for read in (
        lambda: read_rows(rows),
        lambda: read_contract_prices(f"{HEADER},tier\n", "prices.csv"),
        lambda: read_points("at,offer_id,price_usd_per_node_hour,stock_nodes,available,at\n", "p.csv", {}),
    ):
        with pytest.raises(InputError, match="a second column"):
            read()


def test_a_header_that_is_no_csv_is_told(tmp_path: Path) -> None:
    table = tmp_path / "focus.csv"
    table.write_text("x" * 200_000 + ",a\n1,2\n")
    with pytest.raises(InputError, match="malformed CSV"), open_table(table):
        pass


def test_a_form_of_too_many_fields_is_refused() -> None:
    with pytest.raises(InputError, match=f"at most {MOST_FIELDS} fields"):
        fields_of("application/x-www-form-urlencoded", b"a=1&" * 1_000_000)

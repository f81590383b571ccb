"""Calls of the adapters, and the sandbox's answers, against what the sellers publish of their APIs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from providers.registry import SPECS
from providers.schema import Rows, is_keyed, model_in
from tests.contract.description import Call, Description, Heard
from tests.contract.exchanges import FIXTURES
from tests.contract.journey import travelled
from tests.contract.seller_api import described, description_of, heard
from tests.contract.seller_table import page

DESCRIBED = described()
DOCUMENT = FIXTURES.parents[1] / "docs" / "seller-apis.md"


def test_the_document_is_what_the_command_prints() -> None:
    assert DOCUMENT.read_text() == page(), "python -m tests.contract.seller_table prints it"


def _key(call: Call) -> str:
    return f"{call.method} {call.path}"


@pytest.mark.parametrize("name", DESCRIBED)
async def test_calls_and_answers_are_those_that_the_seller_describes(name: str) -> None:
    description = description_of(name)
    found: dict[str, str] = {}
    made = set()
    for request, answer in await travelled(name):
        one = heard(name, request, answer)
        call = description.call_for(one.method, one.path)
        made.add(_key(call) if call is not None else f"{one.method} {one.path}")
        if call is not None:
            for problem in description.problems(one):
                found.setdefault(re.sub(r"\[\d+\]", "[]", f"{_key(call)} {problem}"), str(one))
    assert made == {_key(call) for call in description.calls} | set(description.unchecked)
    assert set(found) == set(description.differs)


@pytest.mark.parametrize("name", DESCRIBED)
def test_fields_that_are_read_of_what_is_sold_are_those_that_the_seller_describes(name: str) -> None:
    description = description_of(name)
    asked = [
        (rows, call) for rows in SPECS[name].rows if not rows.held for call in _calls_of(description, rows)
    ]
    assert asked or description.unchecked
    unknown = {
        f"{_key(call)} {field} is unknown"
        for rows, call in asked
        for field in _fields_of(rows)
        if not _is_known(description, call, rows.at, field)
    }
    assert {problem for problem in unknown if not _is_told(description, problem)} == set()


def _fields_of(rows: Rows) -> tuple[str, ...]:
    """Dotted names of the fields that are read of ``rows``."""
    read = rows.read if isinstance(rows.read, tuple) else tuple(_names_of(rows.read))
    return (*read, *rows.also_read)


def _names_of(model: type[BaseModel]) -> Iterator[str]:
    """Names of a model's leaves; ``*`` stands for the keys of an object whose values are rows."""
    for name, info in model.model_fields.items():
        wire = info.alias or name
        inner = model_in(info)
        if inner is None:
            yield wire
        else:
            at = f"{wire}.*" if is_keyed(info.annotation) else wire
            yield from (f"{at}.{below}" for below in _names_of(inner))


def _is_told(description: Description, problem: str) -> bool:
    """Whether ``problem`` is one of those in which other material is followed."""
    call, _, field = problem.rpartition(" is unknown")[0].rpartition(" ")
    return any(
        each.startswith(call) and each.endswith(f".{field} is unknown") for each in description.differs
    )


def _calls_of(description: Description, rows: Rows) -> list[Call]:
    """The call that answers with ``rows``; a seller's table may leave the version out of its paths."""
    method, _, path = re.split("[?,:]", rows.call)[0].rpartition(" ")
    calls = [call for call in description.calls if method in {"", call.method}]
    named = [call for call in calls if _bare(call.path).endswith(_bare(path))]
    return named or [call for call in calls if call.serves(method, path)]


def _bare(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


def _is_known(description: Description, call: Call, at: str, name: str) -> bool:
    """Whether rows at ``at`` have the field; without ``at`` they stand in a list of any name."""
    shape = call.answer_of(200)
    names = [part for part in f"{at or '*'}.{name}".replace("[]", "").split(".") if part]
    return shape is not None and any(description.knows(shape, names[first:]) for first in (0, not at))


SMALL = Description(
    {},
    (
        Call(
            "POST",
            "/machines/{id}/start",
            {"zone!": "string", "count": "integer"},
            {"name!": "string", "size": {"gpus!": "integer"}, "kind": {"$words": ["vm", "metal"]}},
            {"200": "@Machine", "204": "nothing", "4XX": {"error": "string"}},
        ),
    ),
    {"Machine": {"id!": "integer", "tags": ["string"], "place": {"$any": ["string", "null"]}, "*": "number"}},
)
GOOD = Heard("POST", "/machines/7/start", [("zone", "a")], {"name": "x"}, 200, {"id": 7})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"path": "/machines/start"}, "no such call"),
        ({"method": "PUT"}, "no such call"),
        ({"query": []}, "query: zone is missing"),
        ({"query": [("zone", "a"), ("page", "2")]}, "query: page is unknown"),
        ({"query": [("zone", "a"), ("count", "two")]}, 'query: count: "two" is no integer'),
        ({"body": None}, "body: it is missing"),
        ({"body": {}}, "body.name is missing"),
        ({"body": {"name": 7}}, "body.name: 7 is no string"),
        ({"body": {"name": "x", "size": {}}}, "body.size.gpus is missing"),
        ({"body": {"name": "x", "colour": "red"}}, "body.colour is unknown"),
        ({"body": {"name": "x", "kind": "pod"}}, 'body.kind: "pod" is none of vm, metal'),
        ({"answer": {"id": None}}, "answer.id: null is no integer"),
        ({"answer": {"id": 7, "tags": "a"}}, 'answer.tags: "a" is no list'),
        ({"answer": {"id": 7, "tags": ["a", 1]}}, "answer.tags[1]: 1 is no string"),
        ({"answer": {"id": 7, "place": 3}}, "answer.place: 3 is no string"),
        ({"answer": {"id": 7, "load": True}}, "answer.*: true is no number"),
        ({"answer": [7]}, "answer: [7] is no object"),
        ({"status": 202}, "answer: status 202 is unknown, 200, 204, 4XX are known"),
        ({"status": 204}, "answer: a body with status 204"),
        ({"status": 404, "answer": {"detail": "x"}}, "answer.detail is unknown"),
    ],
)
def test_each_disagreement_is_found(changes: dict[str, Any], problem: str) -> None:
    assert not list(SMALL.problems(GOOD))
    assert list(SMALL.problems(replace(GOOD, **changes))) == [problem]

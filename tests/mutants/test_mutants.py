"""The damages that ``tests.mutants`` plants, and that its table names what is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOMS, ROOT, draw, mutants_of, stages
from tests.mutants.places import places_of


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a < b", {"(a <= b)"}),
        ("a >= 3", {"(a > 3)", "(a >= 4)"}),
        ("0 < a <= b", {"(0 <= a <= b)", "(0 < a < b)"}),
        ("a == b", {"(a != b)"}),
        ("a is not None", {"(a is None)"}),
        ("all(x)", {"any(x)"}),
        ("max(a, key=k)", {"min(a, key=k)"}),
        ("not a", {"(a)"}),
        ("a - b", {"(a + b)"}),
        ("a * 2", {"(a * 3)"}),
        ("require_scope(a, b)", {"pass"}),
        ("self.require_valid(a)", {"pass"}),
        ("'a' + b", set()),
        ("f'{a < b}'", set()),
        ("True", set()),
        ("a * 2.0", set()),
    ],
)
def test_a_place_is_damaged_by_one_step(text: str, after: set[str]) -> None:
    source = f"# é\nif x:\n    {text}\n".encode()
    places = places_of(source)
    assert {place.after for place in places} == after
    for place in places:
        planted = place.planted(source).decode()
        assert (place.line, place.before) == (3, text)
        assert ast.unparse(ast.parse(planted)) != ast.unparse(ast.parse(source))


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_the_table_names_modules_and_tests_that_are_there(room: str) -> None:
    assert all((ROOT / test).exists() for test in ROOMS[room].tests)
    mutants = list(mutants_of(room))
    assert len({mutant.module for mutant in mutants}) >= 3
    for mutant in mutants[:: max(1, len(mutants) // 20)]:
        ast.parse(mutant.place.planted(Path(ROOT, mutant.module).read_bytes()))


def test_a_seed_draws_the_same_of_every_room() -> None:
    drawn = draw(list(ROOMS), 7, 30)
    assert drawn == draw(list(ROOMS), 7, 30) != draw(list(ROOMS), 8, 30)
    assert len(set(drawn)) == 30
    assert [mutant.room for mutant in drawn] == list(ROOMS) * 5


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_the_nearest_tests_come_first_and_none_is_left_out(room: str) -> None:
    named = {ROOT / test for test in ROOMS[room].tests}
    for module, mutant in {mutant.module: mutant for mutant in mutants_of(room)}.items():
        *near, far = ([ROOT / file for file in stage] for stage in stages(mutant))
        files = [*(near[0] if near else ()), *far]
        assert len(set(files)) == len(files)
        assert named == {file if file in named else (named & set(file.parents)).pop() for file in files}
        is_near = [file.name.startswith(f"test_{Path(module).stem}") for file in files]
        assert is_near == sorted(is_near, reverse=True)

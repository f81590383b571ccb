"""Every commit and every provider call of reserving has a crash point on both sides."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.crash_points import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
PROVIDER_CALLS = {"reserve", "release", "find_lease", "list_leases", "quote", "start"}
"""The calls of the ports in ``broker.ports.holding`` that leave this machine to change or learn something."""

TWO_STEPS = """
async def act(uow, reserver, lease):
    crash_points.here("release.before")
    await reserver.release(lease)
    crash_points.here("release.after")
    await uow.commit()
"""


HOLDING = "broker.services.holding"
STEPS = (
    "lease_service",
    "reservation_steps",
    "releaser",
    "orphaned_leases",
    "buyer",
    "reservation_creator",
    "fallback_offer",
)
"""Modules of ``HOLDING`` that use cases of reserving are made of."""


def sources() -> list[Path]:
    """The steps of reserving, and every use case that is made of them."""
    steps = [ROOT.joinpath(*HOLDING.split("."), f"{name}.py") for name in STEPS]
    others = [path for path in sorted((ROOT / "broker" / "services").rglob("*.py")) if path not in steps]
    return steps + [
        path for path in others if any(f"{HOLDING}.{name} " in path.read_text() for name in STEPS)
    ]


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            found = getattr(node, name, None)
            if isinstance(found, list) and found and isinstance(found[0], ast.stmt):
                yield found


def own_calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """Calls of a statement itself, not of the blocks within it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                waiting.append(child)
                if isinstance(child, ast.Call):
                    yield child


def is_side_effect(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    of_self = isinstance(call.func.value, ast.Name) and call.func.value.id == "self"
    return call.func.attr == "commit" or (call.func.attr in PROVIDER_CALLS and not of_self)


def point_of(statement: ast.stmt | None) -> str | None:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return None
    if ast.unparse(statement.value.func) != "crash_points.here":
        return None
    return ast.unparse(statement.value.args[0]).strip("'\"f")


def bare_effects(source: str) -> list[str]:
    """Statements with a side effect that lack a point before or after it."""
    found = []
    for block in blocks(ast.parse(source)):
        for before, statement, after in zip([None, *block], block, [*block[1:], None], strict=False):
            if any(is_side_effect(call) for call in own_calls(statement)):
                left, right = point_of(before), point_of(after)
                stem = (left or "").removesuffix(".before")
                if left != f"{stem}.before" or right != f"{stem}.after":
                    found.append(f"line {statement.lineno}: {ast.unparse(statement).splitlines()[0]}")
    return found


def count_effects(source: str) -> int:
    return sum(
        is_side_effect(call)
        for block in blocks(ast.parse(source))
        for statement in block
        for call in own_calls(statement)
    )


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_no_side_effect_lacks_its_points(path: Path) -> None:
    assert bare_effects(path.read_text()) == []


def test_the_files_with_side_effects_are_looked_at() -> None:
    found = {path.stem for path in sources() if count_effects(path.read_text())}
    assert found >= {
        "lease_service",
        "reservation_steps",
        "fallback_offer",
        "moves",
        "reconcile",
        "reservations",
    }


def test_an_effect_without_points_is_found() -> None:
    assert bare_effects(TWO_STEPS) == ["line 6: await uow.commit()"]


def test_a_process_dies_at_the_named_point_and_at_no_other() -> None:
    program = "from broker.crash_points import here; here('a'); print('lived'); here('b'); print('lived on')"
    ended = subprocess.run(
        [sys.executable, "-c", program], env={VARIABLE: "b"}, cwd=ROOT, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "")
    unnamed = subprocess.run(
        [sys.executable, "-c", program], env={}, cwd=ROOT, capture_output=True, text=True
    )
    assert unnamed.stdout.split() == ["lived", "lived", "on"]


def writes_reservations(call: ast.Call) -> bool:
    return ast.unparse(call.func) in ("uow.reservations.add", "uow.reservations.update")


def test_nobody_reserves_outside_of_the_watched_files() -> None:
    """A new file that calls a seller, or stores a reservation, is a step or a use case made of steps."""
    watched = set(sources())
    for path in sorted((ROOT / "broker").rglob("*.py")):
        if path not in watched and "store" not in path.parts:
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            sellers = [
                call for call in calls if is_side_effect(call) and ast.unparse(call.func) != "uow.commit"
            ]
            assert [ast.unparse(call) for call in sellers if "reserver" in ast.unparse(call.func)] == []
            assert [ast.unparse(call) for call in calls if writes_reservations(call)] == [], path


def without_points(source: str) -> Iterator[str]:
    """``source`` with one of its points taken out, each in turn."""
    lines = source.splitlines()
    for number, line in enumerate(lines):
        if line.strip().startswith("crash_points.here("):
            yield "\n".join([*lines[:number], *lines[number + 1 :]])


def test_no_point_can_be_taken_out_unnoticed() -> None:
    effects = taken_out = 0
    for path in sources():
        source = path.read_text()
        effects += count_effects(source)
        for damaged in without_points(source):
            taken_out += 1
            assert bare_effects(damaged) != []
    print(
        f"{effects} commits and provider calls of reserving, {taken_out} points: each is missed when it lacks"
    )
    assert taken_out == 2 * effects

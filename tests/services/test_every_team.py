"""What somebody asks for is opened for them: no use case of a caller opens a unit of work for every team.

Told from the source of every use case, so that a new one is looked at too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import api
import broker.services
from broker.domain.basics.access import ALL_TEAMS_SCOPES, EVERY_TEAM, TEAM_SCOPES, TeamScope, scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import NotPermitted
from broker.domain.basics.webhook import ALL_TEAMS

FOLDERS = (Path(broker.services.__file__).parent, Path(api.__file__).parent)
WIDE = frozenset({"EVERY_TEAM", "ROLE_OVER_ALL_TEAMS", "TeamScope"})
"""What makes a scope from no caller."""
ALLOWED: Mapping[tuple[str, str], str] = {
    ("KeysService.create_key", "EVERY_TEAM"): "only the installation makes a key without a caller",
    ("ExportJobs.start", "_write"): "the job goes on in the background, for its own team",
    ("PlanningService.request_continuation", "find_business_statuses"): "of a plan that the caller may see",
    ("ReservationsService.quote_plan", "EVERY_TEAM"): "what is known of launches at a seller is of all teams",
    ("EstimatingService.check", "EVERY_TEAM"): "the market of a plan has what all teams' launches taught",
    ("EstimatingService.simulate", "EVERY_TEAM"): "the market of a plan has what all teams' launches taught",
    ("ReoptimizeService.run_for", "run"): "which is given the caller's scope",
    ("ReoptimizeService.find_unfinished_of", "find_unfinished"): "which is given the caller's scope",
}
"""Use cases with a caller that reach for every team, or call what does, with the reason."""


def use_cases() -> Iterator[tuple[str, ast.AsyncFunctionDef | ast.FunctionDef, frozenset[str]]]:
    """Every function with its full name, and the names in its class (or module) that open for every team."""
    for folder in FOLDERS:
        for file in sorted(folder.rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            rooms: list[ast.Module | ast.ClassDef] = [tree]
            rooms += [node for node in tree.body if isinstance(node, ast.ClassDef)]
            for room in rooms:
                mine = [n for n in room.body if isinstance(n, ast.AsyncFunctionDef | ast.FunctionDef)]
                wide = frozenset(one.name for one in mine if not has_caller(one) and names_in(one) & WIDE)
                prefix = f"{room.name}." if isinstance(room, ast.ClassDef) else f"{file.stem}."
                yield from ((prefix + one.name, one, wide) for one in mine)


def has_caller(function: ast.AsyncFunctionDef | ast.FunctionDef) -> bool:
    every = (*function.args.args, *function.args.kwonlyargs)
    return any(one.annotation is not None and "Caller" in ast.unparse(one.annotation) for one in every)


def names_in(function: ast.AsyncFunctionDef | ast.FunctionDef) -> set[str]:
    """Names that its body and its defaults say, but for those of annotations."""
    parts = [*function.body, *function.args.defaults, *filter(None, function.args.kw_defaults)]
    return {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}


def called_in(function: ast.AST) -> set[str]:
    """What it calls of its own class, or of its module."""
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {
        call.attr if isinstance(call, ast.Attribute) else call.id
        for call in calls
        if isinstance(call, ast.Name)
        or (isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id == "self")
    }


def reaching() -> set[tuple[str, str]]:
    return {
        (name, found)
        for name, function, wide in use_cases()
        if has_caller(function)
        for found in (names_in(function) & WIDE) | (called_in(function) & wide)
    }


def test_what_a_caller_asks_for_is_opened_for_the_caller() -> None:
    assert reaching() == set(ALLOWED)


@pytest.mark.parametrize(
    ("scopes", "team", "wished", "expected"),
    [
        (TEAM_SCOPES, "research", None, TeamScope("research")),
        (TEAM_SCOPES, "research", "research", TeamScope("research")),
        (ALL_TEAMS_SCOPES, ALL_TEAMS, None, TeamScope(None, decides_only=True)),
        (ALL_TEAMS_SCOPES, ALL_TEAMS, "rivals", TeamScope("rivals", decides_only=True)),
        ({Scope.ADMIN}, "admin", None, EVERY_TEAM),
        ({Scope.ADMIN}, "admin", "rivals", TeamScope("rivals")),
    ],
)
def test_a_caller_is_opened_what_its_team_and_scopes_say(
    scopes: Iterable[Scope], team: str, wished: str | None, expected: TeamScope
) -> None:
    assert scope_of(Caller("key", team, frozenset(scopes)), wished) == expected


@pytest.mark.parametrize("wished", ["rivals", ALL_TEAMS])
def test_a_caller_of_one_team_is_refused_another_and_not_answered_with_its_own(wished: str) -> None:
    with pytest.raises(NotPermitted, match="sees team research alone"):
        scope_of(Caller("key", "research", TEAM_SCOPES), wished)


def test_the_use_cases_are_found() -> None:
    with_caller = {name for name, function, _ in use_cases() if has_caller(function)}
    assert {"PlanningService.find_plan", "ReservationsService.release", "ExportJobs.find"} <= with_caller
    assert {"claim_left_over", "watch", "_fan_out", "take_back"} <= {
        name for *_, names in use_cases() for name in names
    }

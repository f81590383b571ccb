"""Which options of a command go together: one that would change nothing is refused, not passed over."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from broker.domain.basics.errors import FieldProblem, InputError

EVERYWHERE = frozenset({"as_json", "help"})


def require_companions(context: typer.Context, answers: Mapping[str, frozenset[str]]) -> None:
    """InputError for two answers at once, and for an option that the answer asked for does not look at.

    ``answers``: a parameter whose option asks for an answer of its own → parameters that this answer
    looks at; under "" those of the answer that is given unasked.
    """
    spelled = {str(one.name): one.opts[0] for one in context.command.params}
    given = [name for name in spelled if _given(context, name) and name not in EVERYWHERE]
    asked = [name for name in given if name in answers]
    lead, *others = asked or [""]
    for name in others:
        if name not in answers[lead]:
            _refuse(spelled[name], f"{spelled[lead]} beside it", "one of both")
    looked_at = frozenset(asked).union(*(answers[one] for one in asked or [""]))
    for name in given:
        if name not in looked_at:
            homes = "" if name in answers[""] else " or ".join(_homes(name, answers, spelled))
            found = f"{spelled[lead]} beside it" if lead else "it alone"
            _refuse(spelled[name], found, f"it beside {homes}" if homes else "one of both")


def _homes(name: str, answers: Mapping[str, frozenset[str]], spelled: Mapping[str, str]) -> list[str]:
    return [spelled[one] for one, looked_at in answers.items() if one and name in looked_at]


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse(option: str, found: str, expected: str) -> None:
    raise InputError("command line", (FieldProblem(option, found, expected),))

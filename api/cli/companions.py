"""Which options of a command go together. An option that would have no effect is refused, not ignored."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from broker.domain.basics.errors import FieldProblem, InputError

EVERYWHERE = frozenset({"as_json", "help"})


def require_companions(context: typer.Context, answers: Mapping[str, frozenset[str]]) -> None:
    """Raises InputError for two modes at once, and for an option that the chosen mode does not use.

    ``answers`` maps the parameter that chooses a mode to the parameters that this mode uses; "" stands for
    the default mode.
    """
    spelled = {str(one.name): one.opts[0] for one in context.command.params}
    given = [name for name in spelled if is_given(context, name) and name not in EVERYWHERE]
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


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the command line gives this parameter."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse(option: str, found: str, expected: str) -> None:
    raise InputError("command line", (FieldProblem(option, found, expected),))

"""``broker settings``: every setting with its value and where the value comes from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.output import Json, print_items, stdout
from api.cli.tables import print_section
from api.sections import Cell, section_of
from api.setting_list import GivenSetting, given_settings

app = typer.Typer(add_completion=False)


@app.command()
def settings(
    word: Annotated[
        str | None, typer.Argument(help="Only settings with this word in their name, such as oidc or lambda.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="With the settings of providers that are not given.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the settings of this machine: kind, default, present value, and where the value comes from.

    Secrets are not shown. It reads the environment and broker.toml of this machine, and asks no server; an
    administrator reads those of the server on its page Settings.

    Example: broker settings oidc
    """
    found = [
        one
        for one in given_settings(load_settings())
        if (every or word or not one.setting.provider or one.source != "default")
        and (word or "").upper() in one.setting.variable
    ]
    if as_json:
        print_items({**asdict(one.setting), "value": one.value, "source": one.source} for one in found)
        return
    section = section_of(
        found,
        {
            "=variable": lambda one: Cell(one.setting.variable, (_form(one),)),
            "value, default": lambda one: Cell(one.value or "none", (_default(one),)),
            "=from": lambda one: one.source,
        },
        empty=f"no setting has {word} in its name",
    )
    print_section(section, stdout())


def _form(one: GivenSetting) -> str:
    return " ".join(part for part in (one.setting.kind, one.setting.limits) if part)


def _default(one: GivenSetting) -> str:
    return (
        ""
        if one.setting.is_secret or one.value == one.setting.default
        else f"default {one.setting.default or 'none'}"
    )

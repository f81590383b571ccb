"""``broker ssh-keys``: public SSH keys that go with orders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from api.cli.companions import require_companions
from api.cli.configuration import load_settings
from api.cli.output import Json, print_items, print_json, say
from api.cli.tables import print_section
from api.client import connect
from api.schemas.accounts.ssh_keys import SshKeyForm
from api.sections import Section, section_of
from broker.domain.basics.errors import FieldProblem, InputError

app = typer.Typer(add_completion=False)

ANSWERS = {"": frozenset[str](), "add": frozenset({"name", "own", "team"}), "remove": frozenset[str]()}


@app.command("ssh-keys")
def ssh_keys(
    context: typer.Context,
    add: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Store the public key of this file (….pub).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Its name; without it the comment of the key.")] = None,
    own: Annotated[
        bool, typer.Option("--own", help="It goes with your own orders only; else with those of the team.")
    ] = False,
    team: Annotated[
        str | None, typer.Option(help="The team of the key; without it your own (for administrators).")
    ] = None,
    remove: Annotated[
        str | None, typer.Option(metavar="KEY_ID", help="Later orders go without this key.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the public SSH keys of the team, store one, or remove one.

    Every later order carries the keys of its team and of the person who orders; they open its machines to
    `broker ssh`. Machines that are held already do not change.

    Exit codes: 2 it is no public key, 3 the key may not, 4 no such key.

    Example: broker ssh-keys --add ~/.ssh/id_ed25519.pub
    """
    require_companions(context, ANSWERS)
    with connect(load_settings()) as client:
        if remove is not None:
            client.remove_ssh_key(remove)
        if add is not None:
            body: dict[str, object] = {"public_key": _read(add)}
            if name is not None:
                body["name"] = name
            if team is not None:
                body["team"] = team
            if own:
                body["person"] = "me"
            stored = client.add_ssh_key(body, str(uuid4()))
            if as_json:
                print_json(stored.model_dump(mode="json"))
            else:
                owner = f"team {stored.team}" if stored.person is None else "you"
                say(f"{stored.key_id} {stored.fingerprint} goes with every later order of {owner}")
            return
        found = list(client.list_ssh_keys())
    if as_json:
        print_items(key.model_dump(mode="json") for key in found)
    else:
        print_section(ssh_keys_section(found))


def _read(file: Path) -> str:
    try:
        return file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = FieldProblem("--add", f"{str(file)!r} ({error})", "a readable public key file")
        raise InputError("command line", (problem,)) from error


def ssh_keys_section(found: Sequence[SshKeyForm]) -> Section:
    """One row for each key, newest first."""
    return section_of(
        found,
        {
            "=key": lambda key: key.key_id,
            "name": lambda key: key.name,
            "of": lambda key: f"team {key.team}" if key.person is None else key.person,
            "fingerprint": lambda key: key.fingerprint,
        },
        empty="no SSH keys; add one: broker ssh-keys --add ~/.ssh/id_ed25519.pub",
    )

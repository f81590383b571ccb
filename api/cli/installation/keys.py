"""``broker keys``: API keys and invitations of the running server: for which team, with which scopes, until
when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import uuid4

import typer

from api.cli.companions import require_companions
from api.cli.configuration import load_settings
from api.cli.output import Json, print_items, print_json, say, stdout
from api.cli.tables import print_section
from api.client import connect
from api.figures import day_and_time
from api.plan_words import team_words
from api.schemas.accounts.keys import LONGEST_INVITATION_HOURS, KeyForm, NewKeyForm
from api.sections import Section, section_of
from broker.domain.basics.access import default_scopes
from broker.domain.basics.account import Scope
from broker.domain.basics.errors import FieldProblem, InputError

app = typer.Typer(add_completion=False)

ANSWERS = {
    "": frozenset[str](),
    "new": frozenset({"team", "scope", "days", "person"}),
    "invite": frozenset({"team", "scope", "days", "hours", "person"}),
    "revoke": frozenset[str](),
}


@app.command()
def keys(
    context: typer.Context,
    new: Annotated[str | None, typer.Option("--new", metavar="NAME", help="Make a key of this name.")] = None,
    invite: Annotated[
        str | None,
        typer.Option("--invite", metavar="NAME", help="Make a link with which a colleague takes a key."),
    ] = None,
    team: Annotated[
        str | None,
        typer.Option(help="The team of the new key; '*': a key that sees and decides for all teams."),
    ] = None,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(
            help="What the new key may do; again for more. Without it all but approve and admin, "
            "and for team '*' reading and approving."
        ),
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=3650, help="How long the new key lasts; without it no end.")
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            help="Whose key it is: their keys and sign-ins have the SSH keys of the person in common."
        ),
    ] = None,
    hours: Annotated[
        int,
        typer.Option(min=1, max=LONGEST_INVITATION_HOURS, help="How long the link of an invitation lasts."),
    ] = 72,
    revoke: Annotated[str | None, typer.Option(metavar="KEY_ID", help="End this key for good.")] = None,
    as_json: Json = False,
) -> None:
    """List the keys of the running server, make one, invite a colleague, or revoke one.

    The secret of a new key is printed once, and so is the link of an invitation, which gives its key to
    whoever opens it first. To make or revoke keys, BROKER_KEY must be an administrator's.

    Example: BROKER_KEY=… broker keys --new ci --team research --days 90

    Example: broker keys --invite grace --team research

    Example of finance, over all teams: broker keys --invite ada --team '*'
    """
    require_companions(context, ANSWERS)
    name = new or invite
    if name is not None and team is None:
        raise InputError("command line", (FieldProblem("--team", "nothing", "the team of the new key"),))
    with connect(load_settings()) as client:
        if revoke is not None:
            client.revoke_key(revoke)
        if name is not None and team is not None:
            body: dict[str, object] = {
                "name": name,
                "team": team,
                "scopes": sorted(scope or default_scopes(team)),
            }
            if days is not None:
                body["expires_at"] = (datetime.now(UTC) + timedelta(days=days)).isoformat()
            if person is not None:
                body["person"] = person
            if invite is not None:
                body["invitation_hours"] = hours
            made = client.create_key(body, str(uuid4()))
            _print_made(made, as_json=as_json)
            return
        found = list(client.list_keys())
    if as_json:
        print_items(key.model_dump(mode="json") for key in found)
    else:
        print_section(keys_section(found))


def _print_made(made: NewKeyForm, *, as_json: bool) -> None:
    if as_json:
        print_json(made.model_dump(mode="json"))
        return
    of = f"key {made.key_id} of {team_words(made.team)}"
    if made.invited_until is None:
        say(f"{of}; its secret, shown once:")
    else:
        say(f"{of}, for whoever opens this link first, until {day_and_time(made.invited_until)} UTC:")
    stdout().print(made.invitation_url or made.secret or "", soft_wrap=True)


def keys_section(found: Sequence[KeyForm]) -> Section:
    """One row for each key, newest first."""
    return section_of(
        found,
        {
            "=key": lambda key: key.key_id,
            "name": lambda key: key.name if key.person is None else f"{key.name}, of {key.person}",
            "team": lambda key: team_words(key.team),
            "may": lambda key: " ".join(key.scopes),
            "state": _state,
        },
        empty="no keys",
    )


def _state(key: KeyForm) -> str:
    if key.revoked_at is not None:
        return f"revoked {day_and_time(key.revoked_at)}"
    if key.invited_until is not None:
        return f"invited until {day_and_time(key.invited_until)}"
    return "stands" if key.expires_at is None else f"until {day_and_time(key.expires_at)}"

"""``broker ssh``: a shell, or a command, on a machine that is held."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.output import say
from api.client import connect
from api.export.hosts import alias_of
from api.schemas.holding.reservation import AccessForm, ReservationForm, UnitForm
from broker.domain.basics.errors import Conflict, FieldProblem, InputError, NotFound
from broker.domain.basics.machines import fingerprint_of, read_public_key
from broker.settings import data_folder

app = typer.Typer(add_completion=False)

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=PASSED_ON)
def ssh(
    context: typer.Context,
    reservation_id: Annotated[str, typer.Argument(help="Id of a reservation on the server.")],
    unit: Annotated[int, typer.Option(min=0, help="The unit, as `broker hosts` names it.")] = 0,
    node: Annotated[int, typer.Option(min=0, help="The node within the unit.")] = 0,
    identity: Annotated[
        Path | None,
        typer.Option("--identity", "-i", help="The private key; else the one in ~/.ssh that opens it."),
    ] = None,
    show: Annotated[bool, typer.Option("--print", help="Print the command instead of running it.")] = False,
) -> None:
    """Open a shell on a machine that is held, or run the command after `--` on it, by OpenSSH.

    The machine must prove itself with the host key that its seller says, or else with the one that it first
    showed to the broker. The exit code is that of the command.

    Exit codes: 3 the key may not, 4 no such reservation or machine, 5 its host key has changed, 255 OpenSSH
    could not connect.

    Example: broker ssh rsv-01jd…

    Example: broker ssh rsv-01jd… -- hostname
    """
    with connect(load_settings()) as client:
        row = client.find_reservation(reservation_id)
    access = machine_of(row, unit, node)
    if identity is None and row.ssh_keys:
        folder = Path.home() / ".ssh"
        identity = identity_among(row.ssh_keys, folder)
        if identity is None and "SSH_AUTH_SOCK" not in os.environ:
            say(f"no key in {folder} opens it; name with --identity one of: {', '.join(row.ssh_keys)}")
    command = command_of(access, alias_of(row.reservation_id, unit, node), identity, show=show)
    words = [*command, *context.args]
    if show:
        typer.echo(" ".join(words))
        return
    if shutil.which("ssh") is None:
        found = FieldProblem("ssh", "no such program on PATH", "OpenSSH's client (package openssh-client)")
        raise InputError("this machine", (found,))
    if access.reachable_at is None:
        say("the machine has not answered the broker yet; trying all the same")
    os.execvp(words[0], words)  # noqa: S606  the user's own terminal goes on as the shell


def machine_of(row: ReservationForm, unit: int, node: int) -> AccessForm:
    """How a node is entered. Raises NotFound with the reason where it is not known."""
    found: UnitForm | None = next((one for one in row.units if one.ordinal == unit), None)
    if found is None:
        raise NotFound("unit", str(unit), f"there are 0 to {len(row.units) - 1}")
    if not found.machines:
        raise NotFound("machine", f"{row.reservation_id} unit {unit}", found.access_reason or "")
    if node >= len(found.machines):
        raise NotFound("node", str(node), f"there are 0 to {len(found.machines) - 1}")
    return found.machines[node]


def identity_among(ssh_keys: Sequence[str], folder: Path) -> Path | None:
    """The private key in ``folder`` that has a public half in the ``.pub`` file beside it among ``ssh_keys``.

    These are names of keys with their fingerprints, as a reservation tells them. OpenSSH itself tries keys of
    a few file names only.
    """
    opening = {one.split()[-1] for one in ssh_keys}
    for public in sorted(folder.glob("*.pub")):
        private = public.with_suffix("")
        try:
            line, _ = read_public_key(public.read_text())
        except (ValueError, OSError):
            continue
        if fingerprint_of(line) in opening and private.exists():
            return private
    return None


def command_of(access: AccessForm, alias: str, identity: Path | None, *, show: bool = False) -> list[str]:
    """The command of OpenSSH. The known host key is written where it reads it.

    Raises Conflict if another key is known under ``alias``.
    """
    known = data_folder() / "known_hosts"
    known.parent.mkdir(parents=True, exist_ok=True)
    options = [f"HostKeyAlias={alias}", f"UserKnownHostsFile={known}"]
    if access.ssh_host_key is None:
        options.append("StrictHostKeyChecking=accept-new")
    else:
        options.append("StrictHostKeyChecking=yes")
        if not show:
            remember_host_key(known, alias, access.ssh_host_key)
    words = ["ssh", *(part for option in options for part in ("-o", option)), "-p", str(access.port)]
    if identity is not None:
        words += ["-i", str(identity)]
    return [*words, f"{access.user}@{access.host}"]


def remember_host_key(file: Path, alias: str, key: str) -> None:
    """Adds a host key to OpenSSH's file. Raises Conflict if it has another one under this alias."""
    lines = file.read_text().splitlines() if file.exists() else []
    before = next((line.partition(" ")[2] for line in lines if line.split(" ")[:1] == [alias]), None)
    if before == key:
        return
    if before is not None:
        raise Conflict(
            f"the host key of {alias} has changed: it was {fingerprint_of(before)}, and it is "
            f"{fingerprint_of(key)} now; if the machine was installed anew, remove its line from {file}"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*lines, f"{alias} {key}"]) + "\n")

"""``broker reoptimizations``: proposals to move as prices change, and the decision on them."""

from __future__ import annotations

import uuid
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.output import Json, print_items, print_json, stdout
from api.cli.plans.reoptimization_view import looks_section, print_look
from api.cli.tables import print_section
from api.client import BrokerClient, connect
from api.schemas.plans.reoptimization import REOPTIMIZATION
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.moving.reoptimization import ProposalState, Reoptimization

app = typer.Typer(add_completion=False)


@app.command()
def reoptimizations(
    reoptimization_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only this one, with its moves.")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Take the proposal ID up.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Say no to the proposal ID.")] = False,
    state: Annotated[ProposalState | None, typer.Option(help="Only those in this state.")] = None,
    as_json: Json = False,
) -> None:
    """List re-optimizations, newest first; show one; accept or reject a proposal.

    An accepted proposal moves what runs: new capacity is bought and usable before the old is released.
    Exit codes: 3 the key may not, 4 no such re-optimization, 5 it is over, 7 approval needed.

    Example: BROKER_KEY=… broker reoptimizations reopt-01jd… --accept
    """
    with connect(load_settings()) as client:
        if reoptimization_id is None:
            _list(client, state, named=accept or reject, as_json=as_json)
            return
        look = _decide(client, reoptimization_id, accept=accept, reject=reject)
    if as_json:
        print_json(REOPTIMIZATION.write(look))
    else:
        print_look(stdout(), look)


def _list(client: BrokerClient, state: ProposalState | None, *, named: bool, as_json: bool) -> None:
    if named:
        problem = FieldProblem("ID", "nothing", "the id of a proposal: broker reoptimizations")
        raise InputError("arguments", (problem,))
    rows = [row for row in client.list_reoptimizations() if state is None or row.state is state]
    if as_json:
        print_items(map(REOPTIMIZATION.write, rows))
    else:
        print_section(looks_section(rows))


def _decide(client: BrokerClient, key: str, *, accept: bool, reject: bool) -> Reoptimization:
    if accept and reject:
        raise InputError("arguments", (FieldProblem("--reject", "--accept too", "one of both"),))
    if accept or reject:
        return client.decide_proposal(key, "accept" if accept else "reject", f"cli-{uuid.uuid4()}")
    return client.find_reoptimization(key)

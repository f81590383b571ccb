"""``broker what-if``: changes of a plan's document, planned and compared with the plan."""

from __future__ import annotations

import time
from typing import Annotated
from uuid import uuid4

import typer

from api.cli.configuration import load_settings
from api.cli.errors import TimedOut
from api.cli.output import Json, print_json, say, stdout
from api.cli.plans.comparison_view import print_comparison
from api.client import BrokerClient, connect
from api.schemas.plans.comparison import ComparisonDocument, comparison_to_document
from api.schemas.workloads.what_if import change_of

app = typer.Typer(add_completion=False)

PAUSE_S = 0.5


@app.command()
def what_if(
    plan_id: Annotated[str, typer.Argument(help="The plan whose document is changed.")],
    changes: Annotated[
        list[str],
        typer.Argument(help="A change each: PATH=VALUE, PATH*=FACTOR, PATH+=VALUE; several with ;"),
    ],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the plans.")] = 300.0,
    as_json: Json = False,
) -> None:
    """Plans each change of a plan's document, and compares them with the plan. Nothing is bought.

    A path begins with a workload's name, with * for all, or with policy, budget or horizon. Times take spans
    such as 48h and -2d, traffic*=1.5 raises the whole curve, and prices*=1.2 or prices.aws*=1.2 assumes
    other prices. `broker plans ID --intend` chooses a variant, which can then be reserved. Exit code 9:
    planning goes on.

    Example: broker what-if PLAN_ID 'finetune-8b.deadline+=48h' 'chat-70b.traffic*=1.5; policy.tiers=[spot]'
    """
    asked = [change_of(words) for words in changes]
    with connect(load_settings()) as client:
        comparison_id = client.ask_what_if(plan_id, asked, f"cli-{uuid4()}").comparison_id
        say(f"planning {comparison_id}")
        found = _complete(client, comparison_id, timeout)
    if as_json:
        print_json(comparison_to_document(found))
    else:
        print_comparison(stdout(), found)


def _complete(client: BrokerClient, comparison_id: str, timeout_s: float) -> ComparisonDocument:
    until = time.monotonic() + timeout_s
    while not (found := client.find_comparison(comparison_id)).is_complete:
        if time.monotonic() >= until:
            raise TimedOut(f"planning goes on; look again with `broker compare {comparison_id}`")
        time.sleep(PAUSE_S)
    return found

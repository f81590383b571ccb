"""``broker poll``: polls providers now."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from api.bootstrap import build_product
from api.cli.configuration import load_environment, load_settings
from api.cli.errors import ExitCode
from api.cli.market.polling import poll_now, print_rounds
from api.cli.output import Json, print_json, stderr, stdout
from api.schemas.market.provider import ROUND
from broker.domain.market.market import PollRound

app = typer.Typer(add_completion=False)


@app.command()
def poll(
    providers: Annotated[list[str] | None, typer.Argument(help="Provider keys; default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Poll providers and store their offers. Prints one line for each provider.

    Exit code 8 when one of them failed; its last known offers are kept.

    Example: BROKER_SANDBOX_URL=http://127.0.0.1:8090 broker poll lambda runpod
    """
    with stderr().status("asking providers"):
        rounds = asyncio.run(_poll(providers))
    if as_json:
        print_json({"rounds": [ROUND.write(round_) for round_ in rounds]})
    else:
        print_rounds(stdout(), rounds)
    if any(round_.error is not None for round_ in rounds):
        raise typer.Exit(ExitCode.PROVIDER)


async def _poll(providers: list[str] | None) -> tuple[PollRound, ...]:
    product = build_product(load_settings(), load_environment())
    try:
        await product.store.migrate()
        return await poll_now(product, providers)
    finally:
        await product.close()

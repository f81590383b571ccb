"""``broker sandbox``: the sandbox market as a server of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.cli.output import say
from broker import logs
from providers.sandbox.server import HOST, run

app = typer.Typer(add_completion=False)

DEFAULT_PORT = 8090
DEFAULT_SEED = 1


@app.command()
def sandbox(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port, 0 for any free one.")] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the market asks for no key, so leave it inside.")
    ] = HOST,
    seed: Annotated[int, typer.Option(help="Seed of stock and prices.")] = DEFAULT_SEED,
    state: Annotated[Path | None, typer.Option(help="Folder whose content survives a kill.")] = None,
) -> None:
    """Serve every provider's own protocol with seeded stock, real dated prices, a ledger and no money.

    Example: broker sandbox --port 8090 --seed 7 --state ./market
    """
    say(f"starting the sandbox market: BROKER_SANDBOX_URL=http://{host}:{port}")
    with logs.on_a_thread():
        run(port, seed, state, host)

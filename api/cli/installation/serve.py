"""``broker serve``: API, pages and scheduler from the configuration."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Annotated

import typer

from api.app import create_app
from api.bootstrap import Product, build_product, open_orders_warning
from api.cli.commands_page import COMMANDS_PAGE
from api.cli.configuration import check_variables, load_settings
from api.cli.installation.listening import listen, serve_until_stopped, url_of
from api.cli.output import say
from api.given_settings import load_environment
from broker.settings import Settings

app = typer.Typer(add_completion=False)
log = logging.getLogger(__name__)

Host = Annotated[str | None, typer.Option(help="Address to listen on (BROKER_HOST).")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port, 0 for any free one (BROKER_PORT).")]
Database = Annotated[str | None, typer.Option(help="SQLAlchemy URL (BROKER_DATABASE_URL).")]


@app.command()
def serve(host: Host = None, port: Port = None, database: Database = None) -> None:
    """Serve API, pages and scheduler until stopped.

    Example: BROKER_ADMIN_KEY=… BROKER_SANDBOX_URL=http://127.0.0.1:8090 broker serve
    """
    settings = load_settings(host=host, port=port, database_url=database)
    check_variables(os.environ)
    with listen(settings.host, settings.port) as bound:
        asyncio.run(_serve(settings, bound))


async def _serve(settings: Settings, bound: socket.socket) -> None:
    product = build_product(settings, load_environment())
    try:
        await product.store.migrate()
        await settle_given_key(product)
        if settings.admin_key is None and not await product.keys.has_any():
            warn("no key exists yet, so nobody can get in: start it once with BROKER_ADMIN_KEY=…")
        warn_of_open_orders(product)
        say(f"serving on {url_of(bound)}")
        await serve_until_stopped(create_app(product, reference=COMMANDS_PAGE), bound)
    finally:
        await product.close()


def warn_of_open_orders(product: Product) -> None:
    """Logs a warning while a real seller may be ordered from, and no cap limits what that costs."""
    told = open_orders_warning(product.settings, product.modes)
    if told:
        log.warning(told)


async def settle_given_key(product: Product) -> None:
    """Takes the setting's key into force, or tells which keys of an earlier start still open; InputError."""
    given = product.settings.admin_key
    if given is not None:
        await product.keys.ensure_admin_key(given.get_secret_value())
        return
    for key in await product.keys.find_given_keys():
        warn(
            f"BROKER_ADMIN_KEY is not set, but the one of {key.created_at:%Y-%m-%d} still opens everything: "
            f"end it with another administrator's key, broker keys --revoke {key.key_id}"
        )


def warn(told: str) -> None:
    """A line on stderr for whoever starts a server."""
    say(f"warning: {told}")

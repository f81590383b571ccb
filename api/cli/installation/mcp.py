"""``broker mcp``: the running broker as tools of an assistant, by the Model Context Protocol."""

from __future__ import annotations

from importlib import import_module

import typer

from api.cli.configuration import load_settings
from api.client import connect_async
from broker.domain.basics.errors import FieldProblem, InputError

app = typer.Typer(add_completion=False)


@app.command()
def mcp() -> None:
    """Serve the running broker's tools to an assistant over standard input and output.

    The assistant's program starts it, with BROKER_URL and BROKER_KEY in its environment; the key decides
    what the tools may do. Reserving needs a confirmation. It needs the extra `mcp`.

    Example: BROKER_URL=http://127.0.0.1:8080 BROKER_KEY=… broker mcp
    """
    broker = connect_async(load_settings())
    try:
        build = import_module("api.mcp.server").build_server
    except ModuleNotFoundError as error:
        problem = FieldProblem("", f"no package {error.name}", "the extra `mcp`: gpu-capacity-broker[mcp]")
        raise InputError("installation", (problem,)) from error
    build(broker).run("stdio")

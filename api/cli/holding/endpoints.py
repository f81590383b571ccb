"""``broker endpoints``: where the services of a plan answer now."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.client import connect
from api.export.endpoints import EndpointsFormat

app = typer.Typer(add_completion=False)


@app.command()
def endpoints(
    plan_id: Annotated[str, typer.Argument(help="Id of a plan on the server.")],
    form: Annotated[
        EndpointsFormat, typer.Option("--format", help="Whose form it takes.")
    ] = EndpointsFormat.JSON,
) -> None:
    """Show where the services of a plan answer now, in the form of a load balancer or of Prometheus.

    The same is served under `GET /v1/plans/{id}/endpoints`, and streamed under `/endpoints/events`.

    Exit codes: 3 the key may not, 4 no such plan.

    Example: broker endpoints plan-01jd… --format nginx > /etc/nginx/conf.d/chat.conf
    """
    with connect(load_settings()) as client:
        text = client.find_endpoints(plan_id, form.value)
    typer.echo(text, nl=False)  # as it is: a console would expand tabs

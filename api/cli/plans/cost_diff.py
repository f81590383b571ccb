"""``broker cost-diff``: what a change of a workloads document costs, for a comment on a merge request."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.output import print_json, say
from api.cli.plans.asked import Asked, MarketFile, read_asked
from api.cli.plans.cost_diff_view import markdown
from api.planning.planning_call import build_planner
from api.schemas.plans.comparison import compare_plans, comparison_to_document
from broker.domain.planning.plan import Plan
from broker.ports.planning import LimitClock, PlanOptions

app = typer.Typer(add_completion=False)


class Form(StrEnum):
    """How the difference is told."""

    MARKDOWN = "markdown"
    JSON = "json"


def _no_progress(_: object) -> None:
    """Nothing is shown while a plan is made."""


@app.command()
def cost_diff(
    base: Annotated[Path, typer.Argument(help="Workloads document before the change.")],
    head: Annotated[Path, typer.Argument(help="Workloads document after the change.")],
    market: MarketFile = None,
    form: Annotated[Form, typer.Option("--format", help="Markdown for a comment, or JSON.")] = Form.MARKDOWN,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds to search for each plan.")] = 30.0,
    gap: Annotated[float, typer.Option(min=0, max=1, help="Stop this close to the proven bound.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the search.")] = 1,
) -> None:
    """Plan two versions of a workloads document over one market, and say what the change costs.

    Both are planned on this machine with the same limits, so that the difference is that of the
    documents. A difference below the gap may come from the search.

    Example: broker cost-diff base.yaml head.yaml --market market.json
    """
    options = PlanOptions(
        time_limit, gap, seed, limit_clock=LimitClock.CPU, workers=load_settings().plan_workers
    )
    asked = [read_asked(document, market) for document in (base, head)]
    before, after = (_planned(one, options) for one in asked)
    if form is Form.JSON:
        print_json(comparison_to_document(compare_plans((("before", before), ("after", after)))))
    else:
        typer.echo(markdown(before, after), nl=False)


def _planned(asked: Asked, options: PlanOptions) -> Plan:
    found = asked.market
    told = f"planning {len(asked.request.workloads)} workloads over {len(found.offers):,} offers"
    say(told)
    return build_planner().plan(asked.request, found.offers, found.as_of, options, _no_progress)

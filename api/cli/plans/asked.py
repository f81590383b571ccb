"""The input of a command that plans: a workloads document, a market, and the installation's quotas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.market_source import find_market
from api.cli.output import read_text, say
from api.planning.planning_call import installed_quotas
from api.schemas.market.market import Market
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_gpus
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.planning.workload import PlanRequest

WorkloadsFile = Annotated[Path, typer.Argument(help="Workloads document, YAML or JSON; - for stdin.")]
MarketFile = Annotated[
    Path | None,
    typer.Option(help="Market document; without it, offers of the server at BROKER_URL or of the database."),
]
PlanOrId = Annotated[
    str, typer.Argument(metavar="PLAN", help="Plan document, or the id of a plan of the running server.")
]
PlannedMarket = Annotated[Path | None, typer.Option(help="The market that a document's plan was made over.")]
PlannedWorkloads = Annotated[
    Path | None, typer.Option(help="The workloads that a document's plan was made for.")
]

MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """A workloads document (``text``: as it stands in its file) and the market that it is planned on."""

    text: str
    request: PlanRequest
    market: Market


def is_of_server(plan: str) -> bool:
    """Whether ``plan`` is the id of a plan of the server, and no file."""
    return plan.startswith("plan-") and not Path(plan).exists()


def read_asked(workloads: Path, market: Path | None) -> Asked:
    """Reads both. Without ``market`` the offers are the server's or the database's. Raises InputError."""
    text = read_text(workloads)
    found = find_market(market)
    _warn_of_unknown_gpus(found)
    request = read_workloads(text, source=str(workloads), base=workloads.parent, now=found.as_of)
    return Asked(text, replace(request, quotas=installed_quotas(load_settings())), found)


def require_files(command: str, market: Path | None, workloads: Path | None) -> tuple[Path, Path]:
    """The two files beside a plan document. Raises InputError for one that is not given."""
    if market is None or workloads is None:
        missing = "--market" if market is None else "--workloads"
        expected = (
            "the file that the plan was made with, or the id of a plan of the server in place of a document"
        )
        raise InputError(command, (FieldProblem(missing, "nothing", expected),))
    return market, workloads


def _warn_of_unknown_gpus(market: Market) -> None:
    """Warns on stderr of GPUs without performance data: nothing can be placed on their offers."""
    unknown = Counter(offer.sku.gpu for offer in market.offers if offer.sku.gpu not in load_gpus())
    if unknown:
        names = ", ".join(sorted(unknown)[:MOST_NAMES])
        told = f"warning: {unknown.total():,} offers left aside, no figures in config/gpus.csv for {names}"
        say(told)

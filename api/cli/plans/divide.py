"""``broker divide``: lanes for services whose requests have several sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from api.cli.output import Json, print_json, require_writable, say, stdout, to_json, write_text
from api.cli.plans.asked import MarketFile, WorkloadsFile, read_asked
from api.cli.plans.progress import ProgressLine
from api.cli.tables import print_section
from api.figures import percent, plural, usd
from api.planning.planning_call import build_planner
from api.schemas.base.document import read_document
from api.schemas.plans.division import divided_document, division_to_document
from api.sections import Section, section_of
from broker.domain.basics.money import ZERO
from broker.domain.planning.lanes import DividedService, Division, Lane
from broker.domain.planning.plan import Plan
from broker.domain.workloads.traffic import RequestSize
from broker.ports.planning import LimitClock, PlanOptions

app = typer.Typer(add_completion=False)

GAP = 0.002


@app.command()
def divide(
    workloads: WorkloadsFile,
    market: MarketFile = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the document with lanes to this file: YAML, or .json.")
    ] = None,
    least_saving: Annotated[
        float, typer.Option(min=0, max=1, help="Divide only what then costs this share less.")
    ] = 0.02,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds for each of the few plans.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Divide services whose requests have several sizes (traffic.mix) where that costs less.

    A gateway that knows how long requests are can send short ones to cheap cards and long ones to fast
    ones. Each lane is then a service of its own, with its own replicas, zones and spares. Every service
    is planned whole and divided on this machine, with nothing else on the market; the document that is
    written is planned as any other.

    Example: broker divide workloads.yaml --market market.json --output divided.yaml
    """
    if output is not None:
        require_writable(output)
    asked = read_asked(workloads, market)
    found = asked.market
    with ProgressLine() as progress:
        progress.say(f"dividing by size over {len(found.offers):,} offers")
        division = build_planner().divide(
            asked.request,
            found.offers,
            found.as_of,
            PlanOptions(time_limit, GAP, limit_clock=LimitClock.CPU),
            least_saving,
        )
    if output is not None:
        document = divided_document(read_document(asked.text, str(workloads)).data, division)
        as_yaml = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
        write_text(output, to_json(document) if output.suffix == ".json" else as_yaml)
        say(f"workloads written to {output}")
    if as_json:
        print_json(division_to_document(division))
    else:
        print_division(stdout(), division)


def print_division(console: Console, division: Division) -> None:
    """Which services were divided, with routes for a gateway, and why the others were not."""
    for one in division.divided:
        console.print(_headline(one), soft_wrap=True)
        if one.surely_saves_usd:
            proven = f"No fleet for all sizes costs less than {usd(one.whole.bound_usd or 0)}."
            console.print(proven, soft_wrap=True)
        print_section(_lanes(one), console)
        print_section(_routes(one), console)
    for kept in division.kept:
        console.print(f"{kept.service}: stays whole, {kept.why}", soft_wrap=True)
    if not division.divided and not division.kept:
        console.print("no service has requests of several sizes (traffic.mix)", soft_wrap=True)


def _headline(one: DividedService) -> str:
    told = f"{one.service.name}: {usd(one.divided.cost_usd)} in {plural(len(one.lanes), 'lane')}"
    if one.whole.unplaced:
        return f"{told}; whole it has no place on this market"
    share = percent(float(one.saves_usd / one.whole.cost_usd))
    return f"{told} instead of {usd(one.whole.cost_usd)}, saves {usd(one.saves_usd)} ({share})"


def _lanes(one: DividedService) -> Section:
    return section_of(
        one.lanes,
        {
            "lane": lambda lane: lane.name,
            ">requests": lambda lane: percent(lane.share),
            ">sizes": lambda lane: str(len(lane.sizes)),
            "stands on": lambda lane: _stands_on(lane, one.divided),
            ">cost": lambda lane: sum((p.cost_usd for p in one.divided.placements_of(lane.name)), ZERO),
        },
    )


def _stands_on(lane: Lane, plan: Plan) -> str:
    return ", ".join(
        f"{one.replicas} × {f'{one.gpus_per_replica} ' if one.gpus_per_replica > 1 else ''}{one.gpu}"
        for one in plan.placements_of(lane.name)
    )


def _routes(one: DividedService) -> Section:
    rows = [(_tokens(size), percent(size.share), ", ".join(_parts(to))) for size, to in one.routes.items()]
    return Section((">tokens in / out", ">of requests", "go to"), rows)


def _tokens(size: RequestSize) -> str:
    return f"{size.input_tokens:,} / {size.output_tokens:,}"


def _parts(to: dict[str, float]) -> Iterator[str]:
    for name, share in to.items():
        yield name if len(to) == 1 else f"{percent(share)} {name}"

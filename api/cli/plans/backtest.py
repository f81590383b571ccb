"""``broker backtest``: what re-optimization policies would have cost over a recorded market."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer

from api.cli.market_source import with_spot_rates
from api.cli.output import Json, print_json, read_text, say, stdout
from api.cli.plans.backtest_view import Compared, compared_to_document, print_compared
from api.cli.plans.progress import ProgressLine
from api.cli.times import read_time
from api.figures import plural
from api.planning.planning_call import plan_call, replan_call
from api.schemas.base.times import format_time
from api.schemas.market.history import read_history
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_moving_terms
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import Conflict, FieldProblem, InputError
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.market.market_history import MarketHistory
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import InForce, LimitClock, PlanCall, PlannedAgain, PlanOptions, ReplanCall
from broker.services.moving.all_knowing import AllKnowing, all_knowing
from broker.services.moving.backtest import BacktestRules, LookPolicy, Outcome, replay
from broker.store import create_store

app = typer.Typer(add_completion=False)

DATABASE_DAYS = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class Episode:
    """One horizon of the workloads, and the price history of that time."""

    request: PlanRequest
    history: MarketHistory


@app.command()
def backtest(
    history: Annotated[str, typer.Option(help="Folder of recorded markets, or a broker's database.")],
    workloads: Annotated[Path, typer.Option(help="Workloads document, YAML or JSON.")],
    policy: Annotated[
        list[LookPolicy] | None, typer.Option(help="When to look again; default: all four.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="First instant; default: the history's.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="Last instant; default: the history's.")] = None,
    time_limit: Annotated[
        float, typer.Option(min=0.1, help="Seconds of work of a first plan at most.")
    ] = 5.0,
    look_limit: Annotated[float, typer.Option(min=0.1, help="Seconds of work of a new look at most.")] = 2.0,
    gap: Annotated[float, typer.Option(min=0, max=1, help="Stop this close to the proven bound.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of every search.")] = 1,
    as_json: Json = False,
) -> None:
    """Replay recorded prices under re-optimization policies, compared with a plan that knew all of them.

    The workloads are replayed as often as their horizon fits into the history, each time from an empty fleet.
    Limits count work, not time, so equal seeds give equal results on every machine.

    Example: broker backtest --history fixtures/history --workloads fixtures/examples/backtest.yaml
    """
    recorded = with_rates(load_history(history, since, until))
    episodes = list(find_episodes(recorded, read_text(workloads), workloads, history))
    options = PlanOptions(time_limit, gap, seed, baselines=False, limit_clock=LimitClock.WORK)
    rules = BacktestRules(options, look_limit, terms=load_moving_terms())
    policies, calls = list(dict.fromkeys(policy or LookPolicy)), (_made_once(), _looked_once())
    with ProgressLine() as progress:
        known = [_known(e, options, progress) for e in episodes]
        outcomes = {p: [_replayed(e, p, calls, rules, progress) for e in episodes] for p in policies}
    compared = Compared(
        source=history,
        offers=len(recorded.offers),
        points=len(recorded.points),
        horizons=tuple(episode.request.horizon for episode in episodes),
        seed=seed,
        known=AllKnowing(
            sum((one.cost_usd for one in known), ZERO),
            sum((one.bound_usd for one in known), ZERO),
            sum(one.plans for one in known),
        ),
        outcomes=outcomes,
    )
    if as_json:
        print_json(compared_to_document(compared))
    else:
        print_compared(stdout(), compared)
    _warn(outcomes)


def _known(episode: Episode, options: PlanOptions, progress: ProgressLine) -> AllKnowing:
    progress.say(f"all-knowing plan from {format_time(episode.request.horizon.start)}")
    return all_knowing(episode.request, episode.history, plan_call, options)


def _made_once() -> PlanCall:
    """The planner for first plans. Every policy begins a horizon with the same plan, so it is made once."""
    made: dict[datetime, Plan] = {}

    def call(request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions) -> Plan:
        if as_of not in made:
            made[as_of] = plan_call(request, offers, as_of, options)
        return made[as_of]

    return call


def _looked_once() -> ReplanCall:
    """The planner for re-optimizations, with its answers cached: limited by work, it is deterministic.

    Policies that re-optimize at the same instants from the same plans share most of these runs.
    """
    made: dict[bytes, PlannedAgain] = {}

    def call(
        request: PlanRequest,
        offers: tuple[Offer, ...],
        as_of: datetime,
        options: PlanOptions,
        in_force: InForce,
    ) -> PlannedAgain:
        asked = replace(in_force, frozen=frozenset())
        key = sha256(
            repr((request, offers, as_of, options, asked, sorted(in_force.frozen))).encode()
        ).digest()
        if key not in made:
            made[key] = replan_call(request, offers, as_of, options, in_force)
        return made[key]

    return call


def _replayed(
    episode: Episode,
    policy: LookPolicy,
    calls: tuple[PlanCall, ReplanCall],
    rules: BacktestRules,
    progress: ProgressLine,
) -> Outcome:
    progress.say(f"{policy} from {format_time(episode.request.horizon.start)}")
    return replay(episode.request, episode.history, policy, calls, rules)


def _warn(outcomes: dict[LookPolicy, list[Outcome]]) -> None:
    for policy, many in outcomes.items():
        left_out = sorted({name for one in many for name in one.unplaced})
        failed = sum(one.failed for one in many)
        if left_out:
            say(f"warning: {policy} left out {', '.join(left_out)}")
        if failed:
            text = f"warning: {policy}: {plural(failed, 'look')} found no plan"
            say(text)


def find_episodes(history: MarketHistory, text: str, workloads: Path, source: str) -> Iterator[Episode]:
    """Consecutive horizons within the history. Raises InputError if not even one fits."""
    span = history.span
    if span is None:
        raise InputError(
            source, (FieldProblem("", "no time between its first and its last price", "prices over time"),)
        )
    now, found = span.start, 0
    while now < span.end:
        request = read_workloads(text, source=str(workloads), base=workloads.parent, now=now)
        horizon = request.horizon
        fits = span.start <= horizon.start and horizon.end <= span.end
        if found == 0 and not fits:
            expected = (
                f"a horizon within the history, {format_time(span.start)} to {format_time(span.end)} "
                f"({span.hours / 24:.1f} days)"
            )
            words = (
                f"{format_time(horizon.start)} to {format_time(horizon.end)} ({horizon.hours / 24:.1f} days)"
            )
            raise InputError(str(workloads), (FieldProblem("/horizon", words, expected),))
        if not fits or horizon.start < now:
            return
        yield Episode(request, history.within(horizon))
        now, found = horizon.end, found + 1


def load_history(source: str, since: str | None, until: str | None) -> MarketHistory:
    """The history of a folder or a database, cut to the given times. Raises InputError."""
    start, end = read_time("--from", since), read_time("--to", until)
    if "://" in source or Path(source).is_file():
        return asyncio.run(_stored_history(source, start, end))
    history = read_history(Path(source), read_text)
    span = history.span
    if span is None or (start is None and end is None):
        return history
    return history.within(_window(start or span.start, (end or span.end) + timedelta(microseconds=1)))


def with_rates(history: MarketHistory) -> MarketHistory:
    """``history`` with the assumed interruption rate for spot offers whose provider states none."""
    told = with_spot_rates(history.offers.values())
    return replace(history, offers={offer.offer_id: offer for offer in told})


async def _stored_history(source: str, start: datetime | None, end: datetime | None) -> MarketHistory:
    store = create_store(source if "://" in source else f"sqlite:///{source}", exclusive=False)
    try:
        if not await store.revision_is_current():
            raise Conflict("the database has an older form; `broker poll` brings it up to date")
        async with store.unit_of_work(EVERY_TEAM) as unit:
            last = end or await unit.offers.find_as_of()
            if last is None:
                raise InputError(source, (FieldProblem("", "no prices", "a database that was polled"),))
            window = _window(start or last - DATABASE_DAYS, last + timedelta(microseconds=1))
            offers = {o.offer_id: o for o in await unit.prices.find_offers_known_in(window)}
            points = await unit.prices.find_points(offers, window)
    finally:
        await store.close()
    return MarketHistory(offers, tuple(sorted(points, key=lambda point: point.at)), window.end)


def _window(start: datetime, end: datetime) -> Window:
    if end <= start:
        problem = FieldProblem("--from", format_time(start), f"a time before {format_time(end)}")
        raise InputError("options", (problem,))
    return Window(start, end)

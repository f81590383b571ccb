"""Why each placement is as it is: what decided, what limits it, what is assumed, what came second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal

import numpy as np

from broker.domain.basics.money import price_words, usd_words
from broker.domain.market.offer import RateBasis, Tier, WindowTerms
from broker.domain.planning.plan import DROPPED, Alternative, BindingRule, RunnerUp, Scarcity, Why
from broker.domain.planning.transfer import TransferKind
from broker.domain.planning.workload import Batch, Serving, Training, Workload
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.greedy import by_workload
from optimizer.placement.explain.alternatives import (
    binding_limit,
    near,
    next_ways,
    ranked,
    reason,
    scarcities,
    second_best,
)
from optimizer.placement.explain.assumed import all_taken_rule, assumed_rules, objective_rules, tokens_rule
from optimizer.placement.explain.clauses import Clause, Part, clauses_of, counted, duration, sentences_of
from optimizer.placement.explain.dropped import cheapest_dropped
from optimizer.placement.explain.extract import requests_of
from optimizer.placement.explain.fleet_limits import limits_told
from optimizer.placement.explain.near_ties import NearTie
from optimizer.placement.explain.relaunched import relaunch_rules
from optimizer.placement.explain.risks import risk_rules
from optimizer.placement.explain.run_sizes import size_rules
from optimizer.placement.fleets.columns import time_of
from optimizer.placement.fleets.model import coarse_fleets, model_fleets
from optimizer.placement.problem.columns import Column, Piece, in_usd
from optimizer.placement.problem.delays import wait_in
from optimizer.placement.problem.problem import Floats, Problem
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.problem.transfers import transfers_of
from optimizer.placement.problem.units import HOUR_S, FleetCase
from optimizer.placement.runs.candidates import Run, RunCandidates
from optimizer.placement.runs.columns import build_run_column
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.improve import blockers
from optimizer.placement.search.moves import FleetMaker, group_total_cents
from optimizer.placement.search.plan_state import PlanState
from optimizer.placement.search.runner_up import Rival, main_piece, named, rival_at, rival_in
from optimizer.placement.search.solve import Solution


@dataclass(frozen=True, slots=True)
class _Told:
    """The explanation that all placements of one workload share."""

    runner_up: RunnerUp | None
    next_best: tuple[Alternative, ...]
    rule: BindingRule
    clauses: tuple[Clause, ...]


@dataclass(slots=True)
class Explainer:
    """Explains the placements of one solution; each workload's second-best options are found once.

    ``hurry``: whether to skip what must be computed; ``ties``: near ties that were decided; ``most_trials``:
    how many fleet limits are tried. Once the time has ``ended``, second-best options are found for the first
    few workloads only, and fleet limits are not tried; ``untold``: for how many workloads that was the case.
    """

    candidates: Candidates
    solution: Solution
    hurry: Callable[[], bool] = lambda: False
    ties: Mapping[str, NearTie] = field(default_factory=dict)
    most_trials: int = 0
    ended: Callable[[], bool] = lambda: False
    untold: int = 0
    limits_untried: bool = False
    _told: dict[str, _Told] = field(default_factory=dict)
    _fleet_limits: Mapping[str, tuple[str, ...]] | None = None
    _state: PlanState = field(init=False)
    _known: Mapping[str, Sequence[Column]] = field(init=False)

    def __post_init__(self) -> None:
        self._state = PlanState(self.candidates, dict(self.solution.choice.columns))
        self._known = by_workload(self.solution.columns)

    def scarcity(self) -> tuple[Scarcity, ...]:
        """What more nodes of each contended offer would save."""
        return scarcities(self._state, self._known)

    def why(self, column: Column, piece: Piece) -> Why:
        """The explanation of one placement."""
        problem = self.candidates.problem
        workload = problem.request.workload(column.workload)
        if isinstance(workload, Serving):
            rules = self._service_rules(workload, column, piece)
        else:
            rules = self._run_rules(self.candidates.runs[column.workload], column, piece)
        if column.workload not in self._told:
            self._told[column.workload] = self._tell(column)
        told = self._told[column.workload]
        clauses = (
            *rules,
            *self._launch_rule(piece),
            *self._spot_rule(workload, piece),
            *clauses_of(Part.ASSUMED, [all_taken_rule(problem, self._state.ledger, piece)]),
            *tokens_rule(self.candidates, workload, column),
        )
        risks = clauses_of(Part.RISK, risk_rules(self.candidates, workload, column, piece))
        assumed = clauses_of(Part.ASSUMED, assumed_rules(self.candidates, workload, piece))
        sized = clauses_of(Part.DETAIL, sized_rules(problem, piece))
        return Why(
            self._bottleneck(workload.name, piece),
            tuple(clause.says for clause in clauses),
            told.runner_up,
            told.rule,
            told.next_best,
            tuple(sorted(self.candidates.log(workload.name).dropped.items())),
            sentences_of((*risks, *told.clauses, *assumed, *sized, *clauses)),
            self.candidates.log(workload.name).left,
        )

    def _tell(self, column: Column) -> _Told:
        """The second-best options of a workload; in a hurry only among known columns."""
        hurried, known = self.hurry(), self._known.get(column.workload, ())
        rivals: list[Rival] = []
        rival: Rival | None = None
        dropped: str | None = None
        if len(self._told) >= TUNING.explain.least_told and self.ended():
            self.untold += 1
        else:
            makers = self._makers(hurried=hurried)
            dropped = cheapest_dropped(self.candidates, column)
            ways = next_ways(self.candidates, self.solution.pools, known, column)
            rivals = [rival_at(self.candidates, self._state, column.workload, way, makers[0]) for way in ways]
            rivals = [one for one in rivals if self._can_stand(one) and not self._lost_near_tie(one)]
            pools, name = self.solution.pools, column.workload
            for make in makers:
                rival = rival_in(
                    self.candidates, pools, known, self._state, name, build=not hurried, make=make
                )
                if rival is not None and self._can_stand(rival):
                    break
        if rival is None or not self._can_stand(rival) or self._lost_near_tie(rival):
            rival = next(iter(rivals), None)
        elif main_piece(rival.column).offer not in {main_piece(one.column).offer for one in rivals}:
            rivals.append(rival)
        others = ranked(self._state, rivals)
        known_ways = [one.way for one in others]
        limit = binding_limit(self._state, column, known_ways, tried=not hurried)
        limits = [] if limit.says is None else [limit.says]
        first = [] if limit.rule is BindingRule.BANDWIDTH else limits
        of_fleet = self._limits_of_fleets().get(column.workload, ())
        second = second_best(self._state, next(iter(others), None))
        clauses = (
            *clauses_of(Part.LIMIT, [*first, *of_fleet, *objective_rules(self.candidates, column), *limits]),
            *clauses_of(Part.NEXT_BEST, [second]),
            *clauses_of(Part.GATE, [dropped]),
        )
        runner_up = self._runner_up(column, rival)
        return _Told(runner_up, tuple(known_ways[: TUNING.explain.next_best]), limit.rule, clauses)

    def _makers(self, *, hurried: bool) -> tuple[FleetMaker, ...]:
        """How fleets are built; a later one where those before find none that stands."""
        if hurried:
            return (coarse_fleets,)
        return (model_fleets,) if self.candidates.is_small else (coarse_fleets, model_fleets)

    def _limits_of_fleets(self) -> Mapping[str, tuple[str, ...]]:
        if self._fleet_limits is None:
            has_fleets = any(name in self.candidates.fleets for name in self._state.chosen)
            self.limits_untried = self.most_trials > 0 and has_fleets and self.ended()
            most = 0 if self.limits_untried else self.most_trials
            self._fleet_limits = limits_told(self._state, self._known, self.ties, most)
        return self._fleet_limits

    def _can_stand(self, rival: Rival) -> bool:
        """Whether the stock suffices for the option alone; sizes of one machine may count its GPUs twice."""
        return Ledger(self.candidates.problem).fits(rival.column)

    def _lost_near_tie(self, rival: Rival) -> bool:
        """Whether the option is cheaper in total than the one that won a near tie."""
        if rival.way is None or rival.column.workload not in self.ties:
            return False
        return rival.cents < (group_total_cents(self.candidates, self._state.chosen, rival.group) or 0)

    def _runner_up(self, column: Column, rival: Rival | None) -> RunnerUp | None:
        if rival is None:
            return None
        offer = self.candidates.problem.table.offers[main_piece(rival.column).offer]
        text = reason(self._state, column, rival)
        return RunnerUp(offer.offer_id, in_usd(rival.column.cost_cents), text)

    def _bottleneck(self, name: str, piece: Piece) -> str:
        estimates, table = self.candidates.estimates, self.candidates.problem.table
        workload = self.candidates.problem.request.workload(name)
        place = estimates.row_of[name], int(table.sku_of[piece.offer]), piece.choice
        asked = estimates.training if isinstance(workload, Training) else estimates.serving
        return estimates.kept.once(("bottleneck", name, *place), lambda: asked.bottleneck(*place))

    def _run_rules(self, found: RunCandidates, column: Column, piece: Piece) -> Iterator[Clause]:
        yield Clause(Part.DECIDED, self._rank_rule(found, column))
        if found.run.name in self.ties:
            yield Clause(Part.NEAR_TIE, near_tie_rule(self.ties[found.run.name]))
        if column.penalty_cents:
            late_h = column.penalty_cents / 100 / float(_late_usd_per_hour(found))
            late = f"it ends {late_h:.1f} h late for {usd_words(in_usd(column.penalty_cents))}"
            yield Clause(Part.LIMIT, f"{late}: being on time costs more")
        yield from size_rules(self.candidates, found, piece)
        if len(column.pieces) > 1:
            yield Clause(Part.DETAIL, _part_rule(found.run, column, piece))
        if isinstance(found.run, Training):
            yield from self._layout_rule(found.run, piece)
        yield from transfer_rules(self.candidates.problem, column, piece)
        terms = self.candidates.problem.table.offers[piece.offer].window
        if terms is not None and terms.waits:
            yield Clause(Part.ASSUMED, waiting_rule(terms))
        elif terms is not None:
            yield Clause(Part.DETAIL, "it is a window, bought for its whole length, and ends by itself")
        yield from self._gate_rules(found.run.name)

    def _rank_rule(self, found: RunCandidates, column: Column) -> str:
        """How many offers would be cheaper, and which workloads hold them."""
        total = self.solution.pools[found.run.name].total_usd
        offers = found.log.left
        if len(column.pieces) > 1 and isinstance(found.run, Batch):
            return _divided_rule(total, column, offers)
        mine = float(total[np.isin(found.offer, [p.offer for p in column.pieces])].min())
        mine = max(mine, column.total_cents / 100)
        cheaper = np.flatnonzero(total < mine - 0.01)
        cheaper = cheaper[~np.isin(found.offer[cheaper], [p.offer for p in column.pieces])]
        if found.run.name in self.ties:
            return f"it is among the cheapest of {_fitting(offers)}"
        if not len(cheaper):
            return f"it is the cheapest of {_fitting(offers)}"
        count = len(np.unique(found.offer[cheaper]))
        holders = self._holders(found, cheaper[np.argsort(total[cheaper], kind="stable")])
        if holders:
            are = "is" if count == 1 else "are"
            return f"{counted(count, 'cheaper offer')} of {offers:,} {are} held by {named(holders)}"
        followers = [service.name for service in self.candidates.problem.followers(found.run.name)]
        if not followers:
            less = usd_words(in_usd(round(100 * (mine - float(total[cheaper].min())))))
            return f"{counted(count, 'offer')} of {offers:,} would cost less, by at most {less}"
        wait = "waits" if len(followers) == 1 else "wait"
        return (
            f"{counted(count, 'offer')} of {offers:,} would cost the run less, but not the run and "
            f"{named(followers)}, which {wait} for it, together"
        )

    def _holders(self, found: RunCandidates, order: np.ndarray) -> list[str]:
        seen: dict[str, None] = {}
        for index in order[: TUNING.explain.most_cheaper]:
            column = build_run_column(self.candidates.problem, self.candidates.estimates, found, int(index))
            if column is not None:
                rivals_near = near(self._state, column)
                seen.update(dict.fromkeys(blockers(self.candidates.problem, rivals_near, column)))
        return list(seen)

    def _layout_rule(self, run: Training, piece: Piece) -> Iterator[Clause]:
        table, estimates = self.candidates.problem.table, self.candidates.estimates
        kind = int(table.sku_of[piece.offer])
        layout = estimates.training.layout(estimates.row_of[run.name], kind, piece.choice)
        if layout.tp > 1:
            says = f"TP{layout.tp} inside the node is the fastest layout that fits its memory"
            yield Clause(Part.DETAIL, says)

    def _service_rules(self, service: Serving, column: Column, piece: Piece) -> Iterator[Clause]:
        case, table = self.candidates.fleets[service.name], self.candidates.problem.table
        offers = f"{counted(case.log.left, 'offer')} that {'meets' if case.log.left == 1 else 'meet'} the SLO"
        among = "among the cheapest fleets" if service.name in self.ties else "the cheapest fleet"
        yield Clause(Part.DECIDED, f"it is {among} found over {offers}")
        if service.name in self.ties:
            yield Clause(Part.NEAR_TIE, near_tie_rule(self.ties[service.name]))
        yield Clause(Part.DETAIL, _held_rule(self.candidates.problem, case, column, piece))
        yield from _ending_rule(self.candidates.problem, column, piece)
        yield from relaunch_rules(self.candidates.problem, case, piece)
        yield Clause(Part.DETAIL, self._replica_rule(service, piece))
        if service.redundancy.spare_replicas:
            says = f"N+{service.redundancy.spare_replicas} is kept over every hour's demand"
            yield Clause(Part.DETAIL, says)
        if service.redundancy.zones > 1:
            zones = len({table.zone_of[p.offer] for p in column.pieces})
            part = Part.LIMIT if zones == service.redundancy.zones else Part.DETAIL
            yield Clause(part, f"the fleet stands in {zones} zones, and {service.redundancy.zones} are asked")
        yield from transfer_rules(self.candidates.problem, column, piece)
        if service.starts_after is not None:
            says = f"it starts when {service.starts_after} ends{self._delay_of(service, column)}"
            yield Clause(Part.LIMIT, says)
        yield from self._gate_rules(service.name)

    def _delay_of(self, service: Serving, column: Column) -> str:
        """How much later the service starts than the earliest end of any option of its run."""
        wait = wait_in(self.candidates.problem, service, column, in_usd(column.cost_cents))
        if wait is None or not wait.delay_usd:
            return ""
        hours = (wait.start - wait.earliest_start) / timedelta(hours=1)
        counts = f", which counts for {usd_words(wait.delay_usd)}"
        return f", {hours:.1f} h after the earliest that any way of it allows{counts}"

    def _replica_rule(self, service: Serving, piece: Piece) -> str:
        estimates, table = self.candidates.estimates, self.candidates.problem.table
        row, kind = estimates.row_of[service.name], int(table.sku_of[piece.offer])
        config = estimates.serving.configs[piece.choice]
        smaller = [
            c
            for c, other in enumerate(estimates.serving.configs)
            if other.precision == config.precision and other.gpus_per_replica < config.gpus_per_replica
        ]
        if config.dp > 1:
            return f"DP{config.dp} has GPUs keep caches of their own and share the experts"
        if config.gpus_per_replica == 1:
            return "one GPU is enough for a replica: weights and cache fit"
        if not any(estimates.serving.fits[row, kind, c] for c in smaller):
            return f"TP{config.tp} is needed: weights and SLO need {config.gpus_per_replica} GPUs"
        return f"TP{config.tp} serves more requests per dollar than smaller replicas here"

    def _launch_rule(self, piece: Piece) -> Iterator[Clause]:
        """What this installation's own launches of the offer showed."""
        learned = self.candidates.problem.table.offers[piece.offer].learned
        if learned is not None:
            yield Clause(Part.ASSUMED, f"our launches there say: {learned}")

    def _spot_rule(self, workload: Workload, piece: Piece) -> Iterator[Clause]:
        """How often spot nodes are expected to be interrupted, and the source of that rate."""
        offer = self.candidates.problem.table.offers[piece.offer]
        rate = offer.interruptions_per_hour
        if offer.tier is not Tier.SPOT or not rate or isinstance(workload, Serving):
            return
        said = {None: "its provider says", RateBasis.OWN_LEASES: "our own leases say"}
        who = said.get(offer.rate_basis, "assumed, as nobody says")
        says = f"a node is taken away about every {1 / rate:,.0f} h ({who}), and its rework is in the hours"
        yield Clause(Part.ASSUMED, says)

    def _gate_rules(self, name: str) -> Iterator[Clause]:
        dropped = self.candidates.log(name).dropped
        told = sorted(((g, n) for g, n in dropped.items() if n and g in DROPPED), key=lambda row: -row[1])
        if told:
            (first, most), rest = told[0], told[1:]
            words = [f"{counted(most, 'offer')} {DROPPED[first]}", *(f"{n} {DROPPED[g]}" for g, n in rest)]
            yield Clause(Part.DROPPED, f"the gates dropped {', '.join(words)}")


def _part_rule(run: Run, column: Column, piece: Piece) -> str:
    """Which part of a run or batch a piece is."""
    number, count = column.pieces.index(piece) + 1, len(column.pieces)
    if isinstance(run, Batch):
        requests = requests_of(run, piece)
        return (
            f"this is part {number} of {count}: {requests:,.0f} of {run.requests:,.0f} requests "
            f"({100 * piece.share:.0f} %); each part pays its own cold start"
        )
    return (
        f"this is part {number} of {count}, with {100 * piece.share:.0f} % of the work: "
        "the run is interruptible, and each part pays its start-up"
    )


def _divided_rule(whole_usd: Floats, column: Column, offers: int) -> str:
    """What dividing a batch saves against the cheapest single offer for all of it."""
    least = float(whole_usd.min(initial=np.inf))
    parts = f"it is divided into {len(column.pieces)} parts over {counted(offers, 'offer')} that fit"
    if not np.isfinite(least):
        return f"{parts}: no single offer answers all requests by the deadline"
    saved = in_usd(round(100 * least) - column.total_cents)
    if saved <= 0:
        return f"{parts}, as cheaper offers for all of it are taken by the rest of the plan"
    return f"{parts}: on the cheapest single offer it would cost {usd_words(saved)} more"


def _late_usd_per_hour(found: RunCandidates) -> Decimal:
    assert isinstance(found.run, Training)
    assert found.run.late_usd_per_hour is not None
    return found.run.late_usd_per_hour


def transfer_rules(problem: Problem, column: Column, piece: Piece) -> Iterator[Clause]:
    """What is copied to a piece, its cost and its duration."""
    for one in transfers_of(problem, column)[column.pieces.index(piece)]:
        billed = f"{usd_words(one.usd)}, billed by {one.provider}" if one.usd else "free of charge"
        words = f"{one.gb:,.0f} GB of {one.what} are copied from {one.provider} {one.region}: {billed}"
        if one.what is TransferKind.DATASET:
            words += f", there {one.hours:.1f} h after the plan; the bill is expected, no seller confirms it"
        yield Clause(Part.DETAIL, words)


def sized_rules(problem: Problem, piece: Piece) -> Iterator[str]:
    """What is ordered of each node beside the seller's defaults, and its price."""
    offer = problem.table.offers[piece.offer]
    if offer.chosen_disk_gb is None and offer.chosen_memory_gb is None:
        return
    default = offer.sized(None, None)
    more = offer.price_usd_per_node_hour - default.price_usd_per_node_hour
    amounts = [
        f"{gb:,.0f} GB of {name} in place of {sold.default_gb:,.0f}"
        for name, sold, gb in (
            ("disk", offer.disk, offer.chosen_disk_gb),
            ("memory", offer.memory, offer.chosen_memory_gb),
        )
        if sold is not None and gb is not None
    ]
    price = f"{price_words(more)} of its {price_words(offer.price_usd_per_node_hour)} an hour"
    yield f"each node is ordered with {' and '.join(amounts)}: {price}"


def waiting_rule(terms: WindowTerms) -> str:
    """The assumptions about capacity that is only promised."""
    source = f" ({terms.wait_source})" if terms.wait_source else ""
    return (
        "it begins when capacity appears, planned at the latest: it is ordered "
        f"{terms.longest_wait_hours:g} h before its start, an assumed wait{source}; begun sooner, it ends as "
        "much sooner"
    )


def near_tie_rule(tie: NearTie) -> str:
    """What was paid for a plan that is easier to operate."""
    now, before = tie.after, tie.before
    counts = [
        (now.pools, before.pools, "pool"),
        (now.sellers, before.sellers, "seller"),
        (now.parts, before.parts, "part"),
    ]
    words = [f"{counted(a, word)} in place of {b}" for a, b, word in counts if a != b]
    if tie.earlier_s >= 60:
        words.append(f"an end {tie.earlier_s / 3600:.1f} h earlier")
    what = ", ".join(words) or "fewer placements"
    noun = "way" if tie.earlier_s or before.parts > now.parts else "fleet"
    if tie.more_cents > 0:
        return f"a near tie: {usd_words(in_usd(tie.more_cents))} more than the cheapest {noun} pay for {what}"
    return f"a near tie: {what} cost {usd_words(in_usd(-tie.more_cents))} less than the {noun} first found"


def _held_rule(problem: Problem, case: FleetCase, column: Column, piece: Piece) -> str:
    """How a service's nodes are held over time."""
    counts = sorted({nodes for _, _, nodes in piece.spans})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} nodes are held, following traffic"
    held = f"{counted(counts[0], 'node')} {'is' if counts[0] == 1 else 'are'} held"
    if len(piece.spans) > 1:
        return f"{held} {len(piece.spans)} times, when traffic asks for it"
    begin_s, end_s, _ = piece.spans[0]
    time = time_of(problem, case, column.after_s)
    if begin_s <= time.start_s and end_s >= time.end_s:
        return f"{held} throughout"
    return f"{held} once, for {duration((end_s - begin_s) / HOUR_S)}"


def _ending_rule(problem: Problem, column: Column, piece: Piece) -> Iterator[Clause]:
    """Says that an offer ends before the horizon, and whether others are held after it."""
    gone_s = int(problem.table.gone_s[piece.offer])
    if gone_s >= problem.end_s:
        return
    offer, until = problem.table.offers[piece.offer], f"{problem.instant(gone_s):%d %b %H:%M} UTC"
    later = any(end_s > gone_s for other in column.pieces for _, end_s, _ in other.spans)
    says = f"{offer.provider} offers it until {until}"
    yield Clause(Part.LIMIT, f"{says}: others serve what is asked after that" if later else says)


def _fitting(offers: int) -> str:
    verbs = "fits and meets" if offers == 1 else "fit and meet"
    return f"{counted(offers, 'offer')} that {verbs} the deadline"

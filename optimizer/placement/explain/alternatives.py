"""The second-best options of a workload, the rule that limits it, and what more stock would save.

Savings are found by placing the affected workloads again with more nodes of one offer while all else stays.
What their move frees is not counted, so a saving is never overstated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import partial

import numpy as np

from broker.domain.basics.money import usd_words
from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.plan import Alternative, BindingRule, Scarcity
from broker.domain.planning.workload import Policy, Serving, Training
from optimizer.placement.columns.candidates import Candidates, unplaced_cents
from optimizer.placement.columns.run_pool import RunPool, first_few
from optimizer.placement.explain.extract import estimate_of
from optimizer.placement.explain.machine_limits import bandwidth_binds, least_joined_usd
from optimizer.placement.problem.columns import Column, in_usd
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.quotas import quota_rows, without_quotas
from optimizer.placement.problem.stock import limits_at
from optimizer.placement.runs.builder import least_whole_usd
from optimizer.placement.runs.candidates import Run
from optimizer.placement.runs.columns import build_run_column
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.moves import group_total_cents
from optimizer.placement.search.plan_state import PlanState
from optimizer.placement.search.runner_up import Rival, because, main_piece, named

LEAST_HOURS, LEAST_MS = 0.05, 1.0
IN_WORDS: Mapping[BindingRule, str] = {
    BindingRule.STOCK: "stock",
    BindingRule.DEADLINE: "the deadline",
    BindingRule.SIZE: "the asked number of GPUs",
    BindingRule.RESIDENCY: "the policy",
    BindingRule.BUDGET: "the budget",
    BindingRule.SWITCHING: "the cost of leaving what is held",
    BindingRule.FABRIC: "the fabric",
    BindingRule.EGRESS: "copying its data",
    BindingRule.QUOTA: "a quota",
}


def next_ways(
    candidates: Candidates, pools: Mapping[str, RunPool], known: Sequence[Column], mine: Column
) -> list[Column]:
    """Up to three cheapest options whose main offers all differ, whether or not they fit."""
    used = {piece.offer for piece in mine.pieces}
    ways: list[Column] = []
    made = _runs(candidates, pools[mine.workload]) if mine.workload in pools else _fleets(known, mine)
    for column in made:
        offer = main_piece(column).offer
        if offer not in used:
            used.add(offer)
            ways.append(column)
            if len(ways) == TUNING.explain.next_best:
                break
    return ways


def _runs(candidates: Candidates, pool: RunPool) -> Iterator[Column]:
    few = first_few(pool.total_usd, TUNING.explain.most_alternatives)
    seen: set[int] = set()
    for index in few[np.argsort(pool.total_usd[few], kind="stable")]:
        offer = int(pool.found.offer[index])
        if offer not in seen:
            seen.add(offer)
            column = build_run_column(candidates.problem, candidates.estimates, pool.found, int(index))
            if column is not None:
                yield column


def _fleets(known: Sequence[Column], mine: Column) -> Iterator[Column]:
    same = (c for c in known if c.workload == mine.workload and c.after == mine.after and c.pieces)
    yield from sorted(same, key=lambda column: column.total_cents)


def alternative(state: PlanState, rival: Rival) -> Alternative:
    """A second-best option in the form in which the plan reports it."""
    column = rival.column
    mine = state.chosen[column.workload]
    more = column.total_cents - mine.total_cents
    if rival.way is not None:
        of_all = rival.cents - (group_total_cents(state.candidates, state.chosen, rival.group) or 0)
        # A service that starts later is no saving, although it then costs fewer hours.
        more = max(more, of_all) if column.end_s > mine.end_s else of_all
    return Alternative(
        offer_id=state.candidates.problem.table.offers[main_piece(column).offer].offer_id,
        cost_usd=in_usd(column.cost_cents),
        more_usd=in_usd(more),
        later_hours=(column.end_s - mine.end_s) / 3600 if mine.end_s else None,
        rule=_against(state, mine, rival),
        because=reason(state, mine, rival),
    )


def reason(state: PlanState, mine: Column, rival: Rival) -> str:
    """Why an option was not chosen, considering the workloads that hold what it needs."""
    if state.budget_cents is not None:
        return because(state.candidates, state.chosen, mine, rival)
    return because(
        state.candidates, near(state, rival.column, (mine.workload, *rival.group.names)), mine, rival
    )


def near(state: PlanState, wish: Column, names: Iterable[str] = ()) -> dict[str, Column]:
    """Part of the plan: the workloads ``names``, and those that hold an offer of the column ``wish``."""
    reach = state.candidates.problem.table.pools.reach
    offers = {offer for piece in wish.taken for offer in reach(piece.offer)}
    holders = {name for offer in offers for name in state.holders.get(offer, ())}
    return {name: state.chosen[name] for name in sorted({*holders, *names}) if name in state.chosen}


def _against(state: PlanState, mine: Column, rival: Rival) -> BindingRule:
    """The rule that excludes an option."""
    second = rival.column
    if rival.way is None:
        with state.without(rival.group.names) as room:
            over = room.budget_cents is not None and second.counted_cents > room.budget_cents
            if over and room.ledger.fits(second):
                return BindingRule.BUDGET
            return BindingRule.STOCK if room.ledger.quota_against(second) is None else BindingRule.QUOTA
    billed = second.total_cents - second.switching_cents - (mine.total_cents - mine.switching_cents)
    if second.switching_cents > mine.switching_cents and billed < 0:
        return BindingRule.SWITCHING
    late = second.penalty_cents > mine.penalty_cents and second.cost_cents < mine.cost_cents
    return BindingRule.DEADLINE if late else BindingRule.PRICE


FAR = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Limit:
    """A rule without which a workload would cost less, and its explanation; ``price`` if there is no such
    rule.
    """

    rule: BindingRule
    says: str | None = None


def binding_limit(state: PlanState, mine: Column, ways: Sequence[Alternative], *, tried: bool) -> Limit:
    """The rule without which the workload would cost less.

    It is the rule that excludes a cheaper option. Otherwise, with ``tried``, the run's rules and the fabric
    are dropped one at a time, and the largest saving decides; for a service, memory bandwidth is tested. If
    nothing saves, it is the price.
    """
    held = next((way for way in ways if way.more_usd < 0 and way.rule is not BindingRule.PRICE), None)
    if held is not None:
        row = state.candidates.problem.row_of(held.offer_id)
        assert row is not None
        what = described_apart(state.candidates, mine, row)
        return Limit(held.rule, f"{IN_WORDS[held.rule]} limits it: {what} {held.because}")
    run = state.candidates.problem.request.workload(mine.workload)
    if not tried:
        return Limit(BindingRule.PRICE)
    if isinstance(run, Serving):
        return _limit_of_service(state, run, mine)
    now = min(mine.total_cents / 100, float(state.candidates.runs[run.name].total_usd.min(initial=np.inf)))
    limit, least_usd = BindingRule.PRICE, now - TUNING.explain.least_saved_usd
    for rule, least in _without_each(state.candidates, run):
        # The copy's own cost is part of the price. It limits the run only if without it another option would
        # be best.
        copied_usd = mine.transfer_cents / 100 if rule is BindingRule.EGRESS else 0.0
        usd = least(least_usd - copied_usd)
        if usd + copied_usd < least_usd:
            limit, least_usd, told_usd = rule, usd + copied_usd, usd
    if limit is BindingRule.PRICE:
        return Limit(limit)
    if limit is BindingRule.DEADLINE:
        return Limit(limit, _says_of_deadline(state.candidates, run, now, told_usd))
    return Limit(limit, _says_without(limit, usd_words(in_usd(round(100 * told_usd)))))


def _without_each(candidates: Candidates, run: Run) -> Iterator[tuple[BindingRule, Callable[[float], float]]]:
    """Each rule of a run, and its least cost in USD without that rule alone, if that is below a limit."""
    problem, estimates = candidates.problem, candidates.estimates

    def without(changed: Problem, relaxed: Run) -> Callable[[float], float]:
        return lambda below_usd: least_whole_usd(changed, estimates, relaxed, below_usd)

    free = replace(problem, request=replace(problem.request, policy=Policy()))
    if {problem.request.policy, run.policy} != {Policy()}:
        yield BindingRule.RESIDENCY, without(free, replace(run, policy=Policy()))
    yield BindingRule.DEADLINE, without(problem, replace(run, deadline=run.deadline + FAR))
    if quota_rows(problem):
        unlimited = replace(run, policy=replace(run.policy, quotas=()))
        yield BindingRule.QUOTA, without(without_quotas(problem), unlimited)
    if isinstance(run, Training):
        if run.dataset is not None:
            yield BindingRule.EGRESS, without(problem, replace(run, dataset=None))
        if run.gpus.min > 1:
            yield BindingRule.SIZE, without(problem, replace(run, gpus=replace(run.gpus, min=1)))
        yield BindingRule.FABRIC, partial(least_joined_usd, candidates, run)


def _limit_of_service(state: PlanState, service: Serving, mine: Column) -> Limit:
    if not bandwidth_binds(state, service, mine):
        return Limit(BindingRule.PRICE)
    return Limit(BindingRule.BANDWIDTH, "memory bandwidth limits it: with twice as much it would cost less")


def _says_of_deadline(candidates: Candidates, run: Run, now_usd: float, ever_usd: float) -> str:
    """What a run alone would cost without its deadline: within the horizon, or only without its end too."""
    later = replace(run, deadline=candidates.problem.request.horizon.end)
    inside_usd = least_whole_usd(candidates.problem, candidates.estimates, later, now_usd)
    if inside_usd < now_usd - TUNING.explain.least_saved_usd:
        return _says_without(BindingRule.DEADLINE, usd_words(in_usd(round(100 * inside_usd))))
    usd = usd_words(in_usd(round(100 * ever_usd)))
    return f"the deadline and the horizon's end limit it: without both the cheapest way would cost {usd}"


def _says_without(rule: BindingRule, usd: str) -> str:
    """What a workload alone would cost without ``rule``. A plan of one node has no fabric to drop."""
    if rule is BindingRule.FABRIC:
        return (
            "only nodes that share a fabric can work together: "
            f"if any could, the cheapest way alone would cost {usd}"
        )
    return f"{IN_WORDS[rule]} limits it: without it the cheapest way alone would cost {usd}"


def described(offer: Offer) -> str:
    """An offer in words: what, where, and whose."""
    spot = " spot" if offer.tier is Tier.SPOT else ""
    return f"{offer.sku.gpus_per_node} x {offer.sku.gpu}{spot} at {offer.provider} in {offer.region}"


def described_apart(candidates: Candidates, mine: Column, other: int) -> str:
    """An offer in words, with its zone or id if ``mine`` uses an offer with the same description."""
    offers = candidates.problem.table.offers
    offer = offers[other]
    words = described(offer)
    alike = [offers[piece.offer] for piece in mine.pieces if described(offers[piece.offer]) == words]
    if not alike:
        return words
    zones = {one.zone for one in alike}
    if offer.zone not in (None, offer.region, *zones):
        return f"{words}, zone {offer.zone}"
    return f"{words} ({offer.offer_id})"


@dataclass(frozen=True, slots=True)
class Ranked:
    """An option next to the chosen one, in the form in which the plan reports it."""

    way: Alternative
    rival: Rival

    @property
    def is_open(self) -> bool:
        """Whether the option is possible and not cheaper."""
        return self.rival.way is not None and self.way.more_usd >= 0

    @property
    def order(self) -> tuple[bool, Decimal, float]:
        """Sort key."""
        return not self.is_open, self.way.more_usd, self.way.later_hours or 0.0


def ranked(state: PlanState, rivals: Iterable[Rival]) -> list[Ranked]:
    """Possible options by additional cost, the earlier one first if equal; then the impossible ones."""
    ways = (Ranked(alternative(state, rival), rival) for rival in rivals)
    return sorted(ways, key=lambda one: one.order)


def second_best(state: PlanState, first: Ranked | None) -> str | None:
    """The best of the ranked options, with what it costs more and how much later or slower it is.

    None if it is impossible; the reason for that is reported as a limit.
    """
    if first is None or not first.is_open:
        return None
    column, more = first.rival.column, first.way.more_usd
    mine = state.chosen[column.workload]
    what = described_apart(state.candidates, mine, main_piece(column).offer)
    share = f" ({100 * float(more / in_usd(mine.cost_cents)):.1f} %)" if mine.cost_cents else ""
    money = f"it costs {usd_words(more)} more{share}" if more else "it costs the same"
    return f"the next best is {what}: {money} and {_pace(state.candidates, mine, column)}"


def _pace(candidates: Candidates, mine: Column, other: Column) -> str:
    """How much later a run ends, or how much slower a service answers."""
    workload = candidates.problem.request.workload(mine.workload)
    if not isinstance(workload, Serving):
        hours = (other.end_s - mine.end_s) / 3600
        if abs(hours) < LEAST_HOURS:
            return "ends at the same time"
        return f"ends {abs(hours):.1f} h {'later' if hours > 0 else 'earlier'}"
    here, there = (estimate_of(candidates, workload, main_piece(c)).value for c in (mine, other))
    for name, what in (("ttft_p95_ms", "the first token comes"), ("itl_p95_ms", "each further token comes")):
        more = there.get(name, 0.0) - here.get(name, 0.0)
        if abs(more) >= LEAST_MS:
            return f"{what} {abs(more):,.0f} ms {'later' if more > 0 else 'sooner'}"
    return "answers as fast"


@dataclass(frozen=True, slots=True, order=True)
class _Wish:
    """A cheaper option that lacks only nodes of one offer."""

    saves_cents: int
    workload: str
    offer: int
    nodes: int


def scarcities(state: PlanState, ways: Mapping[str, Sequence[Column]]) -> tuple[Scarcity, ...]:
    """What more nodes of each contended offer would save, largest saving first. ``ways``: options of each
    workload.
    """
    by_offer: defaultdict[int, dict[str, _Wish]] = defaultdict(dict)
    for name in sorted(ways):
        for wish in _wishes(state, name, ways[name]):
            best = by_offer[wish.offer].get(name)
            if best is None or wish > best:
                by_offer[wish.offer][name] = wish
    found = [_scarcity(state.candidates, offer, list(wishes.values())) for offer, wishes in by_offer.items()]
    found.sort(key=lambda row: (-row.saves_usd, row.offer_id))
    return tuple(found[: TUNING.explain.most_scarce])


def _wishes(state: PlanState, name: str, ways: Sequence[Column]) -> Iterator[_Wish]:
    placed = state.chosen.get(name)
    now = placed.total_cents if placed is not None else unplaced_cents(state.candidates.problem, name)
    if now is None:
        return
    cheaper = sorted((way for way in ways if way.total_cents < now), key=lambda way: way.total_cents)
    with state.without((name,)) as room:
        for way in cheaper[: TUNING.explain.most_wishes]:
            affordable = room.budget_cents is None or way.counted_cents <= room.budget_cents
            short = {o: n for o in {p.offer for p in way.taken} if (n := short_nodes(state, way, o))}
            if affordable and len(short) == 1:
                ((offer, nodes),) = short.items()
                yield _Wish(now - way.total_cents, name, offer, nodes)


def short_nodes(state: PlanState, way: Column, offer: int) -> int:
    """Nodes of an offer that an option lacks, given what is taken."""
    mine = [span for piece in way.taken if piece.offer == offer for span in piece.spans]
    taken = state.ledger.taken_of(offer)
    times = np.array(sorted({edge for a, b, _ in (*mine, *taken) for edge in (a, b)}), dtype=np.int64)
    held, asked = (_level(times, spans) for spans in (taken, mine))
    over = held + asked - limits_at(state.candidates.problem, offer, times)
    return int(np.where(asked > 0, over, 0).max(initial=0))


def _level(times: np.ndarray, spans: Sequence[tuple[int, int, int]]) -> np.ndarray:
    level = np.zeros(len(times), dtype=np.int64)
    for start, end, nodes in spans:
        level[(times >= start) & (times < end)] += nodes
    return level


def _scarcity(candidates: Candidates, offer: int, wishes: Sequence[_Wish]) -> Scarcity:
    best = sorted(wishes, key=lambda wish: (-wish.saves_cents, wish.workload))[: TUNING.explain.most_moved]
    nodes, saves = sum(wish.nodes for wish in best), in_usd(sum(wish.saves_cents for wish in best))
    names = tuple(wish.workload for wish in best)
    offer_id = candidates.problem.table.offers[offer].offer_id
    more = f"{nodes} {'node' if nodes == 1 else 'nodes'}"
    text = f"another {more} of {offer_id} would save ${saves:,}: {named(names)} would move there"
    return Scarcity(offer_id, nodes, saves, names, text)

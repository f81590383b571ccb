"""Fixes of a left-out workload: changes of the document, each tried before it is reported, smallest first.

A change is tried on the workload alone while the plan's other workloads stay (``trials``), with coarse
fleets, so its cost is exact but not always the least. Changes that address the obstacle come first, then
other requirements of the workload. More money is added to such a change only if none fits the penalty and the
budget. Wider policies are proposed only if nothing else helps. Last comes assuming nodes that no seller
states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from itertools import islice
from math import inf

from broker.domain.basics.money import usd_words
from broker.domain.planning.patch import patch_of
from broker.domain.planning.plan import Fix, Obstacle
from broker.domain.planning.workload import PlanRequest, Quota, Workload
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.explain.policy_rules import gpu_changes, hosts_change, policy_changes
from optimizer.placement.explain.requirements import RULES_FIRST, Asked, Change, more_nodes, own_changes
from optimizer.placement.explain.trials import Trials, Way
from optimizer.placement.fleets.model import coarse_fleets
from optimizer.placement.problem.columns import Column, in_cents, in_usd
from optimizer.placement.problem.quotas import QuotaRow, Unit
from optimizer.placement.runtime.tuning import TUNING

PRICE_MARGIN = Decimal("1.01")
"""The proposed price exceeds the cost found by this factor, as a search ends within its gap of the
optimum.
"""


@dataclass(frozen=True, slots=True)
class _Tried:
    """A change that makes the workload possible, with ``rivals``: other left-out workloads that it makes
    possible.
    """

    change: Change
    way: Way
    rivals: tuple[Way, ...] = ()

    @property
    def cost_cents(self) -> int:
        """What counts against the budget, for the workload and its rivals."""
        return self.way.cost_cents + sum(rival.cost_cents for rival in self.rivals)


class Fixer:
    """Finds fixes for the workloads ``out`` that a plan leaves out, given its columns ``chosen``.

    A change for the whole team may admit other left-out workloads too. These are placed first, and a fix is
    reported only if it still works then. All trials together may take ``work_s`` counted seconds, but each
    workload gets its first few.
    """

    def __init__(
        self, candidates: Candidates, chosen: Mapping[str, Column], out: Sequence[Workload], work_s: float
    ) -> None:
        self._request = candidates.problem.request
        self._candidates, self._chosen, self._out = candidates, chosen, out
        self._left, self._left_s, self._waiting = 4 * TUNING.explain.most_trials, work_s, len(out)
        self._spent_cents = sum(column.counted_cents for column in chosen.values())

    def fixes(self, workload: Workload, reason: Obstacle) -> tuple[Fix, ...]:
        """Up to three fixes of a workload that ``reason`` excludes."""
        asked = self._asked(workload)
        own, others = own_changes(workload, reason)
        found: list[Fix] = []
        if reason in (Obstacle.PRICE, Obstacle.BUDGET):
            same = self._one(asked, Change("", self._request))
            if same is not None and not self._is_affordable(workload, same):
                found.append(self._with_money(asked, same))
        for kinds in (
            [changes(asked) for changes in own],
            [changes(asked) for changes in others],
            [policy_changes(asked, reason)],
            [hosts_change(asked), gpu_changes(asked)],
        ):
            found += self._found(asked, kinds, has_fix=bool(found))
            if found:
                break
        if len(found) < TUNING.explain.most_fixes and reason not in RULES_FIRST:
            found += self._found(asked, [more_nodes(asked)], has_fix=bool(found))
        self._count(asked.trials)
        return tuple(found[: TUNING.explain.most_fixes])

    def _found(self, asked: Asked, kinds: Iterable[Iterator[Change]], *, has_fix: bool) -> list[Fix]:
        """The affordable changes; if there is no other fix, what is needed is more money."""
        within, beyond = self._tried(asked, kinds)
        if within or has_fix or not beyond:
            return [self._fix(one.change, one.way) for one in within]
        return [self._with_money(asked, one) for one in _nearest_and_least(beyond)]

    def quota_fix(self, workload: Workload, row: QuotaRow, limit: int) -> tuple[Fix, ...]:
        """A fix that raises a quota of the document; none if the quota is the installation's."""
        asked, request = self._asked(workload), self._request
        if row.workload is not None:
            request = asked.changed("policy.quotas", _raised(workload.policy.quotas, row, limit))
        else:
            quotas = _raised(request.policy.quotas, row, limit)
            request = replace(request, policy=replace(request.policy, quotas=quotas))
        if request == self._request:
            return ()
        change = Change(f"a quota of {limit} {row.unit} at {row.provider}, {limit - row.limit} more", request)
        within, _ = self._tried(asked, [iter([change])])
        self._count(asked.trials)
        return tuple(self._fix(one.change, one.way) for one in within)

    def _asked(self, workload: Workload) -> Asked:
        share_s = self._left_s / max(1, self._waiting)
        trials = Trials(
            self._candidates,
            self._chosen,
            min(TUNING.explain.most_trials, self._left),
            share_s,
            coarse_fleets,
        )
        return Asked(trials, self._request, workload, self._below_cents(workload))

    def _count(self, trials: Trials) -> None:
        """Subtracts the work of a workload's trials; what they left is for the others."""
        self._left -= trials.tried
        self._left_s = max(0.0, self._left_s - trials.spent_s)
        self._waiting -= 1

    def _below_cents(self, workload: Workload) -> float:
        """Limit on the cost of the workload: its penalty, or what is left of the budget."""
        return min(_price_cents(workload), self._left_cents() + 1)

    def _left_cents(self) -> float:
        budget = self._request.held_budget_usd
        return inf if budget is None else in_cents(budget) - self._spent_cents

    def _tried(
        self, asked: Asked, kinds: Iterable[Iterator[Change]]
    ) -> tuple[Sequence[_Tried], Sequence[_Tried]]:
        """The smallest change of each kind that is affordable, and the changes that need more money."""
        within: list[_Tried] = []
        beyond: list[_Tried] = []
        for changes in kinds:
            last: _Tried | None = None
            for change in islice(changes, TUNING.explain.most_changes):
                one = self._one(asked, change)
                if one is None:
                    continue
                if not self._is_affordable(asked.workload, one):
                    beyond.append(one)
                elif (
                    last is None
                    or one.way.total_cents < TUNING.explain.much_cheaper_share * last.way.total_cents
                ):
                    within.append(one)
                    if last is not None or not change.trades:
                        break
                    last = one
            if len(within) >= TUNING.explain.most_fixes:
                break
        return within, beyond

    def _one(self, asked: Asked, change: Change) -> _Tried | None:
        """Tries a change; None if it does not admit the workload."""
        opens = change.request.policy != self._request.policy
        rivals = self._rivals(asked, change.request) if opens else ()
        way = asked.trials.cheapest(change.request, asked.workload.name, rivals)
        return None if way is None else _Tried(change, way, rivals)

    def _rivals(self, asked: Asked, request: PlanRequest) -> tuple[Way, ...]:
        """Columns of other left-out workloads under a request, one after another, that cost less than their
        penalties.
        """
        ways: list[Way] = []
        for other in [one for one in self._out if one.name != asked.workload.name][
            : TUNING.explain.most_rivals
        ]:
            way = asked.trials.cheapest(request, other.name, ways)
            if way is not None and way.total_cents < _price_cents(other):
                ways.append(way)
        return tuple(ways)

    def _is_affordable(self, workload: Workload, tried: _Tried) -> bool:
        worth = tried.way.total_cents < _price_cents(workload)
        return worth and tried.cost_cents <= self._left_cents()

    def _with_money(self, asked: Asked, tried: _Tried) -> Fix:
        """The change with a penalty and a budget that are high enough for it and what else it admits."""
        workload, request, way, told = asked.workload, tried.change.request, tried.way, []
        price = workload.unplaced_usd
        if price is not None and way.total_cents >= in_cents(price):
            price = max(Decimal(1), _whole_usd(in_usd(way.total_cents) * PRICE_MARGIN))
            told.append(f"unplaced_usd of {price:,}")
            request = replace(asked, request=request).changed("unplaced_usd", price)
        if tried.cost_cents > self._left_cents():
            assert request.budget_usd is not None
            rivals = tried.rivals or self._rivals(asked, request)
            needed = way.cost_cents + sum(rival.cost_cents for rival in rivals)
            counted = in_usd(self._spent_cents + needed) + request.budget_margin_usd
            budget = _whole_usd(counted if request.budget_confidence is None else counted * PRICE_MARGIN)
            told.append(f"a budget of ${budget:,}, {usd_words(budget - request.budget_usd)} higher")
            request = replace(request, budget_usd=budget)
        says = " and ".join(part for part in (tried.change.says, *told) if part)
        return self._fix(Change(says, request), way)

    def _fix(self, change: Change, way: Way) -> Fix:
        cost = in_usd(way.lead.cost_cents)
        says = f"{change.says}: it then costs {usd_words(cost)}"
        return Fix(says, patch_of(self._request, change.request), cost)


def _price_cents(workload: Workload) -> float:
    """Penalty for leaving it out; inf if it must be placed."""
    return inf if workload.unplaced_usd is None else in_cents(workload.unplaced_usd)


def _nearest_and_least(tried: Sequence[_Tried]) -> list[_Tried]:
    """The smallest change, and the cheapest one if that is much cheaper."""
    least = min(tried, key=lambda one: one.way.total_cents)
    if least.way.total_cents < TUNING.explain.much_cheaper_share * tried[0].way.total_cents:
        return [tried[0], least]
    return [tried[0]]


def _whole_usd(usd: Decimal) -> Decimal:
    return usd.to_integral_value(ROUND_CEILING)


def _raised(quotas: Sequence[Quota], row: QuotaRow, limit: int) -> tuple[Quota, ...]:
    """The quotas with that of ``row`` raised to ``limit``."""

    def raised(quota: Quota) -> Quota:
        if quota.provider != row.provider:
            return quota
        if row.unit is Unit.GPUS:
            return replace(quota, gpus=limit) if quota.gpus == row.limit else quota
        return replace(quota, nodes=limit) if quota.nodes == row.limit else quota

    return tuple(raised(quota) for quota in quotas)

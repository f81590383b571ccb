"""What wider rules on hosts and GPUs would save, if a document does not allow them.

The most expensive dependency groups of a plan are placed again, one after another, under each wider rule and
without it, by the same search and while everything else stays. So the saving is that of a feasible plan: it
may be understated, never overstated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from broker.catalogue import load_gpus
from broker.domain.basics.money import usd_words
from broker.domain.market.offer import HostKind
from broker.domain.market.sku import GpuClass, GpuVendor
from broker.domain.planning.effective_rules import rules_of
from broker.domain.planning.workload import PlanRequest, Policy, Workload
from broker.domain.workloads.gpu_rules import GpuRules, allowed_gpus
from optimizer.placement.columns.candidates import Candidates, build_candidates
from optimizer.placement.columns.run_pool import bare_pools
from optimizer.placement.problem.columns import Column, in_usd
from optimizer.placement.problem.gates import open_gates
from optimizer.placement.problem.problem import Bools, Problem
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.moves import (
    DependencyGroup,
    cheaper_way,
    dependency_groups,
    group_total_cents,
    remaining_capacity,
)
from optimizer.placement.search.solve import Solution


@dataclass(frozen=True, slots=True)
class WiderRule:
    """A rule that a document may widen: the wider rule in its words, the team's policy without the rule, and
    the policy that a workload then has.

    ``names_gpus``: what is saved depends on the kind of GPU.
    """

    says: str
    without: Callable[[Policy], Policy]
    widened: Callable[[Workload], Policy]
    names_gpus: bool = True

    def request(self, request: PlanRequest, names: Collection[str]) -> PlanRequest:
        """The request of the workloads ``names`` alone, under the wider rule."""
        wider = tuple(replace(w, policy=self.widened(w)) for w in request.workloads if w.name in names)
        return replace(request, workloads=wider, policy=self.without(request.policy))

    def drops_gpus(self, request: PlanRequest, workload: Workload) -> bool:
        """Whether a GPU that a workload may use is not allowed under the rule, because the default takes the
        place of a list of names.
        """
        before = rules_of(request.policy, workload).gpus
        after = allowed_gpus([self.without(request.policy).gpus, self.widened(workload).gpus])
        return any(
            before.allow_gpu(gpu, spec) and not after.allow_gpu(gpu, spec)
            for gpu, spec in load_gpus().items()
        )


@dataclass(frozen=True, slots=True)
class Cheaper:
    """A dependency group that costs ``saved_cents`` less under a wider rule than the same search finds for it
    without, which may be less than it costs in the plan. ``where``: what it then uses, in words.

    ``includes``: what is saved on apart from the lead's cost: followers, their delay, lateness.
    """

    lead: str
    includes: tuple[str, ...]
    where: str
    saved_cents: int


def wider_rules(request: PlanRequest, workloads: Sequence[Workload]) -> Iterator[WiderRule]:
    """The rules on hosts and GPUs that would allow some of the workloads more."""
    yield WiderRule(
        f"hosts: [{', '.join(HostKind)}]",
        partial(replace, hosts=tuple(HostKind)),
        lambda workload: replace(workload.policy, hosts=None),
        names_gpus=False,
    )
    allowed = {workload.name: rules_of(request.policy, workload).gpus for workload in workloads}
    yield from _further_words("vendor", GpuVendor, {name: one.vendors for name, one in allowed.items()})
    yield from _further_words("classes", GpuClass, {name: one.classes for name, one in allowed.items()})
    for field in ("only", "exclude", "min_memory_gb"):
        free = getattr(GpuRules(), field)
        policies = (request.policy, *(workload.policy for workload in workloads))
        if all(getattr(policy.gpus, field) == free for policy in policies):
            continue
        freed = partial(_with_gpus, field, free)
        rule = WiderRule(f"gpus without {field}", freed, partial(_own_policy, freed))
        if not any(rule.drops_gpus(request, workload) for workload in workloads):
            yield rule


def _further_words(
    field: str, words: type[StrEnum], allowed: Mapping[str, Collection[str]]
) -> Iterator[WiderRule]:
    """Each word that one of the workloads does not allow yet, added to those that it does."""
    for word in words:
        now = [some for some in allowed.values() if word not in some]
        if not now:
            continue
        listed = ", ".join([*(one for one in words if any(one in some for some in now)), word])
        allowing = {name: tuple(sorted({*some, word})) for name, some in allowed.items()}
        yield WiderRule(
            f"gpus: {{{field}: [{listed}]}}",
            partial(_with_gpus, field, None),
            partial(_own_words, field, allowing),
        )


def _own_words(field: str, allowing: Mapping[str, tuple[Any, ...]], workload: Workload) -> Policy:
    return _with_gpus(field, allowing[workload.name], workload.policy)


def _own_policy(changed: Callable[[Policy], Policy], workload: Workload) -> Policy:
    return changed(workload.policy)


def _with_gpus(field: str, value: object, policy: Policy) -> Policy:
    changed: dict[str, Any] = {field: value}
    return replace(policy, gpus=replace(policy.gpus, **changed))


def wider_rule_notes(
    candidates: Candidates, solution: Solution, hurry: Callable[[], bool] = lambda: False
) -> tuple[str, ...]:
    """A sentence for each wider rule under which something is found to cost less."""
    tried = _dearest(candidates, solution.choice.columns)
    names = tuple(name for group in tried for name in group.names)
    request = candidates.problem.request
    rules = wider_rules(request, [request.workload(name) for name in names])
    notes = (_note(rule, list(_cheaper(candidates, solution, rule, tried, hurry))) for rule in rules)
    return tuple(note for note in notes if note)


def _note(rule: WiderRule, cheaper: list[Cheaper]) -> str:
    if not cheaper:
        return ""
    saved = sum(one.saved_cents for one in cheaper)
    cheaper.sort(key=lambda one: (-one.saved_cents, one.lead))
    ways = [f"{_with(one)} {one.where}" for one in cheaper]
    if len(cheaper) > 1:
        ways = [f"{way} {usd_words(in_usd(one.saved_cents))}" for way, one in zip(ways, cheaper, strict=True)]
    most = TUNING.explain.most_named
    more = f", {len(cheaper) - most} more" if len(cheaper) > most else ""
    saving = f"{rule.says} would save {usd_words(in_usd(saved))} or more"
    return f"{saving}, with everything else as planned, {', '.join(ways[:most])}{more}"


def _with(one: Cheaper) -> str:
    if not one.includes:
        return one.lead
    first = ", ".join(one.includes[:-1])
    return f"{one.lead} with {f'{first} and ' if first else ''}{one.includes[-1]}"


def _cheaper(
    candidates: Candidates,
    solution: Solution,
    rule: WiderRule,
    tried: Sequence[DependencyGroup],
    hurry: Callable[[], bool],
) -> Iterator[Cheaper]:
    chosen = dict(solution.choice.columns)
    names = {name for group in tried for name in group.names}
    wider = replace(candidates.problem, request=rule.request(candidates.problem.request, names), kept={})
    opened = {group.lead: _opened(candidates, wider, group) for group in tried}
    if hurry() or not any(mask.any() for mask in opened.values()):
        return
    open_to_all = build_candidates(wider, candidates.estimates)
    pools = bare_pools(open_to_all)
    for group in tried:
        if hurry():
            return
        planned = group_total_cents(candidates, chosen, group)
        if planned is None or not opened[group.lead].any():
            continue
        room = remaining_capacity(candidates, chosen, group.names)
        same = cheaper_way(candidates, solution.pools, group, room, planned)
        before = planned if same is None else group_total_cents(candidates, same, group) or planned
        way = cheaper_way(open_to_all, pools, group, room, before)
        cents = None if way is None else group_total_cents(candidates, way, group)
        if way is None or cents is None:
            continue
        where = _where(candidates, way.values(), opened[group.lead], names_gpus=rule.names_gpus)
        if where:
            planned_columns = [chosen[name] for name in group.names if name in chosen]
            includes = _included(group, [*planned_columns, *way.values()])
            chosen = {name: way.get(name, column) for name, column in chosen.items()}
            yield Cheaper(group.lead, includes, where, before - cents)


def _included(group: DependencyGroup, columns: Sequence[Column]) -> tuple[str, ...]:
    """What a group's cost includes apart from the lead's."""
    placed = {column.workload for column in columns}
    words = [name for name in group.followers if name in placed]
    if any(column.delay_cents for column in columns):
        words.append("the delay")
    if any(column.penalty_cents for column in columns):
        words.append("lateness")
    return tuple(words)


def _dearest(candidates: Candidates, chosen: Mapping[str, Column]) -> list[DependencyGroup]:
    """Placed dependency groups, most expensive first."""
    placed = [group for group in dependency_groups(candidates) if group.lead in chosen]
    cents = {group: group_total_cents(candidates, chosen, group) or 0 for group in placed}
    return sorted(placed, key=lambda group: (-cents[group], group.lead))[: TUNING.explain.most_wider_groups]


def _opened(candidates: Candidates, wider: Problem, group: DependencyGroup) -> Bools:
    """Offers [O] that a group may use only under the wider rule."""
    opened = np.zeros(len(wider.table), dtype=np.bool_)
    for name in group.names:
        before = open_gates(candidates.problem, candidates.problem.request.workload(name)).passing
        after = open_gates(wider, wider.request.workload(name)).passing
        opened |= after & ~before
    return opened


def _where(candidates: Candidates, columns: Iterable[Column], opened: Bools, *, names_gpus: bool) -> str:
    """The newly allowed offers that the columns use, by GPU and provider; empty if they use none."""
    table = candidates.problem.table
    offers = [table.offers[row] for row in {p.offer for c in columns for p in c.pieces if opened[p.offer]}]
    if not offers:
        return ""
    gpus = f"on {' and '.join(sorted({offer.sku.gpu for offer in offers}))} " if names_gpus else ""
    return f"{gpus}at {' and '.join(sorted({offer.provider for offer in offers}))}"

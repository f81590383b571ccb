"""What the planner does, and what a plan is compared with, in the words that people read, and why a
workload is placed as it is: a few sentences at once, the rest on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Protocol, TypeVar

from api.figures import day_and_time
from broker.domain.basics.money import ZERO, usd_words
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.planning.comparison import Objective
from broker.domain.planning.plan import Baseline, Placement, Plan, PlanStatus, Why
from broker.domain.planning.workload import WorkloadKind

STRATEGIES: Mapping[str, str] = {
    "single_shape": "one node type for all",
    "single_provider": "one provider for all",
    "cheapest_gpu_hour": "cheapest GPU-hour each",
    "converged": "one always-on pool",
}


SEARCHING = "searching"
STAGES: Mapping[str, str] = {
    "compiling, once for this version": "compiling, once for this version",
    "reading the market": "reading the market",
    "loaded": "preparing",
    "priced": "preparing",
    "compared": "comparing strategies",
}
"""Steps of the planner that say something to who waits; the others are ways of searching."""
MOST_AT_ONCE = 6


def priced_unit(estimate: Mapping[str, float]) -> str:
    """What ``usd_per_million_tokens`` prices: output tokens, or requests where each yields one token."""
    requests, tokens = estimate.get("requests_per_s_per_replica"), estimate.get("tokens_per_s")
    alone = requests and tokens and tokens / requests < 1 + ONE_TOKEN
    return "requests" if alone else "output tokens"


def listed(names: Iterable[str]) -> str:
    """Names in a sentence: ``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


LATENCIES: Mapping[str, str] = {"ttft_p95_ms": "TTFT p95", "itl_p95_ms": "ITL p95"}
ONE_TOKEN = 0.01
TIGHT_SHARE = 0.05
"""A service that has less of its objective to spare is told of in the first sentence of a plan."""
NOTHING_SHARE = 0.005
SURER, TOLD_CONFIDENCE = 0.005, 0.9
"""A chance that is higher by less is told as the same; the price of this confidence is told in a sentence."""
MOST_TOLD = 0.99
NEAR_TIES_BUY = "fewer pools or sellers, or an earlier end"


class Effect(Protocol):
    """What a plan leaves of a budget."""

    @property
    def left_usd(self) -> Decimal:
        """What is left then; negative if the budget is exceeded."""
        ...


E = TypeVar("E", bound=Effect)


def overruns_or_all(effects: Sequence[E]) -> Sequence[E]:
    """The periods in which a budget is exceeded, in their order; all periods if there is none."""
    return [one for one in effects if one.left_usd < 0] or effects


def spare_words(objective: Objective) -> str:
    """What is left of an objective: ``3 % to spare``."""
    share = objective.spare
    return "nothing to spare" if share < NOTHING_SHARE else f"{100 * share:.0f} % to spare"


def chance_words(placements: Sequence[Placement]) -> str | None:
    """The chance of a workload: ``done in time with 82 %``, ``objective held at peak with 82 %``, and until
    when, if it is planned at its expected rate after that; None if it is not known.
    """
    chance = placements[0].chance
    if chance is None:
        return None
    if placements[0].kind is not WorkloadKind.SERVING:
        return f"done in time with {share_words(chance)}"
    stages = placements[0].stages
    until = f" until {day_and_time(stages[0].until)} UTC, then planned at its expected rate" if stages else ""
    return f"objective held at peak with {share_words(chance)}{until}"


def confidence_words(plan: Plan) -> str | None:
    """What more confidence costs: ``$23.00 more raises the chance from 55 % to 90 %``; None where no price is
    known of a plan that is surer than this one.
    """
    own = plan.least_chance
    if own is None:
        return None
    surer = [one for one in plan.confidence_prices if one.chance is not None and one.chance > own + SURER]
    row = next((one for one in surer if one.confidence >= TOLD_CONFIDENCE), surer[-1] if surer else None)
    if row is None or row.cost_usd is None or row.chance is None:
        return None
    raises = f"the chance of the least certain workload from {share_words(own)} to {share_words(row.chance)}"
    more = row.cost_usd - plan.cost_usd
    if more <= 0:
        return f"a plan that costs no more raises {raises}"
    return f"{usd_words(more)} more raises {raises}"


def chance_mark(placement: Placement) -> str:
    """The chance in a narrow column: ``chance 82%``, ``chance >99%``; empty if it is not known."""
    if placement.chance is None:
        return ""
    share = share_words(placement.chance)
    return f"chance {share.replace('more than ', '>').replace('less than ', '<').replace(' %', '%')}"


def share_words(chance: float) -> str:
    """A chance in percent, never rounded to 0 or 100: ``82 %``, ``more than 99 %``."""
    if chance > MOST_TOLD:
        return f"more than {100 * MOST_TOLD:.0f} %"
    return f"less than {100 * (1 - MOST_TOLD):.0f} %" if chance < 1 - MOST_TOLD else f"{100 * chance:.0f} %"


def objective_words(objective: Objective) -> str:
    """The tightest objective of a service: ``ITL p95 78 of 80 ms at full load, 3 % to spare``. Where nothing
    is left, it is this objective that says how much a replica's full load is.
    """
    name = LATENCIES[objective.metric]
    figures = f"{objective.value_ms:,.0f} of {objective.limit_ms:,.0f} ms"
    spare = "which is the most it allows" if objective.spare < NOTHING_SHARE else spare_words(objective)
    return f"{name} {figures} at full load, {spare}"


def is_tight(placements: Sequence[Placement], objective: Objective | None) -> bool:
    """Whether less than ``TIGHT_SHARE`` of the objective of a service is left at full load, and no chance
    says how much of that load its traffic is.
    """
    without_chance = all(one.chance is None for one in placements)
    return objective is not None and objective.spare < TIGHT_SHARE and without_chance


def doing(stage: str) -> str:
    """What the planner does at a stage of its search."""
    return STAGES.get(stage, SEARCHING)


def without_cost(baseline: Baseline) -> str:
    """What stands where the cost of a baseline is not told."""
    return "cannot run" if baseline.completed else "not completed"


def strongest(plan: Plan) -> Baseline | None:
    """The cheapest strategy that was completed and stays within the budget; None where none does."""
    able = [row for row in plan.baselines if row.cost_usd is not None and not row.over_budget_usd]
    return min(able, key=lambda row: row.cost_usd or ZERO, default=None)


def saved_usd(plan: Plan) -> Decimal | None:
    """What the plan saves against the strongest simple strategy, delay counted; None where none was completed
    within the budget.
    """
    against = strongest(plan)
    if against is None or against.cost_usd is None:
        return None
    return against.cost_usd - plan.compared_usd


def all_pass_budget(plan: Plan) -> bool:
    """Whether there are strategies that can run, and every one of them passes the budget."""
    return strongest(plan) is None and any(row.over_budget_usd for row in plan.baselines)


def bound_label(plan: Plan) -> str:
    """What the proven bound bounds: penalties and delay count in it, and are on no bill."""
    sums = {
        "penalties": plan.penalty_usd,
        "delay": plan.delay_usd,
        "recourse": plan.recourse_usd,
        "orders that may fail": plan.relaunch_usd,
    }
    counted = [name for name, usd in sums.items() if usd]
    if not counted:
        return "no plan costs less than"
    return f"with {' and '.join(counted)}, no plan costs less than"


def strategy(name: str) -> str:
    """A baseline of a plan by its name: ``converged`` → ``one always-on pool``."""
    return STRATEGIES.get(name, name)


def sentences_of(why: Why) -> tuple[str, ...]:
    """The sentences of an explanation; of a plan that was made without them, the rules that decided."""
    return why.sentences or tuple(f"{rule[:1].upper()}{rule[1:]}." for rule in why.binding)


def sentences_together(placements: Sequence[Placement]) -> tuple[str, ...]:
    """The sentences of all placements of one workload, those of the dearest first, each once."""
    dearest = max(placements, key=lambda placement: placement.cost_usd)
    others = (placement for placement in placements if placement is not dearest)
    told = (sentence for one in (dearest, *others) for sentence in sentences_of(one.why))
    return tuple(dict.fromkeys(told))


def folded(sentences: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What is shown at once, and what is folded away."""
    return sentences[:MOST_AT_ONCE], sentences[MOST_AT_ONCE:]


def who_words(actor: str, name: str) -> str:
    """Who acted, in words: the key's name and its id, or the id alone."""
    return f"{name} ({actor})" if name and name not in actor else actor


def team_words(team: str) -> str:
    """A team's name, or ``all teams``."""
    return "all teams" if team == ALL_TEAMS else team


STATE_WORDS: Mapping[str, str] = {
    "waiting": "waits for approval",
    "superseded": "replaced",
    "done": "released",
    "proposed": "a proposal",
    "running": "being planned",
}


def state_words(state: str, standing: str | None, *, has_begun: bool = False) -> str:
    """The one word for where a plan is: ``draft``, ``waits for approval``, ``rejected``, ``reserved``,
    ``running`` (reserved, and its time ``has_begun``), ``released``, ``replaced``; before it is made, and for
    a proposal, its ``state``."""
    if standing is None or (state == "proposed" and standing == "draft"):
        return STATE_WORDS.get(state, state)
    if standing == "reserved" and has_begun:
        return "running"
    return STATE_WORDS.get(standing, standing)


STATUS_WORDS: Mapping[PlanStatus, str] = {
    PlanStatus.OPTIMAL: "cost proven",
    PlanStatus.FEASIBLE: "cheaper plan possible",
    PlanStatus.INFEASIBLE: "infeasible",
}
"""What a status says of a plan's cost: proven within the gap that was asked for, or not. How far the bound is
away, which is proven either way, is told by ``quality_words``."""


def quality_words(gap: float | None) -> str:
    """How good a plan is proven to be: ``within 2.1 % of the best possible``; empty without a bound."""
    return "" if gap is None else f"within {100 * gap:.1f} % of the best possible"

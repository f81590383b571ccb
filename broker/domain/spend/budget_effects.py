"""What a plan, an order or an extension does to budgets, in the present period and in later ones. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

from broker.domain.basics.money import usd_words
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.basics.window import Window
from broker.domain.spend.budgets import (
    Budget,
    BudgetPeriod,
    BudgetStatus,
    Reach,
    budget_outlook,
    budget_status,
)
from broker.domain.spend.spend import Charge


@dataclass(frozen=True, slots=True)
class BudgetEffect:
    """What a plan does to a budget: ``before`` is the status without what the plan adds, ``after`` with it.

    The arithmetic is one rule: limit − counted − added = left. ``hides_others``: the reader may see one team
    alone, so of a budget of all teams neither the limit nor what other teams spend is told. ``hides_period``:
    only the money of other teams reaches that period, so neither it nor what is added in it is told.
    """

    before: BudgetStatus
    after: BudgetStatus
    hides_others: bool = False
    hides_period: bool = False

    @property
    def team(self) -> str:
        """The team of the budget."""
        return self.after.budget.team

    @property
    def period(self) -> BudgetPeriod:
        """The period of the budget."""
        return self.after.budget.period

    @property
    def window(self) -> Window:
        """The period that is affected."""
        return self.after.window

    @property
    def is_exceeded(self) -> bool:
        """Whether the budget is exceeded with the plan."""
        return self.left_usd < 0

    @property
    def limit_usd(self) -> Decimal | None:
        """The limit of the budget; None if it is hidden."""
        return None if self._is_hidden else self.after.budget.limit_usd

    @property
    def counted_usd(self) -> Decimal | None:
        """What counts in the period without the plan: spent, committed and planned; None if it is hidden."""
        return None if self._is_hidden else self.before.expected_usd

    @property
    def added_usd(self) -> Decimal:
        """What the plan adds in the period; negative if it saves."""
        return self.after.expected_usd - self.before.expected_usd

    @property
    def left_usd(self) -> Decimal:
        """What is left then; negative if the budget is exceeded."""
        return self.after.left_usd

    @property
    def _is_hidden(self) -> bool:
        return self.hides_others and self.team == ALL_TEAMS

    def __str__(self) -> str:
        return self.told_of("this plan")

    def told_of(self, adds: str) -> str:
        """The arithmetic in a sentence; ``adds`` names what adds to the budget, such as ``this order``."""
        window = self.window
        last = window.end - timedelta(microseconds=1)
        span = f"({window.start:%Y-%m-%d} to {last:%Y-%m-%d})"
        if self.hides_period:
            over = usd_words(-self.left_usd)
            return (
                f"the budget of all teams would be exceeded by {over} in a later period to which {adds} adds"
            )
        most = "" if self.after.budget.confidence is None else "at most "
        added = f"{adds} adds {most}{usd_words(self.added_usd)} in that time"
        if self._is_hidden:
            over = f"exceeded by {usd_words(-self.left_usd)}" if self.is_exceeded else "kept"
            return f"the budget of all teams would be {over} {span}: {added}"
        whose = "all teams together" if self.team == ALL_TEAMS else f"team {self.team}"
        its = "their" if self.team == ALL_TEAMS else "its"
        limit = f"{its} budget of {usd_words(self.after.budget.limit_usd)} per {self.period}"
        if self.after.budget.confidence is not None:
            limit += f", which holds with {100 * self.after.budget.confidence:g} %,"
        parts = f"{usd_words(self.before.expected_usd)} counts already, and {added}"
        if self.is_exceeded:
            return f"{whose} would exceed {limit} by {usd_words(-self.left_usd)} {span}: {parts}"
        return f"{whose} would have {usd_words(self.left_usd)} left of {limit} {span}: {parts}"


def told_to_team(effects: Iterable[BudgetEffect], team: str, reach: Reach) -> tuple[BudgetEffect, ...]:
    """``effects``, the worst first, as somebody of one team may see them.

    A budget of all teams is told only where it is exceeded: in periods that the money of ``team`` reaches,
    else the worst of the others, whose period and number would tell how far the leases of other teams go.
    """
    told = [replace(one, hides_others=True) for one in effects if one.team != ALL_TEAMS or one.is_exceeded]
    near: list[BudgetEffect] = []
    far: list[BudgetEffect] = []
    for one in told:
        own_end = reach.counted_until(replace(one.after.budget, team=team))
        is_near = one.team != ALL_TEAMS or one.window.start < own_end
        (near if is_near else far).append(one)
    if any(one.team == ALL_TEAMS for one in near):
        return tuple(near)
    return (*(replace(one, hides_period=True) for one in far[:1]), *near)


def find_effects(
    budgets: Iterable[Budget], before: Iterable[Charge], after: Iterable[Charge], reach: Reach
) -> tuple[BudgetEffect, ...]:
    """The effects of a change of the charges on ``budgets``, the worst first.

    The present period is always among them, and later ones to which the change adds.
    """
    first, then = tuple(before), tuple(after)
    reach = reach.beyond(then)
    found = []
    for budget in budgets:
        was = {one.window: one for one in budget_outlook(budget, first, reach)}
        for one in budget_outlook(budget, then, reach):
            old = was.get(one.window) or budget_status(budget, (), one.window.start)
            effect = BudgetEffect(old, one)
            if one.window == budget.window_at(reach.now) or effect.added_usd > 0:
                found.append(effect)
    return tuple(sorted(found, key=lambda effect: (effect.left_usd, effect.window.start)))

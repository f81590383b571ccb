"""Ruin and recreate: a few workloads around scarce stock are removed and reinserted by regret.

Insertion uses costs at the dual prices, so that a cheap node goes to the workload that gains most. Acceptance
uses true costs alone. The search is seeded and reproducible.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.column_pool import ColumnPool
from optimizer.placement.columns.prices import StockPrices
from optimizer.placement.columns.run_pool import RunPool
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.quotas import quota_rows
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.moves import delayed_until_free
from optimizer.placement.search.plan_state import NEVER_CENTS, PlanState, left_cents, wanted_by


@dataclass(slots=True)
class Ruin:
    """Changes ``state`` in place. ``names``: workloads that may be removed. ``prices`` guide insertion."""

    candidates: Candidates
    runs: Mapping[str, RunPool]
    pool: ColumnPool
    state: PlanState
    names: Sequence[str]
    prices: StockPrices
    rng: random.Random
    _options: dict[str, list[Column]] = field(default_factory=dict)
    _charges: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.names:
            self._options[name] = self._options_of(name)
        for columns in self._options.values():
            for column in columns:
                self._charges[id(column)] = 100 * self.pool.charge_usd(self.prices, column)

    def _options_of(self, name: str) -> list[Column]:
        """The cheapest columns by cost, and the cheapest at the dual prices."""
        columns = self.pool.of(name)
        priced = sorted(columns, key=lambda column: self.pool.priced_usd(self.prices, column))
        return list(
            dict.fromkeys([*columns[: TUNING.search.ruin_options], *priced[: TUNING.search.ruin_options]])
        )

    def run(self, steps: int, out_of_time: Callable[[], bool]) -> int:
        """Makes ``steps`` attempts; returns how many improved the plan."""
        wanted, helped = wanted_by(self._options), 0
        for _ in range(steps):
            if out_of_time():
                break
            names = self._around(wanted)
            if names and self._try(names):
                helped += 1
        return helped

    def _try(self, names: list[str]) -> bool:
        before = self.state.cents(names)
        old = {name: column for name in names if (column := self.state.remove(name)) is not None}
        self.insert(names, self.rng.choice(TUNING.search.ruin_price_shares))
        after = self.state.cents(names)
        if after <= before:
            return after < before
        for name in names:
            self.state.remove(name)
        for column in old.values():
            self.state.place(column)
        return False

    def _around(self, wanted: Mapping[int, set[str]]) -> list[str]:
        """A workload that costs more than it might, workloads that block it, and workloads that want the same
        offers.
        """
        centre = self.rng.choices(self.names, [self._excess(name) for name in self.names])[0]
        now = self.state.chosen.get(centre)
        most = left_cents(self.candidates.problem, centre) if now is None else now.total_cents
        wishes = [c for c in self._options[centre] if c.total_cents < most]
        self.rng.shuffle(wishes)
        offers = {piece.offer for column in wishes[: TUNING.search.ruin_wishes] for piece in column.taken}
        if now is not None:
            offers |= {piece.offer for piece in now.taken}
        offers = {o for offer in offers for o in self._cut_from(offer)}
        holders = {n for offer in sorted(offers) for n in self.state.holders[offer]} & self._options.keys()
        wishers = {n for offer in sorted(offers) for n in wanted.get(offer, ())}
        count = self.rng.randint(*TUNING.search.ruined)
        others = self._some(holders - {centre}, count - 1)
        others += self._some(wishers - {centre, *others}, count - 1 - len(others))
        return [centre, *others]

    def _cut_from(self, offer: int) -> tuple[int, ...]:
        """The offer and all others that are cut from the same GPUs."""
        return self.candidates.problem.table.pools.reach(offer)

    def _some(self, names: set[str], count: int) -> list[str]:
        return self.rng.sample(sorted(names), min(max(0, count), len(names)))

    def _excess(self, name: str) -> float:
        options = self._options[name]
        now = self.state.chosen.get(name)
        paid = left_cents(self.candidates.problem, name) if now is None else now.total_cents
        least = options[0].total_cents if options else paid
        return min(max(0.0, float(paid - least)), 1e9) + 1.0

    def insert(
        self, names: Sequence[str], price_share: float, out_of_time: Callable[[], bool] = lambda: False
    ) -> None:
        """Regret insertion: places each of ``names`` in its cheapest column, largest regret first.

        Regret is the difference between the second-best and the best column that fits. Workloads that are not
        reached in time stay out.
        """
        ranked = {name: self._ranked(name, price_share) for name in names}
        two = {name: self._two_best(name, ranked[name]) for name in names}
        heap = [(-_regret(found), name) for name, found in two.items()]
        heapify(heap)
        users: defaultdict[int, set[str]] = defaultdict(set)
        shared = self.state.budget_cents is not None or bool(quota_rows(self.candidates.problem))
        for name, found in two.items():
            for offer in _offers_of(found):
                users[offer].add(name)
        while heap and not out_of_time():
            key, name = heappop(heap)
            if name not in two or key != -_regret(two[name]):
                continue
            best = two.pop(name)[0]
            if best is None:
                continue
            self.state.place(best[1])
            taken = {o for piece in best[1].taken for o in self._cut_from(piece.offer)}
            touched = {n for offer in taken for n in users[offer]} & two.keys()
            for other in sorted(two if shared else touched):
                two[other] = self._two_best(other, ranked[other])
                heappush(heap, (-_regret(two[other]), other))
                for offer in _offers_of(two[other]):
                    users[offer].add(other)

    def _ranked(self, name: str, price_share: float) -> list[tuple[float, Column]]:
        """Columns with their cost at the dual prices, cheapest first; none costs more than leaving the
        workload out.
        """
        noise = self.rng.uniform(0.0, 2.0) if price_share else 0.0
        left = left_cents(self.candidates.problem, name)
        rows = [
            (column.total_cents + price_share * noise * self._charges[id(column)], column)
            for column in self._options[name]
            if column.total_cents <= left
        ]
        rows.sort(key=lambda row: row[0])
        return rows

    def _two_best(self, name: str, ranked: list[tuple[float, Column]]) -> _Two:
        """The best column that fits, and the cost of the second best (of leaving out if there is none)."""
        best, later = None, 0
        for cents, column in ranked:
            if not self.state.allows(column):
                if name in self.runs and later < TUNING.search.later_tried and best is None:
                    later += 1
                    moved = delayed_until_free(self.candidates, self.runs[name], column, self.state.ledger)
                    if moved is None or moved.total_cents >= left_cents(self.candidates.problem, name):
                        continue
                    cents, column = cents + moved.total_cents - column.total_cents, moved
                    if not self.state.allows(column):
                        continue
                else:
                    continue
            if best is None:
                best = (cents, column)
            else:
                return best, cents
        return best, float(min(left_cents(self.candidates.problem, name), NEVER_CENTS))


_Two = tuple[tuple[float, Column] | None, float]


def _regret(two: _Two) -> float:
    return -1.0 if two[0] is None else two[1] - two[0][0]


def _offers_of(two: _Two) -> set[int]:
    return set() if two[0] is None else {piece.offer for piece in two[0][1].taken}

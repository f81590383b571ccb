"""One time-indexed model of a whole small problem for CP-SAT, from the contract alone: whole hours only.

Runs of one node start on whole hours. A service holds ready nodes of each offer in each hour; each that
joins after the first hour is held its cold start earlier, which the hour's increment makes a whole hour.
Stock holds in each hour and in the minutes before the next, when joining nodes are there already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal

from ortools.sat.python import cp_model

from broker.domain.offer import Offer
from broker.domain.workload import PlanRequest, Serving, Training
from tests.placement.fake_estimator import GPUS
from tests.placement.market import at

SCALE = 100
MOST_WORK = 0.3


class Monolith:
    """Least cost + penalty of runs and services over offers of one GPU a node, hourly billed."""

    def __init__(self, asked: PlanRequest, offers: Sequence[Offer]) -> None:
        self.model = cp_model.CpModel()
        self.asked, self.offers = asked, offers
        self.hours = int(asked.horizon.hours)
        self.cents: list[cp_model.LinearExprT] = []
        self.in_hour: defaultdict[tuple[int, int], list[cp_model.LinearExprT]] = defaultdict(list)
        self.before_next: defaultdict[tuple[int, int], list[cp_model.LinearExprT]] = defaultdict(list)
        for workload in asked.workloads:
            if isinstance(workload, Training):
                self._run(workload)
            elif isinstance(workload, Serving):
                self._service(workload)
        for held in (self.in_hour, self.before_next):
            for (o, _), nodes in held.items():
                limit = offers[o].stock.nodes
                if limit is not None:
                    self.model.add(cp_model.LinearExpr.sum(nodes) <= limit)
        self.model.minimize(cp_model.LinearExpr.sum(self.cents))

    def totals(self) -> tuple[Decimal, Decimal]:
        """What no plan passes below, and the best that was found: equal where the model is solved in time."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = MOST_WORK
        status = solver.solve(self.model)
        assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return Decimal(int(solver.best_objective_bound)) / 100, Decimal(round(solver.objective_value)) / 100

    def _price(self, o: int) -> int:
        cents = self.offers[o].price_usd_per_node_hour * 100
        assert cents == int(cents)
        return int(cents)

    def _run(self, run: Training) -> None:
        first = int((run.earliest_start - at(0)).total_seconds() // 3600)
        last = int((run.deadline - at(0)).total_seconds() // 3600)
        ways = []
        for o, offer in enumerate(self.offers):
            hours = run.tokens / GPUS[offer.sku.gpu].tokens_per_s / 3600
            whole = round(hours)
            assert abs(hours - whole) < 1e-9
            for start in range(first, last - whole + 1):
                chosen = self.model.new_bool_var("")
                ways.append(chosen)
                self.cents.append(chosen * (whole * self._price(o)))
                for hour in range(start, start + whole):
                    self.in_hour[o, hour].append(chosen)
                    self.before_next[o, hour].append(chosen)
        self._one_of(ways, run.unplaced_usd)

    def _one_of(self, ways: list[cp_model.IntVar], unplaced_usd: Decimal | None) -> None:
        if unplaced_usd is None:
            self.model.add_exactly_one(ways)
            return
        left_out = self.model.new_bool_var("")
        self.cents.append(left_out * int(unplaced_usd * 100))
        self.model.add_exactly_one([*ways, left_out])

    def _service(self, service: Serving) -> None:
        placed = self.model.new_bool_var("")
        if service.unplaced_usd is None:
            self.model.add(placed == 1)
        else:
            self.cents.append((1 - placed) * int(service.unplaced_usd * 100))
        before: list[cp_model.IntVar] | None = None
        for hour in range(self.hours):
            ready = [self.model.new_int_var(0, self._most(o), "") for o in range(len(self.offers))]
            self._meets(service, placed, ready, hour)
            for o, nodes in enumerate(ready):
                self.cents.append(nodes * self._price(o))
                self.in_hour[o, hour].append(nodes)
                if before is not None:
                    joining = self.model.new_int_var(0, self._most(o), "")
                    self.model.add(joining >= nodes - before[o])
                    self.cents.append(joining * self._price(o))
                    self.before_next[o, hour - 1].append(before[o] + joining)
            before = ready

    def _most(self, o: int) -> int:
        nodes = self.offers[o].stock.nodes
        return 12 if nodes is None else min(12, nodes)

    def _meets(
        self, service: Serving, placed: cp_model.IntVar, ready: Sequence[cp_model.IntVar], hour: int
    ) -> None:
        """Demand with spares of the largest replica in use, and zones."""
        rates = [round(GPUS[offer.sku.gpu].requests_per_s * SCALE) for offer in self.offers]
        demand = round(service.traffic.requests_per_s_at(at(hour), at(0)) * SCALE)
        used = [self.model.new_bool_var("") for _ in self.offers]
        capacity = cp_model.LinearExpr.weighted_sum(list(ready), rates)
        spare = service.redundancy.spare_replicas
        for nodes, here, rate in zip(ready, used, rates, strict=True):
            self.model.add(nodes >= 1).only_enforce_if(here)
            self.model.add(nodes == 0).only_enforce_if(~here)
            self.model.add(capacity - spare * rate >= demand).only_enforce_if([placed, here])
            self.model.add_implication(here, placed)
        by_zone = defaultdict(list)
        for offer, here in zip(self.offers, used, strict=True):
            by_zone[offer.provider, offer.zone].append(here)
        zones = []
        for members in by_zone.values():
            stands = self.model.new_bool_var("")
            self.model.add_max_equality(stands, members)
            zones.append(stands)
        self.model.add(cp_model.LinearExpr.sum(zones) >= service.redundancy.zones).only_enforce_if(placed)
        self.model.add(capacity >= demand).only_enforce_if(placed)

"""One time-indexed model of a whole small problem for CP-SAT, from the contract alone: whole hours only.

Runs of one node start on whole hours; one that a service waits for starts at once, as the planner's does. A
service holds ready nodes of each offer in each hour; each that joins after its first hour is held its cold
start earlier, which the hour's increment makes a whole hour. Nodes with a minimum term are held in stretches,
each paid for the term at least. Data is copied once to each provider: for runs from where it lies, for
services from where the run was that they wait for. A service that waits pays for each hour of delay what the
plan that is compared says. Stock holds in each hour and in the minutes before the
next, when joining nodes are there already, and so do quotas; the budget holds over all that is paid.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal

from ortools.sat.python import cp_model

from broker.domain.market.offer import Offer
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.effective_rules import rules_of
from broker.domain.planning.plan import Wait
from broker.domain.planning.workload import PlanRequest, Serving, Training
from tests.placement.fake_estimator import GPUS
from tests.placement.market import at

SCALE = 100
MOST_WORK = 0.3


class Monolith:
    """Least cost + penalty + delay of runs and services over offers of one GPU a node, billed by the hour."""

    def __init__(
        self,
        asked: PlanRequest,
        offers: Sequence[Offer],
        terms: MovingTerms | None = None,
        waits: Sequence[Wait] = (),
    ) -> None:
        self.waits = {wait.workload: wait for wait in waits}
        self.model = cp_model.CpModel()
        self.asked, self.offers = asked, offers
        self.hours = int(asked.horizon.hours)
        self.terms = terms or MovingTerms()
        self.chosen: dict[str, list[list[cp_model.IntVar]]] = {}
        self.paid: list[cp_model.LinearExpr] = []
        self.penalties: list[cp_model.LinearExpr] = []
        self.in_hour: defaultdict[tuple[int, int], list[cp_model.LinearExpr]] = defaultdict(list)
        self.before_next: defaultdict[tuple[int, int], list[cp_model.LinearExpr]] = defaultdict(list)
        self.ended: dict[str, list[cp_model.LinearExpr]] = {}
        for workload in sorted(asked.workloads, key=lambda w: isinstance(w, Serving)):
            if isinstance(workload, Training):
                self._run(workload)
            elif isinstance(workload, Serving):
                self._service(workload)
        for held in (self.in_hour, self.before_next):
            for (o, _), nodes in held.items():
                limit = offers[o].stock.nodes
                if limit is not None:
                    self.model.add(cp_model.LinearExpr.sum(nodes) <= limit)
            self._quotas(held)
        if asked.budget_usd is not None:
            self.model.add(cp_model.LinearExpr.sum(self.paid) <= int(asked.budget_usd * 100))
        self.model.minimize(cp_model.LinearExpr.sum([*self.paid, *self.penalties]))

    def _quotas(self, held: Mapping[tuple[int, int], list[cp_model.LinearExpr]]) -> None:
        """In each hour, over all offers of a provider; a node has one GPU."""
        for quota in self.asked.policy.quotas:
            most = min(n for n in (quota.gpus, quota.nodes) if n is not None)
            for hour in range(self.hours):
                here = [o for o, offer in enumerate(self.offers) if offer.provider == quota.provider]
                nodes = [node for o in here for node in held.get((o, hour), ())]
                self.model.add(cp_model.LinearExpr.sum(nodes) <= most)

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

    def _term(self, o: int) -> int:
        """Hours that a holding is paid for at least."""
        return int(self.offers[o].min_hours)

    def _run(self, run: Training) -> None:
        first = int((run.earliest_start - at(0)).total_seconds() // 3600)
        last = int((run.deadline - at(0)).total_seconds() // 3600)
        ways: list[cp_model.IntVar] = []
        ended: list[list[cp_model.IntVar]] = [[] for _ in range(self.hours + 1)]
        by_offer = self.chosen[run.name] = [[] for _ in self.offers]
        for o, offer in enumerate(self.offers):
            hours = run.tokens / GPUS[offer.sku.gpu].tokens_per_s / 3600
            whole = round(hours)
            assert abs(hours - whole) < 1e-9
            latest = last - whole
            for start in range(first, min(latest, first if self.asked.followers(run.name) else latest) + 1):
                chosen = self.model.new_bool_var("")
                ways.append(chosen)
                by_offer[o].append(chosen)
                self.paid.append(chosen * (max(whole, self._term(o)) * self._price(o) + self._data(run, o)))
                for hour in range(start, start + whole):
                    self.in_hour[o, hour].append(chosen)
                    self.before_next[o, hour].append(chosen)
                for hour in range(start + whole, self.hours + 1):
                    ended[hour].append(chosen)
        self.ended[run.name] = [cp_model.LinearExpr.sum(chosen) for chosen in ended]
        if run.unplaced_usd is None:
            self.model.add_exactly_one(ways)
            return
        left_out = self.model.new_bool_var("")
        self.penalties.append(left_out * int(run.unplaced_usd * 100))
        self.model.add_exactly_one([*ways, left_out])

    def _service(self, service: Serving) -> None:
        at_once = [self.model.new_constant(1)] * (self.hours + 1)
        runs = self.ended.get(service.starts_after or "", at_once)
        placed = self.model.new_bool_var("")
        self.model.add(placed <= runs[-1])
        if service.unplaced_usd is None:
            self.model.add(placed == runs[-1])
        else:
            self.penalties.append((runs[-1] - placed) * int(service.unplaced_usd * 100))
        serves = []
        for hour in range(self.hours):
            now = self.model.new_bool_var("")
            self.model.add_multiplication_equality(now, [placed, runs[hour]])
            serves.append(now)
        wait = self.waits.get(service.name)
        if wait is not None:
            cents = math.ceil(wait.usd_per_hour * 100)
            first = math.ceil((wait.earliest_start - at(0)).total_seconds() / 3600)
            self.penalties.extend((placed - now) * cents for now in serves[first:])
        held = [self._held(o, serves) for o in range(len(self.offers))]
        for hour in range(self.hours):
            self._meets(service, serves[hour], [ready[hour] for ready in held], hour)
        rules = rules_of(self.asked.policy, service)
        self._at_most(held, [(o.provider, o.sku.gpu, o.place) for o in self.offers], rules.max_pools)
        self._at_most(held, [o.sku.gpu for o in self.offers], rules.max_gpu_kinds)
        if service.starts_after is not None:
            self._weights(service.starts_after, held)

    def _at_most(
        self, held: Sequence[Sequence[cp_model.LinearExpr]], groups: Sequence[Hashable], most: int
    ) -> None:
        """Ready nodes stand, over all hours, on offers of at most so many groups."""
        if most >= len(set(groups)):
            return
        used = {group: self.model.new_bool_var("") for group in dict.fromkeys(groups)}
        for o, group in enumerate(groups):
            for nodes in held[o]:
                self.model.add(nodes <= self._most(o) * used[group])
        self.model.add(cp_model.LinearExpr.sum(list(used.values())) <= most)

    def _data(self, run: Training, o: int) -> int:
        """Cents of a run's data set on its way to an offer; copies within a provider are free."""
        data = run.dataset
        if data is None or data.provider == self.offers[o].provider:
            return 0
        return int(self.terms.egress_usd(data.provider, data.gb) * 100)

    def _weights(self, run: str, held: Sequence[Sequence[cp_model.LinearExpr]]) -> None:
        """A run's weights, copied to each provider at which its service ever has a node."""
        model = next(w.model for w in self.asked.workloads if w.name == run)
        gb = model.total_params * 2 / 1e9
        for provider in {offer.provider for offer in self.offers}:
            here = [o for o, offer in enumerate(self.offers) if offer.provider == provider]
            used = self.model.new_bool_var("")
            for o in here:
                for nodes in held[o]:
                    self.model.add(nodes <= self._most(o) * used)
            for o, offer in enumerate(self.offers):
                if offer.provider != provider:
                    copied = self.model.new_bool_var("")
                    self.model.add(copied >= used + cp_model.LinearExpr.sum(self.chosen[run][o]) - 1)
                    self.paid.append(copied * int(self.terms.egress_usd(offer.provider, gb) * 100))

    def _held(self, o: int, serves: Sequence[cp_model.IntVar]) -> list[cp_model.LinearExpr]:
        """Ready nodes of an offer in each hour, none before the service begins; paid and counted in stock."""
        return self._by_term(o, serves) if self._term(o) > 1 else self._by_hour(o, serves)

    def _by_hour(self, o: int, serves: Sequence[cp_model.IntVar]) -> list[cp_model.LinearExpr]:
        ready: list[cp_model.LinearExpr] = []
        for hour in range(self.hours):
            nodes = self.model.new_int_var(0, self._most(o), "")
            self.model.add(nodes <= self._most(o) * serves[hour])
            self.paid.append(nodes * self._price(o))
            self.in_hour[o, hour].append(nodes)
            if hour:
                joining = self.model.new_int_var(0, self._most(o), "")
                begun = self._most(o) * (1 - serves[hour - 1])
                self.model.add(joining >= nodes - ready[-1] - begun)
                self.paid.append(joining * self._price(o))
                self.before_next[o, hour - 1].append(ready[-1] + joining)
            ready.append(nodes)
        return ready

    def _by_term(self, o: int, serves: Sequence[cp_model.IntVar]) -> list[cp_model.LinearExpr]:
        """Stretches [first, last) of ready nodes; those that join later are held an hour before."""
        ready: list[list[cp_model.LinearExpr]] = [[] for _ in range(self.hours)]
        for first in range(self.hours):
            for last in range(first + 1, self.hours + 1):
                for early in (0, 1) if first else (0,):
                    nodes = self.model.new_int_var(0, self._most(o), "")
                    self.model.add(nodes <= self._most(o) * serves[first])
                    if first:
                        with_start = serves[first - 1] if early else 1 - serves[first - 1]
                        self.model.add(nodes <= self._most(o) * with_start)
                    self.paid.append(nodes * (max(last - first + early, self._term(o)) * self._price(o)))
                    for hour in range(first, last):
                        ready[hour].append(nodes)
                        self.in_hour[o, hour].append(nodes)
                    for hour in range(first - early, last - 1):
                        self.before_next[o, hour].append(nodes)
        return [cp_model.LinearExpr.sum(nodes) for nodes in ready]

    def _most(self, o: int) -> int:
        nodes = self.offers[o].stock.nodes
        return 12 if nodes is None else min(12, nodes)

    def _meets(
        self, service: Serving, serves: cp_model.IntVar, ready: Sequence[cp_model.LinearExpr], hour: int
    ) -> None:
        """Demand with spares of the largest replica in use, zones, and what the loss of any one leaves."""
        rates = [round(GPUS[offer.sku.gpu].requests_per_s * SCALE) for offer in self.offers]
        demand = round(service.traffic.requests_per_s_at(at(hour), at(0)) * SCALE)
        used = [self.model.new_bool_var("") for _ in self.offers]
        capacity = cp_model.LinearExpr.weighted_sum(list(ready), rates)
        spare = service.redundancy.spare_replicas
        for nodes, here, rate in zip(ready, used, rates, strict=True):
            self.model.add(nodes >= 1).only_enforce_if(here)
            self.model.add(nodes == 0).only_enforce_if(~here)
            self.model.add(capacity - spare * rate >= demand).only_enforce_if([serves, here])
        redundancy = service.redundancy
        loss = redundancy.zone_loss_share if redundancy.survives_zone_loss else 0.0
        zones = []
        for place in dict.fromkeys(offer.place for offer in self.offers):
            members = [o for o, offer in enumerate(self.offers) if offer.place == place]
            standing = cp_model.LinearExpr.weighted_sum(
                [ready[o] for o in members], [rates[o] for o in members]
            )
            stands = self.model.new_bool_var("")
            self.model.add_max_equality(stands, [used[o] for o in members])
            if loss:
                self.model.add(capacity - standing >= math.ceil(loss * demand)).only_enforce_if(serves)
                carries, part = self.model.new_bool_var(""), loss * demand / max(1, redundancy.zones - 1)
                self.model.add(standing >= math.ceil(part)).only_enforce_if(carries)
                self.model.add(carries <= stands)
                stands = carries
            zones.append(stands)
        self.model.add(cp_model.LinearExpr.sum(zones) >= redundancy.zones).only_enforce_if(serves)
        self.model.add(capacity >= demand).only_enforce_if(serves)

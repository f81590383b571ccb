"""Why each placement is as it is: what bounds it, which rules decided, and what came second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from broker.domain.plan import Obstacle, RunnerUp, Why
from broker.domain.workload import Serving, Training
from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import Column, Piece, in_usd
from optimizer.placement.ladders import best_ladders, build_service_column, free_nodes, without_offers
from optimizer.placement.runs import RunCandidates, build_run_column
from optimizer.placement.solve import Solution


@dataclass(frozen=True, slots=True)
class Explainer:
    """Answers for the placements of one solution; the runner-up of a workload is looked up once."""

    candidates: Candidates
    solution: Solution

    def why(self, column: Column, piece: Piece) -> Why:
        """The explanation of one placement."""
        workload = self.candidates.problem.request.workload(column.workload)
        if isinstance(workload, Serving):
            binding = tuple(self._service_rules(workload, column, piece))
            return Why(
                self._bottleneck(workload.name, piece), binding, self._service_runner_up(workload, column)
            )
        found = self.candidates.runs[column.workload]
        runner_up = self._run_runner_up(found, column)
        binding = tuple(self._run_rules(found, column, piece, runner_up))
        return Why(self._bottleneck(workload.name, piece), binding, runner_up)

    def _bottleneck(self, name: str, piece: Piece) -> str:
        estimates, table = self.candidates.estimates, self.candidates.problem.table
        workload = self.candidates.problem.request.workload(name)
        row, kind = estimates.row_of[name], int(table.sku_of[piece.offer])
        if isinstance(workload, Training):
            return estimates.training.bottleneck(row, kind, piece.choice)
        return estimates.serving.bottleneck(row, kind, piece.choice)

    def _run_rules(
        self, found: RunCandidates, column: Column, piece: Piece, runner_up: RunnerUp | None
    ) -> Iterator[str]:
        offers = len(np.unique(found.offer))
        mine = float(found.total_usd[found.offer == piece.offer].min())
        cheaper = len(np.unique(found.offer[found.total_usd < mine - 0.01]))
        if cheaper:
            yield f"{_count(cheaper, 'cheaper offer')} of {offers} used up by, or kept for, others"
        else:
            yield f"cheapest of {_count(offers, 'offer')} that fit and meet the deadline"
        yield from self._node_rule(found, piece)
        if isinstance(found.run, Training):
            layout = self.candidates.estimates.training.layout(
                self.candidates.estimates.row_of[found.run.name],
                int(self.candidates.problem.table.sku_of[piece.offer]),
                piece.choice,
            )
            if layout.tp > 1:
                yield f"TP{layout.tp} inside the node: the fastest layout that fits its memory"
        if column.penalty_cents:
            yield f"late for {in_usd(column.penalty_cents)} USD: being on time costs more"
        if self.candidates.problem.table.is_window[piece.offer]:
            yield "window: bought for its whole length, and it ends by itself"
        yield from self._gate_rules(found.run.name)

    def _node_rule(self, found: RunCandidates, piece: Piece) -> Iterator[str]:
        here = found.offer == piece.offer
        nodes = piece.spans[0][2]
        fewest = int(found.nodes[here].min())
        if nodes == 1 and len(np.unique(found.nodes[here])) == 1:
            yield "one node is enough and no more are joined or needed"
        elif nodes == fewest and nodes > 1:
            yield f"{nodes} nodes: fewer do not fit the memory, the asked GPUs or the deadline"
        else:
            yield f"{_count(nodes, 'node')}: the cheapest size on this offer"

    def _service_rules(self, service: Serving, column: Column, piece: Piece) -> Iterator[str]:
        case, table = self.candidates.fleets[service.name], self.candidates.problem.table
        offers = _count(len(np.unique(case.units.offer)), "offer")
        yield f"cheapest fleet found over {offers} that fit and meet the SLO"
        yield from self._replica_rule(service, piece)
        if service.redundancy.spare_replicas:
            yield f"N+{service.redundancy.spare_replicas}: spare replicas over every hour's demand"
        if service.redundancy.zones > 1:
            zones = {table.zone_of[p.offer] for p in column.pieces}
            yield f"replicas in {len(zones)} zones, {service.redundancy.zones} are asked"
        counts = {nodes for _, _, nodes in piece.spans}
        held = "follows traffic between" if len(counts) > 1 else "held at"
        yield f"{held} {' and '.join(str(n) for n in sorted({min(counts), max(counts)}))} nodes"
        if service.starts_after is not None:
            yield f"starts when {service.starts_after} ends"
        yield from self._gate_rules(service.name)

    def _replica_rule(self, service: Serving, piece: Piece) -> Iterator[str]:
        estimates, table = self.candidates.estimates, self.candidates.problem.table
        row, kind = estimates.row_of[service.name], int(table.sku_of[piece.offer])
        config = estimates.serving.configs[piece.choice]
        smaller = [
            c
            for c, other in enumerate(estimates.serving.configs)
            if other.precision == config.precision and other.gpus_per_replica < config.gpus_per_replica
        ]
        if config.gpus_per_replica == 1:
            yield "one GPU a replica: the weights and the cache fit one"
        elif not any(estimates.serving.fits[row, kind, c] for c in smaller):
            yield f"TP{config.tp} because the weights and the SLO need {config.gpus_per_replica} GPUs"
        else:
            yield f"TP{config.tp}: more requests per dollar than smaller replicas here"

    def _gate_rules(self, name: str) -> Iterator[str]:
        dropped = self.candidates.log(name).dropped
        told = {g: n for g, n in dropped.items() if n and g is not Obstacle.STOCK}
        if told:
            yield "dropped: " + ", ".join(f"{n} by {gate}" for gate, n in sorted(told.items()))

    def _run_runner_up(self, found: RunCandidates, column: Column) -> RunnerUp | None:
        other = np.flatnonzero(~np.isin(found.offer, [p.offer for p in column.pieces]))
        for index in other[np.argsort(found.total_usd[other], kind="stable")][:8]:
            second = build_run_column(self.candidates.problem, self.candidates.estimates, found, int(index))
            if second is not None:
                return self._compared(column, second)
        return None

    def _service_runner_up(self, service: Serving, column: Column) -> RunnerUp | None:
        problem, case = self.candidates.problem, self.candidates.fleets[service.name]
        mine = frozenset(piece.offer for piece in column.pieces)
        for known in sorted(self.solution.columns, key=lambda c: c.total_cents):
            same = known.workload == service.name and known.after_s == column.after_s
            if same and known.pieces and known.pieces[0].offer not in mine:
                return self._compared(column, known)
        rest = without_offers(case, mine)
        built = best_ladders(problem, rest, free_nodes(problem), column.after_s, 1)
        second = build_service_column(problem, rest, built[0], column.after_s) if built else None
        return None if second is None else self._compared(column, second)

    def _compared(self, column: Column, second: Column) -> RunnerUp:
        offer = self.candidates.problem.table.offers[second.pieces[0].offer]
        more = in_usd(second.total_cents - column.total_cents)
        if more > 0:
            share = more / in_usd(column.total_cents) * 100 if column.total_cents else Decimal(0)
            because = f"costs {more} USD more ({share:.1f} %)"
        elif more < 0:
            because = f"would cost {-more} USD less, but others use its stock, the budget or a later start"
        else:
            because = "costs the same"
        return RunnerUp(offer.offer_id, in_usd(second.cost_cents), because)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

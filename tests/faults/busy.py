"""A price that triples while other processes want every core: the planner in a process of its own, over a
real store."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from api.planning.planning_call import plan_call, replan_call
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.market.offer import Offer, Tier
from broker.domain.moving.reoptimization import Reoptimization
from broker.domain.planning.workload import Policy
from broker.ports.planning import PlanOptions, PlanRecord, PlanState
from broker.ports.unit_of_work import Executor
from broker.services.market.offers import OffersService
from broker.services.moving.reoptimize import ReoptimizeRules, ReoptimizeService
from broker.services.planning.plan_queue import PlanQueue
from broker.store import Store
from tests.bench.instances import START, Size, make_offers, make_request
from tests.fakes.clock import FakeClock
from tests.fakes.notifier import RecordingNotifier
from tests.fakes.provider import FakeProvider

SIZE = Size(runs=2, services=2, offers=300)


def _spin(parent: int) -> None:
    """Uses a core for as long as its parent lives."""
    while os.getppid() == parent:
        pass


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing but use a core, while the block lasts."""
    spawned = [
        multiprocessing.get_context("spawn").Process(target=_spin, args=(os.getpid(),), daemon=True)
        for _ in range(processes)
    ]
    for one in spawned:
        one.start()
    try:
        yield
    finally:
        for one in spawned:
            one.kill()
            one.join()


async def looks_after_a_tripled_price(
    store: Store, executor: Executor, seed: int, rules: ReoptimizeRules, beside: int
) -> tuple[Reoptimization, ...]:
    """Plans over a drawn market on demand, triples the price that the plan pays most for, and looks once,
    ``beside`` so many busy processes."""
    rng = random.Random(seed)
    drawn = make_offers(rng, SIZE.offers)
    market = tuple(
        replace(o, provider="fake", observed_at=START)
        for o in drawn
        if o.tier is Tier.ON_DEMAND and o.window is None
    )
    request = make_request(rng, SIZE)
    request = replace(request, workloads=tuple(replace(w, policy=Policy()) for w in request.workloads))
    clock = FakeClock(START)
    options = PlanOptions(time_limit_s=5.0, baselines=False)
    plan = executor.submit(plan_call, request, market, START, options).result()
    plan_id = f"plan-{seed}"
    provider = FakeProvider(clock, offers=market)
    offers = OffersService(store.unit_of_work, {"fake": provider}, clock)
    await offers.refresh()
    async with store.unit_of_work(EVERY_TEAM) as uow:
        await uow.plans.add(
            PlanRecord(
                plan_id, "bench", PlanState.DONE, "{}", options, START, "key", replace(plan, plan_id=plan_id)
            )
        )
        await uow.commit()
    clock.advance(minutes=1)
    dearest = max(plan.placements, key=lambda placement: placement.cost_usd).offer_id
    seen = tuple(replace(o, observed_at=clock.now()) for o in market)
    provider.offers = tuple(_tripled(o) if o.offer_id == dearest else o for o in seen)
    (round_,) = await offers.refresh()
    service = ReoptimizeService(
        store.unit_of_work,
        replan_call,
        PlanQueue(executor),
        clock,
        RecordingNotifier(),
        read_request=lambda document: request,
        rules=rules,
    )
    with busy(beside):
        return await service.run_if_touched(round_.changes)


def _tripled(offer: Offer) -> Offer:
    return replace(offer, price_usd_per_node_hour=3 * offer.price_usd_per_node_hour)

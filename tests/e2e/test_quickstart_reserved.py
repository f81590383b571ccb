"""The example of ``broker up``, planned, reserved and released on days in a row, each from a fresh start.

Four days are played with every run, and six more at night: each day has other stock. A plan that its sellers
refuse is made once more, as the refusal asks for: then it must be bought. On the first day all of the example
is played; on the others its training run, on what is sold ahead alone. The market is a sandbox over real
sockets, whose ledger says what was bought, what it cost, and what is left.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from api.bootstrap import Product, build_product
from api.cli.installation.sandbox import DEFAULT_SEED
from api.cli.market.poll import poll_now
from api.schemas.workloads.workloads import read_workloads
from broker.data_folder import data_folder
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import ProviderError, StalePlan
from broker.domain.holding.reservation import Reservation
from broker.domain.market.offer import Tier
from broker.domain.planning.workload import Training
from broker.domain.planning.workload_document import to_document
from broker.ports.planning import PlanOptions, PlanRecord
from broker.settings import Settings
from providers.sandbox import SandboxHandle
from tests.fakes.market_control import control, market_now

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("quickstart")]

EXAMPLE = data_folder("fixtures", "examples") / "finetune-and-chat.yaml"
LOCAL = Caller("local", "admin", frozenset(Scope))
OPTIONS = PlanOptions(time_limit_s=20.0, baselines=False)
SANDBOX_SEED = DEFAULT_SEED
DAYS = [pytest.param(day, marks=() if day < 1 else pytest.mark.slow) for day in range(10)]
TRIES = 2
MOST_UNDER, MOST_OVER = Decimal("0.9"), Decimal("1.02")
"""A block over days of several prices is planned at the dearest of them; each day is charged its own."""


@pytest.fixture(scope="module")
def first_day(sandbox_market: SandboxHandle) -> datetime:
    """When the market began."""
    return market_now(sandbox_market.url)


@pytest.fixture
async def product(sandbox_market: SandboxHandle, tmp_path: Path) -> AsyncIterator[Product]:
    """A broker that has just been installed: an empty database, one poll."""
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'broker.db'}", sandbox_url=sandbox_market.url)
    built = build_product(settings, {}, sandbox_url=sandbox_market.url, live=False)
    try:
        await built.store.migrate()
        yield built
    finally:
        await built.close()


async def planned(product: Product, *, whole: bool) -> PlanRecord:
    """The plan of the example at the market's own time; not ``whole``: of its run in windows."""
    text, now = EXAMPLE.read_text(), product.clock.now()
    request = read_workloads(text, source=str(EXAMPLE), base=EXAMPLE.parent, now=now)
    if not whole:
        runs = tuple(work for work in request.workloads if isinstance(work, Training))
        request = replace(request, workloads=runs, policy=replace(request.policy, tiers=(Tier.WINDOW,)))
    wish = json.dumps(to_document(request))
    record = await product.planning.request_plan(LOCAL, wish, request, OPTIONS)
    return await product.planning.run(record.plan_id)


async def reserved(product: Product, *, whole: bool) -> tuple[PlanRecord, tuple[Reservation, ...]]:
    """A plan and what is held of it, at the first or the second try."""
    refusals = []
    for _ in range(TRIES):
        record = await planned(product, whole=whole)
        assert record.plan is not None, record.problem
        assert not record.plan.unplaced
        try:
            return record, await product.reservations.reserve_plan(LOCAL, record.plan_id)
        except (ProviderError, StalePlan) as error:
            refusals.append(str(error))
    raise AssertionError(f"refused {TRIES} times: {refusals}")


@pytest.mark.parametrize("day", DAYS)
async def test_the_quickstart_is_reserved(
    product: Product, sandbox_market: SandboxHandle, first_day: datetime, day: int
) -> None:
    coming_s = (first_day + timedelta(days=day) - market_now(sandbox_market.url)).total_seconds()
    if coming_s > 0:
        control(sandbox_market.url, "clock", advance_s=coming_s)
    await poll_now(product, None)
    record, rows = await reserved(product, whole=not day)
    market = {row["instance_id"]: row for row in control(sandbox_market.url, "ledger")["instances"]}
    windows = [row for row in rows if row.offer.tier is Tier.WINDOW]
    bought = [reference for row in windows for reference in row.provider_references]
    assert bought or not day
    paid = sum((Decimal(market[reference]["billed_usd"]) for reference in bought), Decimal(0))
    assert record.plan is not None
    planned_usd = sum(
        (placed.capacity_usd for placed in record.plan.placements if placed.tier is Tier.WINDOW), Decimal(0)
    )
    assert planned_usd * MOST_UNDER <= paid <= planned_usd * MOST_OVER
    for row in rows:
        await product.reservations.release(LOCAL, row.reservation_id)
    left = control(sandbox_market.url, "ledger")["instances"]
    assert not [row for row in left if row["instance_id"] in bought and row["released_at"] is None]

"""Simulated weeks in which the broker is killed every hour: what the market bills is what spend shows.

Every process takes up where the one before it died, releases some of what is held, reserves more, and is
killed at a step drawn by seed. Sellers by the hour, by the minute and by the second.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from broker import crash_points
from broker.domain.basics.errors import BrokerError
from broker.domain.market.offer import Offer
from tests.fakes.examples import ADMIN, ALICE
from tests.faults import haste
from tests.faults.broker_life import Broker, Place, compared, opened, usual_offer
from tests.faults.lab import Lab
from tests.faults.profile import NIGHTLY

pytestmark = pytest.mark.timeout(7200)

HOURS = 21 * 24 if NIGHTLY else 24
SELLERS = ["digitalocean", "lambda", "runpod", "oci", "vultr"] if NIGHTLY else ["digitalocean"]
LATEST_STEP = 60
"""Steps are crash points passed; a life that has fewer is killed when it has nothing left to do."""

MOST_HELD = 6


async def _advance_to(broker: Broker, minute: int) -> None:
    now = broker.clock.now()
    then = now.replace(minute=minute, second=0)
    await broker.advance((then - now + timedelta(hours=int(then <= now))).total_seconds())


async def _hour(broker: Broker, draw: random.Random) -> None:
    """One hour of a life: recover, release at its start, reserve in its middle."""
    await broker.reconcile.run_once()
    await broker.passes(4)
    await _advance_to(broker, 5)
    held = [row for row in await broker.rows() if row.is_open]
    for row in held:
        if draw.random() < 0.4:
            await broker.reservations.release(ALICE, row.reservation_id)
    await broker.passes(2)
    await _advance_to(broker, 30)
    for _ in range(draw.randint(0, 2) if len(held) < MOST_HELD else 0):
        await broker.reserve(draw.randint(1, 2))
    await broker.passes(2)


def live_an_hour(place: Place, offer: Offer, seed: int) -> None:
    """A process that is killed at a step drawn by ``seed``."""
    draw = random.Random(seed)
    left = [draw.randint(1, LATEST_STEP)]

    def step(name: str) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    crash_points.watchers.append(step)

    async def play() -> None:
        async with opened(place, offer) as broker:
            try:
                await _hour(broker, draw)
            except BrokerError as error:
                print(f"hour {seed}: {error}")
            os.kill(os.getpid(), signal.SIGKILL)

    haste.run(play())


def close_the_books(place: Place, offer: Offer, report: Path) -> None:
    """The last process: everything is given back, and both sides are added up by reservation."""

    async def close() -> dict[str, Any]:
        async with opened(place, offer) as broker:
            await broker.settle(seconds=60.0)
            await _advance_to(broker, 5)
            await broker.release_all()
            await broker.settle(seconds=60.0)
            return {
                "spend_usd": str((await broker.spend.projection(ADMIN)).actual_usd),
                "kept": len(broker.ledger()),
                "strays": sum(row.reason.startswith("stray") for row in await broker.rows()),
                "look": await compared(broker),
            }

    report.write_text(json.dumps(haste.run(close())))


@pytest.mark.parametrize("provider", SELLERS)
def test_the_market_s_bill_is_the_spend(lab: Lab, provider: str) -> None:
    place = lab.place(provider)
    offer = asyncio.run(usual_offer(place))
    for hour in range(HOURS):
        assert lab.run(live_an_hour, place, offer, hour) == -signal.SIGKILL
    found = lab.reported(close_the_books, place, offer)
    look = found["look"]
    print(
        f"{HOURS} simulated hours on {provider}, a kill in each: {found['kept']} instances, "
        f"{found['strays']} strays, ledger {look['total_usd'][0]} USD, spend {found['spend_usd']} USD, "
        f"orphans {len(look['orphans'])}, doubles {len(look['doubles'])}"
    )
    assert (look["orphans"], look["doubles"], look["open"]) == ([], [], 0)
    assert look["money"] == []
    assert look["total_usd"] == [found["spend_usd"]]
    assert Decimal(found["spend_usd"]) > 0

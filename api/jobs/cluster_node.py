"""This process's part in an installation of several: alive to the others, heir of the dead, at times leader.

Every process serves requests and takes over plans that a dead one was making. One of them leads: it alone
polls, reconciles and re-optimizes, by the timetable. Who leads is the database's word
(``broker.store.leader``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from prometheus_client import Gauge

from api.bootstrap import Product
from api.clocks import follow_market
from api.jobs.scheduler import Scheduler
from broker.domain.basics.errors import BrokerError
from broker.repeats import Repeats
from broker.store.leader import Leadership

log = structlog.get_logger()

ALIVE_EVERY_S = 3.0
SEAT_EVERY_S = 1.0
HEIR_EVERY_S = 2.0
CANCELLED_EVERY_S = 1.0
ANSWERS_EVERY_S = 1.0
LEADING = Gauge("broker_leading", "Whether this process runs the timetable")


class ClusterNode:
    """The tasks of one broker process beside its requests; they are background tasks of the product."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self._seat: Leadership = product.store.seat()
        self._takes_part = False

    def start(self) -> None:
        """Takes part from now on."""
        self._takes_part = True
        for name, work, seconds in (
            ("alive", self._product.store.say_alive, ALIVE_EVERY_S),
            ("heir", self._inherit, HEIR_EVERY_S),
            ("cancelled", self._product.planning.end_cancelled, CANCELLED_EVERY_S),
            ("answers", self._product.accounts.catch_up, ANSWERS_EVERY_S),
            ("seat", self._take_part, SEAT_EVERY_S),
        ):
            self._product.background.start(_again_and_again(name, work, seconds))

    async def stop(self) -> None:
        """Lets others lead, and have what this process had claimed; its tasks have ended before."""
        await self._seat.leave()
        if not self._takes_part:
            return
        try:
            await self._product.store.say_gone()
        except BrokerError as error:
            log.warning("the others will wait for this process's claims to run out", error=str(error))

    async def _inherit(self) -> None:
        """Makes the plans that a dead process was at, once there are offers."""
        await follow_market(self._product.clock)
        if self._product.readiness.polled:
            for plan_id in await self._product.planning.claim_left_over():
                self._product.background.start(self._product.planning.run(plan_id))

    async def _take_part(self) -> None:
        """Leads for as long as the seat is ours; else sees whether the leader has made its first pass."""
        epoch = await self._seat.take()
        if epoch is not None:
            await self._lead(epoch)
        elif not self._product.readiness.reconciled and await self._seat.has_passed():
            self._product.readiness.polled = self._product.readiness.reconciled = True

    async def _lead(self, epoch: int) -> None:
        timetable, told = Scheduler(self._product, epoch), False
        log.info("leading", epoch=epoch)
        LEADING.set(1)
        timetable.start()
        try:
            while True:
                await self._seat.keep()
                if timetable.has_passed and not told:
                    await self._seat.tell_passed()
                    told = True
                await asyncio.sleep(SEAT_EVERY_S)
        finally:
            LEADING.set(0)
            await timetable.end()
            log.info("not leading any more", epoch=epoch)


async def _again_and_again(name: str, work: Callable[[], Awaitable[object]], seconds: float) -> None:
    """``work`` for ever, with a pause between; a failure is logged and tried again."""
    repeats = Repeats()
    while True:
        try:
            await work()
            if (untold := repeats.succeeded(name)) is not None:
                log.info("membership works again", work=name, untold=untold)
        except BrokerError as error:
            if (untold := repeats.failed(name, str(error))) is not None:
                log.warning("membership", work=name, error=str(error), untold=untold)
        except Exception:  # the boundary of a task that has to go on as long as the process
            log.exception("membership failed unexpectedly", work=name)
        await asyncio.sleep(seconds)

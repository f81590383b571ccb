"""The role of this process in a cluster: it sends heartbeats, takes over work of dead processes, and may
lead.

Every process serves requests and takes over plans that a dead process was making. One of them is the leader,
chosen in the database (``broker.store.leader``): only it polls, reconciles and re-optimizes on schedule.
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
    """The cluster tasks of one broker process; they run as background tasks of the product."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self._seat: Leadership = product.store.seat()
        self._takes_part = False

    def start(self) -> None:
        """Joins the cluster."""
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
        """Gives up leadership and all claims of this process; its tasks must have ended before."""
        await self._seat.leave()
        if not self._takes_part:
            return
        try:
            await self._product.store.say_gone()
        except BrokerError as error:
            log.warning(
                "the other processes will wait until the claims of this process expire", error=str(error)
            )

    async def _inherit(self) -> None:
        """Resumes the plans of dead processes, once there are offers."""
        await follow_market(self._product.clock)
        if self._product.readiness.polled:
            for plan_id in await self._product.planning.claim_left_over():
                self._product.background.start(self._product.planning.run(plan_id))

    async def _take_part(self) -> None:
        """Leads as long as this process holds the leadership; else checks whether the leader has finished its
        first pass.
        """
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
    """Repeats ``work`` with a pause between; a failure is logged, and the work is tried again."""
    repeats = Repeats()
    while True:
        try:
            await work()
            if (untold := repeats.succeeded(name)) is not None:
                log.info("membership works again", work=name, untold=untold)
        except BrokerError as error:
            if (untold := repeats.failed(name, str(error))) is not None:
                log.warning("membership", work=name, error=str(error), untold=untold)
        except Exception:  # the boundary of a task that must run as long as the process
            log.exception("membership failed unexpectedly", work=name)
        await asyncio.sleep(seconds)

"""The timetable: poll, reconcile, look again as prices change. APScheduler is only the clock.

What is due lives in the database; losing this process loses nothing. Each job is a boundary: it logs
what failed and comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from prometheus_client import Counter, Gauge

from api.bootstrap import Product
from broker.domain.errors import BrokerError
from broker.domain.market import OfferChange, PollRound
from providers.market_clock import MarketClock

log = structlog.get_logger()

POLLED_OFFERS = Gauge("broker_feed_offers", "Offers of a feed's last round", ["provider"])
POLL_FAILURES = Counter("broker_feed_failures", "Rounds of a feed that failed", ["provider"])
JOB_FAILURES = Counter("broker_job_failures", "Passes of a job that failed", ["job"])
RECONCILE_ACTIONS = Counter("broker_reconcile_actions", "What the reconciler did", ["action"])


class Timetable:
    """The jobs of one broker process."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        self._looking = asyncio.Lock()

    async def start(self) -> None:
        """One pass of each job now, then by the timetable."""
        product = self._product
        product.background.start(self._first_pass())
        jobs: tuple[tuple[str, Callable[[], Awaitable[None]], float], ...] = (
            ("poll", self.poll, product.settings.poll_seconds),
            ("reconcile", self.reconcile, product.settings.reconcile_seconds),
            ("reoptimize", self.look_again, product.settings.reoptimize_seconds),
        )
        for name, job, seconds in jobs:
            self._scheduler.add_job(
                job,
                "interval",
                seconds=seconds,
                id=name,
                coalesce=True,
                max_instances=1,
                misfire_grace_time=None,
                jitter=min(seconds / 10, 5),
            )
        self._scheduler.start()

    def stop(self) -> None:
        """No job begins after this."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    async def _first_pass(self) -> None:
        await self.poll()
        await self.reconcile()
        await self._product.planning.recover()

    async def poll(self) -> None:
        """Asks every provider; what changed makes touched plans be looked at again."""
        product = self._product
        try:
            if isinstance(product.clock, MarketClock):
                await product.clock.refresh()
            rounds = await product.offers.refresh()
        except BrokerError as error:
            self._failed("poll", error)
            return
        product.readiness.polled = True
        self._count(rounds)
        changes = tuple(change for round_ in rounds for change in round_.changes)
        if changes:
            product.background.start(self._look_if_touched(changes))

    def _count(self, rounds: tuple[PollRound, ...]) -> None:
        for round_ in rounds:
            if round_.error is None:
                POLLED_OFFERS.labels(round_.provider).set(round_.offers)
            else:
                POLL_FAILURES.labels(round_.provider).inc()
                log.warning("feed failed", provider=round_.provider, error=round_.error)

    async def reconcile(self) -> None:
        """One pass that brings our rows and the providers' ledgers together."""
        try:
            report = await self._product.reconcile.run_once()
        except BrokerError as error:
            self._failed("reconcile", error)
            return
        self._product.readiness.reconciled = True
        for reservation_id, action in report.actions:
            RECONCILE_ACTIONS.labels(action.split()[0]).inc()
            log.info("reconciled", reservation_id=reservation_id, action=action)
        for error_text in report.errors:
            log.warning("reconcile", error=error_text)

    async def look_again(self) -> None:
        """Looks at every current plan, whatever changed."""
        async with self._looking:
            try:
                await self._product.reoptimize.run("timetable")
            except BrokerError as error:
                self._failed("reoptimize", error)

    async def _look_if_touched(self, changes: tuple[OfferChange, ...]) -> None:
        async with self._looking:
            try:
                await self._product.reoptimize.run_if_touched(changes)
            except BrokerError as error:
                self._failed("reoptimize", error)

    def _failed(self, job: str, error: BrokerError) -> None:
        JOB_FAILURES.labels(job).inc()
        log.warning("job failed", job=job, error=str(error))

"""The leader's schedule: poll, reconcile, and re-optimize as prices change. APScheduler is only the timer.

Due work is stored in the database, so that losing this process loses nothing. Each pass is a boundary: it
logs failures and runs again. The schedule runs in one process at a time (``api.jobs.cluster_node``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from prometheus_client import Counter, Gauge

from api.background import end_all
from api.bootstrap import Product
from api.clocks import follow_market
from api.planning.planning_call import warm_up
from broker.domain.basics.errors import BrokerError
from broker.domain.market.market import OfferChange, PollRound
from broker.domain.market.polling import BackOff
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.domain.planning.plan_turns import Turn, TurnClass
from broker.repeats import Repeats
from broker.store.statement_limit import JOB_STATEMENT_LIMIT_S, answered_within
from broker.store.unit_of_work import written_in

log = structlog.get_logger()
# A pass is skipped on purpose while the one before still runs; this is no warning.
logging.getLogger("apscheduler").setLevel(logging.ERROR)

POLLED_OFFERS = Gauge("broker_feed_offers", "Offers of a feed's last round", ["provider"])
POLLED_AT = Gauge(
    "broker_feed_last_success_timestamp_seconds", "When a feed's last good round began", ["provider"]
)
POLL_FAILURES = Counter("broker_feed_failures", "Rounds of a feed that failed", ["provider"])
JOB_FAILURES = Counter("broker_job_failures", "Passes of a job that failed", ["job"])
LISTS_UNREAD = Counter(
    "broker_lease_list_failures", "Passes that could not read a seller's list of leases", ["provider"]
)
LOOKS_CUT_OFF = Counter("broker_looks_cut_off", "Re-optimizations that reached their time limit unfinished")
LOOKS_UNFINISHED = Gauge("broker_unfinished_looks", "Unfinished re-optimizations that will be tried again")
RECONCILE_ACTIONS = Counter("broker_reconcile_actions", "Actions of the reconciler", ["action"])

NO_TEAM = ""
"""The owner of planner calls that serve every team."""
PATIENCE_S = 15.0
"""If the first poll has stored offers but no further feed for so long, readiness stops waiting for it."""
HISTORY_SECONDS = 1800.0
PROBE_SECONDS = 900.0
"""How often due daily probes of sellers are looked for."""

Job = Callable[[], Coroutine[Any, Any, None]]
Work = Callable[[], Awaitable[object]]


class Scheduler:
    """The jobs of the leader of ``epoch`` (None: a process without a cluster).

    Every pass is a background task of the product, which ends them. What a pass writes is written only while
    the epoch lasts. ``patience_s``: how long the first poll may store nothing before readiness stops waiting
    for it.
    """

    def __init__(self, product: Product, epoch: int | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self._product = product
        self._epoch = epoch
        self._patience_s = patience_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self._done: set[str] = set()
        self._market_known = False
        # This executor begins a pass at once, in the loop. The default one makes a task of it, and logs tasks
        # that a shutdown cancels before their first step as failures.
        self._scheduler = AsyncIOScheduler(timezone="UTC", executors={"default": DebugExecutor()})
        self._at_work: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._repeats = Repeats()
        self._changes: list[OfferChange] = []
        self._reacting = False
        self._poll_over = asyncio.Event()
        self._first_poll_over = False
        self._has_offers = False
        self._knew_before = False
        self._heard = asyncio.Event()
        self._back_off: BackOff | None = None

    def start(self) -> None:
        """Runs one pass of each job now, then on schedule. A paused broker has no jobs
        that buy or release.
        """
        for job, seconds in self._paused_jobs() if self._product.settings.paused else self._jobs():
            self._scheduler.add_job(
                self._in_background,
                "interval",
                args=(job,),
                seconds=seconds,
                coalesce=True,
                max_instances=1,
                misfire_grace_time=None,
                jitter=min(seconds / 10, 5),
            )
        self._start(self._first_pass())
        self._scheduler.start()

    def _paused_jobs(self) -> tuple[tuple[Job, float], ...]:
        return ((self.poll, self._product.settings.poll_seconds), (self.keep_history, HISTORY_SECONDS))

    def _jobs(self) -> tuple[tuple[Job, float], ...]:
        settings = self._product.settings
        return (
            (self.poll, settings.poll_seconds),
            (self.reconcile, settings.reconcile_seconds),
            (self.look_after_machines, settings.reconcile_seconds),
            (self.reoptimize_again, settings.reoptimize_seconds),
            (self.finish_looks, settings.reconcile_seconds),
            (self.watch_budgets, settings.budget_seconds),
            (self.act, settings.reconcile_seconds),
            (self.roll_up, settings.roll_up_seconds),
            (self.deliver, settings.webhook_seconds),
            (self.keep_history, HISTORY_SECONDS),
            (self.prune, HISTORY_SECONDS),
            (self.probe, PROBE_SECONDS),
        )

    def stop(self) -> None:
        """Begins no further pass."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    async def end(self) -> None:
        """Begins no further pass, and cancels the running ones.

        The metrics of feeds are removed: the next leader reports them, and an age that only grows would raise
        an alarm.
        """
        self.stop()
        await end_all(self._tasks)
        self._product.readiness.awaited = frozenset()
        POLLED_OFFERS.clear()
        POLLED_AT.clear()

    @property
    def has_passed(self) -> bool:
        """Whether offers are known and the first reconciliation is done."""
        return self._market_known and "reconcile" in self._done

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
        task = self._product.background.start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _in_background(self, job: Job) -> None:
        """Starts a pass without waiting for it. The product ends it, and its cancellation is no failure."""
        self._start(job())

    async def _first_pass(self) -> None:
        self._start(self.poll())
        await self._know_market()
        if self._product.settings.paused:
            log.warning("paused: nothing is bought, released or moved", see="GET /v1/reconciliation")
            return
        await self.reconcile()
        await self._pass("warm_up", self._warm_up)

    async def _know_market(self) -> None:
        """Returns when the store had offers before, when the first poll is over, or when that poll has stored
        offers and no further feed arrives.
        """
        while not (self._first_poll_over or self._knew_before):
            self._heard.clear()
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._heard.wait()
            except TimeoutError:
                if self._has_offers:
                    break
        readiness = self._product.readiness
        if readiness.awaited:
            log.info("ready before every feed has answered", awaited=sorted(readiness.awaited))
        readiness.polled = self._market_known = True

    async def poll(self) -> None:
        """Polls every provider, silent ones less often; plans affected by changes are re-optimized."""
        await self._pass("poll", self._poll)

    async def reconcile(self) -> None:
        """One pass that reconciles our reservations with the providers' leases."""
        await self._pass("reconcile", self._reconcile)

    async def look_after_machines(self) -> None:
        """Asks machines whether they can be reached, and removes public keys that are not needed."""
        await self._pass("machines", self._product.machines.run_once)

    async def reoptimize_again(self) -> None:
        """Re-optimizes every current plan, whatever changed."""
        await self._pass(
            "reoptimize", partial(self._look, partial(self._product.reoptimize.run, "timetable"))
        )
        await self.act()

    async def finish_looks(self) -> None:
        """Re-optimizes again, with more time, plans whose last re-optimization was unfinished."""
        await self._pass("finish_looks", partial(self._look, self._product.reoptimize.run_unfinished))

    async def act(self) -> None:
        """Starts and continues accepted moves; expired proposals lapse."""
        await self._pass("moves", self._product.proposals.act)

    async def watch_budgets(self) -> None:
        """Sends events for budgets that run out."""
        await self._pass("budgets", self._product.budgets.watch)

    async def roll_up(self) -> None:
        """Adds settled bills to the sums of spend."""
        await self._pass("roll_up", self._product.spend.roll_up)

    async def deliver(self) -> None:
        """Sends webhooks that are due."""
        await self._pass("webhooks", self._product.webhooks.deliver)

    async def keep_history(self) -> None:
        """Summarizes past days of price history, and deletes history beyond its retention time."""
        await self._pass("history", self._product.prices.keep_up)

    async def prune(self) -> None:
        """Deletes stored answers, deliveries, audit entries and poll rounds beyond their retention time."""
        await self._pass("retention", self._product.retention.prune)

    async def probe(self) -> None:
        """Compares the answers of sellers with what their adapters expect, once a day for each."""
        await self._pass("probe", self._product.probes.run_due)

    async def _pass(self, job: str, work: Work) -> None:
        """One pass of ``job``, unless one is running; no failure ends the schedule."""
        lock = self._at_work[job]
        if lock.locked():
            return
        async with lock:
            try:
                with written_in(self._epoch), answered_within(JOB_STATEMENT_LIMIT_S):
                    await work()
                self._done.add(job)
                if (untold := self._repeats.succeeded(job)) is not None:
                    log.info("job works again", job=job, untold=untold)
            except BrokerError as error:
                JOB_FAILURES.labels(job).inc()
                if (untold := self._repeats.failed(job, str(error))) is not None:
                    log.warning("job failed", job=job, error=str(error), untold=untold)
            except Exception:  # the boundary of a job, which must run again
                JOB_FAILURES.labels(job).inc()
                log.exception("job failed unexpectedly", job=job)

    async def _poll(self) -> None:
        product = self._product
        await follow_market(product.clock)
        now = product.clock.now()

        waits: dict[str, datetime] = {}
        back_off = await self._resumed()
        due = back_off.due(product.adapters, now)
        if not self._first_poll_over:
            product.readiness.awaited = frozenset(due)
            self._knew_before = await product.offers.has_young()
            self._heard.set()

        def heard(round_: PollRound) -> None:
            product.readiness.awaited -= {round_.provider}
            self._has_offers = self._has_offers or round_.offers > 0
            self._heard.set()
            draw = random.random()  # noqa: S311  spreads calls, no secret
            until = back_off.note(round_.provider, now, failed=round_.error is not None, draw=draw)
            if until is not None:
                waits[round_.provider] = until
            _count(round_)
            self._react_to(round_.changes)

        self._poll_over.clear()
        try:
            await product.offers.refresh(due, heard)
            if waits:
                await product.offers.hold_back(waits)
        finally:
            self._poll_over.set()
        self._first_poll_over = True
        self._heard.set()

    async def _resumed(self) -> BackOff:
        """The poll intervals of feeds as the previous leader left them."""
        if self._back_off is None:
            self._back_off = BackOff(self._product.poll_plan)
            self._back_off.resume(await self._product.offers.find_feeds())
        return self._back_off

    def _react_to(self, changes: Iterable[OfferChange]) -> None:
        """Re-optimizes affected plans once a burst of changes is over; changes meanwhile wait for the next
        time.
        """
        if self._product.settings.paused:
            return
        self._changes.extend(changes)
        if self._changes and not self._reacting:
            self._reacting = True
            self._start(self._react())

    async def _react(self) -> None:
        try:
            while self._changes:
                await self._burst_over()
                changes, self._changes = tuple(self._changes), []
                await self._pass(
                    "react", partial(self._look, partial(self._product.reoptimize.run_if_touched, changes))
                )
                await self.act()
        finally:
            self._reacting = False

    async def _look(self, looking: Callable[[], Awaitable[Sequence[Reoptimization]]]) -> None:
        """One pass of re-optimizations, with metrics of the unfinished ones and of those that wait for
        another try.
        """
        found = await looking()
        LOOKS_CUT_OFF.inc(sum(look.state is ProposalState.UNFINISHED for look in found))
        LOOKS_UNFINISHED.set(len(await self._product.reoptimize.find_unfinished()))

    async def _warm_up(self) -> None:
        """Starts the planner's process if a plan is in force, so that it is ready when the market changes."""
        if await self._product.reoptimize.has_plans():
            await self._product.plan_queue.run(Turn(NO_TEAM, TurnClass.REOPTIMIZATION), warm_up)

    async def _burst_over(self) -> None:
        """Returns when the poll has ended, or after the longest wait for a slow feed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._product.settings.debounce_seconds):
                await self._poll_over.wait()

    async def _reconcile(self) -> None:
        report = await self._product.reconcile.run_once()
        self._product.readiness.reconciled = True
        self._react_to(report.sold_out)
        for reservation_id, action in report.actions:
            RECONCILE_ACTIONS.labels(action.split()[0]).inc()
            log.info("reconciled", reservation_id=reservation_id, action=action)
        for unread in report.unread:
            LISTS_UNREAD.labels(unread.provider).inc()
        for error_text in report.errors:
            log.warning("reconcile", error=error_text)


def _count(round_: PollRound) -> None:
    if round_.error is None:
        POLLED_OFFERS.labels(round_.provider).set(round_.offers)
        POLLED_AT.labels(round_.provider).set(round_.started_at.timestamp())
    else:
        POLL_FAILURES.labels(round_.provider).inc()
        log.warning("feed failed", provider=round_.provider, error=round_.error)

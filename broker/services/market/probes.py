"""Probes: a daily check that each provider's answers still have the form that its adapter reads."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.errors import BrokerError
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.market.probing import Finding, ProbeReport, carried_over, is_due, new_findings
from broker.ports.unit_of_work import Clock, Notifier, UnitOfWorkFactory

log = logging.getLogger(__name__)

ACTOR = "probe"
CHANGED = "provider.changed"
"""The event that a provider's answers have differences that the previous probe did not find."""
SHOWN = 3

Probe = Callable[[datetime], Awaitable[ProbeReport]]


class ProbesService:
    """Runs ``probes`` (by provider key) and keeps the last report of each."""

    def __init__(
        self, units: UnitOfWorkFactory, probes: Mapping[str, Probe], clock: Clock, notifier: Notifier
    ) -> None:
        self._units, self._probes, self._clock, self._notifier = units, probes, clock, notifier

    async def run_due(self) -> tuple[ProbeReport, ...]:
        """Probes the providers whose last probe is a day old, one after another.

        A probe that fails unexpectedly is logged and tried again in the next pass.
        """
        async with self._units(EVERY_TEAM) as uow:
            last = {feed.provider: feed.probe for feed in await uow.offers.find_feeds()}
        due = [name for name in sorted(self._probes) if is_due(last.get(name), self._clock.now())]
        reports = []
        for name in due:
            try:
                reports.append(await self._run(name))
            except BrokerError:
                raise
            except Exception:  # the boundary between sellers
                log.exception("the probe of %s failed unexpectedly", name)
        return tuple(reports)

    async def _run(self, name: str) -> ProbeReport:
        """Runs one probe, and stores its report together with an event for new findings."""
        now = self._clock.now()
        asked = await self._probes[name](now)
        async with self._units(EVERY_TEAM) as uow:
            feeds = {feed.provider: feed.probe for feed in await uow.offers.find_feeds()}
            report = carried_over(feeds.get(name), asked)
            news = new_findings(feeds.get(name), report)
            await uow.offers.record_probe(report)
            if news:
                entry = AuditEntry(now, ACTOR, CHANGED, "provider", name, ALL_TEAMS, _words(news))
                await uow.accounts.add_audit(entry)
            await uow.commit()
        if news:
            log.warning("answers of %s do not have the expected form: %s", name, _words(news))
            await self._notifier.notify(CHANGED, ALL_TEAMS, {"provider": name, "findings": len(news)})
        return report


def _words(news: tuple[Finding, ...]) -> str:
    """The first few findings, and the number of the others."""
    shown = "; ".join(str(finding) for finding in news[:SHOWN])
    more = len(news) - SHOWN
    return f"{shown}; and {more} more" if more > 0 else shown

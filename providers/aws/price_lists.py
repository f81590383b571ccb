"""Downloads of the regions' price lists, which run apart from polls.

One list is hundreds of megabytes, and a poll has less than a minute. So a background task reads each list
and continues after the poll; a poll waits for it only briefly, and uses whole files only. Until the first
list has arrived, a region has no on-demand prices and a rejected row says so. Later, the previous list
stays in force with the time at which it was read. A list whose ``ETag`` has not changed is not read again.
(It is unverified that the price host sends one; without it, the file is read again.) A download that breaks
off starts again with the next poll, after the back-off that the host asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from broker.domain.basics.errors import ProviderError, RateLimited
from broker.domain.market.offer import OfferBatch, RejectedRow
from broker.together import all_or_none
from providers.aws.nodes import PROVIDER
from providers.aws.prices import PriceListReader
from providers.http import FileVersion, NotModified, ProviderHttp

PATH = "/offers/v1.0/aws/AmazonEC2/current/{region}/index.csv"
MOST_BYTES = 4 * 1024**3
READING_S = 900.0
FIRST_WAIT_S, LATER_WAIT_S = 30.0, 5.0
"""How long a poll waits for a region's first list, and for a newer one, in seconds."""


@dataclass(frozen=True, slots=True)
class _PriceList:
    reader: PriceListReader
    read_at: datetime
    etag: str
    batch: OfferBatch


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a poll waits: for a region's first list, and for a newer one."""

    first_s: float = FIRST_WAIT_S
    later_s: float = LATER_WAIT_S


class PriceLists:
    """The newest list of each region; it is not requested again before it is ``max_age_s`` old.

    ``http`` is a client for the price host alone.
    """

    def __init__(
        self,
        http: ProviderHttp,
        max_age_s: float,
        waits: Waits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http, self._max_age_s, self._monotonic = http, max_age_s, monotonic
        self._waits = waits or Waits()
        self._lists: dict[str, _PriceList] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._not_before_s: dict[str, float] = {}

    async def aclose(self) -> None:
        """Cancels the downloads and closes the connections."""
        tasks = tuple(self._reading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # noqa: TID251  waits for all
        await self._http.aclose()

    async def batches(self, regions: Sequence[str], observed_at: datetime) -> list[OfferBatch]:
        """The offers of every region; raises the error of a first list that could not be read."""
        return await all_or_none(self._batch(region, observed_at) for region in regions)

    async def _batch(self, region: str, observed_at: datetime) -> OfferBatch:
        before = self._lists.get(region)
        if before is not None and self._is_current(before, observed_at):
            return before.batch
        wait_s = self._waits.first_s if before is None else self._waits.later_s
        error = await self._refreshed(region, observed_at, wait_s)
        newest = self._lists.get(region)
        if newest is not None and newest is not before:
            return newest.batch
        if newest is None and error is not None:
            raise error
        where = f"price list of {region}"
        if newest is None:
            return OfferBatch(
                (),
                (
                    RejectedRow(
                        where, "the price list is still being downloaded; a later poll will have its prices"
                    ),
                ),
            )
        why = "a newer one is still being read" if error is None else str(error)
        words = f"as of {newest.read_at:%Y-%m-%d %H:%M} UTC: {why}"
        return OfferBatch(newest.batch.offers, (*newest.batch.rejected, RejectedRow(where, words)))

    def _is_current(self, known: _PriceList, at: datetime) -> bool:
        return 0 <= (at - known.read_at).total_seconds() < self._max_age_s

    async def _refreshed(self, region: str, observed_at: datetime, wait_s: float) -> ProviderError | None:
        """Waits for the download, starting one if none runs.

        Returns its error, or None while it still runs.
        """
        left_s = self._not_before_s.get(region, 0.0) - self._monotonic()
        if left_s > 0:
            return RateLimited(PROVIDER, f"the price host asks for {left_s:.0f} s without calls", left_s)
        task = self._reading.get(region)
        if task is None or _succeeded(task):
            task = asyncio.create_task(self._read(region, observed_at))
            self._reading[region] = task
        done, _ = await asyncio.wait({task}, timeout=wait_s)
        if not done:
            return None
        self._reading.pop(region, None)
        try:
            task.result()
        except ProviderError as error:
            if isinstance(error, RateLimited) and error.retry_after_s:
                self._not_before_s[region] = self._monotonic() + error.retry_after_s
            return error
        return None

    async def _read(self, region: str, observed_at: datetime) -> None:
        before = self._lists.get(region)
        version = FileVersion(before.etag if before is not None else "")
        reader = PriceListReader(region)
        lines = self._http.read_lines(
            PATH.format(region=region), max_bytes=MOST_BYTES, total_s=READING_S, version=version
        )
        try:
            async with contextlib.aclosing(lines):
                async for line in lines:
                    reader.feed(line)
        except NotModified:
            assert before is not None
            reader = before.reader
        self._lists[region] = _PriceList(reader, observed_at, version.etag, reader.batch(observed_at))


def _succeeded(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None

"""Spend files that are written in the background: rows to CSV first, then to the requested format."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from api.background import Background
from api.export.files import MEDIA_TYPES, convert, write_spend
from api.export.manifest import manifest, sha256_of, totals_of
from api.schemas.base.times import format_time
from api.schemas.finance.spend import SpendForm
from broker.domain.basics.access import EVERY_TEAM, require_scope, scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import BrokerError, Conflict
from broker.domain.basics.export_jobs import KEPT, ExportJob, ExportState
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory

ID_BYTES = 9


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested file: its name, its format (a key of MEDIA_TYPES), and the writer, which returns its
    manifest.
    """

    name: str
    form: str
    write: Callable[[Path], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class RowFile:
    """Rows as CSV chunks, with the facts for their manifest."""

    chunks: AsyncIterator[bytes]
    data_set: str
    as_of: datetime
    totals: Sequence[str]
    version: str | None = None

    async def write(self, file: Path) -> dict[str, Any]:
        """Writes ``file``, some hundred rows at a time. The totals are read back from the written rows."""
        csv_file = file.with_name("rows.csv")
        with csv_file.open("wb") as out:
            async for chunk in self.chunks:
                out.write(chunk)
        rows, totals = await asyncio.to_thread(totals_of, csv_file, self.totals)
        await asyncio.to_thread(convert, csv_file, file, self.data_set)
        return manifest(
            data_set=self.data_set,
            version=self.version,
            as_of=format_time(self.as_of),
            sha256=sha256_of(file),
            rows=rows,
            totals_usd=totals,
        )


@dataclass(frozen=True, slots=True)
class SumFile:
    """Sums of spend in the form of the API."""

    form: SpendForm

    async def write(self, file: Path) -> dict[str, Any]:
        """Writes ``file`` in the format of its suffix."""
        await asyncio.to_thread(write_spend, file, file.suffix.removeprefix("."), self.form)
        return manifest(
            data_set=f"Spend by {self.form.interval} and {self.form.group_by}",
            as_of=format_time(self.form.as_of) if self.form.as_of is not None else "",
            sha256=sha256_of(file),
            rows=len(self.form.items),
            totals_usd={"usd": self.form.total_usd},
        )


class ExportJobs:
    """Writes files in the background, and keeps them in the store for a day, so that any replica can serve
    them.
    """

    def __init__(self, units: UnitOfWorkFactory, clock: Clock, background: Background) -> None:
        self._units = units
        self._clock = clock
        self._background = background

    async def start(self, caller: Caller, wanted: Wanted) -> ExportJob:
        """Begins to write a file; returns the unfinished job."""
        require_scope(caller, Scope.SPEND_READ)
        now = self._clock.now()
        job = ExportJob(
            export_id=f"exp-{secrets.token_urlsafe(ID_BYTES)}",
            team=caller.team,
            file_name=f"{wanted.name}.{wanted.form}",
            media_type=MEDIA_TYPES[wanted.form],
            started_at=now,
        )
        async with self._units(scope_of(caller)) as uow:
            await uow.exports.forget(now - KEPT)
            await uow.exports.add(job)
            await uow.commit()
        self._background.start(self._write(job, wanted))
        return job

    async def find(self, caller: Caller, export_id: str) -> ExportJob:
        """A job that the caller's team requested. Raises NotFound."""
        require_scope(caller, Scope.SPEND_READ)
        async with self._units(scope_of(caller)) as uow:
            job = await uow.exports.find(export_id)
        return replace(job, state=job.state_at(self._clock.now()))

    async def find_content(self, caller: Caller, export_id: str) -> tuple[ExportJob, bytes]:
        """The finished file. Raises NotFound, and Conflict until it is finished."""
        job = await self.find(caller, export_id)
        if job.state is not ExportState.DONE:
            raise Conflict(f"export {export_id} is {job.state}: {job.problem or 'ask again in a moment'}")
        async with self._units(scope_of(caller)) as uow:
            return job, await uow.exports.find_content(export_id)

    async def _write(self, job: ExportJob, wanted: Wanted) -> None:
        ended, content = replace(job, state=ExportState.FAILED, problem="its broker was stopped"), None
        try:
            with TemporaryDirectory(prefix="broker-") as folder:
                file = Path(folder) / job.file_name
                document = await wanted.write(file)
                content = file.read_bytes()
            ended = replace(job, state=ExportState.DONE, manifest=json.dumps(document))
        except BrokerError as error:
            ended = replace(ended, problem=str(error))
        finally:
            async with self._units(EVERY_TEAM.narrowed_to(job.team)) as uow:
                await uow.exports.finish(ended, content)
                await uow.commit()

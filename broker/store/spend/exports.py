"""Stored spend exports."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select, update

from broker.domain.basics.errors import NotFound
from broker.domain.basics.export_jobs import ExportJob, ExportState
from broker.store.spend.finance_tables import ExportRow
from broker.store.team_session import TeamSession
from broker.store.writes import change, column_of, insert_or_keep, table_of

_ALL_BUT_CONTENT = [
    column_of(ExportRow, column.name) for column in table_of(ExportRow).c if column.name != "content"
]


class SqlExportRepository:
    """Export jobs and their files."""

    def __init__(self, session: TeamSession) -> None:
        self._session = session

    async def add(self, job: ExportJob) -> bool:
        """Stores a new job; False if there is one with its id."""
        values = {
            "export_id": job.export_id,
            "team": job.team,
            "file_name": job.file_name,
            "media_type": job.media_type,
            "started_at": job.started_at,
            "state": job.state.value,
        }
        return await insert_or_keep(self._session, ExportRow, values)

    async def finish(self, job: ExportJob, content: bytes | None) -> None:
        """Stores the end of a job, and its file."""
        ended = {"state": job.state.value, "manifest": job.manifest, "problem": job.problem}
        statement = update(ExportRow).where(ExportRow.export_id == job.export_id)
        await change(self._session, statement.values(**ended, content=content))

    async def find(self, export_id: str) -> ExportJob:
        """One job. Raises NotFound."""
        statement = select(*_ALL_BUT_CONTENT).where(ExportRow.export_id == export_id)
        found = await self._session.execute(statement)
        row = found.one_or_none()
        if row is None:
            raise NotFound("export", export_id)
        values = row._asdict()
        return ExportJob(**{**values, "state": ExportState(values["state"])})

    async def find_content(self, export_id: str) -> bytes:
        """The file of a finished job. Raises NotFound."""
        found = await self._session.scalar(select(ExportRow.content).where(ExportRow.export_id == export_id))
        if found is None:
            raise NotFound("export", export_id)
        return bytes(found)

    async def forget(self, before: datetime) -> None:
        """Deletes jobs that began before ``before``."""
        await change(self._session, delete(ExportRow).where(ExportRow.started_at < before))

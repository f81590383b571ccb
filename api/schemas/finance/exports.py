"""Files that are written in the background, as JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel

from api.schemas.base.forms import From, write
from api.schemas.base.times import Instant
from broker.domain.basics.export_jobs import ExportJob, ExportState


def _url(job: ExportJob) -> str:
    return f"/v1/spend/exports/{job.export_id}"


def _file_url(job: ExportJob) -> str | None:
    return f"{_url(job)}/file" if job.state is ExportState.DONE else None


def _manifest(job: ExportJob) -> Any:
    return json.loads(job.manifest) if job.manifest else None


def _problem(job: ExportJob) -> str | None:
    failed = job.state is ExportState.FAILED
    return (job.problem or "its broker was stopped; request it again") if failed else None


class ExportForm(BaseModel):
    """A file: its state, and, once ``state`` is ``done``, its address and manifest."""

    export_id: str
    state: ExportState
    file_name: str
    started_at: Instant
    url: Annotated[str, From(_url)]
    file_url: Annotated[str | None, From(_file_url)]
    manifest: Annotated[dict[str, Any] | None, From(_manifest)]
    problem: Annotated[str | None, From(_problem)]


def export_to_document(job: ExportJob) -> dict[str, Any]:
    """As plain data."""
    return write(ExportForm, job)

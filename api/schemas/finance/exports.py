"""Files that are written in the background, as JSON."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from api.schemas.base.times import Instant, format_time
from broker.domain.basics.export_jobs import ExportJob, ExportState


class ExportForm(BaseModel):
    """A file: its state, and, once ``state`` is ``done``, its address and manifest."""

    export_id: str
    state: ExportState
    file_name: str
    started_at: Instant
    url: str
    file_url: str | None
    manifest: dict[str, Any] | None
    problem: str | None


def export_to_document(job: ExportJob) -> dict[str, Any]:
    """The JSON form of an export as plain data."""
    url = f"/v1/spend/exports/{job.export_id}"
    failed = job.state is ExportState.FAILED
    return {
        "export_id": job.export_id,
        "state": str(job.state),
        "file_name": job.file_name,
        "started_at": format_time(job.started_at),
        "url": url,
        "file_url": f"{url}/file" if job.state is ExportState.DONE else None,
        "manifest": json.loads(job.manifest) if job.manifest else None,
        "problem": (job.problem or "its broker was stopped; request it again") if failed else None,
    }

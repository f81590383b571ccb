"""Files of spend that a command writes: a CSV from the server, kept or turned into another form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from api.cli.output import to_json, write_text
from api.client import BrokerClient
from api.export.convert import convert
from api.export.manifest import manifest, sha256_of, totals_of


@dataclass(frozen=True, slots=True)
class DataSet:
    """A CSV of the server: where it is, what is asked, and which of its columns are money."""

    name: str
    path: str
    params: Mapping[str, str | None]
    totals: Sequence[str]
    version: str | None = None


def download(client: BrokerClient, wanted: DataSet, file: Path) -> dict[str, Any]:
    """Writes ``wanted`` to ``file`` and its manifest beside it; the manifest. InputError for a bad path.

    The totals are read back from what was written.
    """
    with TemporaryDirectory(prefix="broker-") as folder:
        csv_file = Path(folder) / "rows.csv"
        as_of = client.download(wanted.path, csv_file, wanted.params)
        rows, totals = totals_of(csv_file, wanted.totals)
        convert(csv_file, file, wanted.name)
    document = manifest(
        data_set=wanted.name,
        version=wanted.version,
        as_of=as_of,
        sha256=sha256_of(file),
        rows=rows,
        totals_usd=totals,
    )
    write_text(manifest_path(file), to_json(document))
    return document


def manifest_path(file: Path) -> Path:
    """Where the manifest of ``file`` stands."""
    return file.with_name(f"{file.name}.manifest.json")

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
    """A CSV file of the server: its path, its parameters, and which of its columns are money."""

    name: str
    path: str
    params: Mapping[str, str | None]
    totals: Sequence[str]
    version: str | None = None


def download(client: BrokerClient, wanted: DataSet, file: Path) -> dict[str, Any]:
    """Writes ``wanted`` to ``file`` and a manifest beside it, and returns the manifest.

    The manifest's totals are computed from the file that was written. Raises InputError for a bad path.
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
    """The path of the manifest of ``file``."""
    return file.with_name(f"{file.name}.manifest.json")

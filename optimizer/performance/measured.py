"""The bundled tables of published measurements, and their fingerprint."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "performance"
TABLES = ("train_measured.csv.gz", "train_grid.csv.gz", "serving_measured.csv.gz")


def bundled_rows() -> list[dict[str, str]]:
    """The rows of every table that constants are fitted to, in order."""
    return [row for name in TABLES for row in table_rows(FOLDER / name)]


def table_rows(path: Path) -> list[dict[str, str]]:
    """The rows of one compressed table."""
    text = gzip.decompress(path.read_bytes()).decode()
    return list(csv.DictReader(io.StringIO(text)))


def data_sha256() -> str:
    """SHA-256 over the tables' contents (not their compression), in order."""
    digest = hashlib.sha256()
    for name in TABLES:
        digest.update(gzip.decompress((FOLDER / name).read_bytes()))
    return digest.hexdigest()

"""The bundled tables of published measurements, and their fingerprint."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

from broker.data_folder import data_folder

FOLDER = data_folder("fixtures", "performance")
TABLES = ("train_measured.csv.gz", "train_grid.csv.gz", "serving_measured.csv.gz", "decode_pools.csv.gz")
BESIDE = (
    "published_training.csv",
    "reported_training.csv",
    "published_serving.csv",
    "published_open_loops.csv",
    "reported_serving.csv",
)
BLIND = ("blind_training.csv", "blind_serving.csv", "measured_one_gpu.csv")
SWEEPS, CACHES = "comm_measured.csv.gz", "kv_capacity.csv"


def bundled_rows() -> list[dict[str, str]]:
    """The rows of all tables that constants are fitted to, in order."""
    return [row for name in TABLES for row in table_rows(FOLDER / name)]


def beside_rows() -> list[dict[str, str]]:
    """The rows that no constant is fitted to; they only add to the statistics of errors."""
    return [row for name in BESIDE for row in table_rows(FOLDER / name)]


def blind_rows() -> list[dict[str, str]]:
    """The rows that were taken without looking at the errors of their predictions; no constant is fitted to
    them, and only the spread of errors is made of them."""
    return [row for name in BLIND for row in table_rows(FOLDER / name)]


def sweep_rows() -> list[dict[str, str]]:
    """Measured collectives, to which the constants of links and fabrics are fitted."""
    return table_rows(FOLDER / SWEEPS)


def cache_rows() -> list[dict[str, str]]:
    """Measured capacities of KV caches."""
    return table_rows(FOLDER / CACHES)


def table_rows(path: Path) -> list[dict[str, str]]:
    """The rows of one table, compressed or not."""
    return list(csv.DictReader(io.StringIO(table_bytes(path).decode())))


def table_bytes(path: Path) -> bytes:
    """The contents of one table, decompressed."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def data_sha256(names: Sequence[str] = (*TABLES, *BESIDE, SWEEPS)) -> str:
    """SHA-256 of the tables' uncompressed contents, in order."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(table_bytes(FOLDER / name))
    return digest.hexdigest()

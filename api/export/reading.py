"""Reads table files as text, row by row: CSV, and Parquet if pyarrow is installed."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from api.export.tables import parquet_text
from broker.domain.basics.errors import FieldProblem, InputError

Table = tuple[list[str], Iterator[Mapping[str, str]]]


@contextmanager
def open_table(path: Path) -> Iterator[Table]:
    """Header and rows of a file; ``""`` is null. Raises InputError for a file that is not a table."""
    if path.suffix.lower() == ".parquet":
        yield parquet_text(path)
        return
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            yield header, _rows(path, header, reader)
    except FileNotFoundError:
        raise _error(path, "no such file", "the path of a file") from None
    except UnicodeDecodeError:
        raise _error(path, "bytes that are not UTF-8", "a CSV or Parquet file") from None
    except csv.Error as error:
        raise _error(path, f"malformed CSV ({error})", "a CSV file") from None
    except OSError as error:
        raise _error(path, str(error.strerror), "a file that can be read") from None


def _rows(path: Path, header: list[str], reader: Iterator[list[str]]) -> Iterator[Mapping[str, str]]:
    for number, cells in enumerate(reader, start=1):
        if len(cells) != len(header):
            raise _error(path, f"{len(cells)} cells in row {number}", f"{len(header)}, as in the header")
        yield dict(zip(header, cells, strict=True))


def _error(path: Path, found: str, expected: str) -> InputError:
    return InputError(str(path), (FieldProblem("", found, expected),))

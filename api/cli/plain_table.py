"""Tables of fixed narrow columns that never wrap, and the same tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_WORD = 8
ROOMY = 110


@dataclass(frozen=True, slots=True)
class PlainTable:
    """Cells as text. The first ``words`` columns are names, left-aligned; the others are figures."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int


def text_lines(table: PlainTable, width: int) -> list[str]:
    """A line of headers, a rule, and one line for each row. Names are cut where ``width`` is too small."""
    gap = "  " if width >= ROOMY else " "
    sizes = _sizes(table, width, len(gap))
    lines = [_line(table.headers, sizes, table.words, gap)]
    lines.append(gap.join("─" * size for size in sizes))
    lines.extend(_line(row, sizes, table.words, gap) for row in table.rows)
    return lines


def markdown_lines(table: PlainTable) -> list[str]:
    """A Markdown table."""
    rule = ["---"] * table.words + ["---:"] * (len(table.headers) - table.words)
    rows = [tuple(cell.strip().replace("|", "\\|") for cell in row) for row in table.rows]
    return [f"| {' | '.join(row)} |" for row in (table.headers, tuple(rule), *rows)]


def _sizes(table: PlainTable, width: int, gap: int) -> list[int]:
    sizes = [max(map(len, column)) for column in zip(table.headers, *table.rows, strict=True)]
    over = sum(sizes) + gap * (len(sizes) - 1) - width
    for _ in range(max(over, 0)):
        widest = max(range(table.words), key=sizes.__getitem__)
        if sizes[widest] <= LEAST_WORD:
            break
        sizes[widest] -= 1
    return sizes


def _line(cells: Sequence[str], sizes: Sequence[int], words: int, gap: str) -> str:
    shown = [
        _cut(cell, size).ljust(size) if index < words else cell.rjust(size)
        for index, (cell, size) in enumerate(zip(cells, sizes, strict=True))
    ]
    return gap.join(shown).rstrip()


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"

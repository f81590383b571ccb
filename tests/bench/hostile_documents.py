"""What refusing hostile documents costs: ``python -m tests.bench.hostile_documents``.

Prints seconds of one core and the most memory that Python held for each, the slowest last.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

from api.schemas.base.document import read_document, read_json_document
from broker.domain.basics.errors import InputError
from tests.schemas.hostile import hostile_json, hostile_yaml

LIMIT_S = 0.1
MIB = 1 << 20


def refusal_s(read: Callable[[], object]) -> float:
    """CPU seconds until a text is refused."""
    began = time.process_time()
    try:
        read()
    except InputError:
        return time.process_time() - began
    raise AssertionError("a hostile document was read")


def refusal_mib(read: Callable[[], object]) -> float:
    """The most that Python held beside the text, MiB."""
    tracemalloc.start()
    refusal_s(read)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / MIB


def main() -> None:
    """Prints the table."""
    reads: list[tuple[str, int, Callable[[], object]]] = [
        (f"yaml: {one.name}", len(one.text), lambda text=one.text: read_document(text, "text"))  # type: ignore[misc]
        for one in hostile_yaml()
    ]
    reads += [
        (f"json: {name}", len(text), lambda text=text: read_json_document(text, "text"))  # type: ignore[misc]
        for name, text, _, _ in hostile_json()
    ]
    costs = sorted((refusal_s(read), refusal_mib(read), name, size) for name, size, read in reads)
    for seconds, mib, name, size in costs:
        print(f"{seconds * 1000:8.1f} ms {mib:8.1f} MiB  {size:12,} characters  {name}")
    slowest = costs[-1]
    verdict = "within" if slowest[0] <= LIMIT_S else "over"
    print(
        f"slowest: {slowest[2]}, {slowest[0] * 1000:.1f} ms of one core ({verdict} {LIMIT_S * 1000:.0f} ms)"
    )


if __name__ == "__main__":
    main()

"""Damaged payloads, many: ``python -m tests.bench.fuzz --examples 2000 [--provider NAME]``.

The property of the contract suite over more kinds of damage: a parser gives offers that obey the house and
rejected rows with reasons, or raises ``PayloadUnreadable``; nothing else escapes it. Every failure is shown
once, by what was raised and where.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from broker.catalogue import load_gpus
from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.offer import Offer, OfferBatch
from providers.registry import SPECS, find_spec
from providers.spec import ProviderSpec
from tests.contract.damage import many_damages
from tests.contract.exchanges import OBSERVED_AT, payloads


@dataclass
class Found:
    """What became of one provider's damaged payloads."""

    examples: int = 0
    unreadable: int = 0
    batches: int = 0
    offers: int = 0
    rejected: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    detail: dict[str, str] = field(default_factory=dict)


def fuzz(spec: ProviderSpec, examples: int, number: int) -> Found:
    """Damages one file of ``spec`` an example, ``examples`` times, drawn by seed."""
    files, found = payloads(spec.name), Found()

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def one(data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(files) - 1))
        name, body = files[index]
        damaged = data.draw(many_damages(body))
        _note(found, spec, [*files[:index], (name, damaged), *files[index + 1 :]])

    began = time.perf_counter()
    one()
    found.seconds = time.perf_counter() - began
    return found


def _note(found: Found, spec: ProviderSpec, files: list[tuple[str, bytes]]) -> None:
    found.examples += 1
    began = time.perf_counter()
    try:
        batch = spec.parse(files, OBSERVED_AT)
    except PayloadUnreadable as error:
        found.unreadable += 1
        _check_text(found, str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        key = f"{type(error).__name__} at {where.filename.rpartition('/')[2]}:{where.lineno}"
        found.failures[key] += 1
        found.detail.setdefault(key, "".join(traceback.format_exception(error)[-8:]))
    else:
        _check(found, spec, batch)
    found.slowest_s = max(found.slowest_s, time.perf_counter() - began)


def _check_text(found: Found, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        found.failures["a text that cannot be written as UTF-8"] += 1


def _check(found: Found, spec: ProviderSpec, batch: OfferBatch) -> None:
    found.batches += 1
    found.offers += len(batch.offers)
    found.rejected += len(batch.rejected)
    if len({offer.offer_id for offer in batch.offers}) != len(batch.offers):
        found.failures["an offer id twice"] += 1
    if not all(row.reason for row in batch.rejected):
        found.failures["a rejected row without a reason"] += 1
    for row in batch.rejected:
        _check_text(found, f"{row.row} {row.reason}")
    for offer in batch.offers:
        wrong = _wrong(spec, offer)
        if wrong:
            found.failures[wrong] += 1
            found.detail.setdefault(wrong, repr(offer))


def _wrong(spec: ProviderSpec, offer: Offer) -> str:
    """What is wrong with an offer."""
    price, sku = offer.price_usd_per_node_hour, offer.sku
    rules = {
        "a price that is none": price.is_finite() and price > 0,
        "an id of another provider": offer.offer_id.startswith(f"{spec.name}/"),
        "an id with a space": not any(sign.isspace() for sign in offer.offer_id),
        "an unknown GPU": sku.gpu in load_gpus(),
        "a node without GPUs": 0 < sku.gpus_per_node <= 1024,
        "a country that is none": offer.country is None
        or (len(offer.country) == 2 and offer.country.isupper()),
        "memory that is none": sku.memory_gb is None or 0 <= sku.memory_gb < float("inf"),
        "a text that cannot be written as UTF-8": _is_text(repr(offer)) and _is_text(offer.offer_id),
    }
    return next((name for name, holds in rules.items() if not holds), "")


def _is_text(text: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


def table_of(results: dict[str, Found]) -> Table:
    """A line a provider."""
    table = Table(
        "provider", "examples", "PayloadUnreadable", "batches", "offers", "rejected rows", "seconds",
        "slowest parse ms", "failures", "of kinds",
    )  # fmt: skip
    for name, found in results.items():
        table.add_row(
            name,
            f"{found.examples:,}",
            f"{found.unreadable:,}",
            f"{found.batches:,}",
            f"{found.offers:,}",
            f"{found.rejected:,}",
            f"{found.seconds:.1f}",
            f"{1000 * found.slowest_s:.0f}",
            str(found.failures.total()),
            str(len(found.failures)),
        )
    return table


def main() -> int:
    """Prints the table and each failure once; 1 when there was one."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--provider", action="append", help="one of the registry; all without it")
    parser.add_argument("--seed", type=int, default=1)
    wish = parser.parse_args()
    console, results = Console(width=140), {}
    for name in wish.provider or SPECS:
        results[name] = fuzz(find_spec(name), wish.examples, wish.seed)
    console.print(table_of(results))
    for name, found in results.items():
        for key, count in found.failures.most_common():
            console.print(f"{name}: {count} × {key}\n{found.detail.get(key, '')}", markup=False)
    return int(any(found.failures for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())

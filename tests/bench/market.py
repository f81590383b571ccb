"""The sandbox in a process of its own, widened: ``python -m tests.bench.market --copies 18``.

The sandbox sells what was recorded, a few thousand offers. For the benchmark the kinds of seller whose
lists are long in reality get more places: every recorded item is offered again in invented regions, at a
price within a fifth of the recorded one, drawn by seed; all of it is marked illustrative. It prints its
address, serves until its standard input ends, and then prints its CPU seconds.
"""

from __future__ import annotations

import argparse
import resource
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import uvicorn

from providers.sandbox.app import create_sandbox
from providers.sandbox.market import ILLUSTRATIVE, InventoryItem, Market, draw
from providers.sandbox.server import ResettableProtocol, listen

WIDENED = ("skypilot", "gpuhunt", "shadeform", "prime_intellect", "vast")
SEED = 11
_ID_STEP = 50_000_000


def widen(market: Market, copies: int, seed: int) -> int:
    """Offers every recorded item of ``WIDENED`` in ``copies`` invented regions; how many items that adds."""
    added = 0
    for provider in WIDENED:
        for item in market.inventory(provider):
            if item.source != ILLUSTRATIVE:
                added += len(market.add(_copies(item, copies, seed)))
    return added


def _copies(item: InventoryItem, copies: int, seed: int) -> Iterator[InventoryItem]:
    for number in range(1, copies + 1):
        lot = (seed, item.key, number)
        factor = Decimal(round(0.8 + 0.4 * draw(*lot, "price"), 3)).quantize(Decimal("0.001"))
        usd = None if item.usd_per_hour is None else (item.usd_per_hour * factor).quantize(Decimal("0.0001"))
        region, zone, labels = _place(item, number)
        yield replace(
            item,
            region=region,
            zone=zone,
            usd_per_hour=usd,
            capacity=int(draw(*lot, "stock") * 8),
            recorded_on="",
            source=ILLUSTRATIVE,
            price_key=f"{item.price_key}|x{number}",
            pool=f"{item.pool}|x{number}" if item.pool else "",
            labels=labels,
        )


def _place(item: InventoryItem, number: int) -> tuple[str, str, dict[str, object]]:
    """Region, zone and labels of a copy; of Vast.ai the zone is the offer's number."""
    labels = dict(item.labels)
    if item.provider == "vast":
        labels["machine"] = int(item.labels["machine"]) + number * _ID_STEP
        return item.region, str(int(item.zone) + number * _ID_STEP), labels
    region = f"{item.region}-x{number}"
    inside = item.zone.removeprefix(item.region) if item.zone.startswith(item.region) else item.zone
    return region, f"{region}{inside}" if item.zone else "", labels


def main() -> int:
    """Serves until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.market", description=__doc__)
    parser.add_argument("--copies", type=int, default=0)
    parser.add_argument("--seed", type=int, default=SEED)
    wish = parser.parse_args()
    app = create_sandbox(wish.seed)
    widen(app.state.market, wish.copies, wish.seed)
    bound = listen(0)
    config = uvicorn.Config(
        app, http=ResettableProtocol, ws="none", access_log=False, log_level="critical", date_header=False
    )
    server = uvicorn.Server(config)
    print(f"http://127.0.0.1:{bound.getsockname()[1]}", flush=True)
    threading.Thread(target=_stop_at_end_of_input, args=(server,), daemon=True).start()
    server.run(sockets=[bound])
    app.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{used.ru_utime + used.ru_stime:.2f}", flush=True)
    return 0


def _stop_at_end_of_input(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True
    server.force_exit = True


if __name__ == "__main__":
    sys.exit(main())

"""Whatever a provider's answer does, once it answers again its ledger and the tables agree.

Every kind of fault × list, create, get and delete × every seller with ``TEST_PROFILE=nightly``; with every
run of the suite each seller takes its share, so that every pair of fault and call is met by several.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker.domain.basics.errors import ConcurrentChange, ProviderError
from broker.domain.holding.reservation import Idempotency
from providers.registry import SPECS
from providers.sandbox.faults import CREATE_ONLY, FaultKind
from tests.fakes.examples import ALICE
from tests.faults import haste
from tests.faults.broker_life import PATIENT_S, Broker, compared, opened, usual_offer
from tests.faults.lab import Figures, Lab
from tests.faults.profile import NIGHTLY, matrix

pytestmark = pytest.mark.timeout(3600)

SELLERS = [name for name, spec in SPECS.items() if spec.idempotency is not None]
OPERATIONS = ("list", "create", "get", "delete")
PAIRS = [
    (operation, kind)
    for operation in OPERATIONS
    for kind in FaultKind
    if operation == "create" or kind not in CREATE_ONLY
]
SHARE = 4
PATIENCE_S, HANGS_S = (0.5, 1.0) if NIGHTLY else (PATIENT_S, 0.1)
"""Who gives up: at night the broker, by day the market, which ends the connection however busy we are."""
SECONDS = {FaultKind.TIMEOUT_BEFORE: HANGS_S, FaultKind.TIMEOUT_AFTER: HANGS_S, FaultKind.SLOW: 0.1}


def pairs_of(provider: str) -> Iterator[tuple[str, FaultKind]]:
    if NIGHTLY:
        yield from PAIRS
        return
    first = SELLERS.index(provider)
    for turn in range(SHARE):
        yield PAIRS[(first * SHARE + turn * 7) % len(PAIRS)]


def test_the_shares_cover_every_pair() -> None:
    assert {pair for provider in SELLERS for pair in pairs_of(provider)} == set(PAIRS)


async def _story(broker: Broker, operation: str, kind: FaultKind) -> None:
    """Polled, reserved, followed and released, with one call that goes wrong."""
    timing = {"seconds": SECONDS[kind]} if kind in SECONDS else {}
    if operation == "list":
        broker.arm(operation, kind, count=1, **timing)
        with contextlib.suppress(ProviderError):
            await broker.adapter.list_offers(broker.clock.now())
        broker.calm()
    if operation == "create":
        broker.arm(operation, kind, count=1, **timing)
    await broker.reserve()
    if operation == "get":
        broker.arm(operation, kind, count=1, **timing)
    await broker.passes(2)
    if operation == "delete":
        broker.arm(operation, kind, count=1, **timing)
        await _release_first(broker)


async def _release_first(broker: Broker) -> None:
    for row in await broker.rows():
        if row.is_open:
            try:
                await broker.reservations.release(ALICE, row.reservation_id)
            except ConcurrentChange:
                continue


async def _played(broker: Broker, operation: str, kind: FaultKind) -> dict[str, Any]:
    await _story(broker, operation, kind)
    broker.calm()
    await broker.settle()
    found = {"at rest": await compared(broker)}
    await broker.release_all()
    await broker.settle(seconds=1800.0)
    return {**found, "given back": await compared(broker)}


async def _matrix(lab: Lab, provider: str) -> Figures:
    figures = Figures()
    place = lab.place(provider, PATIENCE_S)
    async with opened(place, await usual_offer(place)) as broker:
        for number, (operation, kind) in enumerate(pairs_of(provider)):
            broker.place = replace(broker.place, case=number)
            figures.add(f"{kind} of {operation}", await _played(broker, operation, kind))
    return figures


@pytest.mark.parametrize("provider", matrix(SELLERS))
def test_no_fault_loses_or_doubles_anything(lab: Lab, provider: str) -> None:
    figures = haste.run(_matrix(lab, provider))
    print(f"fault matrix: {provider} = {figures}")
    assert figures.wrong() == [], "\n".join(figures.wrong())
    assert SPECS[provider].idempotency is Idempotency.NEITHER or not figures.nameless

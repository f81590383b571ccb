"""Machines that are not ordered one by one on demand: each node is entered with the order's keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta

import asyncssh
import pytest

from broker.domain.basics.machines import SSH_PORT, Access, PublicKey
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Order
from broker.domain.market.offer import Offer, StockLevel, Tier
from providers.client import Seller
from providers.registry import SPECS
from providers.spec import ProviderAdapter, settings_from_environment
from tests.fakes.market_control import control, hasty, market_now

SCRIPT = '#!/bin/bash\necho "up at $HOST_ADDRESS" > "$HOME/started"\n'
WITH_SCRIPT = "until cat started 2>/dev/null; do sleep 0.05; done"
WITHOUT = 'echo "up at $HOST_ADDRESS"'
LONGEST_WAIT_S, HOURS = 7200, 3
"""A window begins within the one, and lasts for the other."""
BOOT_S, LIMIT_S = 60, 30


async def said(access: Access, port: int, key: asyncssh.SSHKey, command: str) -> str:
    """What a machine answers to somebody with ``key``, once it listens."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                async with asyncssh.connect(
                    access.host,
                    port,
                    username=access.user,
                    client_keys=[key],
                    known_hosts=None,
                    config=None,
                    agent_path=None,
                ) as machine:
                    return str((await machine.run(command)).stdout)
            await asyncio.sleep(0.05)


def is_spot(offer: Offer) -> bool:
    return offer.tier is Tier.SPOT


def is_window(offer: Offer) -> bool:
    return offer.tier is Tier.WINDOW


def is_cluster(offer: Offer) -> bool:
    return "2" in offer.reference["nodes"].split(",")


@pytest.mark.parametrize(
    ("name", "is_wanted", "nodes"),
    [
        ("aws", is_spot, 1),
        ("azure", is_spot, 2),
        ("mithril", is_window, 2),
        ("prime_intellect", is_cluster, 2),
        ("runpod", is_spot, 1),
        ("vast", is_spot, 1),
    ],
)
async def test_each_node_is_entered_where_its_row_says(
    sandbox: str, name: str, is_wanted: Callable[[Offer], bool], nodes: int
) -> None:
    *owners, stranger = [asyncssh.generate_private_key("ssh-ed25519") for _ in range(3)]
    lines = [" ".join(key.export_public_key().decode().split()[:2]) for key in owners]
    settings = settings_from_environment(SPECS[name], {}, sandbox)
    assert settings is not None
    adapter = SPECS[name].build(settings, hasty)
    assert isinstance(adapter, ProviderAdapter)
    assert isinstance(adapter, Seller)
    now = market_now(sandbox)
    start = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    try:
        offer = next(
            offer
            for offer in (await adapter.list_offers(now)).offers
            if is_wanted(offer) and offer.stock.level is not StockLevel.NONE
        )
        has_script = adapter.runs_script(offer)
        order = Order(
            f"broker-nodes-of-{name}".replace("_", "-"),
            offer,
            nodes,
            Window(start, start + timedelta(hours=HOURS)) if offer.window is not None else None,
            wait_s=LONGEST_WAIT_S,
            keys=tuple(PublicKey(f"key of {number}", line) for number, line in enumerate(lines)),
            script=SCRIPT if has_script else "",
        )
        lease = await adapter.reserve(order)
        assert lease.machines == ()
        control(sandbox, "clock", advance_s=LONGEST_WAIT_S + BOOT_S)
        (held,) = [one for one in await adapter.list_leases() if one.tag == order.tag]
        assert len({access.host for access in held.machines}) == nodes
        command = WITH_SCRIPT if has_script else WITHOUT
        for access in held.machines:
            port = adapter.ssh_port if access.port == SSH_PORT else access.port
            for key in owners[: adapter.most_keys]:
                assert await said(access, port, key, command) == f"up at {access.host}\n"
            with pytest.raises(asyncssh.PermissionDenied):
                await said(access, port, stranger, command)
        await adapter.release(lease)
    finally:
        await adapter.aclose()

"""Sellers whose rows say a port: their machines are entered there, with the order's keys alone."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import asyncssh
import pytest

from broker.domain.basics.machines import Access, PublicKey
from broker.domain.market.offer import Tier
from providers.registry import SPECS
from providers.spec import ProviderAdapter, settings_from_environment
from tests.contract.journey import by_kind, order_of
from tests.fakes.market_control import control, hasty, market_now

SCRIPT = '#!/bin/bash\necho "up at $HOST_ADDRESS" > "$HOME/started"\n'
WITH_SCRIPT = "until cat started 2>/dev/null; do sleep 0.05; done"
WITHOUT = 'echo "up at $HOST_ADDRESS"'
TAKES_ONE_KEY = {"prime_intellect"}
BOOT_S, LIMIT_S = 60, 30


async def said(access: Access, key: asyncssh.SSHKey, command: str) -> str:
    """What a machine answers to somebody with ``key``, once it listens."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                login = {"username": access.user, "client_keys": [key], "agent_path": None}
                async with asyncssh.connect(
                    access.host, access.port, known_hosts=None, config=None, **login
                ) as machine:
                    return str((await machine.run(command)).stdout)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        ("prime_intellect", Tier.ON_DEMAND),
        ("runpod", Tier.ON_DEMAND),
        ("runpod", Tier.SPOT),
        ("shadeform", Tier.ON_DEMAND),
        ("vast", Tier.ON_DEMAND),
        ("vast", Tier.SPOT),
    ],
)
async def test_a_machine_is_entered_at_the_port_of_its_row(sandbox: str, name: str, tier: Tier) -> None:
    *owners, stranger = [asyncssh.generate_private_key("ssh-ed25519") for _ in range(3)]
    lines = [" ".join(key.export_public_key().decode().split()[:2]) for key in owners]
    settings = settings_from_environment(SPECS[name], {}, sandbox)
    assert settings is not None
    adapter = SPECS[name].build(settings, hasty)
    assert isinstance(adapter, ProviderAdapter)
    try:
        offers = (await adapter.list_offers(market_now(sandbox))).offers
        offer = next(alike[0] for alike in by_kind(offers) if alike[0].tier is tier)
        has_script = adapter.runs_script(offer)
        order = replace(
            order_of(f"broker-{name}-{tier}".replace("_", "-"), offer),
            keys=tuple(PublicKey(f"key of {number}", line) for number, line in enumerate(lines)),
            script=SCRIPT if has_script else "",
        )
        lease = await adapter.reserve(order)
        assert lease.machines == ()
        control(sandbox, "clock", advance_s=BOOT_S)
        (access,) = next(one.machines for one in await adapter.list_leases() if one.tag == order.tag)
        assert sandbox.endswith(f":{access.port}")
        command = WITH_SCRIPT if has_script else WITHOUT
        for key in owners[: 1 if name in TAKES_ONE_KEY else None]:
            assert await said(access, key, command) == f"up at {access.host}\n"
        with pytest.raises(asyncssh.PermissionDenied):
            await said(access, stranger, command)
        await adapter.release(lease)
    finally:
        await adapter.aclose()

"""Whoever orders a machine gets into it with OpenSSH, at every seller that takes keys, until it ends."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.domain.basics.errors import InsufficientCapacity
from broker.domain.basics.machines import SSH_PORT, Access, PublicKey, read_public_key
from broker.domain.holding.reservation import Lease
from broker.domain.market.offer import Offer
from providers.client import Entry, KeyRegister, Seller
from providers.registry import SPECS, build_adapters, configured
from providers.sandbox import SandboxHandle, create_sandbox
from providers.sandbox.app import Sandbox
from providers.sandbox.seller import SCRIPTS, SSH_KEYS
from providers.sandbox.server import serve_in_background
from providers.spec import Capability, ProviderAdapter
from tests.contract.journey import by_kind, order_of
from tests.fakes.market_control import control, hasty
from tests.fakes.provider import keeping

NAMES = tuple(name for name, spec in SPECS.items() if Capability.RESERVE in spec.capabilities)
LATER_S = 1800
HANGS_S = 30.0
"""Only a machine that hangs waits so long."""
SCRIPT = "#!/bin/bash\necho 'started by the order' > begun\nmv begun proof\n"
READ_PROOF = "until [ -e proof ]; do sleep 0.02; done; cat proof"

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh: install openssh-client")


@dataclass(frozen=True)
class Pair:
    """A key pair of OpenSSH. ``private``: its file."""

    private: Path
    public: PublicKey


@dataclass(frozen=True)
class Market:
    """A sandbox over sockets, and its state."""

    app: Sandbox
    handle: SandboxHandle

    def stored(self, kind: str, name: str) -> list[str]:
        """Names of what a seller keeps of a kind."""
        return [str(row.get("name")) for row in self.app.state.store.documents(f"{kind}/{name}").values()]


@pytest.fixture(scope="module")
def market() -> Iterator[Market]:
    app = create_sandbox(11)
    handle = serve_in_background(app, 0)
    yield Market(app, handle)
    handle.stop()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Pair]:
    folder = tmp_path_factory.mktemp("keys")
    return [_pair(folder / name) for name in ("ann", "bob", "guest")]


def _pair(file: Path) -> Pair:
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", file.name, "-f", str(file)]
    subprocess.run(made, check=True, timeout=HANGS_S)
    line, name = read_public_key(file.with_suffix(".pub").read_text())
    return Pair(file, PublicKey(name, line))


def _ssh(access: Access, port: int, pair: Pair, command: str) -> subprocess.CompletedProcess[str]:
    options = {
        "BatchMode": "yes",
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    where = ["-i", str(pair.private), "-p", str(port), f"{access.user}@{access.host}"]
    return subprocess.run(
        ["ssh", "-F", "none", *words, *where, command],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
    )


def _await_port(host: str, port: int, *, is_open: bool) -> None:
    """Waits until somebody listens, or nobody any more: the sandbox looks at its machines twice a second."""
    until = time.monotonic() + HANGS_S
    while _listens(host, port) is not is_open:
        assert time.monotonic() < until, f"{host}:{port} is {'closed' if is_open else 'still open'}"
        time.sleep(0.05)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=HANGS_S).close()
    except ConnectionRefusedError:
        return False
    return True


async def _bought(
    adapter: ProviderAdapter, offers: Sequence[Offer], keys: tuple[PublicKey, ...]
) -> tuple[Lease, Offer]:
    for number, offer in enumerate(offers):
        order = order_of(f"broker-access-{number}", offer)
        script = SCRIPT if adapter.runs_script(offer) else ""
        with suppress(InsufficientCapacity):
            return await adapter.reserve(replace(order, keys=keys, script=script)), offer
    raise AssertionError(f"none of {len(offers)} offers of {adapter.provider} could be bought")


async def _listed(adapter: ProviderAdapter, lease: Lease) -> Lease:
    (found,) = [one for one in await adapter.list_leases() if one.reference == lease.reference]
    return found


@pytest.mark.parametrize("name", NAMES)
async def test_keys_of_an_order_open_its_machine_while_it_lasts(
    name: str, market: Market, pairs: Sequence[Pair]
) -> None:
    ann, bob, guest = pairs
    settings = configured({}, market.handle.url)[name]
    adapter = build_adapters({name: settings}, hasty)[name]
    other = build_adapters({name: replace(settings, tag_prefix="guests")}, hasty)[name]
    assert isinstance(adapter, ProviderAdapter)
    assert isinstance(adapter, Seller)
    try:
        sold = [
            offer
            for alike in by_kind((await adapter.list_offers(datetime.now(UTC))).offers)
            for offer in alike
        ]
        opened = [offer for offer in sold if adapter.entry_of(offer) is Entry.KEYS]
        lease, offer = await _bought(adapter, opened or sold, (ann.public, bob.public))
        control(market.handle.url, "clock", advance_s=LATER_S)
        if not opened:
            assert (await _listed(adapter, lease)).machines == (), f"{name} can be entered: {adapter.entry}"
            return

        (access, *_) = (await _listed(adapter, lease)).machines
        port = adapter.ssh_port if access.port == SSH_PORT else access.port
        _await_port(access.host, port, is_open=True)
        told = _ssh(access, port, ann, READ_PROOF if adapter.runs_script(offer) else "echo no script")
        assert (told.stdout.strip(), told.stderr) == (
            "started by the order" if adapter.runs_script(offer) else "no script",
            "",
        )
        if adapter.most_keys is None:
            assert _ssh(access, port, bob, "true").returncode == 0
        assert _ssh(access, port, guest, "true").returncode != 0

        registered = market.stored(SSH_KEYS, name)
        if registered and isinstance(other, KeyRegister):
            await other.registered([guest.public])
        foreign = market.stored(SSH_KEYS, name)[len(registered) :]
        await adapter.drop_keys(keeping(ann.public.line, bob.public.line))
        assert market.stored(SSH_KEYS, name) == [*registered, *foreign]
        assert market.stored(SCRIPTS, name) == [], "a script stays after the start"

        await adapter.release(lease)
        control(market.handle.url, "clock", advance_s=LATER_S)
        _await_port(access.host, port, is_open=False)
        await adapter.drop_keys(keeping())
        assert market.stored(SSH_KEYS, name) == foreign
    finally:
        await adapter.aclose()
        await other.aclose()

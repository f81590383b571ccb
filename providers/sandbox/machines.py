"""Machines of the sandbox that can be entered: an SSH server on a loopback address for each node that is up.

A node opens to the public keys that its order carried or named, in whatever form the seller has, and to
those in its ``~/.ssh/authorized_keys``. It runs what people start on it as processes of this computer, in a
folder of its own. It starts with the shell script of its order. Its processes end with the lease. Nothing
here isolates: a machine is as safe as the account that runs the sandbox.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncssh
import structlog

from broker.domain.basics.machines import KEY_KINDS
from providers.sandbox.ledger import Entry
from providers.sandbox.protocol import SandboxState
from providers.sandbox.seller import ADDRESSES, SSH_KEYS, SellerProtocol, SellerState

LOOK_EVERY_S = 0.5
_LONGEST_WAIT_S = 5.0
_SHELL = "/bin/bash"
_BIN = ".bin"
_SSH_FOLDER = re.compile(r"/(?:root|home/[\w-]+)/\.ssh\b")

_log = structlog.get_logger(__name__)


def strings_in(part: Any) -> Iterator[str]:
    """Every text in a JSON value, and what Base64 texts decode to."""
    if isinstance(part, Mapping):
        for key, item in part.items():
            yield str(key)
            yield from strings_in(item)
    elif isinstance(part, list | tuple):
        for item in part:
            yield from strings_in(item)
    elif isinstance(part, str):
        yield part
        with contextlib.suppress(binascii.Error, UnicodeDecodeError, ValueError):
            yield base64.b64decode(part, validate=True).decode()


def key_lines(request: Any, registered: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """The public keys, as ``kind base64``, that an order carries, or names among the ``registered`` ones.

    ``registered``: bodies with ``id``, ``name`` and ``public_key``.
    """
    texts = list(strings_in(request))
    named = set(texts)
    for body in registered.values():
        if not named.isdisjoint({str(body["id"]), str(body["name"])}):
            texts += [str(body["public_key"])]
    words = [text.replace('"', " ").replace("'", " ").split() for text in texts]
    # Google's form of a key is ``user:kind base64``.
    pairs = [(kind.rpartition(":")[2], body) for line in words for kind, body in pairwise(line)]
    return frozenset(f"{kind} {body}" for kind, body in pairs if kind in KEY_KINDS)


def script_in(request: Any) -> str:
    """The shell script that an order carries; empty without one."""
    return next((text for text in strings_in(request) if text.startswith("#!")), "")


@dataclass
class Machine:
    """One node that is up: its address, its folder, and the processes that run on it."""

    address: str
    home: Path
    keys: frozenset[str]
    listener: asyncssh.SSHAcceptor | None = None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nobody becomes the computer's own root on a machine: its ``sudo`` refuses."""
        sudo = self.home / _BIN / "sudo"
        sudo.parent.mkdir(parents=True, exist_ok=True)
        sudo.write_text("#!/bin/sh\nexit 1\n")
        sudo.chmod(0o755)

    def opens_to(self, line: str) -> bool:
        """Whether the public key ``line``, as ``kind base64``, opens it."""
        if line in self.keys:
            return True
        granted = self.home / ".ssh" / "authorized_keys"
        known = granted.read_text().splitlines() if granted.is_file() else ()
        return any(line.split() == one.split()[:2] for one in known)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its processes. Servers bind ``HOST_ADDRESS``, since all machines share a host."""
        kept = {name: os.environ[name] for name in ("LANG", "TERM") if name in os.environ}
        kept["PATH"] = f"{self.home / _BIN}:{os.environ.get('PATH', os.defpath)}"
        return {**kept, "HOME": str(self.home), "HOST_ADDRESS": self.address, "SHELL": _SHELL}

    def spawn(self, arguments: list[str], **streams: Any) -> subprocess.Popen[bytes]:
        """Starts a process in a group of its own, which ends with the machine."""
        child = subprocess.Popen(  # noqa: S603  the owner of a key runs what they like
            arguments, cwd=self.home, env=self.environment, start_new_session=True, **streams
        )
        self.processes = [one for one in self.processes if one.poll() is None]
        self.processes.append(child)
        return child

    def boot(self, script: str) -> None:
        """Runs the script of the order; its output goes to ``startup.log`` in the home folder.

        All users of a machine share its home folder: a key that the script lets in never reaches the account
        that runs the sandbox.
        """
        file = self.home / "startup.sh"
        file.write_text(_SSH_FOLDER.sub(f"{self.home}/.ssh", script))
        with (self.home / "startup.log").open("wb") as log:
            self.spawn([_SHELL, str(file)], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    async def stop(self) -> None:
        """Closes the port, and ends every process."""
        if self.listener is not None:
            self.listener.close()
            await self.listener.wait_closed()
        for child in self.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        for child in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(child.wait, _LONGEST_WAIT_S)
        for left in _processes_at(self.home):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(left, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)


def _processes_at(home: Path) -> Iterator[int]:
    """Processes whose home folder is ``home``: also those that outlived their session, as with ``nohup``."""
    wanted = f"HOME={home}".encode()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in file.read_bytes().split(b"\0"):
                yield int(file.parent.name)


class _Door(asyncssh.SSHServer):
    """Lets in the keys of one machine, under any user name."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def begin_auth(self, username: str) -> bool:
        """Everybody has to show a key."""
        return True

    def public_key_auth_supported(self) -> bool:
        """The only way in."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Whether the order carried this key."""
        kind, body = key.export_public_key().decode().split()[:2]
        return self._machine.opens_to(f"{kind} {body}")

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        """Ports are forwarded to loopback addresses only."""
        return dest_host == "localhost" or dest_host.startswith("127.")


async def open_door(machine: Machine, port: int, host_key: asyncssh.SSHKey) -> asyncssh.SSHAcceptor:
    """The SSH server of a machine, on ``port`` of its address. Raises OSError."""
    return await asyncssh.listen(
        machine.address,
        port,
        server_factory=lambda: _Door(machine),
        server_host_keys=[host_key],
        process_factory=lambda process: _serve(machine, process),
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=os.fsencode(machine.home)),
        allow_scp=True,
        encoding=None,
    )


class Machines:
    """The nodes that are up. ``port``: the TCP port of every SSH server, each on an address of its own."""

    def __init__(self, state: SandboxState, protocols: Mapping[str, object], port: int) -> None:
        self._state = state
        self._sellers = {
            name: protocol if isinstance(protocol, SellerProtocol) else SellerState(state, name, 0.0)
            for name, protocol in protocols.items()
        }
        self._port = port
        self._up: dict[tuple[str, str, int], Machine] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="sandbox-machines-"))
        self._host_keys: dict[str, asyncssh.SSHKey] = {}

    async def run(self) -> None:
        """Follows the ledger until it is cancelled."""
        try:
            while True:
                await self.follow()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Ends every machine."""
        for machine in self._up.values():
            await machine.stop()
        self._up.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def follow(self) -> None:
        """Starts the nodes that came up since the last look, and ends those whose lease is over."""
        now = self._state.clock.now()
        wanted = {
            (entry.provider, entry.instance_id, node): (entry, address)
            for entry in self._state.ledger.live(None, now)
            if entry.provider in self._sellers and self._sellers[entry.provider].is_up(entry)
            for node, address in enumerate(entry.detail.get(ADDRESSES, ()))
        }
        for key in self._up.keys() - wanted.keys():
            await self._up.pop(key).stop()
        for key in wanted.keys() - self._up.keys():
            self._up[key] = await self._start(*wanted[key])

    async def _start(self, entry: Entry, address: str) -> Machine:
        registered = self._state.store.documents(f"{SSH_KEYS}/{entry.provider}")
        home = self._folder / address
        home.mkdir(parents=True, exist_ok=True)
        machine = Machine(address, home, key_lines(entry.detail, registered))
        script = script_in(entry.detail)
        if script:
            machine.boot(script)
        if machine.keys:
            try:
                machine.listener = await open_door(machine, self._port, self._host_key(address))
            except OSError as error:
                _log.warning("a sandbox machine cannot listen", address=address, error=str(error))
        return machine

    def _host_key(self, address: str) -> asyncssh.SSHKey:
        """The host key of an address, which stays the same while its lease lasts, over restarts too."""
        kept = self._state.store.document("host_key", address)
        if kept is None:
            made = asyncssh.generate_private_key("ssh-ed25519")
            kept = {"key": made.export_private_key().decode()}
            with self._state.store.transaction():
                self._state.store.put_document("host_key", address, kept)
        return asyncssh.import_private_key(kept["key"])


async def _serve(machine: Machine, process: asyncssh.SSHServerProcess[bytes]) -> None:
    """One session: a command, or a shell; with a terminal where one was asked for."""
    arguments = [_SHELL, "-l"] if process.command is None else [_SHELL, "-c", process.command]
    if process.term_type is None:
        child = machine.spawn(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    else:
        ours, theirs = pty.openpty()
        child = machine.spawn(arguments, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        await process.redirect(stdin=os.dup(ours), stdout=ours)
    status = await asyncio.to_thread(child.wait)
    await process.stdout.drain()
    await process.stderr.drain()
    process.exit(status if status >= 0 else 128 - status)
    await process.wait_closed()

"""A start over SSH on a machine of the sandbox: once, whoever asks; nothing of it outlives the machine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import asyncssh
import pytest

from api.machine_start import FOLDER, MachineStarter
from broker.domain.basics.machines import Access
from broker.domain.holding.starting import StartReport, Unreached
from broker.ports.holding import Start
from broker.store.accounts.own_ssh_key import make_key_pair
from providers.sandbox.machines import Machine, open_door

OWN = make_key_pair()
COUNTED = '#!/bin/bash\necho "$SECRET" >> "$HOME/begun"\n'


@dataclass
class Site:
    """A machine that listens, and the start that it is asked for."""

    machine: Machine
    start: Start

    async def ask(self, script: str | None = None, name: str | None = None) -> StartReport | Unreached:
        start = replace(self.start, script=script or self.start.script, name=name or self.start.name)
        return await MachineStarter().start(start)

    async def ended(self, script: str, name: str = "broker-1") -> StartReport:
        """The report once the script has ended."""
        until = time.monotonic() + 20
        while not (isinstance(found := await self.ask(script, name), StartReport) and found.has_ended):
            assert time.monotonic() < until, found
            await asyncio.sleep(0.05)
        return found

    def lines(self) -> list[str]:
        begun = self.machine.home / "begun"
        return begun.read_text().splitlines() if begun.exists() else []


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    machine = Machine("127.0.0.1", tmp_path / "home", frozenset({OWN.public.line}))
    machine.listener = await open_door(machine, 0, host_key)
    port = machine.listener.get_port()
    shown = " ".join(host_key.export_public_key().decode().split()[:2])
    yield Site(machine, Start("broker-1", Access("127.0.0.1", "root", port), shown, OWN.private, COUNTED))
    await machine.stop()


async def test_however_often_it_is_asked_a_script_runs_once(site: Site) -> None:
    reports = await asyncio.gather(*(site.ask() for _ in range(6)))
    assert all(isinstance(one, StartReport) for one in reports), reports
    assert (await site.ended(COUNTED)).exit_code == 0
    assert len(site.lines()) == 1
    await site.ended(COUNTED, "broker-2")
    assert len(site.lines()) == 2, "another unit on the same machine has a start of its own"


async def test_a_script_s_code_and_last_lines_are_told_and_its_text_is_gone(site: Site) -> None:
    report = await site.ended("#!/bin/sh\nTOKEN=swordfish-4711\nseq 100\necho no disk >&2\nexit 3\n")
    assert (report.exit_code, report.output.splitlines()[-1]) == (3, "no disk")
    assert len(report.output.splitlines()) == 20
    files = [file for file in (site.machine.home / FOLDER).rglob("*") if file.is_file()]
    assert files
    assert not any("swordfish" in file.read_text() for file in files)


async def test_a_killed_script_left_no_code(site: Site) -> None:
    assert await site.ask("#!/bin/sh\nsleep 60\n") == StartReport(False)
    assert await site.ask("#!/bin/sh\nsleep 60\n") == StartReport(False)
    pid = int((site.machine.home / FOLDER / "broker-1" / "pid").read_text())
    os.kill(pid, 9)
    assert await site.ask() == StartReport(True)
    assert site.lines() == []


async def test_half_a_script_is_not_run(site: Site) -> None:
    async with asyncssh.connect(
        "127.0.0.1",
        site.start.access.port,
        client_keys=[asyncssh.import_private_key(OWN.private)],
        known_hosts=None,
        config=None,
    ) as machine:
        cut = await machine.run(MachineStarter.command(site.start.name, 500), input="#!/bin/sh\n")
    assert cut.exit_status == 75
    assert not (site.machine.home / FOLDER / site.start.name).exists()


async def test_another_host_key_is_sent_nothing(site: Site) -> None:
    other = " ".join(make_key_pair().public.line.split()[:2])
    report = await MachineStarter().start(replace(site.start, host_key=other))
    assert isinstance(report, Unreached)
    assert report.is_final
    await asyncio.sleep(0.2)
    assert not (site.machine.home / FOLDER).exists()


async def test_who_is_not_let_in_may_try_again(site: Site) -> None:
    report = await MachineStarter().start(replace(site.start, private_key=make_key_pair().private))
    assert isinstance(report, Unreached)
    assert not report.is_final
    closed = replace(site.start, access=replace(site.start.access, port=9))
    refused = await MachineStarter().start(closed)
    assert isinstance(refused, Unreached)
    assert not refused.is_final


async def test_what_a_script_left_running_ends_with_the_machine(site: Site) -> None:
    await site.ended('#!/bin/bash\nnohup sleep 300 > /dev/null 2>&1 &\necho $! > "$HOME/left"\n')
    left = int((site.machine.home / "left").read_text())
    os.kill(left, 0)
    await site.machine.stop()
    until = time.monotonic() + 10
    while Path(f"/proc/{left}").exists() and " Z " not in Path(f"/proc/{left}/stat").read_text():
        assert time.monotonic() < until
        await asyncio.sleep(0.05)


async def test_keys_that_a_script_lets_in_open_the_machine(site: Site) -> None:
    guest = make_key_pair()
    grant = f"mkdir -p ~/.ssh\necho '{guest.public.line} ann' >> ~/.ssh/authorized_keys\n"
    assert await site.ended(f"#!/bin/sh\n{grant}") == StartReport(True, 0)
    asked = replace(site.start, private_key=guest.private)
    assert (await MachineStarter().start(asked)) == StartReport(True, 0)

"""``broker ssh`` and ``broker hosts``: the key that opens a machine, and the machines that are one job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from api.schemas.holding.reservation import reservation_to_document
from broker.domain.basics.machines import Access, Machine, fingerprint_of
from broker.domain.holding.reservation import Reservation
from broker.domain.holding.startup_run import StartupRun, StartupState
from tests.api.test_team_isolation import a_row
from tests.cli.running import broker, fake_server
from tests.export.test_held_part import PLAN_ID, answers
from tests.fakes.clock import NOON
from tests.fakes.examples import PUBLIC_KEY, an_offer

OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEf9F830KLAJHBDWNe1cNap/QN1LEAAAAAAAAAAAAAAAAAAA bob@desk"


def held(name: str, region: str, address: str) -> Reservation:
    """A reservation of service ``chat`` in a region, with a machine."""
    row = a_row(name, -1, 72, workload="chat", offer=replace(an_offer(name), region=region))
    machine = Machine(Access(address, "ubuntu"))
    return replace(row, units=(replace(row.units[0], machines=(machine,)),))


@pytest.mark.parametrize(
    ("lines", "entered", "said"),
    [
        ((PUBLIC_KEY, OTHER_KEY), "-i {folder}/work ubuntu@10.0.0.1", ""),
        ((OTHER_KEY, "not a key"), " 22 ubuntu@10.0.0.1", "no key in {folder} opens it"),
    ],
)
def test_a_machine_is_entered_with_the_key_that_opens_it(
    lines: tuple[str, str], entered: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    folder = tmp_path / ".ssh"
    folder.mkdir()
    for name, line in zip(("work", "home"), lines, strict=True):
        (folder / f"{name}.pub").write_text(f"{line}\n")
        (folder / name).write_text("the private half")
    row = {
        **reservation_to_document(held("one", "us-east", "10.0.0.1"), NOON),
        "ssh_keys": [f"ada@laptop {fingerprint_of(PUBLIC_KEY)}"],
    }
    with fake_server({("GET", "/v1/reservations/rsv-one"): [(200, row)]}) as server:
        env = {**server.env, "HOME": str(tmp_path)}
        done = broker("ssh", "rsv-one", "--print", env=env, width=300)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip().endswith(entered.format(folder=folder))
    assert said.format(folder=folder) in done.stderr
    assert bool(said) == ("ada@laptop" in done.stderr)


@pytest.mark.parametrize(("second", "jobs"), [("us-east", [2]), ("eu-north", [1, 1])])
def test_machines_of_two_places_are_not_one_job(second: str, jobs: list[int]) -> None:
    rows = held("one", "us-east", "10.0.0.1"), held("two", second, "10.0.0.2")
    with fake_server(answers(*rows)) as server:
        run = broker("hosts", PLAN_ID, "--format", "torchrun", env=server.env, width=300)
        fleet = broker("hosts", PLAN_ID, "--format", "dstack", env=server.env, width=300)
    assert run.exit_code == 0, run.output
    lines = [line for line in run.stdout.splitlines() if not line.startswith("#")]
    told = [f"--nnodes={size} --node-rank={rank}" for size in jobs for rank in range(size)]
    assert [line.split("torchrun ")[1].split(" --nproc")[0] for line in lines] == told
    assert ("placement" in yaml.safe_load(fleet.stdout)) == (len(jobs) == 1)


def test_equal_starts_of_a_reservation_are_told_once() -> None:
    waiting = StartupRun(StartupState.WAITING, NOON)
    failed = replace(waiting, state=StartupState.FAILED, exit_code=3, error="one\nno such file")
    row = held("one", "us-east", "10.0.0.1")
    units = tuple(replace(row.units[0], ordinal=at, startup=waiting) for at in range(3))
    rows = (replace(row, units=units), replace(row, units=(*units[:2], replace(units[2], startup=failed))))
    for one, said in zip(rows, ("start: ", "start of units 0, 1: "), strict=True):
        with fake_server(answers(one)) as server:
            done = broker("reservations", "--each", env=server.env, width=400)
        told = " ".join(done.stdout.split())
        assert told.count("once the machines answer") == 1, done.output
        assert f"{said}the broker runs it over SSH once" in told
    assert "start of unit 2: " in told
    assert "no such file" in told

"""Starts over SSH: which orders need one, what is stored of it, and that nothing of it happens twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from broker import crash_points
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.machines import Access, AccessWish, Machine, SshKey
from broker.domain.holding.reservation import Reservation, Unit
from broker.domain.holding.starting import MOST_TRIES, StartReport, Unreached
from broker.domain.holding.startup_run import StartupState
from broker.domain.workloads.startup import SecretName, Startup, StartupSecrets
from broker.ports.holding import Start
from broker.services.holding.machine_setups import MachineSetups
from broker.services.holding.machine_starts import MachineStarts
from broker.services.holding.machines import MachinesService
from broker.services.holding.reserving_requests import OfferOrder
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer
from tests.fakes.provider import Crash
from tests.services.conftest import House

SECRET = "swordfish-4711"
LINE = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICApaeQoxoir3DDcvTFSsiNd0+6fKaZrTd1Hgr8r9n3M"
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMDIJYTYvRnkYXhGyjICu5veCMNcmONNlQj0ODdY9bo"
CALLER = Caller("key-1", "research", frozenset({Scope.RESERVATIONS_WRITE}))
STARTUP = Startup(script="echo $TOKEN > /dev/null", env={"TOKEN": SecretName("TOKEN")})
RUNS, DONE, FAILED = StartReport(False), StartReport(True, 0), StartReport(True, 7, f"bad {SECRET}")


@dataclass
class Ground:
    """Machines that say in turn what ``says`` has; the last is said again."""

    says: list[StartReport | Unreached] = field(default_factory=lambda: [DONE])
    heard: list[Start] = field(default_factory=list)

    async def start(self, start: Start) -> StartReport | Unreached:
        self.heard.append(start)
        await asyncio.sleep(0)
        return self.says.pop(0) if len(self.says) > 1 else self.says[0]

    async def host_key(self, access: Access) -> str | None:
        return HOST_KEY

    async def is_healthy(self, url: str) -> bool:
        return False


@dataclass
class Site:
    """A house with one reservation of a seller without scripts, and its machines."""

    house: House
    ground: Ground
    secrets: dict[str, str] = field(default_factory=lambda: {"TOKEN": SECRET})
    """What the installation has when a machine is asked."""

    def service(self) -> MachinesService:
        units, clock = self.house.tables.unit_of_work, self.house.clock
        lease_service = self.house.reservations._creator._lease_service
        starts = MachineStarts(units, lease_service, self.ground, clock, StartupSecrets(self.secrets))
        return MachinesService(units, {}, self.ground, clock, self.house.notifier, starts)

    async def passes(self, count: int = 1) -> Unit:
        service = self.service()
        for _ in range(count):
            await service.run_once()
            self.house.clock.advance(minutes=6)
        return self.unit

    @property
    def row(self) -> Reservation:
        (row,) = self.house.rows()
        return row

    @property
    def unit(self) -> Unit:
        return self.row.units[0]

    @property
    def events(self) -> list[str]:
        return [one.action for one in self.house.tables.audit if ".start_" in one.action]


async def a_site(
    house: House,
    *says: StartReport | Unreached,
    machines: int = 1,
    access: AccessWish = AccessWish.SSH,
    **provider: Any,
) -> Site:
    """A reservation whose machines have answered."""
    for name, value in {"takes_script": False, "per_order": None, **provider}.items():
        setattr(house.provider, name, value)
    house.sell(an_offer())
    house.tables.ssh_keys["ssh-1"] = SshKey("ssh-1", "ann", "research", LINE, NOON, "key-1")
    creator = house.reservations._creator
    creator.setups = MachineSetups(secrets=StartupSecrets({"TOKEN": SECRET}))
    creator._lease_service._secrets = StartupSecrets({"TOKEN": SECRET})
    order = OfferOrder(an_offer().offer_id, machines, startup=STARTUP, access=access)
    row = await house.reservations.reserve_order(CALLER, order)
    await house.settle(1)
    row = house.tables.reservations[row.reservation_id]
    if row.units[0].reference is not None:
        found = tuple(Machine(Access(f"10.0.0.{n}", "ubuntu"), NOON, HOST_KEY) for n in range(machines))
        house.tables.reservations[row.reservation_id] = row.with_unit(replace(row.units[0], machines=found))
    return Site(house, Ground(list(says) or [DONE]))


def states(site: Site) -> tuple[StartupState, int | None, str]:
    run = site.unit.startup
    assert run is not None
    return run.state, run.exit_code, run.error


async def test_the_start_goes_with_the_order_where_the_seller_takes_it(house: House) -> None:
    site = await a_site(house, takes_script=True)
    assert states(site) == (StartupState.ORDERED, None, "")
    assert SECRET in house.provider.orders[0].script
    assert [key.name for key in house.provider.orders[0].keys] == ["ann"]
    await site.passes(3)
    assert site.ground.heard == []
    assert house.tables.own_keys == []


async def test_elsewhere_the_installation_s_key_goes_first_and_the_script_does_not(house: House) -> None:
    site = await a_site(house)
    (order,) = house.provider.orders
    assert [key.name for key in order.keys] == ["this broker", "ann"]
    assert order.script == ""
    assert states(site)[0] is StartupState.WAITING


async def test_capacity_alone_is_told(house: House) -> None:
    site = await a_site(house, takes_keys=False)
    state, _, error = states(site)
    assert (state, "capacity alone" in error) == (StartupState.IMPOSSIBLE, True)
    await site.passes(2)
    assert site.ground.heard == []


async def test_nobody_enters_but_the_broker_where_nobody_is_to(house: House) -> None:
    site = await a_site(house, access=AccessWish.NONE)
    assert [key.name for key in house.provider.orders[0].keys] == ["this broker"]
    assert (await site.passes()).startup is not None
    assert states(site)[0] is StartupState.DONE


async def test_it_is_begun_and_followed_to_its_end_with_one_event(house: House) -> None:
    site = await a_site(house, RUNS, RUNS, DONE)
    await site.passes()
    assert states(site) == (StartupState.RUNNING, None, "")
    assert site.events == []
    await site.passes(4)
    assert states(site) == (StartupState.DONE, 0, "")
    assert site.events == ["reservation.start_done"]
    assert len(site.ground.heard) == 3, "what is over is not asked again"
    first = site.ground.heard[0]
    assert first.name == site.unit.tag
    assert f"export TOKEN={SECRET}" in first.script
    assert LINE in first.script, "the keys of people are let in by the script"
    assert first.host_key == HOST_KEY
    assert SECRET not in repr(first)
    assert "PRIVATE" not in repr(first)


async def test_a_script_that_failed_is_told_without_secrets_and_never_tried_again(house: House) -> None:
    site = await a_site(house, FAILED)
    await site.passes(5)
    assert states(site) == (StartupState.FAILED, 7, "bad [redacted]")
    assert len(site.ground.heard) == 1
    (event,) = [one for one in house.tables.audit if ".start_" in one.action]
    assert (event.action, event.team) == ("reservation.start_failed", "research")
    assert SECRET not in event.detail
    assert "exit code 7" in event.detail


async def test_a_secret_at_the_edge_of_what_is_shown_is_not_cut_in_two(house: House) -> None:
    site = await a_site(house, StartReport(True, 1, f"{SECRET}{'x' * 1_993}"))
    await site.passes()
    assert "4711" not in states(site)[2]


async def test_a_connection_is_tried_again_up_to_a_limit(house: House) -> None:
    site = await a_site(house, Unreached("no connection over SSH: refused"))
    await site.passes(3)
    state, _, error = states(site)
    assert (state, error) == (StartupState.WAITING, "no connection over SSH: refused")
    await site.passes(MOST_TRIES)
    assert states(site)[0] is StartupState.FAILED
    assert len(site.ground.heard) == MOST_TRIES
    assert site.events == ["reservation.start_failed"]


async def test_a_secret_that_is_gone_by_then_is_named(house: House) -> None:
    site = await a_site(house)
    site.secrets.clear()
    await site.passes()
    state, _, error = states(site)
    assert (state, "BROKER_SECRET_TOKEN" in error) == (StartupState.FAILED, True)
    assert site.ground.heard == []


async def test_each_machine_of_a_unit_is_started(house: House) -> None:
    site = await a_site(house, DONE, StartReport(True, 3, "no disk"), machines=2)
    await site.passes()
    assert sorted(start.access.host for start in site.ground.heard) == ["10.0.0.0", "10.0.0.1"]
    assert states(site) == (StartupState.FAILED, 3, "node 1: no disk")


@pytest.mark.parametrize(
    "point",
    [
        "call.start.before",
        "call.start.after",
        "reservation.start_done.before",
        "reservation.start_done.after",
    ],
)
async def test_a_broker_that_dies_at_any_point_leaves_one_end(
    house: House, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await a_site(house, DONE)

    def die(name: str) -> None:
        if name == point:
            raise Crash

    monkeypatch.setattr(crash_points, "watchers", [die])
    with pytest.raises(Crash):
        await site.service().run_once()
    monkeypatch.setattr(crash_points, "watchers", [])
    await site.passes(2)
    assert states(site)[0] is StartupState.DONE
    assert site.events == ["reservation.start_done"]
    assert {start.name for start in site.ground.heard} == {site.unit.tag}


async def test_every_unit_of_a_reservation_is_stored_in_one_pass(house: House) -> None:
    site = await a_site(house, DONE, machines=3, per_order=1)
    row = site.row
    for unit in row.units:
        row = row.with_unit(replace(unit, machines=(Machine(Access("10.0.0.9", "root"), NOON, HOST_KEY),)))
    house.tables.reservations[row.reservation_id] = row
    await site.passes()
    assert [unit.startup and unit.startup.state for unit in site.row.units] == [StartupState.DONE] * 3
    assert len(site.events) == 3


async def test_two_brokers_store_one_end(house: House) -> None:
    site = await a_site(house, DONE)
    await asyncio.gather(*(site.service().run_once() for _ in range(2)))
    assert states(site)[0] is StartupState.DONE
    assert site.events == ["reservation.start_done"]


async def test_what_was_released_meanwhile_stays_released(house: House) -> None:
    site = await a_site(house, DONE)
    rows: Sequence[Reservation] = [site.row]
    await house.reservations.release(CALLER, site.row.reservation_id)
    starts = site.service()._starts
    assert starts is not None
    await starts.run_once(rows)
    assert states(site)[0] is StartupState.WAITING
    assert site.events == []

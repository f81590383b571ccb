"""SSH keys of a person, by whichever way the person orders."""

from __future__ import annotations

from dataclasses import replace

from broker.domain.basics.access import EVERY_TEAM, TEAM_SCOPES
from broker.domain.basics.account import Caller
from broker.domain.basics.person import Person
from broker.services.accounts.keys import KeysService
from broker.services.accounts.ssh_keys import SshKeysService
from broker.services.holding.machine_setups import MachineSetups
from tests.contract.journey import KEYS
from tests.services.conftest import House

ANN = Person("248289", "ann@example.org", "research", TEAM_SCOPES)


class Desk:
    """Keys of a team, and who they go with."""

    def __init__(self) -> None:
        self.house = House()
        units = self.house.tables.unit_of_work
        self.keys = KeysService(units, self.house.clock)
        self.ssh_keys = SshKeysService(units, self.house.clock)

    async def caller(self, name: str, person: str = "") -> Caller:
        """Who asks with a new API key."""
        _, secret = await self.keys.create_key(name, "research", TEAM_SCOPES, person=person)
        return await self.keys.verify(secret)

    async def going_with(self, caller: Caller) -> list[str]:
        """Names of the keys that go with an order."""
        async with self.house.tables.unit_of_work(EVERY_TEAM) as uow:
            found = await MachineSetups().find_keys(uow, "research", caller.key_id)
        return [key.name for key in found]


async def test_two_api_keys_of_one_person_have_the_ssh_keys_in_common() -> None:
    desk = Desk()
    laptop, ci = await desk.caller("laptop", "ann"), await desk.caller("ci", "ann")
    other = await desk.caller("bob")
    await desk.ssh_keys.add(other, KEYS[1].line, "team")
    mine = await desk.ssh_keys.add(laptop, KEYS[0].line, "mine", person="me")
    assert await desk.ssh_keys.add(ci, KEYS[0].line, "again", person="me") == mine, "it is stored once"
    assert await desk.going_with(laptop) == await desk.going_with(ci) == ["mine", "team"], "their own first"
    assert await desk.going_with(other) == ["team"]
    await desk.ssh_keys.remove(ci, mine.key_id)
    assert await desk.going_with(laptop) == ["team"]


async def test_who_signs_in_keeps_the_keys_under_another_address() -> None:
    desk = Desk()
    await desk.ssh_keys.add(ANN.as_caller(), KEYS[0].line, "mine", person="me")
    married = replace(ANN, name="ann.b@example.org").as_caller()
    assert await desk.going_with(married) == ["mine"]
    assert await desk.going_with(replace(ANN, subject="248290").as_caller()) == [], (
        "another subject is another person"
    )
    key = await desk.caller("laptop", ANN.actor)
    assert await desk.going_with(key) == ["mine"], "an API key that names who signs in"
    assert await desk.going_with(await desk.caller("bare", ANN.name)) == [], "a name is no subject"


async def test_a_seller_that_takes_one_key_gets_the_one_of_who_orders() -> None:
    desk = Desk()
    laptop, other = await desk.caller("laptop", "ann"), await desk.caller("bob")
    await desk.ssh_keys.add(other, KEYS[1].line, "team")
    await desk.ssh_keys.add(laptop, KEYS[0].line, "mine", person="me")
    async with desk.house.tables.unit_of_work(EVERY_TEAM) as uow:
        found = await MachineSetups().find(uow, "research", laptop.key_id, None, [None])
    setup = found[None].with_at_most(1)
    assert ([key.name for key in setup.keys], [key.name for key in setup.left_keys]) == (["mine"], ["team"])
    assert setup.with_at_most(None).keys == found[None].keys, "a move to a seller that takes all has all"
    assert found[None].with_at_most(2) == found[None]


async def test_a_persons_keys_go_with_orders_for_every_team_and_a_teams_only_with_its_own() -> None:
    desk = Desk()
    _, secret = await desk.keys.create_key("root", "admin", TEAM_SCOPES)
    root = await desk.keys.verify(secret)
    await desk.ssh_keys.add(root, KEYS[0].line, "mine", person="me")
    await desk.ssh_keys.add(root, KEYS[1].line, "of the team admin")
    assert await desk.going_with(root) == ["mine"]

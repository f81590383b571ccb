"""The server of a service as the start of its machines: made of the placement that is ordered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import Conflict, FieldProblem, InputError
from broker.domain.basics.machines import AccessWish
from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.machine_setup import MachineSetup
from broker.domain.planning.plan import Placement
from broker.domain.workloads.startup import Startup
from broker.services.holding.machine_setups import MachineSetups
from broker.services.holding.reservation_creator import with_engine
from broker.services.holding.reserving_requests import OfferOrder
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_segment, an_offer
from tests.services.conftest import House

WISH = Startup(engine=True, env={"LEVEL": "INFO"})
SETUP = MachineSetup(AccessWish.NONE, (), WISH, is_engine=True)
PLACEMENT = a_placement(an_offer(), [a_segment(0, 4)], "chat")
INTENT = Intent(an_offer(), 1, NOON, None, "chat", placement=PLACEMENT)


def served(placement: Placement, wish: Startup) -> Startup:
    return replace(wish, engine=False, script=None, image="engine", command=f"--gpu {placement.gpu}")


def refused(placement: Placement, wish: Startup) -> Startup:
    raise InputError("startup", (FieldProblem("/workloads/chat/model", "none", "a model"),))


def test_each_placement_has_its_own_command_also_where_another_takes_its_place() -> None:
    first = with_engine(SETUP, INTENT, served)
    assert first.startup == Startup(image="engine", command=f"--gpu {PLACEMENT.gpu}", env=WISH.env)
    moved = replace(INTENT, placement=replace(PLACEMENT, gpu="L40S"))
    assert (with_engine(first, moved, served).startup or WISH).command == "--gpu L40S"
    lost = replace(INTENT, placement=None)
    assert with_engine(first, lost, served) == first, "nodes that are bought again run what the others do"


def test_what_cannot_be_started_is_not_ordered() -> None:
    with pytest.raises(Conflict, match=r"nothing was ordered.*a model") as caught:
        with_engine(SETUP, INTENT, refused)
    assert caught.value.problems[0].pointer == "/workloads/chat/model"
    scripted = MachineSetup(startup=Startup(script="true"))
    assert with_engine(scripted, INTENT, refused) == scripted


async def test_an_order_of_an_offer_has_no_engine(house: House) -> None:
    house.sell(an_offer())
    house.reservations._creator.setups = MachineSetups()
    caller = Caller("key-1", "research", frozenset({Scope.RESERVATIONS_WRITE}))
    with pytest.raises(Conflict, match="only a plan knows its engines"):
        await house.reservations.reserve_order(caller, OfferOrder(an_offer().offer_id, 1, startup=WISH))
    assert house.rows() == []
    assert house.provider.orders == []

"""When a server is ready: what answers late now and then stays with its balancer, what refuses does not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.machines import Access, Machine
from broker.domain.holding.machine_setup import Served
from broker.services.holding.machines import SILENT_LOOKS, MachinesService
from broker.services.holding.reserving_requests import OfferOrder
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer
from tests.services.conftest import House

CALLER = Caller("key-1", "research", frozenset({Scope.RESERVATIONS_WRITE}))
LATE, REFUSED, WELL = None, False, True


@dataclass
class Server:
    """A server whose health path answers in turn what ``says`` has."""

    says: list[bool | None] = field(default_factory=list)

    async def host_key(self, access: Access) -> str | None:
        return None

    async def is_healthy(self, url: str) -> bool | None:
        assert url == "http://10.0.0.1:8000/health"
        return self.says.pop(0)


@pytest.mark.parametrize(
    ("says", "is_ready"),
    [
        ([WELL], True),
        ([LATE], False),
        ([WELL, LATE, LATE], True),
        ([WELL, *[LATE] * SILENT_LOOKS], False),
        ([WELL, LATE, LATE, WELL, LATE, LATE], True),
        ([WELL, REFUSED], False),
    ],
)
async def test_a_server_is_ready_until_it_refuses_or_stays_silent(
    house: House, says: list[bool | None], is_ready: bool
) -> None:
    house.sell(an_offer())
    row = await house.reservations.reserve_order(CALLER, OfferOrder(an_offer().offer_id, 1))
    await house.settle(1)
    row = house.tables.reservations[row.reservation_id]
    unit = replace(row.units[0], machines=(Machine(Access("10.0.0.1", "ubuntu"), NOON),))
    setup = replace(row.setup, served=Served(8000, "/health", 5.0))
    house.tables.reservations[row.reservation_id] = replace(row.with_unit(unit), setup=setup)
    server = Server(list(says))
    service = MachinesService(house.tables.unit_of_work, {}, server, house.clock, house.notifier)
    for _ in says:
        await service.run_once()
    (seen,) = house.tables.reservations[row.reservation_id].units[0].machines
    assert (server.says, seen.ready_at is not None) == ([], is_ready)

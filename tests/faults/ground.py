"""Where drawn lives are lived: a database that is emptied between them, and a seller with little stock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from broker.domain.basics.errors import InsufficientCapacity
from broker.domain.holding.reservation import Lease, Order
from broker.domain.market.offer import Offer
from broker.store import create_store
from broker.store.tables import Row
from tests.fakes.provider import FakeProvider

STOCK = 6


@dataclass
class Seller(FakeProvider):
    """A provider that has ``stock`` nodes, and remembers at which offer each lease was bought."""

    stock: int = STOCK
    bought: dict[str, Offer] = field(default_factory=dict)

    def open_nodes(self) -> int:
        """Nodes that are held now."""
        return sum(instance.nodes for instance in self.open_instances())

    async def reserve(self, order: Order) -> Lease:
        """Buys, as long as there is stock."""
        before = len(self.ledger)
        known = self._same_token(order)
        if known is None and self.open_nodes() + order.nodes > self.stock:
            raise InsufficientCapacity(self.provider, "sold out")
        try:
            return await super().reserve(order)
        finally:
            self.bought.update({i.reference: order.offer for i in self.ledger[before:]})


class Ground:
    """A database that lives are lived on, one after the other: emptied between them, so that no life compiles
    its statements anew. ``url``: of a migrated one."""

    KEPT = frozenset({"meta"})

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.store = create_store(url)

    def clear(self) -> None:
        """Nothing has happened yet."""
        self.runner.run(self._clear())

    async def _clear(self) -> None:
        async with self.store._engine.begin() as connection:
            for table in reversed(Row.metadata.sorted_tables):
                if table.name not in self.KEPT:
                    await connection.execute(table.delete())

    def close(self) -> None:
        """The last life is over."""
        self.runner.run(self.store.close())
        self.runner.close()

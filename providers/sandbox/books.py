"""What one provider of the sandbox sells and has sold: its part of stock, prices and ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from broker.domain.basics.money import ZERO
from providers.sandbox.ledger import Entry, Tariff
from providers.sandbox.market import InventoryItem
from providers.sandbox.wire import World


class Books:
    """The books of ``provider``; ``ending_s``: how long what was given back can still be seen."""

    def __init__(self, world: World, provider: str, ending_s: float) -> None:
        self._world, self._provider, self._releaser = world, provider, timedelta(seconds=ending_s)

    @property
    def _now(self) -> datetime:
        return self._world.clock.now()

    def cells(self, **like: str) -> list[InventoryItem]:
        """Cells on sale, those whose fields (``sku``, ``region``, ``tier`` …) are like this."""
        cells = self._world.market.cells(self._provider)
        return [c for c in cells if all(getattr(c, name) == value for name, value in like.items())]

    def price(self, cell: InventoryItem) -> Decimal:
        """USD per unit and hour; zero where the provider lists no price."""
        return self._world.market.price(cell) or ZERO

    def free(self, cell: InventoryItem) -> int:
        """Units that can be bought now."""
        return self._world.market.free(cell, self._now)

    def free_by_key(self) -> dict[str, int]:
        """Units that can be bought now, by cell key."""
        return self._world.market.free_by_key(self._provider, self._now)

    def new_uuid(self) -> str:
        """A new id of a machine, in the form of a UUID."""
        return str(UUID(hex=self._world.new_id(self._provider, 32)))

    def sell(
        self,
        cell: InventoryItem,
        tag: object,
        tariff: Tariff,
        detail: Mapping[str, Any],
        *,
        instance_id: str = "",
        sku: str = "",
        tier: str = "",
        nodes: int = 1,
        units: int | None = None,
        fails: bool = False,
    ) -> Entry:
        """Writes what is bought of ``cell`` from now on.

        What is not given: a new UUID, the cell's own ``sku`` and ``tier``, as many units as nodes.
        ``fails``: once it should be up, it turns out that there was no capacity.
        """
        now = self._now
        entry = Entry(
            provider=self._provider,
            instance_id=instance_id or self.new_uuid(),
            tag=str(tag),
            sku=sku or cell.sku,
            region=cell.region,
            zone=cell.zone,
            tier=tier or cell.tier,
            nodes=nodes,
            units=nodes if units is None else units,
            stock_key=cell.stock_key,
            created_at=now,
            starts_at=now,
            failed_at=now + self._boot if fails else None,
            tariff=tariff,
            detail=detail,
        )
        return self._world.ledger.write(entry)

    @property
    def _boot(self) -> timedelta:
        return timedelta(seconds=self._world.durations.boot_s)

    def up_at(self, entry: Entry) -> datetime:
        """When it has booted."""
        return entry.created_at + self._boot

    def booted(self, entry: Entry) -> float:
        """The share of its boot that is behind it, 1 and above once it is up."""
        return (self._now - entry.created_at) / self._boot if self._boot else 1.0

    def is_gone(self, entry: Entry) -> bool:
        """Whether it ended so long ago that it cannot be seen any more."""
        over_at = entry.released_at or entry.ends_at
        return over_at is not None and over_at + self._releaser <= self._now

    def kept(self) -> list[Entry]:
        """What can be seen, oldest first."""
        return [entry for entry in self._world.ledger.entries(self._provider) if not self.is_gone(entry)]

    def find(self, instance_id: str) -> Entry | None:
        """One of what can be seen."""
        entry = self._world.ledger.find(self._provider, instance_id)
        return None if entry is None or self.is_gone(entry) else entry

    def give_back(self, entry: Entry) -> Entry:
        """Ends it now; what was given back before stays as it is."""
        if entry.released_at is not None:
            return entry
        return self._world.ledger.write(replace(entry, released_at=self._now))

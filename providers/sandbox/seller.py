"""One simulated seller: inventory, its part of the ledger, and the base of protocols behind an API key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from broker.domain.basics.money import ZERO
from providers.sandbox.faults import FaultKind
from providers.sandbox.ledger import Entry, Tariff
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, ProtocolHandler, Refusal, Reply, SandboxState


class SellerState:
    """The books of ``provider``; ``ending_s``: how long what was given back can still be seen."""

    def __init__(self, sandbox: SandboxState, provider: str, ending_s: float) -> None:
        self._sandbox, self._provider, self._releaser = sandbox, provider, timedelta(seconds=ending_s)

    @property
    def _now(self) -> datetime:
        return self._sandbox.clock.now()

    def inventory(self, **like: str) -> list[InventoryItem]:
        """Items on sale, those whose fields (``sku``, ``region``, ``tier`` …) are like this."""
        items = self._sandbox.market.inventory(self._provider)
        return [c for c in items if all(getattr(c, name) == value for name, value in like.items())]

    def price(self, item: InventoryItem) -> Decimal:
        """USD per unit and hour; zero where the provider lists no price."""
        return self._sandbox.market.price(item) or ZERO

    def free(self, item: InventoryItem) -> int:
        """Units that can be bought now."""
        return self._sandbox.market.free(item, self._now)

    def free_by_key(self) -> dict[str, int]:
        """Units that can be bought now, by item key."""
        return self._sandbox.market.free_by_key(self._provider, self._now)

    def new_uuid(self) -> str:
        """A new id of a machine, in the form of a UUID."""
        return str(UUID(hex=self._sandbox.new_id(self._provider, 32)))

    def sell(
        self,
        item: InventoryItem,
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
        """Writes what is bought of ``item`` from now on.

        What is not given: a new UUID, the item's own ``sku`` and ``tier``, as many units as nodes.
        ``fails``: once it should be up, it turns out that there was no capacity.
        """
        now = self._now
        entry = Entry(
            provider=self._provider,
            instance_id=instance_id or self.new_uuid(),
            tag=str(tag),
            sku=sku or item.sku,
            region=item.region,
            zone=item.zone,
            tier=tier or item.tier,
            nodes=nodes,
            units=nodes if units is None else units,
            stock_key=item.stock_key,
            created_at=now,
            starts_at=now,
            failed_at=now + self._boot if fails else None,
            tariff=tariff,
            detail=detail,
        )
        return self._sandbox.ledger.write(entry)

    @property
    def _boot(self) -> timedelta:
        return timedelta(seconds=self._sandbox.durations.boot_s)

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
        return [entry for entry in self._sandbox.ledger.entries(self._provider) if not self.is_gone(entry)]

    def find(self, instance_id: str) -> Entry | None:
        """One of what can be seen."""
        entry = self._sandbox.ledger.find(self._provider, instance_id)
        return None if entry is None or self.is_gone(entry) else entry

    def give_back(self, entry: Entry) -> Entry:
        """Ends it now; what was given back before stays as it is."""
        if entry.released_at is not None:
            return entry
        return self._sandbox.ledger.write(replace(entry, released_at=self._now))


@dataclass(frozen=True, slots=True)
class ErrorForms:
    """A provider's own answers to what every protocol must be able to refuse.

    ``bad_body``: of why the body cannot be read.
    """

    no_key: Reply
    no_path: Reply
    bad_body: Callable[[str], Reply]
    rate_limited: Reply
    no_capacity: Reply
    failed: Reply


class SellerProtocol(ProtocolHandler):
    """A protocol whose calls carry a key, and whose errors do not depend on the call.

    Subclasses give ``errors`` beside ``name`` and ``make_routes``; one that finds the key elsewhere than
    in a bearer header overrides ``key``, one that checks signatures ``authorise``. ``ends_at_once``: what
    was given back is not shown any more.
    """

    ends_at_once: ClassVar[bool] = False

    def __init__(self, sandbox: SandboxState) -> None:
        super().__init__(sandbox)
        self.seller = SellerState(
            sandbox, self.name, 0.0 if self.ends_at_once else sandbox.durations.terminate_s
        )

    @abstractmethod
    def errors(self) -> ErrorForms:
        """The provider's own forms."""

    def key(self, call: Call) -> str | None:
        """The caller's key."""
        return call.key()

    def authorise(self, call: Call) -> None:
        """Refuses a call without a key."""
        if self.key(call) is None:
            raise Refusal(self.errors().no_key)

    def unknown_path(self) -> Reply:
        """The answer to a path that it does not have."""
        return self.errors().no_path

    def malformed_body(self, reason: str) -> Reply:
        """The answer to a body that cannot be read."""
        return self.errors().bad_body(reason)

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """The answer that a fault gives, in the provider's own form."""
        forms = self.errors()
        if kind is FaultKind.RATE_LIMITED:
            return forms.rate_limited
        return forms.no_capacity if kind is FaultKind.OUT_OF_CAPACITY else forms.failed

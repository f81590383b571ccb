"""One simulated seller: inventory, its part of the ledger, and the base of protocols behind an API key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

from broker.domain.basics.machines import SSH_PORT, read_public_key
from broker.domain.basics.money import ZERO
from providers.sandbox.faults import FaultKind
from providers.sandbox.ledger import Entry, Tariff
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, ProtocolHandler, Refusal, Reply, SandboxState

Word = TypeVar("Word")
ADDRESSES = "addresses"
"""The part of an entry's detail with the loopback address of each of its nodes."""
SSH_KEYS = "ssh_keys"
"""The kind, before the seller's name, of the documents of public keys that are registered at a seller."""
SCRIPTS = "scripts"
"""Likewise of start scripts that are stored at a seller."""


@dataclass(frozen=True, slots=True)
class Lifecycle(Generic[Word]):
    """One seller's words for the states of a machine.

    ``booting``: in order, each word and the share of the boot time until which it holds. ``ending``: from
    the release until the machine disappears; without it, a release does not change the word. ``gone``: after
    that; a seller that says the same word for a failed machine never shows such a machine in another state.
    """

    booting: Mapping[Word, float]
    up: Word
    failed: Word
    ending: Word | None = None
    gone: Word | None = None


class SellerState:
    """Inventory, prices and ledger entries of ``provider``.

    ``ending_s``: how long a released machine is still visible, in seconds.
    """

    def __init__(self, sandbox: SandboxState, provider: str, ending_s: float) -> None:
        self._sandbox, self._provider, self._ending = sandbox, provider, timedelta(seconds=ending_s)

    @property
    def _now(self) -> datetime:
        return self._sandbox.clock.now()

    @property
    def _boot(self) -> timedelta:
        return timedelta(seconds=self._sandbox.durations.boot_s)

    def inventory(self, **like: object) -> list[InventoryItem]:
        """Items on sale whose fields (``sku``, ``region``, ``tier`` …) have the given values."""
        items = self._sandbox.market.inventory(self._provider)
        return [item for item in items if all(getattr(item, name) == value for name, value in like.items())]

    def item(self, **like: object) -> InventoryItem | None:
        """The first item on sale with these fields."""
        return next(iter(self.inventory(**like)), None)

    def price(self, item: InventoryItem) -> Decimal:
        """USD per unit and hour; zero where the provider lists no price."""
        return self._sandbox.market.price(item) or ZERO

    def cents(self, item: InventoryItem) -> int:
        """The price in whole US cents."""
        return int((self.price(item) * 100).to_integral_value(ROUND_HALF_EVEN))

    def free(self, item: InventoryItem) -> int:
        """Units that can be bought now."""
        return self._sandbox.market.free(item, self._now)

    def free_by_key(self) -> dict[str, int]:
        """Units that can be bought now, by item key."""
        return self._sandbox.market.free_by_key(self._provider, self._now)

    def new_id(self, length: int) -> str:
        """A new hexadecimal machine id of ``length`` digits."""
        return self._sandbox.new_id(self._provider, length)

    def new_uuid(self) -> str:
        """A new machine id in the form of a UUID."""
        return str(UUID(hex=self.new_id(32)))

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
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        fails: bool = False,
        fails_at: datetime | None = None,
    ) -> Entry:
        """Writes a purchase of ``item`` to the ledger.

        Defaults: a new UUID, the item's own ``sku`` and ``tier``, as many ``units`` of stock as nodes, from
        now on and without an end. ``fails``: the purchase takes no stock, and it turns out at ``fails_at``
        (default: one boot time after its start) that there is no capacity.
        """
        now = self._now
        starts_at = starts_at or now
        entry = item.bought(
            now,
            instance_id or self.new_uuid(),
            str(tag),
            tariff,
            nodes,
            sku=sku or item.sku,
            tier=tier or item.tier,
            units=0 if fails else nodes if units is None else units,
            starts_at=starts_at,
            ends_at=ends_at,
            failed_at=(fails_at or starts_at + self._boot) if fails else None,
            detail={**detail, ADDRESSES: self.new_addresses(nodes)},
        )
        return self._sandbox.ledger.write(entry)

    def new_addresses(self, nodes: int) -> list[str]:
        """A loopback address for each of ``nodes`` new nodes."""
        return [self._new_address() for _ in range(nodes)]

    def _new_address(self) -> str:
        """The next loopback address of this sandbox: 64,516 in turn, in a network drawn by its nonce."""
        network = int(self._sandbox.nonce[:4], 16)
        place = self._sandbox.store.next_number("address") - 1
        return f"127.{16 + network % 224}.{1 + place // 254 % 254}.{1 + place % 254}"

    def ssh_keys(self) -> list[dict[str, Any]]:
        """The registered public keys, oldest first: ``id``, ``name`` and ``public_key``."""
        return list(self._sandbox.store.documents(self._keys_kind).values())

    def add_key(self, name: object, public_key: object, key_id: str = "") -> dict[str, Any]:
        """Registers a public key as ``key_id``, or a new UUID; ValueError without a name or a sound key."""
        if not name:
            raise ValueError("a key has a name")
        read_public_key(str(public_key))
        key_id = key_id or self.new_uuid()
        row = {"id": key_id, "name": str(name), "public_key": str(public_key)}
        self._sandbox.store.put_document(self._keys_kind, key_id, row)
        return row

    def drop_key(self, key_id: str) -> bool:
        """Removes a registered key; False without one of this id."""
        known = self._sandbox.store.document(self._keys_kind, key_id) is not None
        self._sandbox.store.drop_document(self._keys_kind, key_id)
        return known

    @property
    def _keys_kind(self) -> str:
        return f"{SSH_KEYS}/{self._provider}"

    def address(self, entry: Entry, node: int = 0) -> str:
        """The loopback address of a node, which is public and private at once."""
        return str(entry.detail[ADDRESSES][node])

    @property
    def ssh_port(self) -> int:
        """The port on which its machines listen for SSH."""
        return self._sandbox.port or SSH_PORT

    def is_up(self, entry: Entry) -> bool:
        """Whether the machine has booted and is neither ended nor failed."""
        begun = entry.starts_at <= self._now and self.booted(entry) >= 1
        return begun and not entry.failed(self._now) and entry.is_live(self._now) and not entry.is_volume

    def up_at(self, entry: Entry) -> datetime:
        """When the machine has booted."""
        return entry.created_at + self._boot

    def booted(self, entry: Entry) -> float:
        """The share of the boot time that has passed; 1 or more once the machine is up."""
        return (self._now - entry.created_at) / self._boot if self._boot else 1.0

    def state(self, entry: Entry, lifecycle: Lifecycle[Word]) -> Word:
        """The seller's word for the machine's state now."""
        failed = entry.failed(self._now)
        is_gone = self.is_gone(entry) or (failed and lifecycle.failed == lifecycle.gone)
        if lifecycle.gone is not None and is_gone:
            return lifecycle.gone
        if lifecycle.ending is not None and entry.released_at is not None:
            return lifecycle.ending
        if failed:
            return lifecycle.failed
        booted = self.booted(entry)
        return next((word for word, share in lifecycle.booting.items() if booted < share), lifecycle.up)

    def is_gone(self, entry: Entry) -> bool:
        """Whether the machine ended so long ago that it is not visible any more."""
        over_at = entry.released_at or entry.ends_at
        return over_at is not None and over_at + self._ending <= self._now

    def visible(self, **detail: object) -> list[Entry]:
        """Visible machines whose ``detail`` has the given values, oldest first."""
        entries = self._sandbox.ledger.entries(self._provider)
        return [entry for entry in entries if not self.is_gone(entry) and _has(entry, detail)]

    def find(self, instance_id: str, **detail: object) -> Entry | None:
        """One visible machine whose ``detail`` has the given values."""
        entry = self._sandbox.ledger.find(self._provider, instance_id)
        return None if entry is None or self.is_gone(entry) or not _has(entry, detail) else entry

    def release(self, entry: Entry) -> Entry:
        """Ends the machine now; one that was released before stays as it is."""
        if entry.released_at is not None:
            return entry
        return self._sandbox.ledger.write(replace(entry, released_at=self._now))


def _has(entry: Entry, detail: Mapping[str, object]) -> bool:
    return all(entry.detail.get(name) == value for name, value in detail.items())


@dataclass(frozen=True, slots=True)
class ErrorForms:
    """A seller's own error answers.

    ``bad_body`` takes the reason why the body cannot be read, ``no_machine`` the call.
    """

    no_key: Reply
    no_path: Reply
    no_machine: Callable[[Call], Reply]
    bad_body: Callable[[str], Reply]
    rate_limited: Reply
    no_capacity: Reply
    failed: Reply


class SellerProtocol(ProtocolHandler):
    """A protocol whose calls carry an API key, and whose errors do not depend on the call.

    Subclasses give ``errors`` and ``on_sale`` beside ``name`` and ``make_routes``. One that reads the key
    elsewhere than from a bearer header overrides ``key``; one that checks signatures overrides ``authorise``.
    ``ends_at_once``: a released machine disappears at once.
    """

    ends_at_once: ClassVar[bool] = False

    def __init__(self, sandbox: SandboxState) -> None:
        super().__init__(sandbox)
        self.seller = SellerState(
            sandbox, self.name, 0.0 if self.ends_at_once else sandbox.durations.terminate_s
        )
        sandbox.market.add(self.on_sale(sandbox.seed))

    @staticmethod
    @abstractmethod
    def on_sale(seed: int, /) -> Iterable[InventoryItem]:
        """The seller's inventory, drawn by ``seed``."""

    @abstractmethod
    def errors(self) -> ErrorForms:
        """The seller's own error answers."""

    def key(self, call: Call) -> str | None:
        """The caller's key."""
        return call.key()

    def authorise(self, call: Call) -> None:
        """Refuses a call without a key."""
        if self.key(call) is None:
            raise Refusal(self.errors().no_key)

    def unknown_path(self) -> Reply:
        """The answer to a path that the seller does not have."""
        return self.errors().no_path

    def malformed_body(self, reason: str) -> Reply:
        """The answer to a body that cannot be read."""
        return self.errors().bad_body(reason)

    def is_up(self, entry: Entry) -> bool:
        """Whether the machine runs, so that it can be entered."""
        return self.seller.is_up(entry)

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """The seller's own answer to an injected fault."""
        forms = self.errors()
        if kind is FaultKind.RATE_LIMITED:
            return forms.rate_limited
        return forms.no_capacity if kind is FaultKind.OUT_OF_CAPACITY else forms.failed

    def machine(self, call: Call, **detail: object) -> Entry:
        """The visible machine of the path's ``id``, with this ``detail``; Refusal where there is none."""
        entry = self.seller.find(call.parts["id"], **detail)
        if entry is None:
            raise Refusal(self.errors().no_machine(call))
        return entry

    def require_stock(self, item: InventoryItem, units: int = 1) -> None:
        """Refuses an order of more units than can be bought now."""
        if self.seller.free(item) < units:
            raise Refusal(self.errors().no_capacity)

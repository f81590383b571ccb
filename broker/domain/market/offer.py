"""An offer: an immutable observation of what a provider sells, and at which price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.money import MICRO, ZERO
from broker.domain.basics.node_launch import NodeLaunch
from broker.domain.basics.window import Segment
from broker.domain.market.exchange import Exchange
from broker.domain.market.launch_statistics import LaunchStatistics
from broker.domain.market.seller_mode import SellerMode
from broker.domain.market.sku import Sku, SoldAmount


class Tier(StrEnum):
    """The way in which capacity is sold."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    COMMITTED = "committed"
    WINDOW = "window"


class WindowKind(StrEnum):
    """How a provider sells windows; ``listed`` windows are sold whole."""

    LISTED = "listed"
    SLOTS = "slots"
    ORDERBOOK = "orderbook"
    REQUEST = "request"


class WindowBegin(StrEnum):
    """Whether a window begins at its start, or as soon as capacity appears after the order."""

    ON_TIME = "on_time"
    WHEN_AVAILABLE = "when_available"


class WindowBilling(StrEnum):
    """When a provider bills a window: all of it ``at_order``, or the time that passes ``from_start``."""

    AT_ORDER = "at_order"
    FROM_START = "from_start"


class CancelRule(StrEnum):
    """Terms for ending a bought window early.

    ``never``: nothing is refunded. ``until``: it can be cancelled free of charge before its start.
    ``resell``: what is left is sold, to a buyer or back to the provider, at a price that is known afterwards.
    ``any_time``: it is billed up to its end.
    """

    NEVER = "never"
    UNTIL = "until"
    RESELL = "resell"
    ANY_TIME = "any_time"


class StockLevel(StrEnum):
    """Stock as the provider states it. ``some``: it is available now, in an unknown quantity."""

    NONE = "none"
    SOME = "some"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    UNKNOWN = "unknown"


class HostKind(StrEnum):
    """Where a machine is: in a data centre, or at the premises of a private owner (``community``)."""

    DATACENTER = "datacenter"
    COMMUNITY = "community"


@dataclass(frozen=True, slots=True)
class GpuPool:
    """GPUs that several offers share; all of these offers have the same ``pool_id``.

    ``gpus`` is the number of GPUs; None if no seller states it.
    """

    pool_id: str
    gpus: int | None


def fewest_gpus(known: Iterable[int | None]) -> int | None:
    """The smallest of several stated sizes of one pool; None if none is stated."""
    return min((gpus for gpus in known if gpus is not None), default=None)


@dataclass(frozen=True, slots=True)
class Stock:
    """Stock of an offer. ``nodes`` is None if the provider states no number.

    ``pool`` are the GPUs that it shares with other offers. ``held_nodes``: where no number is stated, the
    nodes that the planning team holds already; a plan may keep them in addition to the nodes that it assumes.
    """

    level: StockLevel = StockLevel.UNKNOWN
    nodes: int | None = None
    pool: GpuPool | None = None
    held_nodes: int = 0


@dataclass(frozen=True, slots=True)
class WindowTerms:
    """The windows that an offer sells, and their grid.

    ``segments`` is the free time (``slots``, ``orderbook``), or the windows that are sold whole (``listed``).
    ``anchor_utc`` is the time of day from which starts are counted in steps of ``step_hours`` (None:
    midnight). ``lead_hours`` is the shortest time between order and start. ``teardown_s``: the provider takes
    the nodes back this long before the end that is paid for. ``node_counts`` are the node counts that can be
    bought (None: any); each purchase must be a multiple of ``lot_nodes``.

    A window that ``begins`` ``when_available`` is ordered ``longest_wait_hours`` before its start. It begins
    as soon as capacity appears and lasts for the duration that was bought; if it has not begun by its start,
    it never begins. ``wait_source`` is the source of that wait, because providers promise none.

    ``billed`` is when the provider bills it; the source of this is in ``config/providers``.
    """

    kind: WindowKind
    segments: tuple[Segment, ...]
    anchor_utc: time | None = None
    step_hours: float = 1.0
    durations_hours: tuple[float, ...] | None = None
    lead_hours: float = 0.0
    cancel: CancelRule = CancelRule.NEVER
    teardown_s: int = 0
    node_counts: tuple[int, ...] | None = None
    lot_nodes: int = 1
    begins: WindowBegin = WindowBegin.ON_TIME
    longest_wait_hours: float = 0.0
    wait_source: str = ""
    billed: WindowBilling = WindowBilling.AT_ORDER

    @property
    def is_prepaid(self) -> bool:
        """Whether all of it is billed at the order. What begins when capacity appears never is."""
        return self.billed is WindowBilling.AT_ORDER and not self.waits

    @property
    def waits(self) -> bool:
        """Whether the window begins when capacity appears, not at a fixed time."""
        return self.begins is WindowBegin.WHEN_AVAILABLE

    @property
    def longest_wait(self) -> timedelta:
        """How long capacity may take to appear after the order; zero for a fixed start."""
        return timedelta(hours=self.longest_wait_hours) if self.waits else timedelta(0)

    def sells(self, nodes: int) -> bool:
        """Whether one purchase may be of exactly ``nodes`` nodes."""
        return self.least_sold(nodes) == nodes

    def least_sold(self, nodes: int) -> int | None:
        """The smallest node count on sale that is at least ``nodes``; None if no count is large enough."""
        if self.node_counts is None:
            return -(-max(1, nodes) // self.lot_nodes) * self.lot_nodes
        return min((n for n in self.node_counts if n >= nodes and n % self.lot_nodes == 0), default=None)

    @property
    def counts_in_words(self) -> str:
        """The node counts on sale, as text."""
        if self.node_counts is not None:
            return "one of " + ", ".join(str(n) for n in self.node_counts if n % self.lot_nodes == 0)
        return "any count" if self.lot_nodes == 1 else f"a multiple of {self.lot_nodes}"


@dataclass(frozen=True, slots=True)
class NativePrice:
    """The price as the provider quoted it. ``exchange``: how it counts in USD; None: it is in USD."""

    amount: Decimal
    currency: str
    per: str
    exchange: Exchange | None = None


@dataclass(frozen=True, slots=True)
class ContractTerms:
    """The contract behind an offer's price, and the list prices that it replaces."""

    name: str
    list_usd_per_node_hour: Decimal
    list_upfront_usd: Decimal | None = None


class RateBasis(StrEnum):
    """Source of a rate of interruptions that the provider does not state: own leases, or an assumption."""

    OWN_LEASES = "own leases"
    ASSUMED = "assumed"


SizedId = tuple[str, float | None, float | None]
"""An offer's id, and the disk and memory that are ordered in place of its defaults."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing that a provider sells, as observed at ``observed_at``.

    ``offer_id`` stays the same from poll to poll while the thing on sale is the same. ``zone``, ``host`` and
    ``reliability`` (the share of time up) are None if the provider does not state them. ``upfront_usd`` of a
    ``listed`` window buys all nodes of all segments. ``reference`` is the adapter's own note for the order;
    no other code reads its keys. With ``contract`` the prices are contract prices. ``learned`` are the launch
    statistics of our own orders, if there are any. ``rate_basis`` is the source of the rate of interruptions,
    if the provider states none. ``place`` is the operator and its data centre or region, the same for every
    seller; by default it is the seller and its zone or region. Nothing can be held after ``available_until``.
    ``launch`` is the time from the order until weights can be loaded; None means at once. ``disk`` and
    ``memory`` are amounts that the buyer chooses (None: fixed, or not stated); ``sku`` has the chosen ones.
    ``mode`` says whether the seller was real when the offer was polled (None: a price list, or not known).
    ``launch_chance`` is a stated chance that an order succeeds (None: ``launch_chance_of`` derives it).
    """

    offer_id: str
    provider: str
    sku: Sku
    region: str
    tier: Tier
    price_usd_per_node_hour: Decimal
    observed_at: datetime
    source: str
    native: NativePrice
    zone: str | None = None
    country: str | None = None
    seller: str | None = None
    upfront_usd: Decimal | None = None
    min_hours: float = 0.0
    billing_increment_s: int = 3600
    window: WindowTerms | None = None
    stock: Stock = Stock()
    compliance: frozenset[str] = frozenset()
    interruptions_per_hour: float | None = None
    reference: Mapping[str, str] = field(default_factory=dict, hash=False)
    contract: ContractTerms | None = None
    learned: LaunchStatistics | None = None
    rate_basis: RateBasis | None = None
    place: str = ""
    host: HostKind | None = None
    reliability: float | None = None
    available_until: datetime | None = None
    launch: NodeLaunch | None = None
    disk: SoldAmount | None = None
    memory: SoldAmount | None = None
    mode: SellerMode | None = None
    launch_chance: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Sets the default place, and the default amounts of what the buyer chooses."""
        if not self.place:
            object.__setattr__(self, "place", f"{self.seller or self.provider}/{self.zone or self.region}")
        if self.disk is not None and self.sku.disk_gb is None:
            object.__setattr__(self, "sku", replace(self.sku, disk_gb=self.disk.default_gb))
        if self.memory is not None and self.sku.memory_gb is None:
            object.__setattr__(self, "sku", replace(self.sku, memory_gb=self.memory.default_gb))

    @property
    def chosen_disk_gb(self) -> float | None:
        """Disk of the order where it differs from the default, else None."""
        return _chosen(self.disk, self.sku.disk_gb)

    @property
    def chosen_memory_gb(self) -> float | None:
        """Memory of the order where it differs from the default, else None."""
        return _chosen(self.memory, self.sku.memory_gb)

    @property
    def sized_id(self) -> SizedId:
        """What tells the offer from its other sizes."""
        return self.offer_id, self.chosen_disk_gb, self.chosen_memory_gb

    def sized(self, disk_gb: float | None, memory_gb: float | None) -> Offer:
        """The offer with other amounts of what the buyer chooses, at their price; None: the default.

        Amounts that are fixed stay. The caller sees to the seller's limits.
        """
        disk, disk_usd = _resized(self.disk, self.sku.disk_gb, disk_gb)
        memory, memory_usd = _resized(self.memory, self.sku.memory_gb, memory_gb)
        sku = replace(self.sku, disk_gb=disk, memory_gb=memory)
        return self if sku == self.sku else replace(self.dearer(disk_usd + memory_usd), sku=sku)

    def in_size_of(self, other: Offer) -> Offer:
        """The offer with the amounts that another observation of it has."""
        return self.sized(other.chosen_disk_gb, other.chosen_memory_gb)

    def dearer(self, usd: Decimal) -> Offer:
        """The offer at a price of ``usd`` more per node-hour, in the currency of its invoice too."""
        contract, native = self.contract, self.native
        if contract is not None:
            listed = (contract.list_usd_per_node_hour + usd).quantize(MICRO)
            contract = replace(contract, list_usd_per_node_hour=listed)
        if native.exchange is not None:
            native = replace(native, exchange=native.exchange.dearer(usd))
        price = (self.price_usd_per_node_hour + usd).quantize(MICRO)
        return replace(self, price_usd_per_node_hour=price, contract=contract, native=native)

    @property
    def max_nodes_in_one_run(self) -> int:
        """How many nodes one run may span: the size of the fabric, or 1 without a fabric."""
        return self.sku.fabric.max_nodes if self.sku.fabric is not None else 1

    @property
    def is_sold_whole(self) -> bool:
        """Whether the offer is a ``listed`` window, whose segments are sold whole."""
        return self.window is not None and self.window.kind is WindowKind.LISTED

    def at_list_price(self) -> Offer:
        """The offer at the provider's list price, which orders and the price gate use."""
        if self.contract is None:
            return self
        return replace(
            self,
            price_usd_per_node_hour=self.contract.list_usd_per_node_hour,
            upfront_usd=self.contract.list_upfront_usd,
            contract=None,
        )


def is_held_on(offer: Offer) -> bool:
    """Whether its capacity may be held until work is done: no window and no committed term ends it."""
    return offer.window is None and offer.tier in (Tier.ON_DEMAND, Tier.SPOT)


def _resized(
    sold: SoldAmount | None, now_gb: float | None, wanted_gb: float | None
) -> tuple[float | None, Decimal]:
    """The amount in place of ``now_gb``, and what it costs more an hour."""
    if sold is None or now_gb is None:
        return now_gb, ZERO
    amount = sold.default_gb if wanted_gb is None else wanted_gb
    return amount, sold.usd_per_gb_hour * (Decimal(str(amount)) - Decimal(str(now_gb)))


def _chosen(sold: SoldAmount | None, amount: float | None) -> float | None:
    return None if sold is None or amount == sold.default_gb else amount


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row of a payload that could not become an offer, and the reason."""

    row: str
    reason: str


@dataclass(frozen=True, slots=True)
class OfferBatch:
    """The result of one poll of one provider."""

    offers: tuple[Offer, ...]
    rejected: tuple[RejectedRow, ...] = ()

"""An offer: what a provider said that it sells, when asked. Immutable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.node_launch import NodeLaunch
from broker.domain.basics.window import Segment
from broker.domain.market.learned import Learned
from broker.domain.market.sku import Sku


class Tier(StrEnum):
    """How capacity is sold."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    COMMITTED = "committed"
    WINDOW = "window"


class WindowKind(StrEnum):
    """How a window is found and bought."""

    LISTED = "listed"
    SLOTS = "slots"
    ORDERBOOK = "orderbook"
    REQUEST = "request"


class WindowBegin(StrEnum):
    """Whether a window begins at its start, or whenever capacity appears after the order."""

    ON_TIME = "on_time"
    WHEN_AVAILABLE = "when_available"


class CancelRule(StrEnum):
    """What leaving a bought window early is worth."""

    NEVER = "never"
    UNTIL = "until"
    RESELL = "resell"
    ANY_TIME = "any_time"


class StockLevel(StrEnum):
    """The provider's word on stock; ``some``: it can be had now, nobody says how much."""

    NONE = "none"
    SOME = "some"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    UNKNOWN = "unknown"


class HostKind(StrEnum):
    """Where a machine stands: in a data centre, or with whoever rents it out."""

    DATACENTER = "datacenter"
    COMMUNITY = "community"


@dataclass(frozen=True, slots=True)
class GpuPool:
    """GPUs that several offers are cut from; ``pool_id`` is the same in each of them.

    ``gpus`` None: nobody says how many there are.
    """

    pool_id: str
    gpus: int | None


def fewest_gpus(known: Iterable[int | None]) -> int | None:
    """The smallest of several statements on one pool; None where nobody makes one."""
    return min((gpus for gpus in known if gpus is not None), default=None)


@dataclass(frozen=True, slots=True)
class Stock:
    """``nodes`` when the provider counts, else None: "some". ``pool``: what other offers share with it.

    ``held_nodes``: what whoever plans holds of it, where nobody counts; a plan may keep it beside what it
    assumes.
    """

    level: StockLevel = StockLevel.UNKNOWN
    nodes: int | None = None
    pool: GpuPool | None = None
    held_nodes: int = 0


@dataclass(frozen=True, slots=True)
class WindowTerms:
    """What of time is sold, on which grid.

    ``segments``: what is free (``slots``, ``orderbook``) or sold whole (``listed``).
    ``anchor_utc``: time of day at which windows start, or None. ``lead_hours`` before a start.
    ``teardown_s``: the seller takes the nodes back this long before the end that is paid for.
    ``node_counts``: the only counts that one purchase may have (None: any); ``lot_nodes``: it is a whole
    multiple of so many.

    A window that ``begins`` ``when_available`` is ordered ``longest_wait_hours`` before its start, begins at
    any instant from then to its start, and lasts as long as it was bought for; what has not begun by its
    start never will. ``wait_source`` says where that wait is from, since sellers promise none.
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

    @property
    def waits(self) -> bool:
        """Whether it begins when capacity appears."""
        return self.begins is WindowBegin.WHEN_AVAILABLE

    @property
    def longest_wait(self) -> timedelta:
        """How long capacity may take to appear after the order."""
        return timedelta(hours=self.longest_wait_hours) if self.waits else timedelta(0)

    def sells(self, nodes: int) -> bool:
        """Whether one purchase may have exactly ``nodes``."""
        return self.least_sold(nodes) == nodes

    def least_sold(self, nodes: int) -> int | None:
        """The smallest count on sale that holds ``nodes``; None when no count is large enough."""
        if self.node_counts is None:
            return -(-max(1, nodes) // self.lot_nodes) * self.lot_nodes
        return min((n for n in self.node_counts if n >= nodes and n % self.lot_nodes == 0), default=None)

    @property
    def counts_in_words(self) -> str:
        """Which counts are sold."""
        if self.node_counts is not None:
            return "one of " + ", ".join(str(n) for n in self.node_counts if n % self.lot_nodes == 0)
        return "any count" if self.lot_nodes == 1 else f"a multiple of {self.lot_nodes}"


@dataclass(frozen=True, slots=True)
class NativePrice:
    """The price as the provider quoted it."""

    amount: Decimal
    currency: str
    per: str


@dataclass(frozen=True, slots=True)
class ContractTerms:
    """What the seller's list says where a contract makes it another price, and the contract's name."""

    name: str
    list_usd_per_node_hour: Decimal
    list_upfront_usd: Decimal | None = None


class RateBasis(StrEnum):
    """Whence a rate of interruptions that its provider does not say: our own leases, or a mere assumption."""

    OWN_LEASES = "own leases"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing a provider sells, as seen at ``observed_at``.

    ``offer_id`` is stable from poll to poll while what is sold is the same. ``zone`` None: the
    provider does not say. ``upfront_usd`` of a ``listed`` window buys all nodes of all segments.
    ``reference`` is the adapter's own note of what to order (its keys mean nothing elsewhere).
    ``contract``: the prices are those of a contract; it keeps the list's. ``learned``: what our own launches
    say, where there were any; no provider's word. ``rate_basis``: whence the rate of interruptions, where
    the provider says none. ``place``: operator and data centre or region, the same for whoever sells it;
    where nobody says more, the seller and its zone or region. ``host`` None: the provider does not say.
    ``reliability``: the share of time up that the seller states. ``available_until``: nothing is held longer.
    ``launch``: from the order to a node that serves; None: it is ready at once.
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
    learned: Learned | None = None
    rate_basis: RateBasis | None = None
    place: str = ""
    host: HostKind | None = None
    reliability: float | None = None
    available_until: datetime | None = None
    launch: NodeLaunch | None = None

    def __post_init__(self) -> None:
        """An offer is somewhere: without another word, where its seller says."""
        if not self.place:
            object.__setattr__(self, "place", f"{self.seller or self.provider}/{self.zone or self.region}")

    @property
    def max_nodes_in_one_run(self) -> int:
        """How many nodes one job may span: the fabric's size, or a single node."""
        return self.sku.fabric.max_nodes if self.sku.fabric is not None else 1

    @property
    def is_sold_whole(self) -> bool:
        """Whether its segments alone say what can be bought: a ``listed`` window."""
        return self.window is not None and self.window.kind is WindowKind.LISTED

    def at_list_price(self) -> Offer:
        """The offer as its seller quotes it: what orders name, and what the price gate looks at."""
        if self.contract is None:
            return self
        return replace(
            self,
            price_usd_per_node_hour=self.contract.list_usd_per_node_hour,
            upfront_usd=self.contract.list_upfront_usd,
            contract=None,
        )


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row of a payload that could not become an offer, and why. Never dropped silently."""

    row: str
    reason: str


@dataclass(frozen=True, slots=True)
class OfferBatch:
    """What one poll of one provider gave."""

    offers: tuple[Offer, ...]
    rejected: tuple[RejectedRow, ...] = ()

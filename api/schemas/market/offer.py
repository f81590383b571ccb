"""Offers as JSON: the form of ``broker offers --json``, of market files and of the API.

Amounts are exact decimals as text, times ISO 8601 with ``Z``. Fields that the form does not name are
tolerated and kept out.
"""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Annotated

from pydantic import Field, model_validator

from api.schemas.base.parts import JsonPart, Money, NotNegative, NotNegativeMoney, Positive, SpanForm
from api.schemas.base.times import Instant
from broker.domain.basics.node_launch import LaunchBasis, NodeLaunch
from broker.domain.basics.window import Segment
from broker.domain.market.learned import Basis, Learned
from broker.domain.market.offer import (
    CancelRule,
    ContractTerms,
    GpuPool,
    HostKind,
    NativePrice,
    Offer,
    RateBasis,
    Stock,
    StockLevel,
    Tier,
    WindowBegin,
    WindowKind,
    WindowTerms,
)
from broker.domain.market.sku import Fabric, FabricKind, Form, IntraNode, LinkKind, Sku


class SegmentForm(SpanForm):
    """``nodes`` over ``[start, end)``."""

    nodes: Annotated[int, Field(ge=1)]

    def to_segment(self) -> Segment:
        """The domain's segment."""
        return Segment(self.start, self.end, self.nodes)


class IntraNodeForm(JsonPart):
    """The link inside a node: gigabytes per second and GPU, both directions."""

    kind: LinkKind
    gbyte_s: Positive


class FabricForm(JsonPart):
    """The network between nodes: gigabits per second and node, one direction.

    Ours: ``measured_gbit_s_per_node``, what a node really got; plans then count with that.
    """

    kind: FabricKind
    gbit_s_per_node: Positive
    max_nodes: Annotated[int, Field(ge=1)]
    domain: str | None = None
    measured_gbit_s_per_node: Positive | None = None


class WindowForm(JsonPart):
    """What of time is sold.

    Ours: ``teardown_s``, taken back this long before the end paid for; ``node_counts`` (null: any) and
    ``lot_nodes`` (whole multiples), the counts that one purchase may have; ``begins``, on time or when
    capacity appears, then at most ``longest_wait_hours`` after the order, as ``wait_source`` says.
    """

    kind: WindowKind
    segments: tuple[SegmentForm, ...] = ()
    anchor_utc: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")] | None = None
    step_hours: Positive | None = None
    durations_hours: list[Positive] | None = None
    lead_hours: NotNegative | None = None
    cancel: CancelRule | None = None
    teardown_s: Annotated[int, Field(ge=0)] = 0
    node_counts: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] | None = None
    lot_nodes: Annotated[int, Field(ge=1)] = 1
    begins: WindowBegin = WindowBegin.ON_TIME
    longest_wait_hours: NotNegative = 0.0
    wait_source: str = ""

    @model_validator(mode="after")
    def _sells_something(self) -> WindowForm:
        if self.kind is WindowKind.LISTED and not self.segments:
            raise ValueError("at least one segment in a listed window")
        if self.node_counts is not None and all(count % self.lot_nodes for count in self.node_counts):
            raise ValueError("a count that is a multiple of lot_nodes among node_counts")
        if self.begins is WindowBegin.WHEN_AVAILABLE and (
            self.kind is not WindowKind.REQUEST or self.segments or self.longest_wait_hours <= 0
        ):
            raise ValueError("a request without segments, with longest_wait_hours, where capacity comes late")
        return self

    def to_terms(self) -> WindowTerms:
        """The domain's window terms."""
        return WindowTerms(
            kind=self.kind,
            segments=tuple(segment.to_segment() for segment in self.segments),
            anchor_utc=time.fromisoformat(self.anchor_utc) if self.anchor_utc is not None else None,
            step_hours=self.step_hours if self.step_hours is not None else 1.0,
            durations_hours=tuple(self.durations_hours) if self.durations_hours is not None else None,
            lead_hours=self.lead_hours or 0.0,
            cancel=self.cancel or CancelRule.NEVER,
            teardown_s=self.teardown_s,
            node_counts=tuple(sorted(set(self.node_counts))) if self.node_counts is not None else None,
            lot_nodes=self.lot_nodes,
            begins=self.begins,
            longest_wait_hours=self.longest_wait_hours,
            wait_source=self.wait_source,
        )


class PoolForm(JsonPart):
    """GPUs that several offers are cut from; ``gpus`` null: nobody says how many."""

    id: Annotated[str, Field(min_length=1)]
    gpus: Annotated[int, Field(ge=0)] | None = None


class StockForm(JsonPart):
    """The provider's word on stock; ``nodes`` null: some. ``pool``: GPUs that others share."""

    level: StockLevel = StockLevel.UNKNOWN
    nodes: Annotated[int, Field(ge=0)] | None = None
    pool: PoolForm | None = None

    def to_stock(self) -> Stock:
        """The domain's stock."""
        pool = GpuPool(self.pool.id, self.pool.gpus) if self.pool is not None else None
        return Stock(self.level, self.nodes, pool)


class NativeForm(JsonPart):
    """The price as the provider quoted it."""

    amount: Money
    currency: str
    per: str


class ContractForm(JsonPart):
    """The contract whose price an offer has, and what the seller's list says."""

    name: str
    list_price_usd_per_node_hour: NotNegativeMoney
    list_upfront_usd: NotNegativeMoney | None = None


class LearnedForm(JsonPart):
    """What our own launches taught; the ``wait_…`` figures and ``taken_for_sold_out`` follow from it."""

    success_share: Annotated[float, Field(gt=0, le=1)]
    minutes_to_usable: NotNegative
    attempts: Annotated[int, Field(ge=1)]
    basis: Basis


class LaunchForm(JsonPart):
    """Seconds from the order to a node that runs, and ``image_s`` until the engine's image is on it; null:
    what is assumed of such nodes. ``weights_gbyte_s``: at how many GB/s weights come; null beside an
    ``image_s``: they lie there."""

    launch_s: NotNegative
    basis: LaunchBasis = LaunchBasis.STATED
    image_s: NotNegative | None = None
    weights_gbyte_s: Positive | None = None

    def to_launch(self) -> NodeLaunch:
        """The domain's launch."""
        return NodeLaunch(self.launch_s, self.basis, self.image_s, self.weights_gbyte_s)


class OfferForm(JsonPart):
    """One offer. ``seller``, ``contract``, ``learned``, ``launch``, ``reference`` and ``window.teardown_s``
    are additions of ours. Without ``place`` it is the seller's zone or region.
    """

    offer_id: Annotated[str, Field(min_length=1)]
    provider: Annotated[str, Field(min_length=1)]
    sku: str
    region: str
    zone: str | None = None
    country: str | None = None
    seller: str | None = None
    gpu: str
    gpus_per_node: Annotated[int, Field(ge=1)]
    gpu_memory_gb: Positive
    vcpus: NotNegative | None = None
    memory_gb: NotNegative | None = None
    disk_gb: NotNegative | None = None
    form: Form | None = None
    intra_node: IntraNodeForm | None = None
    fabric: FabricForm | None = None
    tier: Tier
    price_usd_per_node_hour: NotNegativeMoney
    upfront_usd: NotNegativeMoney | None = None
    min_hours: NotNegative | None = None
    billing_increment_s: Annotated[int, Field(ge=0)] | None = None
    window: WindowForm | None = None
    stock: StockForm | None = None
    compliance: tuple[str, ...] = ()
    native: NativeForm | None = None
    observed_at: Instant | None = None
    source: str = ""
    interruptions_per_hour: NotNegative | None = None
    rate_basis: RateBasis | None = None
    contract: ContractForm | None = None
    learned: LearnedForm | None = None
    launch: LaunchForm | None = None
    place: str | None = None
    host: HostKind | None = None
    reliability: Annotated[float, Field(ge=0, le=1)] | None = None
    available_until: Instant | None = None
    reference: Annotated[dict[str, str], Field(default_factory=dict)]

    @model_validator(mode="after")
    def _windows_say_when(self) -> OfferForm:
        if self.tier is Tier.WINDOW and self.window is None:
            raise ValueError("a window where the tier is window")
        return self

    def to_offer(self, as_of: datetime) -> Offer:
        """The domain's offer; ``as_of`` stands in for a missing ``observed_at``."""
        native = self.native
        increment = self.billing_increment_s
        return Offer(
            offer_id=self.offer_id,
            provider=self.provider,
            sku=self._sku(),
            region=self.region,
            tier=self.tier,
            price_usd_per_node_hour=self.price_usd_per_node_hour,
            observed_at=(self.observed_at or as_of).astimezone(UTC),
            source=self.source,
            native=(
                NativePrice(native.amount, native.currency, native.per)
                if native is not None
                else NativePrice(self.price_usd_per_node_hour, "USD", "node_hour")
            ),
            zone=self.zone,
            country=self.country,
            seller=self.seller,
            upfront_usd=self.upfront_usd,
            min_hours=self.min_hours or 0.0,
            billing_increment_s=increment if increment is not None else 3600,
            window=self.window.to_terms() if self.window is not None else None,
            stock=self.stock.to_stock() if self.stock is not None else Stock(),
            compliance=frozenset(self.compliance),
            interruptions_per_hour=self.interruptions_per_hour,
            rate_basis=self.rate_basis,
            reference=self.reference,
            contract=self._contract(),
            learned=self._learned(),
            place=self.place or "",
            host=self.host,
            reliability=self.reliability,
            available_until=self.available_until,
            launch=self.launch.to_launch() if self.launch is not None else None,
        )

    def _learned(self) -> Learned | None:
        form = self.learned
        if form is None:
            return None
        return Learned(form.success_share, form.minutes_to_usable, form.attempts, form.basis)

    def _contract(self) -> ContractTerms | None:
        form = self.contract
        if form is None:
            return None
        return ContractTerms(form.name, form.list_price_usd_per_node_hour, form.list_upfront_usd)

    def _sku(self) -> Sku:
        intra, fabric = self.intra_node, self.fabric
        return Sku(
            name=self.sku,
            gpu=self.gpu,
            gpus_per_node=self.gpus_per_node,
            gpu_memory_gb=self.gpu_memory_gb,
            vcpus=self.vcpus,
            memory_gb=self.memory_gb,
            disk_gb=self.disk_gb,
            form=self.form,
            intra_node=IntraNode(intra.kind, intra.gbyte_s) if intra is not None else None,
            fabric=(Fabric(**fabric.model_dump()) if fabric is not None else None),
        )

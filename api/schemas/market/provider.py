"""Providers, their feeds and polls as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import PlainSerializer

from api.schemas.base.forms import Form, From, UtcInstant
from api.schemas.base.parts import Money
from api.schemas.market.offer import OfferForm
from broker.domain.market.market import FeedHealth, PollRound
from broker.domain.market.offer import OfferBatch, RejectedRow
from broker.domain.market.polling import Polling
from broker.domain.market.price_gate import Quarantined
from broker.domain.market.probing import ComparedCall, Finding, ProbeReport
from broker.domain.market.seller_mode import SellerMode
from broker.provider_facts import Billing, WindowBill
from broker.services.holding.reconcile import UnreadList
from providers.spec import Missing

Counted = Annotated[int, PlainSerializer(len)]


@dataclass(frozen=True, slots=True)
class Feed:
    """Health and freshness of a provider's feed. ``stale_since`` null: fresh.

    It is polled every ``poll_every_s`` while it answers, and next at ``next_poll_at``. ``breaker`` is the
    circuit breaker: ``open`` after repeated failures, so that the provider is not polled until then;
    ``half_open`` if the next attempt decides. ``leases_error`` is the reason why leases have not been listed
    since ``leases_unread_since``; null: they can be listed.
    """

    health: FeedHealth
    polling: Polling
    unread: UnreadList | None = None


@dataclass(frozen=True, slots=True)
class ConfiguredProvider:
    """A configured provider: its adapter's capabilities, whether it takes orders, and its last rejected rows.

    ``missing_settings`` names what prevents orders; if ``orderable`` is true, only some orders. Price lists
    take no orders, and their ``billing`` and ``mode`` are null. ``mode``: whether it is ``real``, or the
    ``sandbox``'s, where no money moves. ``orders_barred``: why BROKER_ORDERS keeps it from being ordered from
    (empty: it does not). ``probe``: how its answers differed from the expected ones;
    null: it was not probed yet.
    """

    feed: Feed
    title: str
    mode: SellerMode | None
    capabilities: tuple[str, ...]
    idempotency: str | None
    orderable: bool
    orders_barred: str
    missing_settings: tuple[Missing, ...]
    billing: Billing | None
    probe: ProbeReport | None
    rejected_rows: tuple[RejectedRow, ...]


Form(RejectedRow, about="A row of a payload that could not become an offer, and why.")
BATCH = Form(OfferBatch, types={"offers": tuple[OfferForm, ...]})
QUARANTINED = Form(
    Quarantined,
    about="An offer in quarantine, or one that was released from it at its price.",
    leave_out=("accepted_usd_per_node_hour",),  # internal state of the price gate
    adds={
        "offer_id": Annotated[str, From("offer.offer_id")],
        "price_usd_per_node_hour": Annotated[Money, From("price")],
    },
    types={"offer": OfferForm},
    order=("offer_id doubt reason price_usd_per_node_hour since released_at released_by offer",),
)
QuarantinedForm = Annotated[Quarantined, QUARANTINED]
Form(
    FeedHealth,
    leave_out=("failures", "not_before", "probe"),  # given by the poll and the provider
)
Form(
    Polling,
    rename={"every": "poll_every_s", "failures": "failures_in_a_row", "next_at": "next_poll_at"},
    types={"every": Annotated[float, PlainSerializer(timedelta.total_seconds)]},
)
FEED = Form(
    Feed,
    inline=("health", "polling"),
    leave_out=("unread",),
    adds={
        "leases_unread_since": Annotated[UtcInstant | None, From("unread?.since")],
        "leases_error": Annotated[str | None, From("unread?.error")],
    },
)
MISSING = Form(
    Missing,
    name="MissingSettingForm",
    about="Variables of which one must be set before orders can be sent, and the value of each.",
    leave_out=("only",),  # applied to offers
)
Form(
    Finding,
    about="""
    One difference between an answer and what the adapter expects. ``field`` empty: the whole answer.
    """,
)
Form(ComparedCall, about="One kind of answer that was compared, and its number of rows.")
Form(WindowBill, about="When a kind of window is billed, and whether the seller says so or that is assumed.")
BILLING = Form(
    Billing,
    about="How it rounds the time that it bills outside windows, and whether it says so or that is assumed.",
)
PROBE = Form(
    ProbeReport,
    name="ProbeForm",
    about="The last probe of a seller; without findings, nothing differs.",
    leave_out=("provider",),  # it is in the document of the probe
)
PROVIDER = Form(ConfiguredProvider, name="ProviderForm", inline=("feed",))
ProviderForm = Annotated[ConfiguredProvider, PROVIDER]
ROUND = Form(
    PollRound, types={"changes": Counted, "rejected": Counted}, order=("offers changes rejected error",)
)

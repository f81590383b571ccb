"""Providers, their feeds and their polls as JSON."""

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
from broker.services.holding.reconcile import UnreadList
from providers.spec import Missing

Counted = Annotated[int, PlainSerializer(len)]


@dataclass(frozen=True, slots=True)
class Feed:
    """Health and freshness of a provider's feed. ``stale_since`` null: fresh.

    It is asked every ``poll_every_s`` while it answers, and next at ``next_poll_at``. ``breaker`` ``open``:
    it failed so often that it is left alone until then; ``half_open``: the next try decides.
    ``leases_error``: why what is held there cannot be listed, since ``leases_unread_since``; null: it can be.
    """

    health: FeedHealth
    polling: Polling
    unread: UnreadList | None = None


@dataclass(frozen=True, slots=True)
class ConfiguredProvider:
    """A configured provider: what its adapter can do, whether it takes orders, and its last rejected rows.

    ``missing_settings``: what keeps orders, or some of them (``orderable`` is true), from being sent as it
    is configured. Price lists take none.
    ``probe``: how its answers differed from what is expected; null: it was not probed yet.
    """

    feed: Feed
    title: str
    capabilities: tuple[str, ...]
    idempotency: str | None
    orderable: bool
    missing_settings: tuple[Missing, ...]
    probe: ProbeReport | None
    rejected_rows: tuple[RejectedRow, ...]


Form(RejectedRow, about="A row of a payload that could not become an offer, and why.")
BATCH = Form(OfferBatch, types={"offers": tuple[OfferForm, ...]})
QUARANTINED = Form(
    Quarantined,
    about="An offer whose price is not believed, or was released at it.",
    leave_out=("accepted_usd_per_node_hour",),  # the gate's own memory
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
    leave_out=("failures", "not_before", "probe"),  # polling and the provider tell them
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
    about="Variables of which one has to be set before anything can be ordered, and what to put there.",
    leave_out=("only",),  # a function of offers
)
Form(
    Finding,
    about="""
    One way in which an answer differs from what its adapter expects. ``field`` empty: the whole answer.
    """,
)
Form(ComparedCall, about="One kind of answer that was compared, and how many rows it had.")
PROBE = Form(
    ProbeReport,
    name="ProbeForm",
    about="The last probe of a seller; without findings nothing differs.",
    leave_out=("provider",),  # it stands where the probe does
)
PROVIDER = Form(ConfiguredProvider, name="ProviderForm", inline=("feed",))
ProviderForm = Annotated[ConfiguredProvider, PROVIDER]
ROUND = Form(
    PollRound, types={"changes": Counted, "rejected": Counted}, order=("offers changes rejected error",)
)

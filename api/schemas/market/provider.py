"""Providers, their feeds and their polls as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from api.schemas.base.parts import PageForm
from api.schemas.base.times import Instant, format_time
from api.schemas.market.offer import OfferForm
from api.schemas.market.offer_writer import offer_to_document
from broker.domain.basics.money import format_usd
from broker.domain.market.market import FeedHealth, PollRound
from broker.domain.market.offer import OfferBatch
from broker.domain.market.polling import BreakerState, Polling
from broker.domain.market.price_gate import Doubt, Quarantined
from broker.domain.market.probing import FindingKind, ProbeReport
from broker.services.holding.reconcile import UnreadList
from providers.spec import Missing


class QuarantinedForm(BaseModel):
    """An offer whose price is not believed, or was released at it."""

    offer_id: str
    doubt: Doubt
    reason: str
    price_usd_per_node_hour: Decimal
    since: Instant
    released_at: Instant | None
    released_by: str | None
    offer: OfferForm | None = None


QuarantinePage = PageForm[QuarantinedForm]


class FeedForm(BaseModel):
    """Health and freshness of a provider's feed. ``stale_since`` null: fresh.

    It is asked every ``poll_every_s`` while it answers, and next at ``next_poll_at``. ``breaker`` ``open``:
    it failed so often that it is left alone until then; ``half_open``: the next try decides.
    ``leases_error``: why what is held there cannot be listed, since ``leases_unread_since``; null: it can be.
    """

    provider: str
    last_success_at: Instant | None
    last_error_at: Instant | None
    last_error: str | None
    stale_since: Instant | None
    offers: int
    rejected: int
    seconds: float | None
    poll_every_s: float
    failures_in_a_row: int
    breaker: BreakerState
    next_poll_at: Instant | None
    leases_unread_since: Instant | None
    leases_error: str | None


class RejectedRowForm(BaseModel):
    """A row of a payload that could not become an offer, and why."""

    row: str
    reason: str


class MissingSettingForm(BaseModel):
    """Variables of which one has to be set before anything can be ordered, and what to put there."""

    variables: list[str]
    says: str


class FindingForm(BaseModel):
    """One way in which an answer differs from what its adapter expects. ``field`` empty: the whole answer."""

    kind: FindingKind
    call: str
    field: str
    says: str


class ComparedCallForm(BaseModel):
    """One kind of answer that was compared, and how many rows it had."""

    call: str
    rows: int


class ProbeForm(BaseModel):
    """The last probe of a seller; without findings nothing differs."""

    at: Instant
    compared: list[ComparedCallForm]
    findings: list[FindingForm]


class ProviderForm(FeedForm):
    """A configured provider: what its adapter can do, whether it takes orders, and its last rejected rows.

    ``missing_settings``: what keeps orders, or some of them (``orderable`` is true), from being sent as it
    is configured. Price lists take none.
    ``probe``: how its answers differed from what is expected; null: it was not probed yet.
    """

    title: str
    capabilities: list[str]
    idempotency: str | None
    orderable: bool
    missing_settings: list[MissingSettingForm]
    probe: ProbeForm | None
    rejected_rows: list[RejectedRowForm]


def _time(instant: datetime | None) -> str | None:
    return format_time(instant) if instant is not None else None


def feed_to_document(feed: FeedHealth, polling: Polling, unread: UnreadList | None = None) -> dict[str, Any]:
    """The JSON form of a feed's health as plain data."""
    return {
        "provider": feed.provider,
        "last_success_at": _time(feed.last_success_at),
        "last_error_at": _time(feed.last_error_at),
        "last_error": feed.last_error,
        "stale_since": _time(feed.stale_since),
        "offers": feed.offers,
        "rejected": feed.rejected,
        "seconds": feed.seconds,
        "poll_every_s": polling.every.total_seconds(),
        "failures_in_a_row": polling.failures,
        "breaker": polling.breaker.value,
        "next_poll_at": _time(polling.next_at),
        "leases_unread_since": None if unread is None else _time(unread.since),
        "leases_error": None if unread is None else unread.error,
    }


def missing_to_document(missing: Iterable[Missing]) -> list[dict[str, Any]]:
    """The JSON form of settings that are missing."""
    return [{"variables": list(one.variables), "says": one.says} for one in missing]


def probe_to_document(report: ProbeReport | None) -> dict[str, Any] | None:
    """The JSON form of a probe."""
    if report is None:
        return None
    return {
        "at": format_time(report.at),
        "compared": [{"call": one.call, "rows": one.rows} for one in report.compared],
        "findings": [
            {"kind": one.kind.value, "call": one.call, "field": one.field, "says": one.says}
            for one in report.findings
        ],
    }


def quarantined_to_document(entry: Quarantined) -> dict[str, Any]:
    """The JSON form of an offer in quarantine."""
    return {
        "offer_id": entry.offer.offer_id,
        "doubt": entry.doubt.value,
        "reason": entry.reason,
        "price_usd_per_node_hour": format_usd(entry.price),
        "since": format_time(entry.since),
        "released_at": _time(entry.released_at),
        "released_by": entry.released_by,
        "offer": offer_to_document(entry.offer),
    }


def round_to_document(round_: PollRound) -> dict[str, Any]:
    """The JSON form of one poll; ``changes`` and ``rejected`` are counts."""
    return {
        "provider": round_.provider,
        "started_at": format_time(round_.started_at),
        "seconds": round_.seconds,
        "offers": round_.offers,
        "changes": len(round_.changes),
        "rejected": len(round_.rejected),
        "error": round_.error,
    }


def batch_to_document(batch: OfferBatch) -> dict[str, Any]:
    """The JSON form of a parsed payload: offers, and the rows that could not become one."""
    return {
        "offers": [offer_to_document(offer) for offer in batch.offers],
        "rejected": [{"row": row.row, "reason": row.reason} for row in batch.rejected],
    }

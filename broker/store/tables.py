"""The tables, as typed rows.

Money is integer micro-USD, times are UTC, enums are their values. Foreign keys exist only within an
aggregate; references to other aggregates are plain ids. Relationships do not load lazily (``lazy="raise"``);
a repository states what it reads.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Double, ForeignKey, Index, MetaData, String, false, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from broker.store.columns import Document, Identifier, Prose, Serial, UtcDateTime

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

INSERT, UPDATE, DELETE = "insert", "update", "delete"
EVERY_WRITE = frozenset({INSERT, UPDATE, DELETE})


class Row(DeclarativeBase):
    """Base of all rows. Only units of work of its team see a row with a column ``team``.

    ``owner``: for rows without this column, the column that refers to a row with a team, and its class.
    ``is_the_installations``: it has data of teams, but no unit of work of one team may use it.
    ``decisions_may``: the writes of a unit of work that only decides (``TeamScope.decides_only``).
    """

    owner: ClassVar[tuple[str, type[Row]] | None] = None
    is_the_installations: ClassVar[bool] = False
    decisions_may: ClassVar[frozenset[str]] = frozenset()
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012  read once by SQLAlchemy
        str: String(),
        datetime: UtcDateTime(),
        float: Double(),
        dict[str, Any]: Document,
        list[Any]: Document,
    }


class MetaRow(Row):
    """A fact of the installation."""

    __tablename__ = "meta"

    name: Mapped[str] = mapped_column(Identifier, primary_key=True)
    value: Mapped[str]


class SellerNetworkRow(Row):
    """The network of a seller's machines in a region: the seller's ids of its parts."""

    __tablename__ = "seller_networks"

    provider: Mapped[str] = mapped_column(Identifier, primary_key=True)
    region: Mapped[str] = mapped_column(Identifier, primary_key=True)
    resource_ids: Mapped[dict[str, Any]]
    sources: Mapped[list[Any]]
    made_at: Mapped[datetime]
    made_by: Mapped[str]


class FeedRow(Row):
    """Health of one provider's feed. A round writes it first, so that rounds of one provider run in turn.

    ``offers_digest`` is the exclusive or of the fingerprints of its offers.
    """

    __tablename__ = "feeds"

    provider: Mapped[str] = mapped_column(Identifier, primary_key=True)
    last_success_at: Mapped[datetime | None]
    last_error_at: Mapped[datetime | None]
    last_error: Mapped[str | None] = mapped_column(Prose)
    stale_since: Mapped[datetime | None]
    offers: Mapped[int]
    rejected: Mapped[int]
    seconds: Mapped[float | None]
    failures: Mapped[int] = mapped_column(default=0, server_default="0")
    not_before: Mapped[datetime | None]
    probe: Mapped[dict[str, Any] | None]
    offers_digest: Mapped[str] = mapped_column(default="", server_default="")


class RoundRow(Row):
    """One poll of one provider. Only the newest one keeps the text of its rejected rows."""

    __tablename__ = "rounds"
    __table_args__ = (Index(None, "provider", "round_id"), Index(None, "started_at"))

    round_id: Mapped[int] = mapped_column(Serial, primary_key=True)
    provider: Mapped[str] = mapped_column(Identifier)
    started_at: Mapped[datetime]
    seconds: Mapped[float]
    offers: Mapped[int]
    rejected: Mapped[int]
    rejected_rows: Mapped[list[Any] | None]
    error: Mapped[str | None] = mapped_column(Prose)
    changes: Mapped[list[OfferChangeRow]] = relationship(
        lazy="raise", viewonly=True, order_by="OfferChangeRow.change_id"
    )


class OfferRow(Row):
    """A current offer: columns for filters and order, and the whole offer as a document.

    It is written only if it changed. ``observed_at`` None: it was observed in the last successful round of
    its feed, because its provider states no other time. ``list_…``: the provider's list price.
    """

    __tablename__ = "offers"
    __table_args__ = (
        Index(None, "price_rank", "offer_id"),
        Index(None, "provider", "price_rank", "offer_id"),
        Index(None, "gpu", "price_rank", "offer_id"),
        Index(None, "region", "price_rank", "offer_id"),
        Index(None, "tier", "price_rank", "offer_id"),
        Index(None, "price_per_node_hour_micro_usd", "offer_id"),
        Index(None, "stock_nodes", "offer_id"),
        Index(None, "provider", "gpu", "region", "tier"),
        Index(None, "provider", "observed_at"),
        Index(None, "pool_id", "gpu", "pool_gpus"),
    )

    offer_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    provider: Mapped[str] = mapped_column(Identifier)
    round_id: Mapped[int] = mapped_column(Serial, ForeignKey("rounds.round_id"))
    sku: Mapped[str]
    gpu: Mapped[str] = mapped_column(Identifier)
    region: Mapped[str] = mapped_column(Identifier)
    tier: Mapped[str]
    price_rank: Mapped[str] = mapped_column(Identifier)
    price_per_gpu_hour_micro_usd: Mapped[int] = mapped_column(BigInteger)
    price_per_node_hour_micro_usd: Mapped[int] = mapped_column(BigInteger)
    stock_nodes: Mapped[int | None]
    pool_id: Mapped[str | None] = mapped_column(Identifier)
    pool_gpus: Mapped[int | None]
    available: Mapped[bool]
    list_per_node_hour_micro_usd: Mapped[int] = mapped_column(BigInteger)
    fingerprint: Mapped[str]
    observed_at: Mapped[datetime | None]
    document: Mapped[dict[str, Any]]


class QuarantineRow(Row):
    """An offer in quarantine because of its price, or released from it at that price."""

    __tablename__ = "quarantine"

    offer_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    provider: Mapped[str] = mapped_column(Identifier, index=True)
    since: Mapped[datetime]
    document: Mapped[dict[str, Any]]


class OfferChangeRow(Row):
    """A change of an offer that a round found."""

    __tablename__ = "offer_changes"

    change_id: Mapped[int] = mapped_column(Serial, primary_key=True)
    round_id: Mapped[int] = mapped_column(Serial, ForeignKey("rounds.round_id"), index=True)
    kind: Mapped[str]
    offer_id: Mapped[str] = mapped_column(Identifier)
    provider: Mapped[str] = mapped_column(Identifier)
    at: Mapped[datetime] = mapped_column(index=True)
    before_micro_usd: Mapped[int | None] = mapped_column(BigInteger)
    after_micro_usd: Mapped[int | None] = mapped_column(BigInteger)


class PlanRow(Row):
    """A plan and its request.

    ``workloads_key`` is a hash of the set of workload names. ``workload_count`` and ``approval`` are derived
    at each write.
    """

    __tablename__ = "plans"
    __table_args__ = (
        Index(None, "created_at", "plan_id"),
        Index(None, "team", "created_at"),
        Index(None, "team", "version"),
        Index(None, "state", "team", "workloads_key"),
        Index(None, "approval", "created_at"),
    )
    decisions_may = frozenset({UPDATE})

    plan_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    team: Mapped[str] = mapped_column(Identifier)
    state: Mapped[str]
    workloads_key: Mapped[str]
    workload_count: Mapped[int] = mapped_column(default=0, server_default="0")
    document: Mapped[str] = mapped_column(Prose)
    options: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    requested_by: Mapped[str]
    status: Mapped[str | None]
    cost_micro_usd: Mapped[int | None] = mapped_column(BigInteger)
    plan: Mapped[dict[str, Any] | None]
    problem: Mapped[str | None] = mapped_column(Prose)
    needs_approval: Mapped[bool]
    approval_reason: Mapped[str | None] = mapped_column(Prose)
    approved_by: Mapped[str | None]
    approved_at: Mapped[datetime | None]
    supersedes: Mapped[str | None] = mapped_column(Identifier, index=True)
    approval: Mapped[str | None] = mapped_column(Identifier)
    decisions: Mapped[list[Any] | None]
    intended_by: Mapped[str | None]
    reserved_at: Mapped[datetime | None]
    comparison_id: Mapped[str | None] = mapped_column(Identifier, index=True)
    variant: Mapped[dict[str, Any] | None]
    continues: Mapped[str | None] = mapped_column(Identifier)
    continued_by: Mapped[str | None] = mapped_column(Identifier)
    market_sha256: Mapped[str | None]
    claimed_by: Mapped[str | None] = mapped_column(Identifier)
    claimed_until: Mapped[datetime | None]
    version: Mapped[int]


class ReservationRow(Row):
    """A reservation. ``ever_held``, ``owed_from`` and ``owed_until`` are derived at each write.

    ``rolled_up``: its bill is in ``spend_bills`` as of this version; each write clears it.
    """

    __tablename__ = "reservations"
    __table_args__ = (
        Index(None, "created_at", "reservation_id"),
        Index(None, "team", "created_at"),
        Index(None, "ever_held", "owed_from"),
    )

    reservation_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    team: Mapped[str] = mapped_column(Identifier)
    state: Mapped[str] = mapped_column(index=True)
    provider: Mapped[str] = mapped_column(Identifier)
    offer_id: Mapped[str] = mapped_column(Identifier)
    pool_id: Mapped[str | None] = mapped_column(Identifier, index=True)
    offer: Mapped[dict[str, Any]]
    nodes: Mapped[int]
    starts_at: Mapped[datetime]
    ends_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    workload: Mapped[str | None]
    plan_id: Mapped[str | None] = mapped_column(Identifier, index=True)
    reason: Mapped[str] = mapped_column(Prose)
    requested_by: Mapped[str]
    active_at: Mapped[datetime | None]
    released_at: Mapped[datetime | None]
    requested_start: Mapped[datetime | None]
    requested_end: Mapped[datetime | None]
    granted_start: Mapped[datetime | None]
    granted_end: Mapped[datetime | None]
    ever_held: Mapped[bool]
    owed_from: Mapped[datetime]
    owed_until: Mapped[datetime | None]
    replaces: Mapped[list[Any] | None]
    limit_per_node_hour_micro_usd: Mapped[int | None] = mapped_column(BigInteger)
    tries: Mapped[int] = mapped_column(server_default=text("0"))
    tried_at: Mapped[datetime | None]
    rolled_up: Mapped[bool] = mapped_column(index=True, server_default=false())
    setup: Mapped[dict[str, Any] | None]
    claimed_by: Mapped[str | None] = mapped_column(Identifier)
    claimed_until: Mapped[datetime | None]
    version: Mapped[int]
    units: Mapped[list[UnitRow]] = relationship(lazy="raise", viewonly=True, order_by="UnitRow.ordinal")


class UnitRow(Row):
    """A unit of a reservation: the nodes of one order."""

    __tablename__ = "reservation_units"
    owner = ("reservation_id", ReservationRow)

    reservation_id: Mapped[str] = mapped_column(
        Identifier, ForeignKey("reservations.reservation_id"), primary_key=True
    )
    ordinal: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    tag: Mapped[str] = mapped_column(Identifier, index=True)
    nodes: Mapped[int]
    state: Mapped[str]
    reference: Mapped[str | None] = mapped_column(Identifier, index=True)
    ordered_at: Mapped[datetime | None]
    began_at: Mapped[datetime | None]
    leaving_at: Mapped[datetime | None]
    seen_at: Mapped[datetime | None]
    gone_at: Mapped[datetime | None]
    paid_micro_usd: Mapped[int | None] = mapped_column(BigInteger)
    credit_micro_usd: Mapped[int | None] = mapped_column(BigInteger)
    price_per_node_hour_micro_usd: Mapped[int | None] = mapped_column(BigInteger)
    is_price_confirmed: Mapped[bool] = mapped_column(server_default=false())
    machines: Mapped[list[Any] | None]
    startup: Mapped[dict[str, Any] | None]
    access_note: Mapped[str] = mapped_column(Prose, server_default="")


class CapacityRow(Row):
    """A lock on the stock of an offer or a pool: a transaction that takes stock increments this row first.

    The remaining stock is not stored. The transaction that has the row computes it from the provider's last
    count and the open reservations.
    """

    __tablename__ = "capacities"

    capacity_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    takings: Mapped[int] = mapped_column(BigInteger)


class WorkerRow(Row):
    """A broker process of this database. It counts as alive until ``alive_until``."""

    __tablename__ = "workers"

    worker_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    alive_until: Mapped[datetime]


class LeaderRow(Row):
    """The leader of a part of the installation's work. ``epoch`` increases with each leader.

    ``passed``: the leader has finished its first pass over market and reservations.
    """

    __tablename__ = "leaders"

    work: Mapped[str] = mapped_column(Identifier, primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger)
    worker_id: Mapped[str] = mapped_column(Identifier)
    passed: Mapped[bool]


class LaunchRow(Row):
    """An outcome of a reservation's order, at most one of each kind. Append-only."""

    __tablename__ = "launches"
    is_the_installations = True

    reservation_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    outcome: Mapped[str] = mapped_column(primary_key=True)
    offer_id: Mapped[str] = mapped_column(Identifier)
    provider: Mapped[str] = mapped_column(Identifier)
    sku: Mapped[str]
    region: Mapped[str] = mapped_column(Identifier)
    asked_at: Mapped[datetime] = mapped_column(index=True)
    due_at: Mapped[datetime]
    usable_at: Mapped[datetime | None]
    ends_at: Mapped[datetime | None]
    asks_per_node_hour_micro_usd: Mapped[int | None] = mapped_column(BigInteger)


class ReoptimizationRow(Row):
    """A re-optimization of a plan, its proposal, and the outcome."""

    __tablename__ = "reoptimizations"
    __table_args__ = (
        Index(None, "started_at", "reoptimization_id"),
        Index(None, "team", "started_at"),
        Index(None, "state", "started_at"),
    )

    reoptimization_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    team: Mapped[str] = mapped_column(Identifier)
    plan_id: Mapped[str] = mapped_column(Identifier, index=True)
    trigger: Mapped[str]
    started_at: Mapped[datetime]
    state: Mapped[str]
    before_micro_usd: Mapped[int | None] = mapped_column(BigInteger)
    after_micro_usd: Mapped[int | None] = mapped_column(BigInteger)
    new_plan_id: Mapped[str | None] = mapped_column(Identifier)
    moves: Mapped[list[Any]]
    reason: Mapped[str] = mapped_column(Prose)
    mode: Mapped[str | None]
    lapses_at: Mapped[datetime | None]
    decided_at: Mapped[datetime | None]
    decided_by: Mapped[str | None]
    version: Mapped[int]
    guard_s: Mapped[float | None]


class RememberedAnswerRow(Row):
    """The answer for an idempotency key. The primary key is the claim.

    ``claimed_by``: the worker that handles the request. ``effects``: ids of the objects that it stored.
    """

    __tablename__ = "remembered_answers"
    decisions_may = EVERY_WRITE

    team: Mapped[str] = mapped_column(Identifier, primary_key=True)
    key: Mapped[str] = mapped_column(Identifier, primary_key=True)
    route: Mapped[str] = mapped_column(Identifier, primary_key=True)
    body_sha256: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(index=True)
    status: Mapped[int | None]
    body: Mapped[str | None] = mapped_column(Prose)
    headers: Mapped[str | None] = mapped_column(Prose)
    claimed_by: Mapped[str | None] = mapped_column(Identifier)
    effects: Mapped[list[Any] | None]


class AuditRow(Row):
    """An entry of the audit trail. Append-only."""

    __tablename__ = "audit_entries"
    __table_args__ = (Index(None, "at", "audit_id"), Index(None, "team", "at"))
    decisions_may = frozenset({INSERT})

    audit_id: Mapped[int] = mapped_column(Serial, primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str]
    action: Mapped[str]
    object_kind: Mapped[str]
    object_id: Mapped[str] = mapped_column(Identifier, index=True)
    team: Mapped[str] = mapped_column(Identifier)
    detail: Mapped[str] = mapped_column(Prose)
    provider_request_id: Mapped[str | None]

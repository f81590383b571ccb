"""The first schema: market, plans, reservations, accounts; draws the installation's id."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = sa.DateTime(timezone=True)
TABLES = (
    "meta",
    "feeds",
    "rounds",
    "offers",
    "offer_changes",
    "price_points",
    "plans",
    "reoptimizations",
    "reservations",
    "reservation_units",
    "api_keys",
    "remembered_answers",
    "audit_entries",
)


def upgrade() -> None:
    _create_installation()
    _create_market()
    _create_plans()
    _create_reservations()
    _create_accounts()


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)


def _create_installation() -> None:
    op.create_table(
        "meta",
        sa.Column("name", IDENTIFIER, nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_meta")),
    )
    meta = sa.table("meta", sa.column("name", sa.String), sa.column("value", sa.String))
    op.bulk_insert(meta, [{"name": "install_id", "value": secrets.token_hex(4)}])


def _create_market() -> None:
    op.create_table(
        "feeds",
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("last_success_at", INSTANT, nullable=True),
        sa.Column("last_error_at", INSTANT, nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("stale_since", INSTANT, nullable=True),
        sa.Column("offers", sa.Integer(), nullable=False),
        sa.Column("rejected", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("provider", name=op.f("pk_feeds")),
    )
    op.create_table(
        "rounds",
        sa.Column("round_id", SERIAL, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("offers", sa.Integer(), nullable=False),
        sa.Column("rejected", sa.Integer(), nullable=False),
        sa.Column("rejected_rows", DOCUMENT, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("round_id", name=op.f("pk_rounds")),
    )
    op.create_index(op.f("ix_rounds_provider_round_id"), "rounds", ["provider", "round_id"], unique=False)
    op.create_table(
        "offers",
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("round_id", SERIAL, nullable=False),
        sa.Column("sku", sa.String(), nullable=False),
        sa.Column("gpu", IDENTIFIER, nullable=False),
        sa.Column("region", IDENTIFIER, nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("price_per_gpu_hour_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("price_per_node_hour_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("stock_nodes", sa.Integer(), nullable=True),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.Column("observed_at", INSTANT, nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.round_id"], name=op.f("fk_offers_round_id_rounds")),
        sa.PrimaryKeyConstraint("offer_id", name=op.f("pk_offers")),
    )
    op.create_index(op.f("ix_offers_gpu"), "offers", ["gpu"], unique=False)
    op.create_index(op.f("ix_offers_observed_at"), "offers", ["observed_at"], unique=False)
    op.create_index(op.f("ix_offers_provider"), "offers", ["provider"], unique=False)
    op.create_table(
        "offer_changes",
        sa.Column("change_id", SERIAL, nullable=False),
        sa.Column("round_id", SERIAL, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("before_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("after_micro_usd", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.round_id"], name=op.f("fk_offer_changes_round_id_rounds")
        ),
        sa.PrimaryKeyConstraint("change_id", name=op.f("pk_offer_changes")),
    )
    op.create_index(op.f("ix_offer_changes_at"), "offer_changes", ["at"], unique=False)
    op.create_index(op.f("ix_offer_changes_round_id"), "offer_changes", ["round_id"], unique=False)
    op.create_table(
        "price_points",
        sa.Column("point_id", SERIAL, nullable=False),
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("price_per_node_hour_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("stock_nodes", sa.Integer(), nullable=True),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("point_id", name=op.f("pk_price_points")),
    )
    op.create_index(op.f("ix_price_points_offer_id_at"), "price_points", ["offer_id", "at"], unique=False)


def _create_plans() -> None:
    op.create_table(
        "plans",
        sa.Column("plan_id", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("workloads_key", sa.String(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("options", DOCUMENT, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("requested_by", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=True),
        sa.Column("cost_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("plan", DOCUMENT, nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("needs_approval", sa.Boolean(), nullable=False),
        sa.Column("approved_by", sa.String(), nullable=True),
        sa.Column("approved_at", INSTANT, nullable=True),
        sa.Column("supersedes", IDENTIFIER, nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("plan_id", name=op.f("pk_plans")),
    )
    op.create_index(op.f("ix_plans_created_at_plan_id"), "plans", ["created_at", "plan_id"], unique=False)
    op.create_index(
        op.f("ix_plans_state_team_workloads_key"), "plans", ["state", "team", "workloads_key"], unique=False
    )
    op.create_index(op.f("ix_plans_supersedes"), "plans", ["supersedes"], unique=False)
    op.create_index(op.f("ix_plans_team_created_at"), "plans", ["team", "created_at"], unique=False)
    op.create_table(
        "reoptimizations",
        sa.Column("reoptimization_id", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("plan_id", IDENTIFIER, nullable=False),
        sa.Column("trigger", sa.String(), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("before_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("after_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("new_plan_id", IDENTIFIER, nullable=True),
        sa.Column("moves", DOCUMENT, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("reoptimization_id", name=op.f("pk_reoptimizations")),
    )
    op.create_index(op.f("ix_reoptimizations_plan_id"), "reoptimizations", ["plan_id"], unique=False)
    op.create_index(
        op.f("ix_reoptimizations_started_at_reoptimization_id"),
        "reoptimizations",
        ["started_at", "reoptimization_id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_reoptimizations_team_started_at"), "reoptimizations", ["team", "started_at"], unique=False
    )


def _create_reservations() -> None:
    op.create_table(
        "reservations",
        sa.Column("reservation_id", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("offer", DOCUMENT, nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("starts_at", INSTANT, nullable=False),
        sa.Column("ends_at", INSTANT, nullable=True),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("workload", sa.String(), nullable=True),
        sa.Column("plan_id", IDENTIFIER, nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.String(), nullable=False),
        sa.Column("active_at", INSTANT, nullable=True),
        sa.Column("released_at", INSTANT, nullable=True),
        sa.Column("ever_held", sa.Boolean(), nullable=False),
        sa.Column("owed_from", INSTANT, nullable=False),
        sa.Column("owed_until", INSTANT, nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("reservation_id", name=op.f("pk_reservations")),
    )
    op.create_index(
        op.f("ix_reservations_created_at_reservation_id"),
        "reservations",
        ["created_at", "reservation_id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_reservations_ever_held_owed_from"), "reservations", ["ever_held", "owed_from"], unique=False
    )
    op.create_index(op.f("ix_reservations_plan_id"), "reservations", ["plan_id"], unique=False)
    op.create_index(op.f("ix_reservations_state"), "reservations", ["state"], unique=False)
    op.create_index(
        op.f("ix_reservations_team_created_at"), "reservations", ["team", "created_at"], unique=False
    )
    op.create_table(
        "reservation_units",
        sa.Column("reservation_id", IDENTIFIER, nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tag", IDENTIFIER, nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reference", IDENTIFIER, nullable=True),
        sa.Column("ordered_at", INSTANT, nullable=True),
        sa.Column("gone_at", INSTANT, nullable=True),
        sa.ForeignKeyConstraint(
            ["reservation_id"],
            ["reservations.reservation_id"],
            name=op.f("fk_reservation_units_reservation_id_reservations"),
        ),
        sa.PrimaryKeyConstraint("reservation_id", "ordinal", name=op.f("pk_reservation_units")),
    )
    op.create_index(op.f("ix_reservation_units_reference"), "reservation_units", ["reference"], unique=False)
    op.create_index(op.f("ix_reservation_units_tag"), "reservation_units", ["tag"], unique=False)


def _create_accounts() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key_id", IDENTIFIER, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("scopes", DOCUMENT, nullable=False),
        sa.Column("sha256", IDENTIFIER, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("sha256", name=op.f("uq_api_keys_sha256")),
    )
    op.create_table(
        "remembered_answers",
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("key", IDENTIFIER, nullable=False),
        sa.Column("route", IDENTIFIER, nullable=False),
        sa.Column("body_sha256", sa.String(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("headers", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("team", "key", "route", name=op.f("pk_remembered_answers")),
    )
    op.create_table(
        "audit_entries",
        sa.Column("audit_id", SERIAL, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("object_kind", sa.String(), nullable=False),
        sa.Column("object_id", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("provider_request_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("audit_id", name=op.f("pk_audit_entries")),
    )
    op.create_index(op.f("ix_audit_entries_at_audit_id"), "audit_entries", ["at", "audit_id"], unique=False)
    op.create_index(op.f("ix_audit_entries_object_id"), "audit_entries", ["object_id"], unique=False)
    op.create_index(op.f("ix_audit_entries_team_at"), "audit_entries", ["team", "at"], unique=False)

"""The whole schema; it draws the installation's id."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = None
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = sa.DateTime(timezone=True)
TABLES = (
    "meta",
    "leaders",
    "workers",
    "capacities",
    "launches",
    "feeds",
    "rounds",
    "offers",
    "quarantine",
    "offer_changes",
    "price_series",
    "prices",
    "price_days",
    "sku_days",
    "plans",
    "reoptimizations",
    "reservations",
    "reservation_units",
    "budget_alerts",
    "budgets",
    "closed_costs",
    "closed_months",
    "closed_rows",
    "exports",
    "spend_bills",
    "spend_days",
    "told_money",
    "api_keys",
    "sessions",
    "remembered_answers",
    "audit_entries",
    "deliveries",
    "outbox",
    "webhooks",
)


def upgrade() -> None:
    _create_installation()
    _create_market()
    _create_prices()
    _create_plans()
    _create_reservations()
    _create_spend()
    _create_accounts()
    _create_webhooks()
    meta = sa.table("meta", sa.column("name", sa.String), sa.column("value", sa.String))
    op.bulk_insert(meta, [{"name": "install_id", "value": secrets.token_hex(4)}])


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
    op.create_table(
        "leaders",
        sa.Column("work", IDENTIFIER, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", IDENTIFIER, nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("work", name=op.f("pk_leaders")),
    )
    op.create_table(
        "workers",
        sa.Column("worker_id", IDENTIFIER, nullable=False),
        sa.Column("alive_until", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("worker_id", name=op.f("pk_workers")),
    )
    op.create_table(
        "capacities",
        sa.Column("capacity_id", IDENTIFIER, nullable=False),
        sa.Column("takings", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("capacity_id", name=op.f("pk_capacities")),
    )
    op.create_table(
        "launches",
        sa.Column("reservation_id", IDENTIFIER, nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("sku", sa.String(), nullable=False),
        sa.Column("region", IDENTIFIER, nullable=False),
        sa.Column("asked_at", INSTANT, nullable=False),
        sa.Column("due_at", INSTANT, nullable=False),
        sa.Column("usable_at", INSTANT, nullable=True),
        sa.Column("ends_at", INSTANT, nullable=True),
        sa.Column("asks_per_node_hour_micro_usd", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("reservation_id", "outcome", name=op.f("pk_launches")),
    )
    op.create_index(op.f("ix_launches_asked_at"), "launches", ["asked_at"], unique=False)


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
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before", INSTANT, nullable=True),
        sa.Column("probe", DOCUMENT, nullable=True),
        sa.Column("offers_digest", sa.String(), server_default="", nullable=False),
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
    op.create_index(op.f("ix_rounds_started_at"), "rounds", ["started_at"], unique=False)
    op.create_table(
        "offers",
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("round_id", SERIAL, nullable=False),
        sa.Column("sku", sa.String(), nullable=False),
        sa.Column("gpu", IDENTIFIER, nullable=False),
        sa.Column("region", IDENTIFIER, nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("price_rank", IDENTIFIER, nullable=False),
        sa.Column("price_per_gpu_hour_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("price_per_node_hour_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("stock_nodes", sa.Integer(), nullable=True),
        sa.Column("pool_id", IDENTIFIER, nullable=True),
        sa.Column("pool_gpus", sa.Integer(), nullable=True),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.Column("list_per_node_hour_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("observed_at", INSTANT, nullable=True),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.round_id"], name=op.f("fk_offers_round_id_rounds")),
        sa.PrimaryKeyConstraint("offer_id", name=op.f("pk_offers")),
    )
    op.create_index(
        op.f("ix_offers_gpu_price_rank_offer_id"), "offers", ["gpu", "price_rank", "offer_id"], unique=False
    )
    op.create_index(
        op.f("ix_offers_pool_id_gpu_pool_gpus"), "offers", ["pool_id", "gpu", "pool_gpus"], unique=False
    )
    op.create_index(
        op.f("ix_offers_price_per_node_hour_micro_usd_offer_id"),
        "offers",
        ["price_per_node_hour_micro_usd", "offer_id"],
        unique=False,
    )
    op.create_index(op.f("ix_offers_price_rank_offer_id"), "offers", ["price_rank", "offer_id"], unique=False)
    op.create_index(
        op.f("ix_offers_provider_gpu_region_tier"),
        "offers",
        ["provider", "gpu", "region", "tier"],
        unique=False,
    )
    op.create_index(
        op.f("ix_offers_provider_observed_at"), "offers", ["provider", "observed_at"], unique=False
    )
    op.create_index(
        op.f("ix_offers_provider_price_rank_offer_id"),
        "offers",
        ["provider", "price_rank", "offer_id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_offers_region_price_rank_offer_id"),
        "offers",
        ["region", "price_rank", "offer_id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_offers_stock_nodes_offer_id"), "offers", ["stock_nodes", "offer_id"], unique=False
    )
    op.create_index(
        op.f("ix_offers_tier_price_rank_offer_id"), "offers", ["tier", "price_rank", "offer_id"], unique=False
    )
    op.create_table(
        "quarantine",
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("since", INSTANT, nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.PrimaryKeyConstraint("offer_id", name=op.f("pk_quarantine")),
    )
    op.create_index(op.f("ix_quarantine_provider"), "quarantine", ["provider"], unique=False)
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


def _create_prices() -> None:
    op.create_table(
        "price_series",
        sa.Column("series_id", SERIAL, nullable=False),
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("gpu", IDENTIFIER, nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("gpus_per_node", sa.Integer(), nullable=False),
        sa.Column("document", DOCUMENT, nullable=True),
        sa.PrimaryKeyConstraint("series_id", name=op.f("pk_price_series")),
        sa.UniqueConstraint("offer_id", name=op.f("uq_price_series_offer_id")),
    )
    op.create_index(op.f("ix_price_series_gpu_tier"), "price_series", ["gpu", "tier"], unique=False)
    op.create_table(
        "prices",
        sa.Column("series_id", SERIAL, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("stock_nodes", sa.Integer(), nullable=True),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["series_id"], ["price_series.series_id"], name=op.f("fk_prices_series_id_price_series")
        ),
        sa.PrimaryKeyConstraint("series_id", "at", name=op.f("pk_prices")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "price_days",
        sa.Column("series_id", SERIAL, nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("least", sa.BigInteger(), nullable=False),
        sa.Column("median", sa.BigInteger(), nullable=False),
        sa.Column("most", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Integer(), nullable=False),
        sa.Column("changes", sa.Integer(), nullable=False),
        sa.Column("on_sale", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["series_id"], ["price_series.series_id"], name=op.f("fk_price_days_series_id_price_series")
        ),
        sa.PrimaryKeyConstraint("series_id", "day", name=op.f("pk_price_days")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sku_days",
        sa.Column("gpu", IDENTIFIER, nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("least", sa.BigInteger(), nullable=False),
        sa.Column("median", sa.BigInteger(), nullable=False),
        sa.Column("most", sa.BigInteger(), nullable=False),
        sa.Column("offers", sa.Integer(), nullable=False),
        sa.Column("providers", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("gpu", "tier", "day", "provider", name=op.f("pk_sku_days")),
        sqlite_with_rowid=False,
    )


def _create_plans() -> None:
    op.create_table(
        "plans",
        sa.Column("plan_id", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("workloads_key", sa.String(), nullable=False),
        sa.Column("workload_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("options", DOCUMENT, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("requested_by", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=True),
        sa.Column("cost_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("plan", DOCUMENT, nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("needs_approval", sa.Boolean(), nullable=False),
        sa.Column("approval_reason", sa.Text(), nullable=True),
        sa.Column("approved_by", sa.String(), nullable=True),
        sa.Column("approved_at", INSTANT, nullable=True),
        sa.Column("supersedes", IDENTIFIER, nullable=True),
        sa.Column("approval", IDENTIFIER, nullable=True),
        sa.Column("decisions", DOCUMENT, nullable=True),
        sa.Column("intended_by", sa.String(), nullable=True),
        sa.Column("reserved_at", INSTANT, nullable=True),
        sa.Column("claimed_by", IDENTIFIER, nullable=True),
        sa.Column("claimed_until", INSTANT, nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("plan_id", name=op.f("pk_plans")),
    )
    op.create_index(op.f("ix_plans_approval_created_at"), "plans", ["approval", "created_at"], unique=False)
    op.create_index(op.f("ix_plans_created_at_plan_id"), "plans", ["created_at", "plan_id"], unique=False)
    op.create_index(
        op.f("ix_plans_state_team_workloads_key"), "plans", ["state", "team", "workloads_key"], unique=False
    )
    op.create_index(op.f("ix_plans_supersedes"), "plans", ["supersedes"], unique=False)
    op.create_index(op.f("ix_plans_team_created_at"), "plans", ["team", "created_at"], unique=False)
    op.create_index(op.f("ix_plans_team_version"), "plans", ["team", "version"], unique=False)
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
        sa.Column("mode", sa.String(), nullable=True),
        sa.Column("lapses_at", INSTANT, nullable=True),
        sa.Column("decided_at", INSTANT, nullable=True),
        sa.Column("decided_by", sa.String(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("guard_s", sa.Double(), nullable=True),
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
        op.f("ix_reoptimizations_state_started_at"), "reoptimizations", ["state", "started_at"], unique=False
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
        sa.Column("pool_id", IDENTIFIER, nullable=True),
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
        sa.Column("requested_start", INSTANT, nullable=True),
        sa.Column("requested_end", INSTANT, nullable=True),
        sa.Column("granted_start", INSTANT, nullable=True),
        sa.Column("granted_end", INSTANT, nullable=True),
        sa.Column("ever_held", sa.Boolean(), nullable=False),
        sa.Column("owed_from", INSTANT, nullable=False),
        sa.Column("owed_until", INSTANT, nullable=True),
        sa.Column("replaces", DOCUMENT, nullable=True),
        sa.Column("limit_per_node_hour_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("tried_at", INSTANT, nullable=True),
        sa.Column("rolled_up", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("claimed_by", IDENTIFIER, nullable=True),
        sa.Column("claimed_until", INSTANT, nullable=True),
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
    op.create_index(op.f("ix_reservations_pool_id"), "reservations", ["pool_id"], unique=False)
    op.create_index(op.f("ix_reservations_rolled_up"), "reservations", ["rolled_up"], unique=False)
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
        sa.Column("began_at", INSTANT, nullable=True),
        sa.Column("leaving_at", INSTANT, nullable=True),
        sa.Column("seen_at", INSTANT, nullable=True),
        sa.Column("gone_at", INSTANT, nullable=True),
        sa.Column("paid_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("credit_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("price_per_node_hour_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("is_price_confirmed", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(
            ["reservation_id"],
            ["reservations.reservation_id"],
            name=op.f("fk_reservation_units_reservation_id_reservations"),
        ),
        sa.PrimaryKeyConstraint("reservation_id", "ordinal", name=op.f("pk_reservation_units")),
    )
    op.create_index(op.f("ix_reservation_units_reference"), "reservation_units", ["reference"], unique=False)
    op.create_index(op.f("ix_reservation_units_tag"), "reservation_units", ["tag"], unique=False)


def _create_spend() -> None:
    op.create_table(
        "budget_alerts",
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("period", IDENTIFIER, nullable=False),
        sa.Column("starts_at", INSTANT, nullable=False),
        sa.Column("percent", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("basis", IDENTIFIER, nullable=False),
        sa.PrimaryKeyConstraint(
            "team", "period", "starts_at", "percent", "basis", name=op.f("pk_budget_alerts")
        ),
    )
    op.create_table(
        "budgets",
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("period", IDENTIFIER, nullable=False),
        sa.Column("limit_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("thresholds", DOCUMENT, nullable=False),
        sa.Column("starts_at", INSTANT, nullable=True),
        sa.Column("ends_at", INSTANT, nullable=True),
        sa.Column("set_by", sa.String(), nullable=False),
        sa.Column("set_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("team", "period", name=op.f("pk_budgets")),
    )
    op.create_table(
        "closed_costs",
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("reservation_id", IDENTIFIER, nullable=False),
        sa.Column("billed_cents", sa.BigInteger(), nullable=False),
        sa.Column("effective_cents", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("month", "reservation_id", name=op.f("pk_closed_costs")),
    )
    op.create_table(
        "closed_months",
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("closed_at", INSTANT, nullable=False),
        sa.Column("closed_by", sa.String(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("cents", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("month", name=op.f("pk_closed_months")),
    )
    op.create_table(
        "closed_rows",
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("month", "ordinal", name=op.f("pk_closed_rows")),
    )
    op.create_table(
        "exports",
        sa.Column("export_id", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("file_name", sa.String(), nullable=False),
        sa.Column("media_type", sa.String(), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("export_id", name=op.f("pk_exports")),
    )
    op.create_table(
        "spend_bills",
        sa.Column("bill_id", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("cells", DOCUMENT, nullable=False),
        sa.PrimaryKeyConstraint("bill_id", name=op.f("pk_spend_bills")),
    )
    op.create_table(
        "spend_days",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("cell", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("workload", IDENTIFIER, nullable=False),
        sa.Column("kind", IDENTIFIER, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("sku", IDENTIFIER, nullable=False),
        sa.Column("tier", IDENTIFIER, nullable=False),
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("gpu", IDENTIFIER, nullable=False),
        sa.Column("region", IDENTIFIER, nullable=False),
        sa.Column("correction", sa.Boolean(), nullable=False),
        sa.Column("cents", sa.BigInteger(), nullable=False),
        sa.Column("cash_cents", sa.BigInteger(), nullable=False),
        sa.Column("gpu_seconds", sa.BigInteger(), nullable=False),
        sa.Column("idle_gpu_seconds", sa.BigInteger(), nullable=False),
        sa.Column("idle_cents", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "cell", name=op.f("pk_spend_days")),
    )
    op.create_index(op.f("ix_spend_days_team_day"), "spend_days", ["team", "day"], unique=False)
    op.create_table(
        "told_money",
        sa.Column("object_id", IDENTIFIER, nullable=False),
        sa.Column("expected_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("owed_micro_usd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("object_id", name=op.f("pk_told_money")),
    )


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
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("sha256", name=op.f("uq_api_keys_sha256")),
    )
    op.create_index(op.f("ix_api_keys_created_at_key_id"), "api_keys", ["created_at", "key_id"], unique=False)
    op.create_table(
        "sessions",
        sa.Column("sha256", IDENTIFIER, nullable=False),
        sa.Column("key_id", IDENTIFIER, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.key_id"], name=op.f("fk_sessions_key_id_api_keys")),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_expires_at"), "sessions", ["expires_at"], unique=False)
    op.create_index(op.f("ix_sessions_key_id"), "sessions", ["key_id"], unique=False)
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
        sa.Column("claimed_by", IDENTIFIER, nullable=True),
        sa.Column("effects", DOCUMENT, nullable=True),
        sa.PrimaryKeyConstraint("team", "key", "route", name=op.f("pk_remembered_answers")),
    )
    op.create_index(
        op.f("ix_remembered_answers_created_at"), "remembered_answers", ["created_at"], unique=False
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


def _create_webhooks() -> None:
    op.create_table(
        "deliveries",
        sa.Column("event_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("webhook_id", IDENTIFIER, nullable=False),
        sa.Column("message_id", IDENTIFIER, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", INSTANT, nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("event_id", "webhook_id", name=op.f("pk_deliveries")),
    )
    op.create_index(op.f("ix_deliveries_state_next_at"), "deliveries", ["state", "next_at"], unique=False)
    op.create_index(
        op.f("ix_deliveries_webhook_id_event_id"), "deliveries", ["webhook_id", "event_id"], unique=False
    )
    op.create_table(
        "outbox",
        sa.Column("event_id", SERIAL, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("object_kind", sa.String(), nullable=False),
        sa.Column("object_id", IDENTIFIER, nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_outbox")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "webhooks",
        sa.Column("webhook_id", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", DOCUMENT, nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("disabled_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("webhook_id", name=op.f("pk_webhooks")),
    )
    op.create_index(
        op.f("ix_webhooks_created_at_webhook_id"), "webhooks", ["created_at", "webhook_id"], unique=False
    )
    op.create_index(op.f("ix_webhooks_team"), "webhooks", ["team"], unique=False)

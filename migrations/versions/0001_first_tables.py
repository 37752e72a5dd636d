# SPDX-License-Identifier: Apache-2.0
"""The first tables: records, double-entry ledger, counters."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gpu",
        sa.Column("uuid", sa.String(length=253), nullable=False),
        sa.Column("model", sa.String(length=253), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uuid", name=op.f("pk_gpu")),
    )
    op.create_table(
        "namespace",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("cluster", sa.String(length=253), nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=253), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("settled_at", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_namespace")),
        sa.UniqueConstraint("cluster", "uid", name=op.f("uq_namespace_cluster_uid")),
    )
    with op.batch_alter_table("namespace", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_namespace_cluster_name"), ["cluster", "name"], unique=False)

    op.create_table(
        "rate",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("model", sa.String(length=253), nullable=False),
        sa.Column("numerator", sa.BigInteger(), nullable=False),
        sa.Column("denominator", sa.BigInteger(), nullable=False),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("numerator >= 0 AND denominator > 0", name=op.f("ck_rate_ratio")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rate")),
        sa.UniqueConstraint("model", "effective_at", name=op.f("uq_rate_model_effective_at")),
    )
    op.create_table(
        "watch_mark",
        sa.Column("cluster", sa.String(length=253), nullable=False),
        sa.Column("confirmed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_watch_mark")),
    )
    op.create_table(
        "watermark",
        sa.Column("pod_uid", sa.String(length=64), nullable=False),
        sa.Column("container", sa.String(length=253), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("used_ms", sa.BigInteger(), nullable=True),
        sa.Column("monotonic_ns", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pod_uid", "container", "epoch", name=op.f("pk_watermark")),
    )
    op.create_table(
        "account",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("namespace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("balance_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('issued', 'budget', 'charged', 'over-budget', 'unfunded', 'expired')",
            name=op.f("ck_account_kind"),
        ),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_account_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_account")),
        sa.UniqueConstraint("namespace_id", "kind", name=op.f("uq_account_namespace_id_kind")),
    )
    op.create_table(
        "anchor",
        sa.Column("namespace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_anchor_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("namespace_id", "at", name=op.f("pk_anchor")),
    )
    op.create_table(
        "budget_grant",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("namespace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("amount_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=1024), nullable=False),
        sa.Column("valid_from", sa.BigInteger(), nullable=False),
        sa.Column("valid_to", sa.BigInteger(), nullable=True),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("booked_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_ms > 0", name=op.f("ck_budget_grant_amount")),
        sa.CheckConstraint("valid_to IS NULL OR valid_to > valid_from", name=op.f("ck_budget_grant_validity")),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespace.id"], name=op.f("fk_budget_grant_namespace_id_namespace")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budget_grant")),
        sa.UniqueConstraint(
            "namespace_id", "idempotency_key", name=op.f("uq_budget_grant_namespace_id_idempotency_key")
        ),
    )
    with op.batch_alter_table("budget_grant", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_budget_grant_namespace_id_valid_from"), ["namespace_id", "valid_from"], unique=False
        )

    op.create_table(
        "budget_rule",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("namespace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.Column("amount_ms", sa.BigInteger(), nullable=False),
        sa.Column("period", sa.String(length=8), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=8), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("booked_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("period IN ('none', 'hour', 'day', 'week', 'month')", name=op.f("ck_budget_rule_period")),
        sa.CheckConstraint("source IN ('policy', 'own')", name=op.f("ck_budget_rule_source")),
        sa.CheckConstraint("amount_ms >= 0", name=op.f("ck_budget_rule_amount")),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_budget_rule_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budget_rule")),
    )
    with op.batch_alter_table("budget_rule", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_budget_rule_namespace_id_effective_at"), ["namespace_id", "effective_at"], unique=False
        )

    op.create_table(
        "txn",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("namespace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("idempotency_key", sa.String(length=512), nullable=False),
        sa.Column("subject", sa.String(length=253), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.Column("amount_ms", sa.BigInteger(), nullable=False),
        sa.Column("booked_at", sa.BigInteger(), nullable=False),
        sa.Column("reverses", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_txn_namespace_id_namespace")),
        sa.ForeignKeyConstraint(["reverses"], ["txn.id"], name=op.f("fk_txn_reverses_txn")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_txn")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_txn_idempotency_key")),
        sa.UniqueConstraint("reverses", name=op.f("uq_txn_reverses")),
    )
    with op.batch_alter_table("txn", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_txn_namespace_id_effective_at"), ["namespace_id", "effective_at"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_txn_subject"), ["subject"], unique=False)

    op.create_table(
        "workload",
        sa.Column("pod_uid", sa.String(length=64), nullable=False),
        sa.Column("namespace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("pod_name", sa.String(length=253), nullable=False),
        sa.Column("node", sa.String(length=253), nullable=False),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("holders", sa.Text(), nullable=False),
        sa.Column("gpu_class", sa.String(length=32), nullable=False),
        sa.Column("rate_numerator", sa.BigInteger(), nullable=False),
        sa.Column("rate_denominator", sa.BigInteger(), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("end_source", sa.String(length=32), nullable=False),
        sa.Column("flags", sa.Text(), nullable=False),
        sa.Column("heard_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("ended_at IS NULL OR ended_at >= started_at", name=op.f("ck_workload_interval")),
        sa.CheckConstraint("rate_numerator >= 0 AND rate_denominator > 0", name=op.f("ck_workload_rate")),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_workload_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("pod_uid", name=op.f("pk_workload")),
    )
    with op.batch_alter_table("workload", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_workload_namespace_id_ended_at"), ["namespace_id", "ended_at"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_workload_opened_at_pod_uid"), ["opened_at", "pod_uid"], unique=False)

    op.create_table(
        "entry",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("txn_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("account_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("amount_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_ms <> 0", name=op.f("ck_entry_amount")),
        sa.ForeignKeyConstraint(["account_id"], ["account.id"], name=op.f("fk_entry_account_id_account")),
        sa.ForeignKeyConstraint(["txn_id"], ["txn.id"], name=op.f("fk_entry_txn_id_txn")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_entry")),
        sa.UniqueConstraint("txn_id", "account_id", name=op.f("uq_entry_txn_id_account_id")),
    )
    with op.batch_alter_table("entry", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_entry_account_id"), ["account_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("entry", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_entry_account_id"))

    op.drop_table("entry")
    with op.batch_alter_table("workload", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_workload_opened_at_pod_uid"))
        batch_op.drop_index(batch_op.f("ix_workload_namespace_id_ended_at"))

    op.drop_table("workload")
    with op.batch_alter_table("txn", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_txn_subject"))
        batch_op.drop_index(batch_op.f("ix_txn_namespace_id_effective_at"))

    op.drop_table("txn")
    with op.batch_alter_table("budget_rule", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_budget_rule_namespace_id_effective_at"))

    op.drop_table("budget_rule")
    with op.batch_alter_table("budget_grant", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_budget_grant_namespace_id_valid_from"))

    op.drop_table("budget_grant")
    op.drop_table("anchor")
    op.drop_table("account")
    op.drop_table("watermark")
    op.drop_table("watch_mark")
    op.drop_table("rate")
    with op.batch_alter_table("namespace", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_namespace_cluster_name"))

    op.drop_table("namespace")
    op.drop_table("gpu")

# SPDX-License-Identifier: Apache-2.0
"""Intervals that were put right by hand, what is known of pods' lives, and refunds beyond what was charged."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("created_at", "closed_at"):
        op.add_column("workload", sa.Column(name, sa.BigInteger(), nullable=True))
    op.add_column("budget_grant", sa.Column("taken_back_ms", sa.BigInteger(), server_default="0", nullable=False))
    op.create_table(
        "interval_correction",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("namespace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("pod_uid", sa.String(length=64), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("started_before", sa.BigInteger(), nullable=False),
        sa.Column("ended_before", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.String(length=1024), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("booked_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("ended_at IS NULL OR ended_at >= started_at", name=op.f("ck_interval_correction_interval")),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespace.id"], name=op.f("fk_interval_correction_namespace_id_namespace")
        ),
        sa.ForeignKeyConstraint(
            ["pod_uid"], ["workload.pod_uid"], name=op.f("fk_interval_correction_pod_uid_workload")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_interval_correction")),
        sa.UniqueConstraint(
            "namespace_id", "idempotency_key", name=op.f("uq_interval_correction_namespace_id_idempotency_key")
        ),
    )
    op.create_index(op.f("ix_interval_correction_pod_uid"), "interval_correction", ["pod_uid"], unique=False)


def downgrade() -> None:
    connection = op.get_bind()
    corrected = connection.execute(sa.text("SELECT count(*) FROM interval_correction")).scalar_one()
    taken = connection.execute(sa.text("SELECT count(*) FROM budget_grant WHERE taken_back_ms <> 0")).scalar_one()
    if corrected or taken:
        raise RuntimeError(
            f"{corrected} intervals were corrected and {taken} refunds limited, of which revision 0014 knows nothing"
        )
    op.drop_table("interval_correction")
    op.drop_column("budget_grant", "taken_back_ms")
    for name in ("created_at", "closed_at"):
        op.drop_column("workload", name)

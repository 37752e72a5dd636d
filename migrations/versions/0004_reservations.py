# SPDX-License-Identifier: Apache-2.0
"""GPU time set aside for pods that are to finish, and by hand."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reservation",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("namespace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("pod_uid", sa.String(length=64), nullable=True),
        sa.Column("pod_name", sa.String(length=253), nullable=False),
        sa.Column("amount_ms", sa.BigInteger(), nullable=False),
        sa.Column("span_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=1024), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.CheckConstraint("amount_ms >= 0", name=op.f("ck_reservation_amount")),
        sa.CheckConstraint("(pod_uid IS NULL) <> (expires_at IS NULL)", name=op.f("ck_reservation_holder")),
        sa.CheckConstraint("outcome IN ('', 'settled', 'released', 'expired')", name=op.f("ck_reservation_outcome")),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_reservation_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservation")),
        sa.UniqueConstraint("pod_uid", name=op.f("uq_reservation_pod_uid")),
        sa.UniqueConstraint(
            "namespace_id", "idempotency_key", name=op.f("uq_reservation_namespace_id_idempotency_key")
        ),
    )
    with op.batch_alter_table("reservation") as table:
        table.create_index(op.f("ix_reservation_namespace_id_ended_at"), ["namespace_id", "ended_at"], unique=False)


def downgrade() -> None:
    open_ones = op.get_bind().execute(sa.text("SELECT count(*) FROM reservation WHERE ended_at IS NULL")).scalar_one()
    if open_ones:
        raise RuntimeError(
            f"{open_ones} reservations are open, and revision 0003 would give their GPU time away: "
            "release them, or wait until their pods have ended"
        )
    op.drop_table("reservation")

# SPDX-License-Identifier: Apache-2.0
"""Usage by the hour, and what is kept of pods whose watermarks are thrown away."""

import json
from fractions import Fraction

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("hour", "hour_base", "observed_ms"):
        op.add_column("watermark", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False))
    # What was counted before belongs to hours that nobody knows any more.
    op.execute("UPDATE watermark SET hour = received_at / 3600000 * 3600000, hour_base = coalesce(used_ms, 0)")
    op.add_column("workload", sa.Column("models", sa.String(length=253), server_default="", nullable=False))
    op.add_column("workload", sa.Column("gpus_ppm", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("workload", sa.Column("archived_at", sa.BigInteger(), nullable=True))
    op.add_column("workload", sa.Column("used_ms", sa.BigInteger(), nullable=True))
    _sizes()
    op.create_index(op.f("ix_workload_archived_at_ended_at"), "workload", ["archived_at", "ended_at"], unique=False)
    op.create_table(
        "usage_hour",
        sa.Column("pod_uid", sa.String(length=64), nullable=False),
        sa.Column("container", sa.String(length=253), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("used_ms", sa.BigInteger(), nullable=True),
        sa.Column("observed_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pod_uid", "container", "epoch", "hour", name=op.f("pk_usage_hour")),
        postgresql_partition_by="RANGE (hour)",
    )
    op.create_index(op.f("ix_usage_hour_hour"), "usage_hour", ["hour"], unique=False)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("CREATE TABLE usage_hour_rest PARTITION OF usage_hour DEFAULT")


def _sizes() -> None:
    connection = op.get_bind()
    change = sa.text("UPDATE workload SET models = :models, gpus_ppm = :ppm WHERE shares = :shares")
    for (text,) in connection.execute(sa.text("SELECT DISTINCT shares FROM workload")).all():
        shares = {model: Fraction(share) for model, share in json.loads(text).items()}
        models = ",".join(sorted(filter(None, shares)))[:253]
        ppm = round(sum(shares.values()) * 1_000_000)
        connection.execute(change, {"models": models, "ppm": ppm, "shares": text})


def downgrade() -> None:
    archived = sa.text("SELECT count(*) FROM workload WHERE archived_at IS NOT NULL")
    count = op.get_bind().execute(archived).scalar_one()
    if count:
        raise RuntimeError(f"what {count} archived pods used has no place in revision 0004: it would count as unknown")
    op.drop_table("usage_hour")
    op.drop_index(op.f("ix_workload_archived_at_ended_at"), table_name="workload")
    for name in ("models", "gpus_ppm", "archived_at", "used_ms"):
        op.drop_column("workload", name)
    for name in ("hour", "hour_base", "observed_ms"):
        op.drop_column("watermark", name)

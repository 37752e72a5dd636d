# SPDX-License-Identifier: Apache-2.0
"""Thresholds of budgets that were told, so that each is told once per period."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "threshold",
        sa.Column("namespace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("period_start", sa.BigInteger(), nullable=False),
        sa.Column("percent", sa.BigInteger(), nullable=False),
        sa.Column("told_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_threshold_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("namespace_id", "period_start", "percent", name=op.f("pk_threshold")),
    )


def downgrade() -> None:
    op.drop_table("threshold")

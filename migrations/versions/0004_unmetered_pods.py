# SPDX-License-Identifier: Apache-2.0
"""The pods that are not metered, because their namespace's policy said so when they were first seen."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "unmetered_pod",
        sa.Column("pod_uid", sa.String(length=64), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pod_uid", name="pk_unmetered_pod"),
    )


def downgrade() -> None:
    # The revision before meters such pods as soon as the policy says so, whatever it said when they were first seen.
    op.drop_table("unmetered_pod")

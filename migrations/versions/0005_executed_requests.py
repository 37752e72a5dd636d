# SPDX-License-Identifier: Apache-2.0
"""The idempotency keys of requests that append no row that could keep them, such as a budget that is set."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "executed_request",
        sa.Column("cluster", sa.String(length=253), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("executed_at", sa.BigInteger(), nullable=False),
        sa.Column("rate_since", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("cluster", "subject", "idempotency_key", name="pk_executed_request"),
    )


def downgrade() -> None:
    # The revision before takes no keys for these requests: a repetition is executed again, as it always was there.
    op.drop_table("executed_request")

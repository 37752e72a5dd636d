# SPDX-License-Identifier: Apache-2.0
"""Grants that were withdrawn before they began."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("budget_grant", sa.Column("withdrawn_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    query = sa.text("SELECT count(*) FROM budget_grant WHERE withdrawn_at IS NOT NULL")
    count = op.get_bind().execute(query).scalar_one()
    if count:
        raise RuntimeError(f"{count} grants were withdrawn, and revision 0011 would bring them again")
    op.drop_column("budget_grant", "withdrawn_at")

# SPDX-License-Identifier: Apache-2.0
"""Budgets whose periods begin where an anchor says."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("budget_rule") as table:
        table.add_column(sa.Column("anchor_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    count = op.get_bind().execute(sa.text("SELECT count(*) FROM budget_rule WHERE anchor_at IS NOT NULL")).scalar_one()
    if count:
        raise RuntimeError(
            f"{count} budgets have periods with an anchor, which revision 0006 cannot keep: the ledger would be wrong"
        )
    with op.batch_alter_table("budget_rule") as table:
        table.drop_column("anchor_at")

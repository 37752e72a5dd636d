# SPDX-License-Identifier: Apache-2.0
"""Since when `timekeeper.debt` says what it says.

A ledger of before was kept as the setting was when it was last settled, and no table tells how that was. So the table
begins empty, and the first timekeeper that leads writes what its setting says, from the start of time: the ledger stays
as it is.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "debt_rule",
        sa.Column("cluster", sa.String(length=253), nullable=False),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.Column("debt", sa.String(length=8), nullable=False),
        sa.CheckConstraint("debt IN ('forgive', 'carry')", name=op.f("ck_debt_rule_debt")),
        sa.PrimaryKeyConstraint("cluster", "effective_at", name=op.f("pk_debt_rule")),
    )


def downgrade() -> None:
    changes = op.get_bind().execute(sa.text("SELECT count(*) FROM debt_rule WHERE effective_at > 0")).scalar_one()
    if changes:
        raise RuntimeError(
            f"timekeeper.debt was changed {changes} times, and revision 0010 would hold the last setting for ever: "
            "what was forgiven would be collected, or what was owed be forgiven; restore a dump of before"
        )
    op.drop_table("debt_rule")

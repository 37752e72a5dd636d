# SPDX-License-Identifier: Apache-2.0
"""Delete the checkpoints that have refunds: they do not say which allowances expire with the period."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_DELETE = "DELETE FROM anchor WHERE at >= (SELECT MIN(valid_from) FROM budget_grant WHERE kind = 'refund')"


def upgrade() -> None:
    op.execute(sa.text(_DELETE))


def downgrade() -> None:
    # The revision before reads from the row when a refund expires.
    endless = sa.text("SELECT COUNT(*) FROM budget_grant WHERE kind = 'refund' AND valid_to IS NULL")
    if op.get_bind().execute(endless).scalar():
        raise RuntimeError("refunds without an end: the revision before 0003 would never let them expire")
    op.execute(sa.text(_DELETE))

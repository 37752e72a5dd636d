# SPDX-License-Identifier: Apache-2.0
"""Anchors are made again: where one budget's period ended, another's idle ones could be passed over too far in them."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DELETE FROM anchor")


def downgrade() -> None:
    """Nothing to take back: both revisions make anchors as they settle."""

# SPDX-License-Identifier: Apache-2.0
"""Room on PostgreSQL's pages for the next version of a watermark.

Without it, a report moves its row to another page and its key's entry in the index with it: three times the log.
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE watermark SET (fillfactor = 50)")


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE watermark RESET (fillfactor)")

# SPDX-License-Identifier: Apache-2.0
"""A small index of the pods that run, which reports look up, beside that of all that ever did."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_RUNS = sa.text("ended_at IS NULL")


def upgrade() -> None:
    op.create_index("ix_workload_running", "workload", ["pod_uid"], sqlite_where=_RUNS, postgresql_where=_RUNS)


def downgrade() -> None:
    op.drop_index("ix_workload_running", table_name="workload")

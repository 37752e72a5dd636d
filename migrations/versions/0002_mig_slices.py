# SPDX-License-Identifier: Apache-2.0
"""The parts of their GPUs that MIG slices are: pods on them are charged by these after the slice is gone, too."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_COLUMNS = ("slice_mib", "slice_compute", "slice_of")


def upgrade() -> None:
    for name in _COLUMNS:
        op.add_column("gpu", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    # Who knows no slices would charge pods on them for whole GPUs' memory; without a record it asks the node.
    op.execute(sa.text("DELETE FROM gpu WHERE slice_mib > 0"))
    with op.batch_alter_table("gpu") as table:
        for name in _COLUMNS:
            table.drop_column(name)

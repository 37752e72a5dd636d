# SPDX-License-Identifier: Apache-2.0
"""Seals of periods, and corrections of what is sealed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("namespace", sa.Column("sealed_until", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("txn", sa.Column("corrects_at", sa.BigInteger(), nullable=True))
    op.create_table(
        "seal",
        sa.Column("namespace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("sealed_at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("last_txn", sa.BigInteger(), nullable=False),
        sa.Column("transactions", sa.BigInteger(), nullable=False),
        sa.Column("balances", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_seal_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("namespace_id", "until", name=op.f("pk_seal")),
    )


def downgrade() -> None:
    count = op.get_bind().execute(sa.text("SELECT count(*) FROM txn WHERE corrects_at IS NOT NULL")).scalar_one()
    if count:
        raise RuntimeError(
            f"{count} corrections have no place in revision 0002: without them the ledger would be wrong"
        )
    op.drop_table("seal")
    op.drop_column("txn", "corrects_at")
    op.drop_column("namespace", "sealed_until")

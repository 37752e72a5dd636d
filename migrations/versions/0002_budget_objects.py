# SPDX-License-Identifier: Apache-2.0
"""Which Kubernetes object keeps a budget. Only a table is added: replicas of before go on beside it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "budget_object",
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.String(length=63), nullable=True),
        sa.Column("released_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespace.id"], name=op.f("fk_budget_object_namespace_id_namespace")
        ),
        sa.PrimaryKeyConstraint("namespace_id", name=op.f("pk_budget_object")),
    )


def downgrade() -> None:
    op.drop_table("budget_object")

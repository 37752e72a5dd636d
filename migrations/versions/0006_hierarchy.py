# SPDX-License-Identifier: Apache-2.0
"""Teams and organisations, and how budgets stand under each other."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("namespace") as table:
        table.add_column(sa.Column("kind", sa.String(length=16), server_default="namespace", nullable=False))
        table.create_check_constraint(op.f("ck_namespace_kind"), "kind IN ('namespace', 'team', 'organisation')")
    key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "membership",
        sa.Column("id", key, nullable=False),
        sa.Column("child_id", key, nullable=False),
        sa.Column("parent_id", key, nullable=True),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.ForeignKeyConstraint(["child_id"], ["namespace.id"], name=op.f("fk_membership_child_id_namespace")),
        sa.ForeignKeyConstraint(["parent_id"], ["namespace.id"], name=op.f("fk_membership_parent_id_namespace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_membership")),
    )
    op.create_index(op.f("ix_membership_child_id_effective_at"), "membership", ["child_id", "effective_at"])
    op.create_index(op.f("ix_membership_parent_id"), "membership", ["parent_id"])


def downgrade() -> None:
    count = op.get_bind().execute(sa.text("SELECT count(*) FROM namespace WHERE kind <> 'namespace'")).scalar_one()
    if count:
        raise RuntimeError(
            f"{count} teams and organisations have no place in revision 0005: without them the ledger would be wrong"
        )
    op.drop_table("membership")
    with op.batch_alter_table("namespace") as table:
        table.drop_constraint(op.f("ck_namespace_kind"), type_="check")
        table.drop_column("kind")

# SPDX-License-Identifier: Apache-2.0
"""What a running period has used counts in full when its budget changes; prices know when they were set.

Rules of before stay what they were, or the ledger would be another: one of another calendar began a period, all else
counted what was used up to the amount that was. Anchors are made again, as grants that are used up have left them.
Accounts that were opened and never settled are settled from their opening.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("budget_rule") as table:
        table.add_column(sa.Column("used", sa.String(length=8), server_default="counts", nullable=False))
        table.create_check_constraint(op.f("ck_budget_rule_used"), "used IN ('counts', 'anew', 'clamped')")
    op.add_column("rate", sa.Column("booked_at", sa.BigInteger(), nullable=True))
    _keep_what_was()
    op.execute("DELETE FROM anchor")
    op.execute("UPDATE namespace SET settled_at = opened_at WHERE settled_at = 0")


def _keep_what_was() -> None:
    bind = op.get_bind()
    bind.execute(sa.text("UPDATE budget_rule SET used = 'clamped'"))
    rows = bind.execute(
        sa.text(
            "SELECT id, namespace_id, effective_at, period, time_zone, anchor_at FROM budget_rule"
            " ORDER BY namespace_id, effective_at, id"
        )
    ).all()
    in_force: dict[tuple[int, int], sa.Row[tuple[object, ...]]] = {(r.namespace_id, r.effective_at): r for r in rows}
    before = None
    for row in in_force.values():  # of those of one instant only the last ever held
        same = before is not None and before.namespace_id == row.namespace_id
        if same and (before.period, before.time_zone, before.anchor_at) != (row.period, row.time_zone, row.anchor_at):
            bind.execute(sa.text("UPDATE budget_rule SET used = 'anew' WHERE id = :id"), {"id": row.id})
        before = row


def downgrade() -> None:
    bind = op.get_bind()
    first = "SELECT min(id) FROM budget_rule GROUP BY namespace_id"
    changed = f"SELECT count(*) FROM budget_rule WHERE used = 'counts' AND id NOT IN ({first})"  # noqa: S608
    count = bind.execute(sa.text(changed)).scalar_one()
    if count:
        raise RuntimeError(
            f"{count} budgets were changed since revision 0014, and revision 0013 would forgive what was used before: "
            "the ledger would not be the same; restore a dump of before"
        )
    op.execute("DELETE FROM anchor")
    op.drop_column("rate", "booked_at")
    with op.batch_alter_table("budget_rule") as table:
        table.drop_constraint(op.f("ck_budget_rule_used"), type_="check")
        table.drop_column("used")

# SPDX-License-Identifier: Apache-2.0
"""Indexes along which pages of a namespace are read, however many pods and bookings it has."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_BEFORE = (
    ("txn", ("subject",)),
    ("entry", ("account_id",)),
    ("workload", ("opened_at", "pod_uid")),
    ("workload", ("namespace_id", "ended_at")),
)
_AFTER = (
    ("txn", ("namespace_id", "subject", "effective_at")),
    ("entry", ("account_id", "id")),
    ("workload", ("started_at", "pod_uid")),
    ("workload", ("namespace_id", "started_at", "pod_uid")),
    ("workload", ("namespace_id", "ended_at", "started_at")),
)


def upgrade() -> None:
    _replace(_BEFORE, _AFTER)


def downgrade() -> None:
    _replace(_AFTER, _BEFORE)


def _replace(old: tuple[tuple[str, tuple[str, ...]], ...], new: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    for table, columns in new:
        op.create_index(_name(table, columns), table, list(columns))
    for table, columns in old:
        op.drop_index(_name(table, columns), table_name=table)


def _name(table: str, columns: tuple[str, ...]) -> str:
    return op.f(f"ix_{table}_{'_'.join(columns)}")

# SPDX-License-Identifier: Apache-2.0
"""Refunds, adjustments and transfers beside grants; rules with credit and status; prices by model; the audit log."""

import hashlib
import json
from fractions import Fraction

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_KINDS = ("issued", "budget", "charged", "over-budget", "unfunded", "expired")
_PERIODS = ("none", "hour", "day", "week", "month")


def _among(column: str, values: tuple[str, ...]) -> str:
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


def upgrade() -> None:
    with op.batch_alter_table("account") as table:
        table.drop_constraint(op.f("ck_account_kind"), type_="check")
        table.create_check_constraint(op.f("ck_account_kind"), _among("kind", (*_KINDS, "transferred")))
    op.execute("INSERT INTO account (namespace_id, kind, balance_ms) SELECT id, 'transferred', 0 FROM namespace")
    with op.batch_alter_table("budget_rule") as table:
        table.add_column(sa.Column("credit_ms", sa.BigInteger(), server_default="0", nullable=False))
        table.add_column(sa.Column("rollover_ms", sa.BigInteger(), server_default="0", nullable=False))
        table.add_column(sa.Column("status", sa.String(length=16), server_default="active", nullable=False))
        table.drop_constraint(op.f("ck_budget_rule_period"), type_="check")
        table.create_check_constraint(op.f("ck_budget_rule_period"), _among("period", (*_PERIODS, "year")))
        table.create_check_constraint(op.f("ck_budget_rule_limits"), "credit_ms >= 0 AND rollover_ms >= 0")
        table.create_check_constraint(
            op.f("ck_budget_rule_status"), _among("status", ("active", "suspended", "closed"))
        )
    with op.batch_alter_table("budget_grant") as table:
        table.add_column(sa.Column("kind", sa.String(length=16), server_default="grant", nullable=False))
        table.add_column(sa.Column("priority", sa.BigInteger(), server_default="0", nullable=False))
        table.add_column(sa.Column("counterpart", sa.String(length=253), server_default="", nullable=False))
        table.drop_constraint(op.f("ck_budget_grant_amount"), type_="check")
        table.create_check_constraint(op.f("ck_budget_grant_amount"), "amount_ms <> 0")
        table.create_check_constraint(
            op.f("ck_budget_grant_kind"), _among("kind", ("grant", "refund", "adjustment", "transfer"))
        )
        table.create_index(op.f("ix_budget_grant_counterpart"), ["counterpart"], unique=False)
    with op.batch_alter_table("rate") as table:
        table.add_column(sa.Column("source", sa.String(length=16), server_default="settings", nullable=False))
        table.create_check_constraint(op.f("ck_rate_source"), _among("source", ("settings", "rest")))
    _shares_of_rates()
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("cluster", sa.String(length=253), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("namespace", sa.String(length=253), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("prev_hash", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sa.UniqueConstraint("prev_hash", name=op.f("uq_audit_prev_hash")),
    )
    with op.batch_alter_table("audit") as table:
        table.create_index(op.f("ix_audit_cluster_namespace_id"), ["cluster", "namespace", "id"], unique=False)
    _begin_log(op.get_bind())


def _begin_log(connection: sa.Connection) -> None:
    """Tell in the log's first record which grants and budgets are older than it: without it all must be in the log."""
    older = sa.text(
        "SELECT (SELECT coalesce(max(id), 0) FROM budget_grant), (SELECT coalesce(max(id), 0) FROM budget_rule),"
        " (SELECT coalesce(max(booked_at), 0) FROM budget_rule)"
    )
    grants, rules, at = connection.execute(older).one()
    if grants or rules:
        detail = json.dumps({"grant": grants, "rule": rules}, separators=(",", ":"))
        parts = ["0" * 64, at, "", "timekeeper", "log-begun", "", detail]
        digest = hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()
        names = ("prev_hash", "at", "cluster", "actor", "action", "namespace", "detail")
        query = sa.text(f"INSERT INTO audit ({', '.join(names)}, hash) VALUES (:{', :'.join(names)}, :hash)")  # noqa: S608
        connection.execute(query, {**dict(zip(names, parts, strict=True)), "hash": digest})


def _shares_of_rates() -> None:
    """A pod that was charged at one rate for ever is one of no model, which has no price of its own."""
    with op.batch_alter_table("workload") as table:
        table.add_column(sa.Column("shares", sa.Text(), server_default="{}", nullable=False))
    op.execute("UPDATE workload SET shares = '{\"\":\"' || rate_numerator || '/' || rate_denominator || '\"}'")
    with op.batch_alter_table("workload") as table:
        table.alter_column("shares", server_default=None)
        table.drop_constraint(op.f("ck_workload_rate"), type_="check")
        table.drop_column("rate_numerator")
        table.drop_column("rate_denominator")


def downgrade() -> None:
    connection = op.get_bind()
    used = connection.execute(
        sa.text(
            "SELECT (SELECT count(*) FROM budget_grant WHERE kind <> 'grant')"
            " + (SELECT count(*) FROM budget_rule WHERE credit_ms > 0 OR rollover_ms > 0 OR status <> 'active'"
            " OR period = 'year') + (SELECT count(*) FROM budget_grant WHERE priority <> 0)"
            " + (SELECT count(*) FROM rate WHERE source <> 'settings')"
        )
    ).scalar_one()
    if used:
        raise RuntimeError(
            f"{used} rules, movements and rates have no place in revision 0001: without them the ledger would be wrong"
        )
    op.drop_table("audit")
    _rates_of_shares(connection)
    with op.batch_alter_table("rate") as table:
        table.drop_constraint(op.f("ck_rate_source"), type_="check")
        table.drop_column("source")
    with op.batch_alter_table("budget_grant") as table:
        table.drop_index(op.f("ix_budget_grant_counterpart"))
        table.drop_constraint(op.f("ck_budget_grant_kind"), type_="check")
        table.drop_constraint(op.f("ck_budget_grant_amount"), type_="check")
        table.create_check_constraint(op.f("ck_budget_grant_amount"), "amount_ms > 0")
        for column in ("kind", "priority", "counterpart"):
            table.drop_column(column)
    with op.batch_alter_table("budget_rule") as table:
        for name in ("limits", "status", "period"):
            table.drop_constraint(op.f(f"ck_budget_rule_{name}"), type_="check")
        table.create_check_constraint(op.f("ck_budget_rule_period"), _among("period", _PERIODS))
        for column in ("credit_ms", "rollover_ms", "status"):
            table.drop_column(column)
    op.execute("DELETE FROM account WHERE kind = 'transferred'")
    with op.batch_alter_table("account") as table:
        table.drop_constraint(op.f("ck_account_kind"), type_="check")
        table.create_check_constraint(op.f("ck_account_kind"), _among("kind", _KINDS))


def _rates_of_shares(connection: sa.Connection) -> None:
    """A pod gets the rate that it began with; one whose price turned since is charged anew at that."""
    with op.batch_alter_table("workload") as table:
        table.add_column(sa.Column("rate_numerator", sa.BigInteger(), server_default="1", nullable=False))
        table.add_column(sa.Column("rate_denominator", sa.BigInteger(), server_default="1", nullable=False))
    prices = connection.execute(
        sa.text("SELECT model, effective_at, numerator, denominator FROM rate ORDER BY effective_at")
    ).all()
    rows = connection.execute(sa.text("SELECT pod_uid, shares, started_at FROM workload")).all()
    change = sa.text("UPDATE workload SET rate_numerator = :n, rate_denominator = :d WHERE pod_uid = :uid")
    for uid, shares, started in rows:
        total = Fraction(0)
        for model, share in json.loads(shares).items():
            mine = [Fraction(n, d) for m, since, n, d in prices if m == model and since <= started]
            total += Fraction(share) * (mine[-1] if mine else 1)
        connection.execute(change, {"n": total.numerator, "d": total.denominator, "uid": uid})
    with op.batch_alter_table("workload") as table:
        table.alter_column("rate_numerator", server_default=None)
        table.alter_column("rate_denominator", server_default=None)
        table.drop_column("shares")
        table.create_check_constraint(op.f("ck_workload_rate"), "rate_numerator >= 0 AND rate_denominator > 0")

# SPDX-License-Identifier: Apache-2.0
"""Budget rules: those that ever apply, in the order in which they were written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Rule, Status, Used
from timekeeper.core.period import PeriodName
from timekeeper.store.db.models import BudgetRule, Namespace


@dataclass(frozen=True)
class RuleRow:
    """A rule and its source, `policy` or `own`."""

    id: int
    rule: Rule
    source: str

    @property
    def status(self) -> Status:
        """Whether the budget may be spent."""
        return self.rule.status


def _rule_row(row: BudgetRule) -> RuleRow:
    rule = Rule(
        row.effective_at,
        row.amount_ms,
        cast(PeriodName, row.period),
        row.time_zone,
        row.credit_ms,
        row.rollover_ms,
        cast(Status, row.status),
        row.anchor_at,
        cast(Used, row.used),
    )
    return RuleRow(row.id, rule, row.source)


def add_rule(session: Session, budget: AccountId, rule: Rule, *, source: str, actor: str, now: Instant) -> None:
    """Append a rule."""
    values = {
        "namespace_id": budget,
        "effective_at": rule.since,
        "amount_ms": rule.amount,
        "period": rule.period,
        "time_zone": rule.zone,
        "source": source,
        "actor": actor,
        "booked_at": now,
        "credit_ms": rule.credit,
        "rollover_ms": rule.rollover,
        "status": rule.status,
        "anchor_at": rule.anchor,
        "used": rule.used,
    }
    session.execute(insert(BudgetRule).values(values))


def rules(session: Session, budget: AccountId) -> list[RuleRow]:
    """Return a budget's rules in the order in which they apply and were written: the last is in force."""
    query = select(BudgetRule).where(BudgetRule.namespace_id == budget)
    return _ruling(session.scalars(query.order_by(BudgetRule.id)).all())


def _ruling(rows: Sequence[BudgetRule]) -> list[RuleRow]:
    """Return those of one budget's rules that ever apply, in the order of writing.

    A later one replaces all that would begin after it: a rule that was written with a clock far ahead of all others
    never begins if another one was written since.
    """
    found: list[RuleRow] = []
    for index, row in reversed(list(enumerate(rows))):
        one = _rule_row(row)
        if found and one.rule.since > found[-1].rule.since:
            if index:
                continue
            # The first applies from the start, whenever it was written.
            one = replace(one, rule=replace(one.rule, since=found[-1].rule.since))
        found.append(one)
    return found[::-1]


def ruling_of_each(rows: Iterable[BudgetRule]) -> dict[AccountId, list[RuleRow]]:
    """Return the rules of each of some budgets as `_ruling` does."""
    written: dict[AccountId, list[BudgetRule]] = {}
    for row in rows:
        written.setdefault(row.namespace_id, []).append(row)
    return {key: _ruling(mine) for key, mine in written.items()}


def all_rules(session: Session, cluster: str) -> dict[AccountId, list[RuleRow]]:
    """Return the rules of each budget of a cluster, as `rules` does."""
    query = select(BudgetRule).join(Namespace, Namespace.id == BudgetRule.namespace_id)
    return ruling_of_each(session.scalars(query.where(Namespace.cluster == cluster).order_by(BudgetRule.id)))

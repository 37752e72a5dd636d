# SPDX-License-Identifier: Apache-2.0
"""Change budgets: set a rule or a status, or apply the policy's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy.orm import Session

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.config.policy import NamespacePolicy, Origin
from slicekeeper.units import EPOCH, Instant
from timekeeper.core.budget_record import Rule, Status
from timekeeper.core.refusal import BudgetClosed, BudgetKept, VersionMismatch
from timekeeper.ledger.account import AccountRef, ensure_account, refuse_off
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget_rule import ANY_VERSION, SET, Change, not_before, policy_rule, rule_detail, version_of
from timekeeper.ledger.executed_request import KeyedRequest, repeated
from timekeeper.ledger.settlement import settle_in
from timekeeper.store import accounts, budget_objects, budget_rules, movements
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.budget_rules import RuleRow


def set_budget(
    books: Books,
    ref: AccountRef,
    change: Change,
    *,
    actor: str,
    if_match: frozenset[str] | None,
    reason: str = SET,
    asked: KeyedRequest | None = None,
) -> None:
    """Give a namespace a budget of its own from now on; a suspended budget stays suspended.

    `change` is the new rule, or a function that makes it from the one in force. The new rule never begins before that
    one, so of two writers with different clocks the later one takes effect; nor does a new period begin before, or at
    the instant of, a movement that was accepted earlier. Raises LedgerError if the rule differs and
    `if_match` does not contain the budget's version, the budget is closed, or an object keeps it.
    """

    def work(session: Session) -> None:
        if repeated(books, session, ref.uid, asked):
            return
        refuse_off(ref)
        rule = change if isinstance(change, Rule) else change(policy_rule(ref.policy.budget, EPOCH))
        account = ensure_account(books, session, ref, rule.since)
        refuse_kept(session, account)
        change_budget(books, session, account, change, actor=actor, if_match=if_match, reason=reason)

    books.database.write(work)


def refuse_kept(session: Session, account: BudgetAccount, *, what: str = "budget") -> None:
    """Raise BudgetKept if an object defines what a request would change; an object may leave out only the `parent`."""
    found = budget_objects.last(session, [account.id]).get(account.id)
    if found is None or found.released is not None or (what == "parent" and found.parent is None):
        return
    if account.kind == "namespace":
        keeper, edit = "GpuBudget default", f"gpubudget default -n {account.name}"
    else:
        keeper, edit = f"ClusterGpuBudget {account.name}", f"clustergpubudget {account.name}"
    raise BudgetKept(f"{what} of {account.title}: {keeper} says what it is; change that: kubectl edit {edit}")


def change_budget(
    books: Books,
    session: Session,
    account: BudgetAccount,
    change: Change,
    *,
    actor: str,
    if_match: frozenset[str] | None,
    reason: str,
) -> None:
    """Set the rule of an account, as `set_budget` does."""
    row = budget_rules.rules(session, account.id)[-1]
    rule = change if isinstance(change, Rule) else change(row.rule)
    rule = replace(rule, status=row.status, since=not_before(row.rule, rule.since))
    if rule.used == "reset":
        moved = movements.last_movement(session, [account.id], Instant(rule.since + CLOCK_SKEW_MS))
        rule = replace(rule, since=max(rule.since, Instant(moved + 1)))
    if row.source == "own" and rule.used != "reset" and row.rule.says_the_same(rule):
        return
    _refuse_stale(account, row, if_match)
    _append_rule(books, session, account, rule, actor=actor, source="own")
    detail = {**rule_detail(rule), "reason": reason}
    books.audit(session, actor=actor, action="budget", about=account, detail=detail, now=rule.since)


def _refuse_stale(account: BudgetAccount, row: RuleRow, if_match: frozenset[str] | None) -> None:
    """Refuse to change a budget that the caller has not read as it is, or that is closed."""
    if if_match is not None and if_match.isdisjoint({version_of(row), ANY_VERSION}):
        raise VersionMismatch(f"budget of {account.title}: it has changed since you read it; read it again")
    if row.status == "closed":
        raise BudgetClosed(f"the budget of {account.title} is closed")


def set_status(
    books: Books,
    ref: AccountRef,
    status: Status,
    *,
    reason: str,
    actor: str,
    now: Instant,
    asked: KeyedRequest | None = None,
) -> None:
    """Suspend a budget, close it, or reactivate it. While it is not active its pods are charged over budget.

    Raises Conflicting if it is closed, which is permanent.
    """

    def change(session: Session) -> None:
        if repeated(books, session, ref.uid, asked):
            return
        refuse_off(ref)
        account = ensure_account(books, session, ref, now)
        row = budget_rules.rules(session, account.id)[-1]
        if row.status == status:
            return
        _refuse_stale(account, row, None)
        since = not_before(row.rule, now)
        rule = replace(row.rule, since=since, status=status, used="counts")
        _append_rule(books, session, account, rule, actor=actor, source=row.source)
        detail = {"status": status, "reason": reason}
        books.audit(session, actor=actor, action="status", about=account, detail=detail, now=since)

    books.database.write(change)


def _append_rule(
    books: Books, session: Session, account: BudgetAccount, rule: Rule, *, actor: str, source: str
) -> None:
    budget_rules.add_rule(session, account.id, rule, source=source, actor=actor, now=rule.since)
    settle_in(books, session, account.id, rule.since, rule.since)


def unset_budget(
    books: Books,
    ref: AccountRef,
    *,
    reason: str,
    actor: str,
    if_match: frozenset[str] | None,
    now: Instant,
    asked: KeyedRequest | None = None,
) -> None:
    """Give a namespace the policy's budget again; what was used in the current period still counts.

    One without an account has it already, and gets none.

    Raises LedgerError if `if_match` does not contain the budget's version, the budget is closed, or an object keeps it.
    """

    def change(session: Session) -> None:
        account = accounts.find(session, books.cluster, ref.uid)
        if repeated(books, session, ref.uid, asked) or account is None:
            return
        refuse_kept(session, account)
        row = budget_rules.rules(session, account.id)[-1]
        if row.source != "own":
            return
        _refuse_stale(account, row, if_match)
        rule = fall_back(books, session, account, ref.policy, now, actor=actor)
        if rule is not None:
            detail = {**rule_detail(rule), "source": "policy", "reason": reason}
            books.audit(session, actor=actor, action="budget", about=account, detail=detail, now=rule.since)

    books.database.write(change)


def fall_back(
    books: Books,
    session: Session,
    account: BudgetAccount,
    policy: NamespacePolicy,
    now: Instant,
    *,
    actor: str = "policy",
) -> Rule | None:
    """Give a namespace the policy's budget again, as if it had never had one of its own; return the rule.

    None if it has that already, or if its budget is closed, which is permanent. A caller that names an `actor` writes
    the rule to the audit log.
    """
    row = budget_rules.rules(session, account.id)[-1]
    if row.source != "own" or row.status == "closed":
        return None
    rule = replace(policy_rule(policy.budget, not_before(row.rule, now)), status=row.status)
    _append_rule(books, session, account, rule, actor=actor, source="policy")
    return rule


def follow_policy(
    books: Books,
    policies: dict[str, NamespacePolicy],
    now: Instant,
    origin_of: Callable[[str], Origin | None] = lambda _: None,
) -> None:
    """Give namespaces without a budget of their own the policy's, from now on, if it has changed.

    The audit log names the GpuPolicy (`origin_of`) and its author.
    """

    def change(session: Session) -> None:
        rules = budget_rules.all_rules(session, books.cluster)
        for account in accounts.newest(session, books.cluster):
            policy, row = policies.get(account.name), rules[account.id][-1]
            if policy is None or row.source == "own" or row.status == "closed":
                continue
            rule = replace(policy_rule(policy.budget, not_before(row.rule, now)), status=row.status)
            if not row.rule.says_the_same(rule):
                _append_rule(books, session, account, rule, actor="policy", source="policy")
                detail = {**rule_detail(rule), "source": "policy", **_origin_detail(origin_of(account.name))}
                books.audit(session, actor="policy", action="policy", about=account, detail=detail, now=rule.since)

    books.database.write(change)


def _origin_detail(origin: Origin | None) -> dict[str, str]:
    """Return the origin of a policy for the audit log; empty for the policy file."""
    return {} if origin is None else {"gpuPolicy": origin.name, "changedBy": origin.writer or "not known"}

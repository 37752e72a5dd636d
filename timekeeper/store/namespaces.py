# SPDX-License-Identifier: Apache-2.0
"""Namespaces and the records that their time line is made of: rules, grants, claims, anchors."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

import msgspec
from sqlalchemy import Select, delete, func, insert, literal, or_, select, tuple_, update
from sqlalchemy.orm import Session

from slicekeeper.errors import NotFound
from timekeeper.allowances import State
from timekeeper.ledger import ACCOUNTS
from timekeeper.periods import PeriodName
from timekeeper.records import Claim, Debt, Grant, PostingKind, Records, Rule, Used, Withdrawal
from timekeeper.store import debts, prices
from timekeeper.store.models import Account, Anchor, BudgetGrant, BudgetRule, Membership, Namespace, Workload

PARENT_UNKNOWN: Final = "parent-unknown"

Status = Literal["active", "suspended", "closed"]
Kind = Literal["namespace", "team", "organisation"]


@dataclass(frozen=True)
class Known:
    """A namespace that has an account, or a team or an organisation."""

    id: int
    uid: str
    name: str
    settled_at: int
    version: int
    sealed_until: int
    kind: str = "namespace"

    @property
    def title(self) -> str:
        """What people call it; no two of a cluster have the same."""
        return self.name if self.kind == "namespace" else f"{self.kind} {self.name}"


_COLUMNS = (
    Namespace.id,
    Namespace.uid,
    Namespace.name,
    Namespace.settled_at,
    Namespace.version,
    Namespace.sealed_until,
    Namespace.kind,
)


def parent_uid(name: str) -> str:
    """Return what stands for the UID of a team or an organisation; no namespace has the like."""
    return f":{name}"


def find(session: Session, cluster: str, uid: str) -> Known | None:
    """Return a namespace by its UID."""
    query = select(*_COLUMNS).where(Namespace.cluster == cluster, Namespace.uid == uid)
    row = session.execute(query).one_or_none()
    return Known(*row) if row else None


def find_name(session: Session, cluster: str, name: str) -> Known | None:
    """Return the newest namespace of a name; older ones were deleted."""
    query = select(*_COLUMNS).where(Namespace.cluster == cluster, Namespace.name == name, Namespace.kind == "namespace")
    row = session.execute(query.order_by(Namespace.id.desc()).limit(1)).one_or_none()
    return Known(*row) if row else None


def require_name(session: Session, cluster: str, name: str) -> Known:
    """Return the newest namespace of a name.

    Raises NotFound where it has no account.
    """
    found = find_name(session, cluster, name)
    if found is None:
        raise NotFound(f"namespace {name} has no account yet", 404, "namespace-unknown")
    return found


def require_parent(session: Session, cluster: str, name: str) -> Known:
    """Return a team or an organisation.

    Raises NotFound where there is none of that name.
    """
    found = find(session, cluster, parent_uid(name))
    if found is None:
        raise NotFound(f"{name!r} is no team and no organisation; make it first", 404, PARENT_UNKNOWN)
    return found


def newest(session: Session, cluster: str, after: str = "", limit: int | None = None) -> list[Known]:
    """Return the newest namespace of each name, in the order of names."""
    latest = select(func.max(Namespace.id)).where(Namespace.cluster == cluster, Namespace.kind == "namespace")
    latest = latest.group_by(Namespace.name)
    query = select(*_COLUMNS).where(Namespace.id.in_(latest), Namespace.name > after).order_by(Namespace.name)
    return [Known(*row) for row in session.execute(query.limit(limit))]


def accounts(session: Session, cluster: str, after: tuple[str, int], limit: int) -> list[Known]:
    """Return all namespaces that ever had an account, by name and age, from the one after a place on."""
    query = select(*_COLUMNS).where(Namespace.cluster == cluster, Namespace.kind == "namespace")
    query = query.where(tuple_(Namespace.name, Namespace.id) > tuple_(literal(after[0]), literal(after[1])))
    return [Known(*row) for row in session.execute(query.order_by(Namespace.name, Namespace.id).limit(limit))]


def parents(session: Session, cluster: str, after: str = "", limit: int | None = None) -> list[Known]:
    """Return a cluster's teams and organisations, in the order of names."""
    query = select(*_COLUMNS).where(Namespace.cluster == cluster, Namespace.kind != "namespace", Namespace.name > after)
    return [Known(*row) for row in session.execute(query.order_by(Namespace.name).limit(limit))]


def named(session: Session, ids: Collection[int]) -> dict[int, Known]:
    """Return namespaces, teams and organisations by id."""
    return {row.id: Known(*row) for row in session.execute(select(*_COLUMNS).where(Namespace.id.in_(ids)))}


def everyone(session: Session) -> list[Known]:
    """Return all namespaces that ever were."""
    return [Known(*row) for row in session.execute(select(*_COLUMNS).order_by(Namespace.id))]


def of_cluster(session: Session, cluster: str) -> list[Known]:
    """Return all namespaces of a cluster that ever were."""
    query = select(*_COLUMNS).where(Namespace.cluster == cluster)
    return [Known(*row) for row in session.execute(query.order_by(Namespace.id))]


def open_account(
    session: Session, cluster: str, uid: str, name: str, rule: Rule, now: int,
    *, kind: Kind = "namespace", actor: str = "policy",
) -> Known:  # fmt: skip
    """Make a namespace's accounts, with the policy's rule from the start of time; or a parent's, with its own."""
    values = {"cluster": cluster, "uid": uid, "name": name, "opened_at": now, "settled_at": now, "version": 1}
    values["kind"] = kind
    key = session.execute(insert(Namespace).values(values).returning(Namespace.id)).scalar_one()
    session.execute(insert(Account), [{"namespace_id": key, "kind": kind, "balance_ms": 0} for kind in ACCOUNTS])
    add_rule(session, key, rule, source="policy" if kind == "namespace" else "own", actor=actor, now=now)
    return Known(key, uid, name, now, 1, 0, kind)


def settled_until(session: Session, keys: Collection[int]) -> int:
    """Return up to when what is settled together is settled."""
    return session.execute(select(func.max(Namespace.settled_at)).where(Namespace.id.in_(keys))).scalar_one()


def settled_after(session: Session, cluster: str, at: int) -> list[int]:
    """Return what is settled further than an instant."""
    query = select(Namespace.id).where(Namespace.cluster == cluster, Namespace.settled_at > at)
    return list(session.scalars(query.order_by(Namespace.id)))


def touch(session: Session, key: int) -> None:
    """Note that what others hold is old; whoever else writes waits, or has lost, from here on."""
    session.execute(update(Namespace).where(Namespace.id == key).values(version=Namespace.version + 1))


def settled(session: Session, key: int, at: int) -> None:
    """Note up to when what hangs on a root is settled."""
    session.execute(update(Namespace).where(Namespace.id == key).values(settled_at=at))


def settled_at_most(session: Session, keys: Collection[int], at: int) -> None:
    """Note that nothing is settled further than an instant, of roots and of what stands under them now."""
    ahead = update(Namespace).where(Namespace.id.in_(keys), Namespace.settled_at > at)
    session.execute(ahead.values(settled_at=at))


# Budget rules


@dataclass(frozen=True)
class RuleRow:
    """A rule and who made it; `id` is the budget's version."""

    id: int
    rule: Rule
    source: str
    status: Status = "active"


def _rule_row(row: BudgetRule) -> RuleRow:
    status = cast(Status, row.status)
    rule = Rule(
        row.effective_at, row.amount_ms, cast(PeriodName, row.period), row.time_zone, row.credit_ms, row.rollover_ms,
        status == "active", row.anchor_at, cast(Used, row.used),
    )  # fmt: skip
    return RuleRow(row.id, rule, row.source, status)


def add_rule(
    session: Session, namespace: int, rule: Rule, *, source: str, actor: str, now: int, status: Status = "active"
) -> int:
    """Append a rule; return its id."""
    values = {
        "namespace_id": namespace,
        "effective_at": rule.since,
        "amount_ms": rule.amount,
        "period": rule.period,
        "time_zone": rule.zone,
        "source": source,
        "actor": actor,
        "booked_at": now,
        "credit_ms": rule.credit,
        "rollover_ms": rule.rollover,
        "status": status,
        "anchor_at": rule.anchor,
        "used": rule.used,
    }
    return session.execute(insert(BudgetRule).values(values).returning(BudgetRule.id)).scalar_one()


def rules(session: Session, namespace: int) -> list[RuleRow]:
    """Return a namespace's rules in the order in which they hold, which is that of writing: the last is in force."""
    query = select(BudgetRule).where(BudgetRule.namespace_id == namespace)
    return _ruling(session.scalars(query.order_by(BudgetRule.id)).all())


def _ruling(rows: Sequence[BudgetRule]) -> list[RuleRow]:
    """Return which of one budget's rules, in the order of writing, ever hold: a later one takes an earlier's place.

    One that a clock far ahead of all others wrote never begins where another was written since. Those of before
    revision 0014 hold in the order of their instants, as they did.
    """
    old = max((index for index, row in enumerate(rows, 1) if row.used == "clamped"), default=0)
    ordered = [*sorted(rows[:old], key=lambda row: (row.effective_at, row.id)), *rows[old:]]
    found: list[RuleRow] = []
    for index, row in reversed(list(enumerate(ordered))):
        one = _rule_row(row)
        if found and one.rule.since > found[-1].rule.since:
            if index:
                continue
            # The first holds from the start, whenever it was written.
            one = replace(one, rule=replace(one.rule, since=found[-1].rule.since))
        found.append(one)
    return found[::-1]


def _ruling_of_each(rows: Iterable[BudgetRule]) -> dict[int, list[RuleRow]]:
    """Return the rules of each of some budgets as `_ruling` does."""
    written: dict[int, list[BudgetRule]] = {}
    for row in rows:
        written.setdefault(row.namespace_id, []).append(row)
    return {key: _ruling(mine) for key, mine in written.items()}


def all_rules(session: Session, cluster: str) -> dict[int, list[Rule]]:
    """Return the rules of all namespaces of a cluster, oldest first."""
    query = select(BudgetRule).join(Namespace, Namespace.id == BudgetRule.namespace_id)
    rows = session.scalars(query.where(Namespace.cluster == cluster).order_by(BudgetRule.id))
    return {key: [row.rule for row in mine] for key, mine in _ruling_of_each(rows).items()}


def current_rules(session: Session, namespace_ids: Sequence[int]) -> dict[int, RuleRow]:
    """Return the rule in force of each namespace."""
    rows = session.scalars(select(BudgetRule).where(BudgetRule.namespace_id.in_(namespace_ids)).order_by(BudgetRule.id))
    return {key: mine[-1] for key, mine in _ruling_of_each(rows).items()}


# Grants, and what else comes beside the budget or goes


def add_grant(session: Session, values: dict[str, object]) -> int:
    """Append a grant; return its id."""
    return session.execute(insert(BudgetGrant).values(values).returning(BudgetGrant.id)).scalar_one()


def grant_under(session: Session, namespace: int, key: str) -> BudgetGrant | None:
    """Return the grant that was booked under an idempotency key."""
    return session.scalars(
        select(BudgetGrant).where(BudgetGrant.namespace_id == namespace, BudgetGrant.idempotency_key == key)
    ).one_or_none()


def grants(
    session: Session, namespace: int, kind: str, before: int | None = None, limit: int | None = None
) -> list[BudgetGrant]:
    """Return a namespace's movements of a kind, newest first, from the one before an id on."""
    query = select(BudgetGrant).where(BudgetGrant.namespace_id == namespace, BudgetGrant.kind == kind)
    if before is not None:
        query = query.where(BudgetGrant.id < before)
    return list(session.scalars(query.order_by(BudgetGrant.id.desc()).limit(limit)))


def grant_by_id(session: Session, namespace: int, key: int) -> BudgetGrant | None:
    """Return a grant of a namespace."""
    query = select(BudgetGrant).where(BudgetGrant.id == key, BudgetGrant.namespace_id == namespace)
    return session.scalars(query.where(BudgetGrant.kind == "grant")).one_or_none()


def withdraw_grant(session: Session, key: int, now: int) -> None:
    """Have a grant that has not begun bring nothing."""
    session.execute(update(BudgetGrant).where(BudgetGrant.id == key).values(withdrawn_at=now))


def granted_in_all(session: Session, namespace: int) -> int:
    """Return the sum of all that ever came to a namespace, or went, whichever is more."""
    query = select(func.sum(func.abs(BudgetGrant.amount_ms)))
    query = query.where(BudgetGrant.namespace_id == namespace, BudgetGrant.withdrawn_at.is_(None))
    return int(session.execute(query).scalar() or 0)


def refunded(session: Session, namespace: int, pod_uid: str) -> int:
    """Return what has been refunded of a pod's charge."""
    query = select(func.sum(BudgetGrant.amount_ms - BudgetGrant.taken_back_ms)).where(
        BudgetGrant.namespace_id == namespace, BudgetGrant.kind == "refund", BudgetGrant.counterpart == pod_uid
    )
    return int(session.execute(query).scalar() or 0)


def refunds(session: Session, keys: Collection[int], since: int | None = None) -> dict[str, list[BudgetGrant]]:
    """Return the refunds of some budgets' pods, oldest first, by the pod's UID.

    `since`: of those alone that were refunded, or ended, at an instant or later.
    """
    query = select(BudgetGrant).where(BudgetGrant.namespace_id.in_(keys), BudgetGrant.kind == "refund")
    if since is not None:
        late = select(BudgetGrant.counterpart).where(BudgetGrant.kind == "refund", BudgetGrant.valid_from >= since)
        ended = select(Workload.pod_uid).where(Workload.ended_at >= since, Workload.namespace_id.in_(keys))
        query = query.where(or_(BudgetGrant.counterpart.in_(late), BudgetGrant.counterpart.in_(ended)))
    found: dict[str, list[BudgetGrant]] = {}
    query = query.order_by(BudgetGrant.valid_from, BudgetGrant.id).execution_options(populate_existing=True)
    for row in session.scalars(query):
        found.setdefault(row.counterpart, []).append(row)
    return found


def take_back(session: Session, key: int, amount: int) -> None:
    """Have a part of a refund bring nothing."""
    session.execute(update(BudgetGrant).where(BudgetGrant.id == key).values(taken_back_ms=amount))


def other_side(giver: int, key: str) -> str:
    """Return the key under which the receiving side of a transfer is booked."""
    return "transfer:" + hashlib.sha256(f"{giver}:{key}".encode()).hexdigest()


def transfers(session: Session) -> list[BudgetGrant]:
    """Return both sides of all transfers."""
    return list(session.scalars(select(BudgetGrant).where(BudgetGrant.kind == "transfer").order_by(BudgetGrant.id)))


# The time line


def records(
    session: Session, keys: Collection[int], after: int | None, *, carry: bool, until: int | None = None
) -> dict[int, Records]:
    """Return what happens to some budgets after an instant (None: ever), with the pods that began up to another.

    They are of one cluster. `carry` tells whether time over budget is owed where the ledger has no word of it yet.
    """
    begun = Workload.started_at + 0  # the index of the end finds them; that of the start would pass by all before
    query = _claims(keys).order_by(begun, Workload.pod_uid)
    if after is not None:
        query = query.where(or_(Workload.ended_at.is_(None), Workload.ended_at > after))
    if until is not None:
        query = query.where(begun <= until)
    found = _without_claims(session, keys, after, carry=carry)
    book = prices.read(session)
    pods: dict[int, list[Claim]] = {key: [] for key in keys}
    for key, pod, start, end, shares in session.execute(query):
        pods[key].append(book.claim(pod, start, end, shares))
    return {key: replace(mine, claims=pods[key]) for key, mine in found.items()}


def stretches(
    session: Session, keys: Collection[int], *, carry: bool
) -> Iterator[tuple[int | None, dict[int, Records]]]:  # fmt: skip
    """Yield all that ever happens to some budgets, one stretch of time after the other: its end, None for the last.

    A stretch has the pods that run in it, so they are never all in memory. `carry` is as for `records`.
    """
    found = _without_claims(session, keys, None, carry=carry)
    book = prices.read(session)
    pods: dict[int, list[Claim]] = {key: [] for key in keys}
    count = last = 0
    for key, pod, start, end, shares in session.execute(
        _claims(keys).order_by(Workload.started_at, Workload.pod_uid).execution_options(yield_per=1000)
    ):
        if count >= _STRETCH and start > last:
            yield last, {one: replace(mine, claims=pods[one]) for one, mine in found.items()}
            pods = {one: [c for c in mine if c.end is None or c.end > last] for one, mine in pods.items()}
            count = 0
        pods[key].append(book.claim(pod, start, end, shares))
        count, last = count + 1, start
    yield None, {one: replace(mine, claims=pods[one]) for one, mine in found.items()}


_STRETCH = 10_000
"""Pods that begin in a stretch, at least."""


def first_starts(session: Session, keys: Collection[int]) -> dict[int, int]:
    """Return when the first pod began of each of some budgets that had any."""
    found = {key: first_start(session, key) for key in keys}
    return {key: at for key, at in found.items() if at is not None}


def first_start(session: Session, key: int) -> int | None:
    """Return when a budget's first pod began. One by one: an index answers that, but not a group."""
    return session.execute(select(func.min(Workload.started_at)).where(Workload.namespace_id == key)).scalar()


def _claims(keys: Collection[int]) -> Select[int, str, int, int | None, str]:
    query = select(Workload.namespace_id, Workload.pod_uid, Workload.started_at, Workload.ended_at, Workload.shares)
    return query.where(Workload.namespace_id.in_(keys))


def _without_claims(
    session: Session, keys: Collection[int], after: int | None, *, carry: bool
) -> dict[int, Records]:  # fmt: skip
    moved = select(BudgetGrant).where(BudgetGrant.namespace_id.in_(keys), BudgetGrant.withdrawn_at.is_(None))
    if after is not None:
        moved = moved.where(BudgetGrant.valid_from > after)
    ruled = select(BudgetRule).where(BudgetRule.namespace_id.in_(keys))
    rules = _ruling_of_each(session.scalars(ruled.order_by(BudgetRule.id)))
    grants: dict[int, list[Grant]] = {key: [] for key in keys}
    withdrawals: dict[int, list[Withdrawal]] = {key: [] for key in keys}
    for row in session.scalars(moved.order_by(BudgetGrant.valid_from, BudgetGrant.id)):
        name, amount = f"{row.kind}:{row.id}", row.amount_ms - row.taken_back_ms
        if not amount:
            continue
        if amount > 0:
            grant = Grant(name, amount, row.valid_from, row.valid_to, _COMES[row.kind], row.priority)
            grants[row.namespace_id].append(grant)
        else:
            withdrawals[row.namespace_id].append(Withdrawal(name, -amount, row.valid_from, _GOES[row.kind]))
    owed = debts.of_budgets(session, keys) or [Debt(0, carry)]
    opened = _openings(session, keys)
    return {
        key: Records([], [row.rule for row in rules[key]], grants[key], withdrawals[key], owed, opened.get(key))
        for key in keys
    }


def _openings(session: Session, keys: Collection[int]) -> dict[int, int]:
    """Return when budgets' accounts were opened; those of before revision 0014 began with their first records."""
    since = select(BudgetRule.namespace_id, func.min(BudgetRule.id).label("id")).group_by(BudgetRule.namespace_id)
    first = since.where(BudgetRule.namespace_id.in_(keys)).subquery()
    query = (
        select(Namespace.id, Namespace.opened_at)
        .join(first, first.c.namespace_id == Namespace.id)
        .join(BudgetRule, BudgetRule.id == first.c.id)
        .where(BudgetRule.used != "clamped")
    )
    return {row.id: row.opened_at for row in session.execute(query)}


_COMES: dict[str, PostingKind] = {
    "grant": "allowance", "refund": "refund", "adjustment": "allowance", "transfer": "transfer-in",
}  # fmt: skip
_GOES: dict[str, PostingKind] = {"adjustment": "withdrawal", "transfer": "transfer-out"}


def touched_by(session: Session, since: int) -> list[int]:
    """Return the namespaces that have a pod which held GPUs at an instant or later."""
    query = select(Workload.namespace_id).where(or_(Workload.ended_at.is_(None), Workload.ended_at > since))
    return sorted(session.scalars(query.distinct()))


def anchor_before(session: Session, keys: Collection[int], at: int | None) -> dict[int, State]:
    """Return the latest states of one instant before another (None: the latest of all); empty where there are none.

    All have one that have begun then: the others begin later, with all their records.
    """
    query = select(Anchor.at, func.count()).where(Anchor.namespace_id.in_(keys))
    if at is not None:
        query = query.where(Anchor.at < at)
    births: dict[int, int] | None = None
    for found, count in session.execute(query.group_by(Anchor.at).order_by(Anchor.at.desc())).all():
        if count < len(keys):
            births = _births(session, keys) if births is None else births
            if count < sum(born <= found for born in births.values()):
                continue
        rows = select(Anchor.namespace_id, Anchor.state).where(Anchor.namespace_id.in_(keys), Anchor.at == found)
        states = {key: msgspec.json.decode(text, type=State) for key, text in session.execute(rows)}
        if births is None or all(born > found for key, born in births.items() if key not in states):
            return states
    return {}


def _births(session: Session, keys: Collection[int]) -> dict[int, int]:
    """Return when budgets begin: at their openings, or just before their first records and links."""
    first = select(func.min(BudgetRule.id)).where(BudgetRule.namespace_id.in_(keys)).group_by(BudgetRule.namespace_id)
    found = {key: start - 1 for key, start in first_starts(session, keys).items()}
    for column, instant, counts in (
        (BudgetGrant.namespace_id, BudgetGrant.valid_from,
         BudgetGrant.namespace_id.in_(keys) & BudgetGrant.withdrawn_at.is_(None)),
        (Membership.child_id, Membership.effective_at, Membership.child_id.in_(keys)),
        (Membership.parent_id, Membership.effective_at, Membership.parent_id.in_(keys)),
        (BudgetRule.namespace_id, BudgetRule.effective_at,
         BudgetRule.namespace_id.in_(keys) & BudgetRule.id.not_in(first)),
    ):  # fmt: skip
        for key, since in session.execute(select(column, func.min(instant)).where(counts).group_by(column)):
            if key is not None:
                found[key] = min(since - 1, found.get(key, since - 1))
    for key, opened in _openings(session, keys).items():
        found[key] = min(opened, found.get(key, opened))
    return found


def anchors(session: Session, namespace: int) -> list[State]:
    """Return a namespace's anchors, oldest first."""
    query = select(Anchor.state).where(Anchor.namespace_id == namespace).order_by(Anchor.at)
    return [msgspec.json.decode(text, type=State) for text in session.scalars(query)]


def drop_anchors(session: Session, keys: Collection[int], since: int) -> None:
    """Forget the anchors from an instant on, because a record there has changed."""
    session.execute(delete(Anchor).where(Anchor.namespace_id.in_(keys), Anchor.at >= since))


def keep_anchors(session: Session, namespace: int, states: list[State], most: int) -> None:
    """Keep new anchors, the newest `most` of all, and of those before them the first of each day, later each month's.

    So late knowledge is settled from where it belongs, not from the start.
    """
    if not states:
        return
    instants = [state.at for state in states]
    session.execute(delete(Anchor).where(Anchor.namespace_id == namespace, Anchor.at.in_(instants)))
    session.execute(
        insert(Anchor),
        [{"namespace_id": namespace, "at": s.at, "state": msgspec.json.encode(s).decode()} for s in states],
    )
    kept = select(Anchor.at).where(Anchor.namespace_id == namespace).order_by(Anchor.at)
    gone = _superfluous(session.scalars(kept).all(), most)
    if gone:
        session.execute(delete(Anchor).where(Anchor.namespace_id == namespace, Anchor.at.in_(gone)))


_DAY_MS, _DAYS = 86_400_000, 40


def _superfluous(instants: Sequence[int], most: int) -> list[int]:
    """Return which anchors to forget, of all in the order of time."""
    gone: list[int] = []
    before = None
    for at in instants[: max(len(instants) - most, 0)]:
        day = at // _DAY_MS
        place = day if day > instants[-1] // _DAY_MS - _DAYS else -(day // 30)
        if place == before:
            gone.append(at)
        before = place
    return gone

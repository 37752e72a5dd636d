# SPDX-License-Identifier: Apache-2.0
"""Check a ledger by sums alone. This shares nothing with the code that keeps the ledger, on purpose."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from sqlalchemy import text
from sqlalchemy.orm import Session

_BOOKED = """WITH valid AS (SELECT t.*, COALESCE(corrects_at, effective_at) AS due FROM txn t WHERE kind <> 'reversal'
    AND NOT EXISTS (SELECT 1 FROM txn u WHERE u.reverses = t.id)), charges AS (SELECT * FROM valid
    WHERE kind IN ('charge', 'over-budget') AND subject NOT LIKE 'child:%') """
_WRONG = {
    "transaction {}: unbalanced": """SELECT t.id FROM txn t LEFT JOIN entry e ON e.txn_id = t.id GROUP BY t.id,
        t.amount_ms HAVING SUM(e.amount_ms) <> 0 OR COALESCE(SUM(ABS(e.amount_ms)), 0) <> 2 * ABS(t.amount_ms)""",
    "account {}: its balance is not the sum of its entries": """SELECT a.id FROM account a LEFT JOIN entry e
        ON e.account_id = a.id GROUP BY a.id, a.balance_ms HAVING COALESCE(SUM(e.amount_ms), 0) <> a.balance_ms""",
    "cluster {}: its transfers do not sum to zero": """SELECT n.cluster FROM account a JOIN namespace n
        ON n.id = a.namespace_id WHERE a.kind = 'transferred' GROUP BY n.cluster HAVING SUM(a.balance_ms) <> 0""",
    "transaction {}: it charges a pod outside its interval": """SELECT c.id FROM charges c LEFT JOIN workload w
        ON w.pod_uid = c.subject AND w.namespace_id = c.namespace_id
        WHERE w.pod_uid IS NULL OR c.started_at < w.started_at OR c.due > COALESCE(w.ended_at, c.due)""",
    "transaction {}: it charges a pod for time that is charged already": """SELECT id FROM (SELECT id, started_at,
        LAG(due) OVER (PARTITION BY subject ORDER BY due, id) AS past FROM charges) c WHERE started_at < past""",
    "pod {}: its interval is outside its life": """SELECT pod_uid FROM workload WHERE started_at < created_at
        OR ended_at > closed_at + 300000""",  # five minutes: by so much clocks may differ
}
_RULES = """SELECT effective_at, LEAD(effective_at, 1, 4611686018427387904) OVER (ORDER BY effective_at, id),
    rollover_ms, amount_ms + credit_ms FROM budget_rule WHERE namespace_id = :key ORDER BY effective_at, id"""
_GIFTS = """SELECT valid_from, COALESCE(valid_to, 4611686018427387904), amount_ms FROM budget_grant
    WHERE namespace_id = :key AND amount_ms > 0 AND kind <> 'refund' AND withdrawn_at IS NULL"""
_MOVED = "SELECT due, kind, subject, amount_ms FROM valid WHERE namespace_id = :key AND kind <> 'expiry'"


def findings(session: Session) -> Iterator[str]:
    """Yield what cannot be right, such as a period charged beyond its amount, rollover, grants and credit."""
    for finding, query in _WRONG.items():
        yield from (finding.format(key) for (key,) in session.execute(text(_BOOKED + query)))
    for key, name in session.execute(text("SELECT id, name FROM namespace ORDER BY id")).all():
        yield from (f"budget {name} ({key}): {finding}" for finding in _overcharged_periods(session, key))


def _overcharged_periods(session: Session, key: int) -> Iterator[str]:
    """Yield the periods whose charges exceed amount, rollover and credit by more than their grants can pay."""
    rules, gifts, moved = (session.execute(text(_BOOKED + q), {"key": key}).all() for q in (_RULES, _GIFTS, _MOVED))
    periods = [(due, of[7:]) for due, kind, of, _ in moved if kind == "allowance" and of.startswith("period:")]
    begun = {max(int(of) if of.isdigit() else 0, *(r[0] for r in rules if r[0] <= due), 0) for due, of in periods}
    starts, sums, lent = [-1, *sorted(begun), 2**62], Counter[tuple[str, int]](), 0
    for due, kind, _, amount in moved:  # a charge ends with a period, a refund begins with one
        sums[kind, (bisect_left if kind == "charge" else bisect_right)(starts, due)] += amount
    # `own` may be spent without grants, `more` is what grants must have paid, and `lent` what they paid before.
    for number, (start, end) in enumerate(pairwise(starts), 1):
        held = [rule for rule in rules if rule[0] < end and start <= rule[1]] or rules[:1]
        own = max(rule[3] for rule in held) + max(rule[2] for rule in held) + sums["refund", number]
        more, given = max(sums["charge", number] - own, 0), [gift for gift in gifts if gift[0] < end]
        if more > min(sum(g[2] for g in given) - lent, sum(g[2] for g in given if g[1] > start)):
            yield f"from {start} on {own + more} are charged, more than {own} and the grants of that time"
        lent += more

# SPDX-License-Identifier: Apache-2.0
"""The second opinion finds defects that were planted into a ledger, and none in one that is right."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.core.budget_record import Rule
from timekeeper.ledger import hierarchy, movement, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.movement import Order
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import sum_check
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
HOUR = 3_600_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="20s", period="hour", credit="3s", rollover="4s"))
TEAM, OTHER = AccountRef("uid-team", "team", POLICY), AccountRef("uid-other", "other", POLICY)


@pytest.fixture
def ledger(database_url: str) -> Iterator[Books]:
    """Give a ledger with a period that was spent to the last of its credit, rollover and grants, and a team's."""
    books = Books(Database(make_engine(database_url)), "default", carry=False)
    hierarchy.put_parent_budget(books, "lab", "team", Rule(T0, 100_000, "day", "UTC"), actor="me", if_match=None)
    hierarchy.set_parent(books, TEAM, "lab", reason="r", actor="me", now=T0)
    run(books, "a", T0, T0 + 5_000)
    run(books, "b", T0 + HOUR, T0 + HOUR + 40_000)
    order = Order(16_000, "why", "g", b"", "me", T0 + 2 * HOUR)
    movement.grant(books, TEAM, order, valid_from=T0 + 2 * HOUR, valid_to=None)
    run(books, "c", T0 + 2 * HOUR, T0 + 2 * HOUR + 40_000)
    movement.transfer(books, OTHER, TEAM, Order(1_000, "w", "t", b"", "me", T0 + 3 * HOUR), valid_to=None)
    yield books
    books.database.close()


def run(books: Books, uid: str, start: int, end: int) -> None:
    workload.apply(books, [opening(uid, start)], [Closing(uid, end, "finished")], {"team": POLICY}, end)


def findings(books: Books) -> list[str]:
    with books.database.reading() as session:
        return list(sum_check.findings(session))


def test_a_ledger_that_is_right_is_found_right(ledger: Books) -> None:
    assert findings(ledger) == []
    assert verify(ledger.database.engine, carry=False).differences == []


CHARGE = "SELECT min(id) FROM txn WHERE kind = 'charge' AND subject = 'b'"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ((f"UPDATE entry SET amount_ms = 2 * amount_ms WHERE txn_id = ({CHARGE}) AND amount_ms > 0",), "unbalanced"),
        ((f"UPDATE entry SET amount_ms = 2 * amount_ms WHERE txn_id = ({CHARGE})",), "unbalanced"),
        ((f"DELETE FROM entry WHERE txn_id = ({CHARGE})",), "unbalanced"),
        (("UPDATE account SET balance_ms = balance_ms + 1 WHERE kind = 'charged'",), "is not the sum of its entries"),
        (("UPDATE account SET balance_ms = 7 WHERE kind = 'transferred' AND namespace_id = 2",), "do not sum to zero"),
        (("UPDATE workload SET ended_at = ended_at - 20000 WHERE pod_uid = 'b'",), "charges a pod outside its inter"),
        (("UPDATE workload SET started_at = started_at + 1 WHERE pod_uid = 'b'",), "charges a pod outside its inter"),
        ((f"UPDATE txn SET subject = 'nobody' WHERE id = ({CHARGE})",), "charges a pod outside its interval"),
        ((f"UPDATE txn SET started_at = started_at - 1 WHERE id = ({CHARGE})",), "charges a pod outside its interval"),
        (("UPDATE txn SET started_at = started_at - 9 WHERE kind = 'over-budget' AND subject = 'b'",), "charged alrea"),
        (("UPDATE txn SET amount_ms = 28001 WHERE kind = 'charge' AND subject = 'b'",), "budget team (2): from"),
        (
            ("UPDATE txn SET amount_ms = 100001 WHERE kind = 'charge' AND subject LIKE 'child:%'",),
            "budget lab (1): from",
        ),
        (("UPDATE budget_rule SET amount_ms = 19000 WHERE namespace_id = 2",), "budget team (2): from"),
        (("UPDATE budget_rule SET credit_ms = 0 WHERE namespace_id = 2",), "budget team (2): from"),
        (("UPDATE budget_rule SET rollover_ms = 0 WHERE namespace_id = 2",), "budget team (2): from"),
        (("UPDATE budget_grant SET amount_ms = 1 WHERE kind = 'grant'",), "budget team (2): from"),
        (("UPDATE budget_grant SET withdrawn_at = 1 WHERE kind = 'grant'",), "budget team (2): from"),
        (
            (f"UPDATE budget_grant SET valid_to = {T0 - 1}, valid_from = {T0 - 2} WHERE kind = 'grant'",),
            "budget team (2)",
        ),
        (
            ("UPDATE workload SET created_at = started_at + 1 WHERE pod_uid = 'a'",),
            "pod a: its interval is outside its life",
        ),
        (
            ("UPDATE workload SET closed_at = ended_at - 300001 WHERE pod_uid = 'a'",),
            "pod a: its interval is outside its life",
        ),
    ],
)
def test_planted_defects_are_found(ledger: Books, damage: tuple[str, ...], told: str) -> None:
    def plant(session: Session) -> None:
        for statement in damage:
            session.execute(text(statement))

    ledger.database.write(plant)
    found = findings(ledger)
    assert any(told in one for one in found), found
    assert any(told in one for one in verify(ledger.database.engine, carry=False).differences)


def test_it_shares_nothing_with_the_code_that_it_checks_and_is_short() -> None:
    source = Path(sum_check.__file__).read_text()
    assert len(source.splitlines()) <= 60
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in nodes}
    assert not any(str(name).startswith(("timekeeper", "slicekeeper")) for name in names)

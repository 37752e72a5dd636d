# SPDX-License-Identifier: Apache-2.0
"""Sixty-four clients on one namespace: nothing is given twice, nothing fails but by a stated refusal."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.orm import Session
from support.openings import opening
from support.scripted_history import report

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.core.caller import OPERATOR
from timekeeper.core.pod_need import Need
from timekeeper.core.refusal import BalanceInsufficient, Conflicting
from timekeeper.ledger import movement, reservation, usage_report, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.movement import Order
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import accounts, bookings, watermarks
from timekeeper.store import reservations as store
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
NOW = T0 + 60_000
END = NOW + 1_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="10s", period="none", enforcement="safe"))
TEAM, OTHER = AccountRef("uid-team", "team", POLICY), AccountRef("uid-other", "other", POLICY)
CLIENTS, EACH = 64, 4


def test_sixty_four_clients_never_get_more_than_there_is(database_url: str) -> None:
    replicas = [
        Books(Database(make_engine(database_url)), "default", carry=False)
        for _ in range(1 if database_url.startswith("sqlite") else 2)
    ]
    booked: Counter[str] = Counter()
    counting, refusals = threading.Lock(), list[str]()

    def client(number: int) -> None:
        chance, books = random.Random(number), replicas[number % len(replicas)]
        for step in range(EACH):
            amount = chance.randint(1, 900)
            order = Order(amount, "why", f"{number}-{step}", str(amount).encode(), "me", NOW)
            kind = chance.choice(("grant", "transfer", "adjustment", "pod"))
            try:
                if kind == "grant":
                    movement.grant(books, TEAM, order, valid_from=NOW, valid_to=None)
                elif kind == "transfer":
                    movement.transfer(books, TEAM, OTHER, order, valid_to=None)
                elif kind == "adjustment":
                    amount = -amount
                    movement.adjust(books, TEAM, Order(**{**order.__dict__, "amount": amount}))
                else:
                    uid = f"pod-{number}-{step}"
                    workload.apply(
                        books, [opening(uid, NOW - amount)], [Closing(uid, NOW, "finished")], {"team": POLICY}, NOW
                    )
            except Conflicting as refusal:
                refusals.append(refusal.code)
                continue
            with counting:
                booked[kind] += amount

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(client, range(CLIENTS)))
    assert set(refusals) <= {BalanceInsufficient.code}
    state = replicas[0].require("team").at(NOW)
    given = 10_000 + booked["grant"] + booked["adjustment"] - booked["transfer"]
    assert state.used + state.over == booked["pod"]
    assert state.balance == given - state.used
    assert replicas[-1].require("other").at(NOW).balance == 10_000 + booked["transfer"]
    assert verify(replicas[0].database.engine, carry=False).differences == []
    for books in replicas:
        books.database.close()


def find_team(session: Session) -> BudgetAccount | None:
    return accounts.find(session, "default", "uid-team")


def watch(books: Books, team: int, done: threading.Event, broken: list[str]) -> None:
    """Look again and again whether what is set aside is covered by what is left, in one snapshot."""
    while not done.wait(0.01):
        with books.database.reading() as session:
            held = sum(one.rest(END) for one in store.reserved(session, END, [team]))
            left = bookings.balances(session, team)["budget"]
        if held > left:
            broken.append(f"{held} are set aside of {left}")


def test_sixty_four_clients_are_never_promised_more_than_there_is(database_url: str) -> None:
    """Pods that reserve, run and end beside grants, transfers and reservations by hand; looked at all the while."""
    replicas = [
        Books(Database(make_engine(database_url)), "default", carry=False)
        for _ in range(1 if database_url.startswith("sqlite") else 2)
    ]
    # The first pod has the budget booked, so that the account's balance is all that is left.
    workload.apply(replicas[0], [opening("first", T0)], [Closing("first", T0 + 1, "finished")], {"team": POLICY}, NOW)
    team = replicas[0].require("team").account.id
    booked: Counter[str] = Counter({"pod": 1})
    kept: Counter[str] = Counter()
    counting, refusals, broken = threading.Lock(), list[str](), list[str]()
    done = threading.Event()

    def client(number: int) -> None:
        chance, books = random.Random(number), replicas[number % len(replicas)]
        for step in range(EACH // 2):
            amount = chance.randint(1, 900)
            uid = f"pod-{number}-{step}"
            order = Order(amount, "why", f"{number}-{step}", str(amount).encode(), "me", NOW)
            kind = chance.choice(("grant", "transfer", "by-hand", "pod", "pod"))
            spent = chance.randint(0, amount)
            try:
                if kind == "grant":
                    movement.grant(books, TEAM, order, valid_from=NOW, valid_to=None)
                elif kind == "transfer":
                    movement.transfer(books, TEAM, OTHER, order, valid_to=None)
                elif kind == "by-hand":
                    row, _ = reservation.open_by_hand(books, TEAM, order, expires_at=END + 1)
                    if chance.random() < 0.5:
                        reservation.release(books, find_team, "team", row.id, reason="r", actor="me", now=NOW)
                        amount = 0
                elif reservation.open_for_pod(books, TEAM, uid, uid, Need(amount, amount), NOW):
                    workload.apply(
                        books, [opening(uid, NOW)], [Closing(uid, NOW + spent, "finished")], {"team": POLICY}, END
                    )
                    amount = spent
                else:
                    raise BalanceInsufficient("not free")
            except Conflicting as refusal:
                refusals.append(refusal.code)
                continue
            with counting:
                booked[kind] += amount
                kept["by-hand"] += amount if kind == "by-hand" else 0

    watcher = threading.Thread(target=watch, args=(replicas[-1], team, done, broken))
    watcher.start()
    try:
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(client, range(CLIENTS)))
    finally:
        done.set()
        watcher.join()
    assert broken == []
    assert set(refusals) <= {BalanceInsufficient.code}
    state = replicas[0].require("team").at(END)
    assert (state.used, state.over) == (booked["pod"], 0), "whoever started was paid for"
    assert state.balance == 10_000 + booked["grant"] - booked["transfer"] - booked["pod"]
    held = reservation.reserved(replicas[0], END)[team]
    assert held == kept["by-hand"] <= state.balance
    assert verify(replicas[0].database.engine, carry=False).differences == []
    for books in replicas:
        books.database.close()


def test_batches_and_single_reports_about_the_same_pods_leave_the_newest(database_url: str) -> None:
    """Large batches are written beside the ledger's writer, on two connections: what they meet is each other."""
    pods, clients, turns = [f"pod-{n}" for n in range(250)], 6, 5
    replicas = [
        Books(Database(make_engine(database_url)), "default", carry=False)
        for _ in range(1 if database_url.startswith("sqlite") else 2)
    ]
    workload.apply(replicas[0], [opening(uid, T0) for uid in pods], [], {"team": POLICY}, T0)

    def client(number: int) -> set[str]:
        chance, books = random.Random(number), replicas[number % len(replicas)]
        outcomes: set[str] = set()
        for turn in range(turns):
            seq = 1 + turn * clients + number
            about = chance.sample(pods, len(pods)) if number else chance.sample(pods, 10)
            outcomes |= {
                one.outcome for one in usage_report.take(books.database, OPERATOR, [report(u, seq) for u in about], NOW)
            }
        return outcomes

    with ThreadPoolExecutor(clients) as pool:
        for outcomes in pool.map(client, range(clients)):
            assert outcomes <= {"accepted", "duplicate"}
    with replicas[0].database.reading() as session:
        marks = watermarks.read(session, pods).marks
    assert {(uid, mark.seq, mark.used_ms) for (uid, _), epochs in marks.items() for mark in epochs.values()} == {
        (uid, turns * clients, turns * clients * 10) for uid in pods
    }
    for books in replicas:
        books.database.close()

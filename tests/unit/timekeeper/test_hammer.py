# SPDX-License-Identifier: Apache-2.0
"""Sixty-four clients on one namespace: nothing is given twice, nothing fails but by a stated refusal."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

from slicekeeper.errors import Conflict
from slicekeeper.namespace_policy import BudgetPolicy, NamespacePolicy
from timekeeper import movements
from timekeeper.books import Books, Closing, Opening
from timekeeper.movements import BALANCE_INSUFFICIENT, Order, Place
from timekeeper.store.database import Database
from timekeeper.store.engine import make_engine
from timekeeper.store.verify import verify

T0 = 1_767_225_600_000
NOW = T0 + 60_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="10s", period="none"))
TEAM, OTHER = Place("uid-team", "team", POLICY), Place("uid-other", "other", POLICY)
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
                    movements.grant(books, TEAM, order, valid_from=NOW, valid_to=None)
                elif kind == "transfer":
                    movements.transfer(books, TEAM, OTHER, order, valid_to=None)
                elif kind == "adjustment":
                    amount = -amount
                    movements.adjust(books, TEAM, Order(**{**order.__dict__, "amount": amount}))
                else:
                    uid, start = f"pod-{number}-{step}", NOW - amount
                    opening = Opening(uid, uid, "team", "uid-team", "n", ("g",), '{"main":1}', "standard",
                                      {"": Fraction(1)}, start, ())  # fmt: skip
                    books.apply([opening], [Closing(uid, NOW, "finished")], {"team": POLICY}, NOW)
            except Conflict as refusal:
                refusals.append(refusal.reason)
                continue
            with counting:
                booked[kind] += amount

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(client, range(CLIENTS)))
    assert set(refusals) <= {BALANCE_INSUFFICIENT}
    state = replicas[0].require("team").at(NOW)
    given = 10_000 + booked["grant"] + booked["adjustment"] - booked["transfer"]
    assert state.used + state.over == booked["pod"]
    assert state.balance == given - state.used
    assert replicas[-1].require("other").at(NOW).balance == 10_000 + booked["transfer"]
    assert verify(replicas[0].database.engine, carry=False).differences == []
    for books in replicas:
        books.database.close()

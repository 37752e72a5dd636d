# SPDX-License-Identifier: Apache-2.0
"""The controller, look by look: policies, periods and debts are followed, once."""

from __future__ import annotations

import msgspec
import pytest
from support.controller_stage import T0, Stage

from slicekeeper import names
from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings
from slicekeeper.kube.client import EVENTS, PODS
from slicekeeper.units import Instant
from timekeeper.core.budget_record import Debt
from timekeeper.ledger.budget import follow_policy
from timekeeper.ledger.debt import follow_debt
from timekeeper.store import debts


def test_nothing_is_looked_at_before_the_policy_is_known(stage: Stage) -> None:
    """The file alone may say less: it might have budgets changed, or pods evicted."""
    policy = stage.controller._policy = PolicyFile(PolicySettings(objects=True))
    for watch in stage.controller._watches:
        watch.synced.set()
    assert not stage.controller.synced
    policy.apply_over(lambda book: book)
    assert stage.controller.synced


def test_looking_again_changes_nothing(stage: Stage) -> None:
    stage.create()
    stage.clock.advance(25_000)
    for _ in range(3):
        stage.look()
    assert stage.kube.get(PODS, "a", "team")["metadata"]["annotations"][names.BUDGET_STATE] == names.OVER_BUDGET
    told = [e["reason"] for e in stage.kube.list(EVENTS)[0]]
    assert (told.count("BudgetExhausted"), set(told)) == (1, {"BudgetExhausted", "BudgetThreshold"})
    assert stage.known() == 1


def test_the_setting_for_debts_is_followed_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[int] = []
    monkeypatch.setattr(
        "timekeeper.cluster.reconcile_loop.follow_debt",
        lambda books, now: (follow_debt(books, now), followed.append(now)),
    )
    for _ in range(2):
        stage.look()
        stage.clock.advance(1_000)
    assert followed == [T0]
    with stage.books.database.reading() as session:
        assert debts.of_cluster(session, "default") == [Debt(0, carry=False)]


def test_what_a_replica_with_an_older_policy_wrote_is_put_right(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    older = NamespacePolicy(budget=msgspec.structs.replace(stage.controller._policy.of("team").budget, amount="5s"))

    def amount() -> int:
        return stage.books.require("team").rule.rule.amount

    monkeypatch.setattr(stage.controller._leadership, "held", lambda: True)
    stage.create()
    stage.look()
    stage.look(fresh=False)
    for cause in ("takeover", "time"):
        stage.clock.advance(1_000)
        follow_policy(stage.books, {"team": older}, stage.clock.now_ms())
        stage.look(fresh=False)
        assert amount() == 5_000, "it is not compared with each look"
        if cause == "takeover":
            stage.controller._leads = False
            assert stage.controller._lead()
        else:
            monkeypatch.setattr("timekeeper.cluster.reconcile_loop.FOLLOW_SECONDS", 0.0)
        stage.clock.advance(1_000)
        stage.look(fresh=False)
        assert amount() == 10_000, cause


def test_a_grace_counts_from_when_a_namespace_is_enforced_hard_and_no_other_change_lengthens_it(stage: Stage) -> None:
    evictions = stage.controller._evictions
    hard = NamespacePolicy(budget=BudgetPolicy(enforcement="hard", grace="1m"))
    soft = NamespacePolicy()
    of = {"old": hard, "new": hard, "changed": soft}.__getitem__
    evictions.follow_policy(["old"], of, of, Instant(T0))
    later = {"old": hard, "new": hard, "changed": hard}.__getitem__
    # An edit elsewhere: `new` was there before, and hard, but had no budget account yet.
    evictions.follow_policy(["old", "new", "changed"], later, of, Instant(T0 + 600_000))
    since = Instant(T0 + 300_000)
    dues = [evictions.due(name, hard, since) - T0 for name in ("old", "new", "changed")]
    assert dues == [360_000, 360_000, 660_000]


def test_months_are_sealed_a_day_after_their_end(stage: Stage) -> None:
    stage.create()
    stage.look()
    assert stage.books.require("team").account.sealed_until < T0
    stage.clock.advance(24 * 3_600_000)
    stage.look()
    assert stage.books.require("team").account.sealed_until == T0

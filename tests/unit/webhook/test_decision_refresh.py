# SPDX-License-Identifier: Apache-2.0
"""The decision cache: ETags, staleness, and the memory of flips."""

import threading
from pathlib import Path

import pytest
from support.manual_clock import ManualClock

from slicekeeper import typed_json
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import WebhookSettings
from slicekeeper.errors import Unavailable
from slicekeeper.wire.timekeeper import ClusterGpus, Decision, DecisionList, State
from webhook.budget_standing import Standing
from webhook.decision_refresh import Decisions
from webhook.shared_decisions import SharedDecisions

POLICY = NamespacePolicy()


def decision(namespace: str, state: State, enforcement: str = "soft") -> Decision:
    return Decision(
        namespace=namespace,
        state=state,
        balance_ms=0,
        used_ms=0,
        enforcement=enforcement,
        priority_class_name="",
        as_of="",
        since="",
        stale_after="",
    )


class Upstream:
    """A timekeeper whose answers the test sets."""

    def __init__(self, **states: State) -> None:
        self.up = True
        self.version = 0
        self.gpus = ClusterGpus()
        self.asked: list[str] = []
        self.say(**states)

    def say(self, enforcement: str = "soft", **states: State) -> None:
        self.version += 1
        self.items = [decision(ns, state, enforcement) for ns, state in states.items()]

    def decisions(self, etag: str = "") -> tuple[DecisionList | None, str]:
        self.asked.append(etag)
        if not self.up:
            raise Unavailable("no answer")
        tag = f'"{self.version}"'
        return (None if etag == tag else DecisionList(items=self.items, as_of="", gpus=self.gpus)), tag


def cache(upstream: Upstream, clock: ManualClock, shared: SharedDecisions | None = None) -> Decisions:
    return Decisions(upstream, clock, WebhookSettings(), shared=shared)


def later(clock: ManualClock, decisions: Decisions, seconds: int) -> None:
    """Let time pass with a refresh every two seconds."""
    for _ in range(seconds // 2):
        clock.advance(2000)
        decisions.refresh()


def test_the_clusters_gpus_are_those_of_the_last_answer_that_had_any() -> None:
    upstream, clock = Upstream(a="ok"), ManualClock()
    decisions = cache(upstream, clock)
    assert decisions.gpus == ClusterGpus()
    upstream.gpus = ClusterGpus(memory_mib={"A100": 40_960}, most_on_node=8)
    decisions.refresh()
    assert decisions.gpus == upstream.gpus
    later(clock, decisions, 4)
    upstream.up = False
    with pytest.raises(Unavailable):
        decisions.refresh()
    assert decisions.gpus == upstream.gpus


def test_states_and_namespaces_without_a_decision() -> None:
    upstream, clock = Upstream(a="exhausted", b="ok", c="suspended", d="overdraft"), ManualClock()
    decisions = cache(upstream, clock)
    decisions.refresh()
    later(clock, decisions, 62)
    assert {ns: decisions.standing(ns, POLICY).over_budget for ns in "abcdx"} == {
        "a": True,
        "b": False,
        "c": True,
        "d": False,
        "x": False,
    }
    assert decisions.standing("a", POLICY).settled


def test_a_state_of_a_newer_timekeeper_is_over_budget_and_its_word_is_kept() -> None:
    newer = b'{"items": [{"namespace": "a", "state": "frozen", "balanceMs": 5, "usedMs": 0, "enforcement": "firm",'
    newer += b'"priorityClassName": "", "asOf": "", "since": "", "staleAfter": "", "new": 1}], "asOf": ""}'
    [read] = typed_json.decode(newer, DecisionList).items
    assert (read.state, read.enforcement, read.over_budget) == ("frozen", "firm", True)
    upstream, clock = Upstream(), ManualClock()
    upstream.items = [read]
    decisions = cache(upstream, clock)
    decisions.refresh()
    clock.advance(60_000)
    decisions.refresh()
    standing = decisions.standing("a", POLICY)
    assert (standing.over_budget, standing.hard) == (True, False)


def test_an_unchanged_answer_keeps_the_decisions_fresh() -> None:
    upstream, clock = Upstream(a="exhausted"), ManualClock()
    decisions = cache(upstream, clock)
    decisions.refresh()
    later(clock, decisions, 200)
    assert upstream.asked[:3] == ["", '"1"', '"1"']
    assert decisions.standing("a", POLICY) == Standing(over_budget=True)


def test_a_flip_is_remembered_for_the_grace_and_only_for_its_namespace() -> None:
    upstream, clock = Upstream(a="ok", b="ok"), ManualClock()
    decisions = cache(upstream, clock)
    decisions.refresh()
    later(clock, decisions, 62)
    upstream.say(a="exhausted", b="ok")
    decisions.refresh()
    assert decisions.standing("a", POLICY) == Standing(over_budget=True, settled=False)
    later(clock, decisions, 58)
    assert not decisions.standing("a", POLICY).settled
    assert decisions.standing("b", POLICY).settled
    later(clock, decisions, 4)
    assert decisions.standing("a", POLICY).settled


def test_a_namespace_that_vanishes_from_the_answer_flips_to_in_budget() -> None:
    upstream, clock = Upstream(a="exhausted"), ManualClock()
    decisions = cache(upstream, clock)
    decisions.refresh()
    later(clock, decisions, 62)
    upstream.say()
    decisions.refresh()
    assert decisions.standing("a", POLICY) == Standing(over_budget=False, settled=False)


def test_enforcement_hard_is_told() -> None:
    upstream, clock = Upstream(), ManualClock()
    upstream.say("hard", a="exhausted")
    decisions = cache(upstream, clock)
    decisions.refresh()
    assert decisions.standing("a", POLICY).hard


@pytest.mark.parametrize(("mode", "over"), [("allow-in-budget", False), ("over-budget", True), ("deny", False)])
def test_what_was_never_fetched_is_unknown(mode: str, over: bool) -> None:
    decisions = cache(Upstream(), ManualClock())
    policy = NamespacePolicy(stale=mode)  # type: ignore[arg-type]
    assert decisions.standing("a", policy) == Standing(over_budget=over, unknown=True)
    assert decisions.stale
    assert decisions.age_seconds is None


def test_going_stale_and_coming_back_are_flips_of_all_namespaces() -> None:
    upstream, clock = Upstream(a="ok"), ManualClock()
    decisions = cache(upstream, clock)
    decisions.refresh()
    later(clock, decisions, 62)
    upstream.up = False
    clock.advance(59_000)
    with pytest.raises(Unavailable):
        decisions.refresh()
    assert decisions.standing("a", POLICY) == Standing()
    clock.advance(2_000)
    assert decisions.stale
    assert decisions.standing("a", POLICY) == Standing(unknown=True, settled=False)
    clock.advance(60_000)
    assert decisions.standing("a", POLICY) == Standing(unknown=True, settled=True)
    upstream.up = True
    decisions.refresh()
    assert decisions.standing("a", POLICY) == Standing(settled=False)
    later(clock, decisions, 62)
    assert decisions.standing("a", POLICY).settled


@pytest.mark.parametrize("mode", ["allow-in-budget", "over-budget", "deny"])
@pytest.mark.parametrize("enforcement", ["soft", "hard"])
def test_a_namespace_that_was_over_budget_stays_so_while_the_timekeeper_is_silent(mode: str, enforcement: str) -> None:
    upstream, clock, policy = Upstream(), ManualClock(), NamespacePolicy(stale=mode)  # type: ignore[arg-type]
    upstream.say(enforcement, spent="exhausted", stopped="suspended", good="ok")
    decisions = cache(upstream, clock)
    decisions.refresh()
    later(clock, decisions, 62)
    for seconds in (61, 24 * 3600):
        clock.advance(seconds * 1000)
        for namespace, stopped in (("spent", ""), ("stopped", "suspended")):
            known = Standing(over_budget=True, hard=enforcement == "hard", stale=True, stopped=stopped)
            assert decisions.standing(namespace, policy) == known
        for namespace in ("good", "never-seen"):
            standing = decisions.standing(namespace, policy)
            assert (standing.unknown, standing.stale, standing.hard) == (True, False, False)
            assert standing.over_budget == (mode == "over-budget")
    upstream.say(enforcement, spent="ok", stopped="ok", good="ok")
    decisions.refresh()
    assert not decisions.standing("spent", policy).over_budget


def test_a_worker_that_replaces_another_knows_what_that_one_knew(tmp_path: Path) -> None:
    upstream, clock, shared = Upstream(), ManualClock(), SharedDecisions(str(tmp_path))
    upstream.say("hard", spent="exhausted")
    cache(upstream, clock, shared).refresh()
    clock.advance(100_000)
    upstream.up = False
    fresh = cache(upstream, clock, shared)
    assert fresh.standing("spent", POLICY) == Standing(over_budget=True, hard=True, stale=True)
    upstream.up = True
    fresh.refresh()
    assert upstream.asked[-1] == ""
    assert not fresh.stale
    (tmp_path / "decisions.json").write_text("{")
    assert cache(upstream, clock, shared).standing("spent", POLICY).unknown


def test_a_worker_that_has_not_heard_of_anothers_flip_takes_either_class_until_it_fetches() -> None:
    upstream, clock, shared = Upstream(a="exhausted"), ManualClock(), SharedDecisions()
    quick, slow = cache(upstream, clock, shared), cache(upstream, clock, shared)
    quick.refresh()
    slow.refresh()
    for _ in range(31):
        clock.advance(2_000)
        quick.refresh()
        slow.refresh()
    assert slow.standing("a", POLICY).settled
    upstream.say(a="ok")
    clock.advance(1_000)
    quick.refresh()
    assert slow.standing("a", POLICY) == Standing(over_budget=True, settled=False)
    upstream.say(a="ok", b="exhausted")
    clock.advance(1_000)
    slow.refresh()
    assert slow.standing("a", POLICY) == Standing(over_budget=False, settled=False)
    assert slow.standing("c", POLICY).settled


def test_scaled_time_leaves_real_seconds_for_the_network() -> None:
    upstream, clock = Upstream(a="exhausted"), ManualClock()
    decisions = Decisions(upstream, clock, WebhookSettings(), speed=600)
    decisions.refresh()
    clock.advance(2_900_000)
    assert not decisions.stale
    clock.advance(200_000)
    assert decisions.stale


def test_the_thread_outlives_errors_and_counts_them(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Upstream):
        def decisions(self, etag: str = "") -> tuple[DecisionList | None, str]:
            if len(self.asked) < 3:
                self.asked.append(etag)
                raise (Unavailable("no answer") if len(self.asked) < 3 else KeyError("unexpected"))
            return super().decisions(etag)

    done = threading.Event()
    upstream = Broken(a="exhausted")

    def seen() -> None:
        if len(upstream.asked) > 5:
            done.set()

    decisions = Decisions(upstream, ManualClock(), WebhookSettings(), on_refresh=seen)
    decisions.start()
    assert done.wait(60)
    decisions.stop()
    assert decisions.tried.is_set()
    assert decisions.failures == 0
    told = [record.message for record in caplog.records]
    assert sum("not fetched, the last ones stay" in message for message in told) == 1
    assert "decisions not fetched" in told

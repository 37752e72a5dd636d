# SPDX-License-Identifier: Apache-2.0
"""A pod whose label was taken off is found, and charged, all the same."""

from __future__ import annotations

import pytest
from support.controller_stage import T0, Stage

from slicekeeper import names
from slicekeeper.errors import Forbidden
from slicekeeper.kube.client import PODS
from timekeeper.cluster import lost_label, reconcile_loop


def labels_of(stage: Stage) -> dict[str, str]:
    found: dict[str, str] = stage.kube.get(PODS, "a", "team")["metadata"]["labels"]
    return found


@pytest.mark.parametrize("seen", [True, False])
def test_a_label_taken_off_does_not_end_a_charge(stage: Stage, monkeypatch: pytest.MonkeyPatch, seen: bool) -> None:
    monkeypatch.setattr(reconcile_loop, "RETRY_SECONDS", 0.0)
    pod = stage.create()
    uid = pod["metadata"]["uid"]
    stage.look()
    unlabelled = stage.kube.patch(PODS, "a", {"metadata": {"labels": None}}, "team")
    if seen:  # a watch by label says DELETED
        stage.controller.pods.on_event("DELETED", unlabelled)
    else:
        stage.controller.pods.on_list([])
    stage.clock.advance(5_000)
    stage.look(fresh=False)
    stage.look(fresh=False)
    assert stage.workload(uid).ended_at is None
    assert labels_of(stage) == {names.MANAGED_LABEL: "true"}, "the watch brings it again"
    stage.end("a", T0 + 5_000)
    stage.look()
    assert stage.workload(uid).ended_at == T0 + 5_000
    assert stage.kube.get(PODS, "a", "team")["metadata"]["finalizers"] == []


def test_a_pod_whose_label_may_not_be_written_is_followed_to_its_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_loop, "RETRY_SECONDS", 0.0)

    def refused(*_: object) -> None:
        raise Forbidden("a guard of another release", 403)

    monkeypatch.setattr(lost_label.pod_patch, "label", refused)
    uid = stage.create()["metadata"]["uid"]
    stage.look()
    stage.kube.patch(PODS, "a", {"metadata": {"labels": None}}, "team")
    stage.controller.pods.on_list([])
    stage.clock.advance(5_000)
    stage.look(fresh=False)
    stage.end("a", T0 + 5_000)
    stage.look(fresh=False)
    assert stage.workload(uid).ended_at == T0 + 5_000
    assert stage.kube.get(PODS, "a", "team")["metadata"]["finalizers"] == []
    stage.cluster.store.delete(PODS, "a", "team", grace=0)
    stage.look(fresh=False)
    stage.look(fresh=False)
    assert stage.controller.pods.all() == []


def test_another_value_of_the_label_hides_no_pod(stage: Stage) -> None:
    """Since Kubernetes 1.35 a Binding's labels replace the pod's."""
    uid = stage.create()["metadata"]["uid"]
    stage.kube.patch(PODS, "a", {"metadata": {"labels": {names.MANAGED_LABEL: "no"}}}, "team")
    listed, _ = stage.kube.list(PODS, label_selector=names.MANAGED_SELECTOR)
    stage.controller.pods.on_list(listed)
    stage.look(fresh=False)
    assert stage.workload(uid).started_at == T0
    assert labels_of(stage) == {names.MANAGED_LABEL: "true"}


@pytest.mark.parametrize("mark", ["finalizer", "binding"])
def test_a_pod_that_was_never_seen_with_its_label_is_found_by_its_other_marks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    """The timekeeper was away when the label was taken."""
    monkeypatch.setattr(reconcile_loop, "RETRY_SECONDS", 0.0)
    uid = stage.create()["metadata"]["uid"]
    taken: dict[str, object] = {"labels": None}
    if mark == "binding":
        taken["finalizers"] = []
    stage.kube.patch(PODS, "a", {"metadata": taken}, "team")
    stage.kube.create(PODS, {"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "x"}]}}, "team")
    stage.controller.strays.sweep()
    stage.look(fresh=False)
    stage.look(fresh=False)
    assert stage.workload(uid).started_at == T0
    assert labels_of(stage) == {names.MANAGED_LABEL: "true"}
    assert "labels" not in stage.kube.get(PODS, "plain", "team")["metadata"]

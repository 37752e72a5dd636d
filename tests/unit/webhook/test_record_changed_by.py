# SPDX-License-Identifier: Apache-2.0
"""Who changed a budget's spec is noted, and nothing else of any object is touched."""

from __future__ import annotations

from base64 import b64decode
from copy import deepcopy
from typing import Any

import orjson
import pytest
from support.json_patch import apply

from slicekeeper import names
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Settings
from webhook.admission import Admission
from webhook.admission_review import Reviewer
from webhook.review_inputs import Case

SETTINGS = Settings()
REVIEWER = Reviewer(Admission(SETTINGS), lambda namespace: Case(namespace, NamespacePolicy()))
SPEC = {"amount": "2h", "period": "month"}
OTHER = {**SPEC, "amount": "3h"}
KINDS = ("GpuBudget", "ClusterGpuBudget", "GpuPolicy")
NO_PATCH = b"W10="


def budget(spec: dict[str, Any], note: str | None = None, generation: int | None = None, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"metadata": {"name": "default", **more}, "spec": dict(spec)}
    if generation is not None:
        made["metadata"]["generation"] = generation
    if note is not None:
        made["metadata"].setdefault("annotations", {})[names.CHANGED_BY] = note
    return made


def patched(obj: dict[str, Any], old: dict[str, Any] | None = None, user: str = "bob", **more: Any) -> dict[str, Any]:
    """Return the object as the API server goes on with it, after two passes, of which the second changes nothing."""
    kind = {"group": "slicekeeper.io", "version": "v1alpha1", "kind": "GpuBudget"}
    request: dict[str, Any] = {
        "uid": "u-1",
        "kind": kind,
        "operation": "UPDATE" if old else "CREATE",
        "oldObject": old,
        "userInfo": {"username": user},
        **more,
    }
    for _ in range(2):
        before = deepcopy(obj)
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**request, "object": obj}}
        response = orjson.loads(REVIEWER.mutate(orjson.dumps(body)).body)["response"]
        assert response["allowed"]
        obj = apply(obj, orjson.loads(b64decode(response.get("patch", NO_PATCH))))
    assert obj == before
    return obj


def note_of(obj: dict[str, Any]) -> str | None:
    found: str | None = obj["metadata"].get("annotations", {}).get(names.CHANGED_BY)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_object_names_who_made_it(kind: str) -> None:
    of = {"kind": {"group": "slicekeeper.io", "version": "v1alpha1", "kind": kind}}
    assert note_of(patched(budget(SPEC), **of)) == "1 bob"
    assert note_of(patched(budget(SPEC, annotations={"mine": "kept"}), **of)) == "1 bob"
    backup = budget(SPEC, "7 alice", generation=7)  # what a backup brings is about the object that it was made of
    assert note_of(patched(backup, **of)) == "1 bob"


@pytest.mark.parametrize("note", [None, "4 alice", "5 alice", "nonsense"])
def test_another_spec_names_who_wrote_it_whatever_the_manifest_says(note: str | None) -> None:
    old = budget(SPEC, "4 alice", generation=4)
    assert note_of(patched(budget(OTHER, note, generation=4), old)) == "5 bob"
    # The generation of a manifest that is put is not believed.
    assert note_of(patched(budget(OTHER, note, generation=99), old)) == "5 bob"


def test_an_object_of_before_names_its_next_writer() -> None:
    assert note_of(patched(budget(OTHER), budget(SPEC, generation=1))) == "2 bob"


@pytest.mark.parametrize("note", [None, "4 alice"])
def test_a_write_without_another_spec_is_left_alone(note: str | None) -> None:
    old = budget(SPEC, note, generation=4)
    for new in (
        deepcopy(old),
        budget(SPEC, note, generation=4, labels={"a": "b"}),
        budget(SPEC, note, generation=4, finalizers=["a/b"], annotations={"mine": "too"}),
        {**deepcopy(old), "status": {"state": "ok"}},
    ):
        assert patched(deepcopy(new), old) == new


def test_a_name_that_a_manifest_leaves_out_is_put_back() -> None:
    old = budget(SPEC, "4 alice", generation=4, annotations={"mine": "old"})
    assert note_of(patched(budget(SPEC), old)) == "4 alice"
    replaced = patched(budget(SPEC, annotations={"mine": "new"}), old)
    assert replaced["metadata"]["annotations"] == {"mine": "new", names.CHANGED_BY: "4 alice"}


@pytest.mark.parametrize("note", ["4 carol", "5 alice", ""])
def test_a_forged_name_is_left_to_the_guard_which_refuses_it(note: str) -> None:
    forged = budget(SPEC, note, generation=4)
    assert patched(deepcopy(forged), budget(SPEC, "4 alice", generation=4)) == forged


@pytest.mark.parametrize("note", [None, "4 alice"])
def test_a_change_that_another_webhook_undoes_changed_nothing(note: str | None) -> None:
    old = budget(SPEC, note, generation=4)
    noted = patched(budget(OTHER, note, generation=4), old)
    assert note_of(noted) == "5 bob"
    assert note_of(patched({**noted, "spec": SPEC}, old)) == note


def test_an_unknown_user_leaves_no_name_that_would_count() -> None:
    assert note_of(patched(budget(SPEC), user="")) is None
    assert note_of(patched(budget(OTHER, "4 alice", generation=4), budget(SPEC, "4 alice", generation=4), user="")) == (
        "4 alice"
    )


@pytest.mark.parametrize(
    "more",
    [
        {"subResource": "status"},
        {"operation": "DELETE"},
        {"kind": {"group": "example.com", "version": "v1", "kind": "GpuBudget"}},
        {"kind": {"group": "slicekeeper.io", "version": "v1alpha1", "kind": "Other"}},
    ],
)
def test_nothing_else_is_noted(more: dict[str, Any]) -> None:
    assert patched(budget(OTHER), budget(SPEC, generation=1), **more) == budget(OTHER)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_noted_on_all_of_our_kinds(kind: str) -> None:
    ours = {"group": "slicekeeper.io", "version": "v1alpha1", "kind": kind}
    assert note_of(patched(budget(OTHER), budget(SPEC, generation=1), kind=ours)) == "2 bob"


def test_a_dry_run_is_answered_like_a_real_one() -> None:
    assert note_of(patched(budget(SPEC), dryRun=True)) == "1 bob"

# SPDX-License-Identifier: Apache-2.0
"""Objects are read whatever is in them: damage is named by its path, and counts as absent."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicekeeper.kube.objects import Container, EnvVar, Metadata, Pod, PodSpec, ResourceAmounts, examine, read

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text("ab/", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=5,
)


def damaged(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Return objects of a kind in which any field may be of any type."""
    fields = {}
    for field in msgspec.structs.fields(kind):
        inner = JSON
        for part in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                inner |= damaged(part) | st.lists(damaged(part) | JSON, max_size=2)
        fields[field.encode_name] = inner
    return st.fixed_dictionaries({}, optional=fields)


def test_fields_that_are_not_read_are_ignored_and_null_is_absent() -> None:
    sent = {
        "apiVersion": "v1",
        "metadata": {"name": "a", "creationTimestamp": None, "labels": None},
        "spec": {
            "containers": [{"name": "c", "tty": 5, "env": None, "resources": {"limits": {"cpu": 1}}}],
            "hostPID": True,
            "volumes": None,
        },
    }
    container = Container("c", resources=ResourceAmounts({"cpu": 1}))
    assert examine(sent, Pod) == (Pod(Metadata("a"), PodSpec(containers=(container,), host_pid=True)), [])


def test_every_damaged_field_is_named_by_its_path_and_counts_as_absent() -> None:
    sent = {"metadata": [], "spec": {"containers": [{"env": [{"value": "x"}, 7]}, None], "nodeName": 3, "hostPID": 1}}
    pod, found = examine(sent, Pod)
    assert [(one.path, one.value, one.wanted) for one in found] == [
        ("metadata", [], dict),
        ("spec.containers[0].env[0].name", None, str),
        ("spec.containers[0].env[1]", 7, dict),
        ("spec.containers[1]", None, dict),
        ("spec.nodeName", 3, str),
        ("spec.hostPID", 1, bool),
    ]
    assert pod == Pod(spec=PodSpec(containers=(Container(env=(EnvVar("", "x"), EnvVar(""))), Container())))


@pytest.mark.parametrize("value", [None, 5, "x", [], True])
def test_what_is_no_object_is_an_empty_one(value: object) -> None:
    pod, found = examine(value, Pod)
    assert (pod, [one.path for one in found]) == (Pod(), [""])


@given(damaged(Pod) | JSON)
def test_anything_is_read_and_its_containers_keep_their_places(sent: Any) -> None:
    pod, found = examine(sent, Pod)
    assert read(sent, Pod) == pod
    assert examine(msgspec.to_builtins(pod), Pod) == (pod, []), "what is left is whole"
    assert all(one.value is None or type(one.value) is not one.wanted for one in found)
    for placed in pod.spec.placed():
        at = sent["spec"][placed.field][placed.index]
        assert placed.container.name == (at.get("name") if isinstance(at, dict) and type(at.get("name")) is str else "")

# SPDX-License-Identifier: Apache-2.0
"""Patches: the RFCs' own examples, and what no patch may do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.patch import PatchError, apply, merge

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab/~", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["a", "c"]}, [{"op": "add", "path": "/foo/1", "value": "b"}], {"foo": ["a", "b", "c"]}),
        ({"foo": ["a"]}, [{"op": "add", "path": "/foo/-", "value": ["b"]}], {"foo": ["a", ["b"]]}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
        ({"foo": [1, 2, 3]}, [{"op": "remove", "path": "/foo/1"}], {"foo": [1, 3]}),
        ({"a": 1}, [{"op": "replace", "path": "/a", "value": None}], {"a": None}),
        ({"a": {"b": 1}, "c": {}}, [{"op": "move", "from": "/a/b", "path": "/c/d"}], {"a": {}, "c": {"d": 1}}),
        ({"f": ["a", "b", "c"]}, [{"op": "move", "from": "/f/0", "path": "/f/2"}], {"f": ["b", "c", "a"]}),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": []}], []),
    ],
)
def test_a_json_patch_does_what_rfc_6902_says(before: object, patch: object, after: object) -> None:
    assert apply(before, patch) == after


@pytest.mark.parametrize(
    ("before", "operation"),
    [
        ({"a": 1}, {"op": "test", "path": "/a", "value": 2}),
        ({"a": 1}, {"op": "remove", "path": "/b"}),
        ({"a": 1}, {"op": "replace", "path": "/b", "value": 1}),
        ({"a": 1}, {"op": "add", "path": "/b/c", "value": 1}),
        ({"a": [1]}, {"op": "add", "path": "/a/3", "value": 1}),
        ({"a": [1]}, {"op": "replace", "path": "/a/01", "value": 1}),
        ({"a": [1]}, {"op": "remove", "path": "/a/-"}),
        ({"a": 1}, {"op": "add", "path": "a", "value": 1}),
        ({"a": 1}, {"op": "jump", "path": "/a"}),
        ({"a": 1}, {"op": "add", "path": "/b"}),
        ({"a": 1}, "add"),
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused_whole(before: dict[str, object], operation: object) -> None:
    first = {"op": "add", "path": "/new", "value": 1}
    with pytest.raises(PatchError, match="operation 1"):
        apply(before, [first, operation])
    assert "new" not in before


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_does_what_rfc_7386_says(before: object, patch: object, after: object) -> None:
    assert merge(before, patch) == after


@given(JSON, JSON)
def test_adding_a_member_and_removing_it_is_nothing(document: object, value: object) -> None:
    before = {"x": document}
    patch = [
        {"op": "add", "path": "/n~1~0", "value": value},
        {"op": "test", "path": "/n~1~0", "value": value},
        {"op": "remove", "path": "/n~1~0"},
    ]
    assert apply(before, patch) == before

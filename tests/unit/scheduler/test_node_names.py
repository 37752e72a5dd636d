# SPDX-License-Identifier: Apache-2.0
"""Names to rows and back as JSON: whatever the spelling and the order, what a dictionary of names would say."""

import json

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import node_names
from scheduler.extender_requests import BadRequest
from scheduler.node_names import Roster

NAMES = st.lists(st.text("ab-.09", min_size=1, max_size=6) | st.text(min_size=1, max_size=300), unique=True)


def spelled(names, spelling):
    return {
        "go": orjson.dumps(names),
        "spaces": json.dumps(names).encode(),
        "lines": json.dumps(names, indent=1).encode(),
    }[spelling]


def check(names, asked, text):
    known = {name: row for row, name in enumerate(names) if name}
    rows, others = Roster(names).rows(text)
    assert rows.tolist() == [known[name] for name in asked if name in known]
    assert others == [name for name in asked if name not in known]


@settings(max_examples=200, deadline=None)
@given(NAMES, st.data())
def test_every_spelling_of_a_list_gives_the_rows_of_its_names(names, data):
    gone = data.draw(st.sets(st.sampled_from(names))) if names else set()
    asked = data.draw(st.permutations(names)) + data.draw(st.lists(st.text("ab-.09", min_size=1), max_size=2))
    text = spelled(asked, data.draw(st.sampled_from(["go", "spaces", "lines"])))
    check([name if name not in gone else "" for name in names], asked, text)


def test_names_of_one_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(node_names, "_FACTOR", np.uint64(0))
    names = ["a", "b", "c"]
    check(names, names, orjson.dumps(names))


def test_thousands_of_names_in_another_order():
    names = [f"node-{n}" for n in range(5_000)]
    asked = np.random.default_rng(1).permutation(names).tolist()[:4_990]
    check(names, asked, orjson.dumps(asked))


@pytest.mark.parametrize(
    "text", [b"[1]", b'["a",null]', b'{"a":"b"}', b'["a"', b'["a",]', b'"a"', b'["\xff"]', b"[[]]"]
)
def test_what_is_no_list_of_names_is_refused(text):
    for names in (["a", "b"], []):
        with pytest.raises(BadRequest, match="NodeNames is no list of strings"):
            Roster(names).rows(text)


def test_a_list_that_was_written_is_known_when_it_comes_back():
    made = Roster(["a", "bb", "", "c"])
    rows = np.array([3, 1])
    text = made.write_list(rows)
    assert text == b'["c","bb"]'
    assert made.rows(text)[0] is rows
    assert made.rows(b'["bb","c"]')[0].tolist() == [1, 3]


@settings(max_examples=50, deadline=None)
@given(NAMES, st.data())
def test_scores_are_json_of_hosts_in_the_order_of_rows(names, data):
    rows = np.array(data.draw(st.permutations(range(len(names)))), np.int64)
    scores = data.draw(st.lists(st.integers(0, 10), min_size=len(names), max_size=len(names)))
    found = orjson.loads(Roster(names).write_scores(rows, np.array(scores, np.int64)))
    assert [(entry["Host"], entry["Score"]) for entry in found] == [
        (names[row], score) for row, score in zip(rows, scores, strict=True)
    ]

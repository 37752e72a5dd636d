# SPDX-License-Identifier: Apache-2.0
"""Who wrote a budget object: what the webhook can note is what the operator reads, and of this generation alone."""

from __future__ import annotations

from typing import Any

import pytest

from slicekeeper import names
from slicekeeper.kube import changed_by

ACCOUNT = f"system:serviceaccount:{'n' * 63}:{'a' * 253}"


def budget(generation: int, note: str | None) -> dict[str, Any]:
    annotations = {} if note is None else {names.CHANGED_BY: note}
    return {"metadata": {"generation": generation, "annotations": annotations}}


@pytest.mark.parametrize(
    "user", ["alice", "alice@example.com", ACCOUNT, "two words", " ", "Jürgen", "3 bob", "u" * 1024]
)
def test_what_is_noted_is_read(user: str) -> None:
    assert changed_by.writer_of(budget(3, changed_by.value(3, user))) == user


def test_the_writer_of_another_generation_is_not_that_of_this_one() -> None:
    note = changed_by.value(3, "alice")
    assert [changed_by.writer_of(budget(generation, note)) for generation in (2, 4, 30, 33)] == [None] * 4


@pytest.mark.parametrize("note", [None, "", "3", "3 ", "alice", " alice", "3alice", "03 alice", "3.0 alice"])
def test_what_nobody_noted_names_nobody(note: str | None) -> None:
    assert changed_by.writer_of(budget(3, note)) is None


def test_an_object_without_annotations_names_nobody() -> None:
    assert changed_by.writer_of({"metadata": {"generation": 3}}) is None


@pytest.mark.parametrize("user", ["", "u" * 1025, "J\N{REPLACEMENT CHARACTER}rgen"])
def test_names_that_cannot_be_noted_are_left_out(user: str) -> None:
    assert changed_by.value(3, user) is None


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        ("a\nb", r"a\nb"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\0b", r"a\x00b"),
        ("a\N{RIGHT-TO-LEFT OVERRIDE}b", r"a\u202eb"),
        ("a\N{LINE SEPARATOR}b", r"a\u2028b"),
        ("\n" * 1024, r"\n" * 512),
    ],
)
def test_what_cannot_be_printed_is_escaped(user: str, shown: str) -> None:
    assert changed_by.writer_of(budget(3, changed_by.value(3, user))) == shown

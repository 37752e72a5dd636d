# SPDX-License-Identifier: Apache-2.0
"""Patterns of namespaces' names, against all short names."""

from fnmatch import fnmatchcase
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from slicekeeper.config.patterns import is_pattern, leave_nothing, problem_of

ENDS, MIDDLE = "ab0", "ab0-"
NAMES = [
    *ENDS,
    *(f"{a}{''.join(m)}{z}" for n in range(4) for a in ENDS for m in product(MIDDLE, repeat=n) for z in ENDS),
]
texts = st.lists(st.sampled_from(["a", "b", "0", "-", "*", "?", "[ab]", "[!a]", "[0-9]"]), min_size=1, max_size=4)
patterns = texts.map("".join).filter(lambda text: is_pattern(text) and not problem_of(text))


@given(patterns, st.lists(patterns, max_size=3))
@settings(max_examples=150, deadline=None)
def test_nothing_is_left_exactly_if_every_name_is_matched_before(text: str, others: list[str]) -> None:
    left = [name for name in NAMES if fnmatchcase(name, text) and not any(fnmatchcase(name, o) for o in others)]
    if left:
        assert not leave_nothing(text, others)
    elif len(text) <= 3 and "[!a]" not in text and all(len(other) <= 3 for other in others):
        assert leave_nothing(text, others), "five characters tell such short patterns apart"


@given(texts.map("".join))
@settings(max_examples=150, deadline=None)
def test_a_pattern_has_a_problem_exactly_if_no_name_matches(text: str) -> None:
    if any(fnmatchcase(name, text) for name in NAMES):
        assert not problem_of(text)


def test_a_name_has_at_most_63_characters() -> None:
    assert not problem_of("a" * 63)
    assert problem_of("a" * 64)
    assert not problem_of("?" * 63)
    assert problem_of("?" * 64)
    assert not leave_nothing("a*", ["a?*"]), "the name a is left"
    assert leave_nothing("?" * 62 + "*", ["?" * 62, "?" * 63])

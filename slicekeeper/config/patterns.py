# SPDX-License-Identifier: Apache-2.0
"""Patterns of namespace names (`*`, `?`, `[abc]`), and which valid names they can match.

Pure and exact: a pattern is an automaton over the characters of a namespace's name. Whether earlier patterns leave
anything to a later one is decided by a search for such a name, and not by a comparison of the texts.
"""

from __future__ import annotations

import fnmatch
import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

LONGEST: Final = 63
"""A namespace's name is a DNS label."""

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_CHARACTERS: Final = frozenset(_LETTERS + "-")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MOST_STATES: Final = 20_000

_ANY_NUMBER: Final = None
"""The token of `*`; every other token is the set of characters that one position can have."""

_Token = frozenset[str] | None
_Positions = frozenset[int]


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern and not one namespace's name."""
    return any(sign in text for sign in "*?[")


def problem_of(text: str) -> str:
    """Return why a name or pattern can match no namespace, empty if it can."""
    if not is_pattern(text):
        if _NAME.fullmatch(text):
            return ""
        return "no namespace can have this name: up to 63 of a-z, 0-9 and '-', a letter or digit at both ends"
    try:
        tokens = _tokens(text)
    except ValueError as error:
        return str(error)
    if _search(tokens, []) is None:
        return "it matches no name that a namespace can have: up to 63 of a-z, 0-9 and '-'"
    return ""


def leave_nothing(text: str, others: Sequence[str]) -> bool:
    """Whether every namespace that a pattern matches is matched by one of `others`, all of which are valid."""
    # Nearly always a single sample shows that something is left.
    for filler in ("", "q0z"):
        sample = re.sub(r"\[[^\]]*\]|\?", "x", text).replace("*", filler)
        fits = _NAME.fullmatch(sample) is not None and fnmatch.fnmatchcase(sample, text)
        if fits and not any(fnmatch.fnmatchcase(sample, other) for other in others):
            return False
    return _search(_tokens(text), [_tokens(other) for other in others]) is None


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    index = 0
    while index < len(text):
        sign = text[index]
        index += 1
        if sign == "*":
            found.append(_ANY_NUMBER)
        elif sign == "?":
            found.append(_CHARACTERS)
        elif sign == "[":
            start = index + (text[index : index + 1] == "!")
            end = text.find("]", start + 1)  # a bracket in the first position is literal
            if end < 0:
                raise ValueError("the bracket `[` is never closed")
            one = text[index - 1 : end + 1]
            found.append(frozenset(c for c in _CHARACTERS if fnmatch.fnmatchcase(c, one)))
            index = end + 1
        else:
            found.append(frozenset(sign) & _CHARACTERS)
    return found


def _search(tokens: Sequence[_Token], others: Sequence[Sequence[_Token]]) -> str | None:
    """Return the shortest namespace name that `tokens` match and none of `others` do; None if there is none.

    A search that becomes too large returns the name at which it stopped: the pattern then counts as valid.
    """
    signs = _distinct((tokens, *others))
    start = (_closure(tokens, {0}), tuple(_closure(other, {0}) for other in others), False)
    seen, waiting = {start}, deque([(start, "")])
    while waiting:
        (mine, theirs, ends_well), name = waiting.popleft()
        taken = any(len(other) in positions for other, positions in zip(others, theirs, strict=True))
        if ends_well and len(tokens) in mine and not taken:
            return name
        if len(name) == LONGEST:
            continue
        if len(seen) > _MOST_STATES:
            return name
        for sign in signs:
            if sign == "-" and not name:
                continue
            ahead = _step(tokens, mine, sign)
            if not ahead:
                continue
            state = (ahead, tuple(_step(o, p, sign) for o, p in zip(others, theirs, strict=True)), sign != "-")
            if state not in seen:
                seen.add(state)
                waiting.append((state, name + sign))
    return None


def _distinct(patterns: Iterable[Sequence[_Token]]) -> list[str]:
    """Return one character for each group of characters that no pattern distinguishes."""
    sets = {token for tokens in patterns for token in tokens if token is not None}
    groups = {tuple(sign in one for one in sets): sign for sign in _LETTERS}
    return [*groups.values(), "-"]


def _step(tokens: Sequence[_Token], positions: _Positions, sign: str) -> _Positions:
    ahead = set()
    for position in positions:
        if position == len(tokens):
            continue
        token = tokens[position]
        if token is None:
            ahead.add(position)
        elif sign in token:
            ahead.add(position + 1)
    return _closure(tokens, ahead)


def _closure(tokens: Sequence[_Token], positions: set[int]) -> _Positions:
    found = set(positions)
    for position in positions:
        while position < len(tokens) and tokens[position] is None:
            position += 1  # noqa: PLW2901 - it skips stars, which may match nothing
            found.add(position)
    return frozenset(found)

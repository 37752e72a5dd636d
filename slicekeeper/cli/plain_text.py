# SPDX-License-Identifier: Apache-2.0
"""Text from other people, made fit for a terminal: reasons, events and messages of servers may contain anything."""

from __future__ import annotations


def plain(text: str) -> str:
    r"""Return a text of one line in which control characters are visible: `\n`, `\x1b`, `\u202e`.

    Otherwise a reason could clear the screen, or forge a row of a table.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\u00a0" else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def indented(text: str) -> str:
    """Return a text of any origin, `plain` but for line breaks: only its first line begins at the left margin."""
    return "\n  ".join(map(plain, text.splitlines()))

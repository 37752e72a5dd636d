# SPDX-License-Identifier: Apache-2.0
"""Node names between the wire and the fleet's rows: thousands in each call, each time in another order.

kube-scheduler examines nodes in parallel, and lists them as they are done. Looking up each name would take longer than
everything else, because the names are scattered over the memory. So all are hashed together, and the names of the rows
found this way are written again: the rows are right if that is exactly the text that came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from scheduler.extender_requests import decode_names
from scheduler.placement.fleet_version import Ints

Letters = NDArray[np.uint8]

Words = NDArray[np.uint64]

_LONGEST: Final = 256
"""The maximum length of a node's name."""

_WORD: Final = 8
_MASKS: Final = np.array([(1 << 8 * letters) - 1 for letters in range(_WORD + 1)], np.uint64)
"""Masks of a word, by how many of its characters belong to the name."""

_DIGITS: Final = np.array(
    [[ord(letter) for letter in f"{number:2}".replace(" ", "\0")] for number in range(100)], np.uint8
)

_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)


class Roster:
    """The nodes of a fleet by row, and the spelling of their names. Thread-safe."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are the nodes' by row, empty if the row is no node's."""
        self.names = tuple(names)
        self.rank: Ints = np.empty(len(names), np.int64)
        """The position of each row's node in the order of names."""
        self.rank[sorted(range(len(names)), key=self.names.__getitem__)] = np.arange(len(names))
        self._row = {name: row for row, name in enumerate(names) if name}
        written = [orjson.dumps(name) for name in names]
        plain = [text if text.count(b'"') == 2 else b'""' for text in written]  # no node's name has a quote
        self._written = np.zeros((len(names), max(map(len, written), default=0)), np.uint8)
        for row, text in enumerate(written):
            self._written[row, : len(text)] = np.frombuffer(text, np.uint8)
        self._hashes = _hashes(b"".join(plain))
        self._shift = np.uint64(64 - max(len(names).bit_length() + 3, 8))
        self._slots = np.zeros(1 << (64 - int(self._shift)), np.int32)
        self._slots[self._hashes >> self._shift] = np.arange(len(names))
        self._order: Ints = np.argsort(self._hashes)
        self._sorted = self._hashes[self._order]
        self._quoted = tuple(plain)
        self._latest: tuple[bytes, Ints] = b"[]", np.zeros(0, np.int64)
        """`prioritize` gets the list that `filter` has answered."""

    def row(self, name: str) -> int:
        """Return a node's row, −1 if it is not here."""
        return self._row.get(name, -1)

    def first_in(self, text: bytes, rows: Iterable[int]) -> int:
        """Return the first of some rows whose name is in a JSON list of names, −1 if none is."""
        return next((row for row in rows if self._quoted[row] != b'""' and self._quoted[row] in text), -1)

    def rows(self, text: bytes) -> tuple[Ints, list[str]]:
        """Return the rows of a JSON list of names in its order, and the names that are not here.

        Raises BadRequest if it is not such a list.
        """
        latest, rows = self._latest
        if text == latest:
            return rows, []
        if self.names:
            guess = self._guess(text)
            if b"[%b]" % self.write(guess)[:-1] == text:
                return guess, []
        asked = decode_names(text)
        known = [self._row.get(name, -1) for name in asked]
        return (
            np.array([row for row in known if row >= 0], np.int64),
            [name for name, row in zip(asked, known, strict=True) if row < 0],
        )

    def _guess(self, text: bytes) -> Ints:
        """Return the probable rows of names between quotes."""
        hashes = _hashes(text)
        rows: Ints = self._slots[hashes >> self._shift].astype(np.int64)
        wrong = np.flatnonzero(self._hashes[rows] != hashes)
        at = np.searchsorted(self._sorted, hashes[wrong])
        rows[wrong] = self._order[np.minimum(at, len(self._order) - 1)]
        return rows

    def write(self, rows: Ints, after: bytes = b",") -> bytes:
        """Return the names of rows as JSON, each followed by `after`."""
        return _packed(self._pieces(rows, b"", after))

    def write_list(self, rows: Ints) -> bytes:
        """Return the names of rows as a JSON list, and remember it in case it comes back at once."""
        text = b"[%b]" % self.write(rows)[:-1]
        self._latest = text, rows
        return text

    def write_scores(self, rows: Ints, scores: Ints) -> bytes:
        """Return the JSON list of hosts with their scores, 0 to 99."""
        pieces = self._pieces(rows, b'{"Host":', b',"Score":\0\0},')
        pieces[:, -4:-2] = _DIGITS[scores]
        return b"[%b]" % _packed(pieces)[:-1]

    def _pieces(self, rows: Ints, before: bytes, after: bytes) -> Letters:
        """Return a line of letters for each row, with zeros in it."""
        begin, end = len(before), len(before) + self._written.shape[1]
        pieces = np.empty((len(rows), end + len(after)), np.uint8)
        pieces[:, :begin] = np.frombuffer(before, np.uint8)
        pieces[:, begin:end] = self._written[rows]
        pieces[:, end:] = np.frombuffer(after, np.uint8)
        return pieces


def _packed(pieces: Letters) -> bytes:
    return pieces.tobytes().replace(b"\0", b"")


def _hashes(text: bytes) -> Words:
    """Return a hash of each name between quotes."""
    quotes = np.flatnonzero(np.frombuffer(text, np.uint8) == ord('"'))
    begin = quotes[: len(quotes) // 2 * 2 : 2] + 1
    lengths = quotes[1::2] - begin
    words = np.ndarray((len(text) + 1,), "<u8", text + bytes(_WORD), strides=(1,))
    hashes = np.zeros(len(begin), np.uint64)
    for at in range(0, min(int(lengths.max(initial=0)), _LONGEST), _WORD):
        mask = _MASKS[np.clip(lengths - at, 0, _WORD)]
        hashes = (hashes + (words[np.minimum(begin + at, len(text))] & mask)) * _FACTOR
    return hashes

# SPDX-License-Identifier: Apache-2.0
"""Divide a list into pages: how many items one has, and where the next one begins."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from flask import request

from slicekeeper import typed_json
from timekeeper.api.problems import Problem

T = TypeVar("T")
MOST_PER_PAGE: Final = 500
_LARGEST: Final = 2**62


def limit() -> int:
    """Return how many items a page may have.

    Raises Problem if the query does not say 1 to 500.
    """
    text = request.args.get("limit", "100")
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_PER_PAGE):
        raise Problem(422, "limit-invalid", f"limit must be a whole number from 1 to {MOST_PER_PAGE}", "limit")
    return int(text)


def cursor(kind: type[T]) -> T | None:
    """Return the position at which a page continues; None at the beginning.

    Raises Problem if the cursor is not one of ours.
    """
    text = request.args.get("cursor", "")
    if not text:
        return None
    refusal = Problem(422, "cursor-invalid", "use the cursor from the previous page", "cursor")
    try:
        place = typed_json.decode(base64.b64decode(text.encode("ascii"), b"-_", validate=True), kind)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise refusal from error
    parts = place if isinstance(place, tuple) else (place,)
    if any(part > _LARGEST or part < 0 if isinstance(part, int) else "\0" in str(part) for part in parts):
        raise refusal
    return place


def page(rows: list[T], limit: int, place: Callable[[T], object]) -> tuple[list[T], str | None]:
    """Return the items of a page and the cursor of the next one, which is opaque to callers; None if there is none.

    `rows` has more than `limit` items if there is a next page; `place` returns the position of an item.
    """
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], base64.urlsafe_b64encode(msgspec.json.encode(place(rows[limit - 1]))).decode()

# SPDX-License-Identifier: Apache-2.0
"""Parse what a request consists of: body, path, query and conditions. Each function says what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from flask import request

from slicekeeper import typed_json
from slicekeeper.config.policy_entry import check_time_zone
from slicekeeper.units import Instant, parse_instant
from slicekeeper.wire.timekeeper import ReportBatch
from timekeeper.api.problems import Problem
from timekeeper.ledger.budget_rule import ANY_VERSION

T = TypeVar("T")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL: JSON allows it, PostgreSQL's text does not."""

_NAMED = re.compile(r"field `([^`]+)`$")


def body(kind: type[T]) -> T:
    """Return the request's body.

    Raises Problem that names the field if the body is not of this type.
    """
    if request.mimetype not in ("application/json", ""):
        raise Problem(415, "media-type-unsupported", "send application/json", "Content-Type")
    data = request.get_data()
    if b"\\u0000" in data and _NUL.search(data):  # a fast check first: bodies may be large
        raise Problem(422, "body-invalid", "texts must not contain the character NUL")
    try:
        found = typed_json.decode(data, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        field = place.strip("`").removeprefix("$").removeprefix(".")
        detail = f"{field}: {message}" if field else message
        named = _NAMED.search(message)  # a missing or unknown field is only in the message
        if named:
            field = f"{field}.{named[1]}" if field else named[1]
        raise Problem(422, "body-invalid", detail, field[:64]) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "body-not-json", "the body is not valid JSON") from error
    if kind is not ReportBatch:  # a repeated name does no harm there, and there are many such requests
        json.loads(data, object_pairs_hook=_named_once)
    return found


def _named_once(pairs: list[tuple[str, object]]) -> None:
    """Refuse an object that has a name twice: JSON does not define which of the values counts."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise Problem(422, "body-invalid", f"{name}: appears twice in the body; give one value", name[:64])
        seen.add(name)


def canonical() -> bytes:
    """Return the request's body in a canonical form: a repeated request may be written differently."""
    return msgspec.json.encode(msgspec.json.decode(request.get_data()), order="sorted")


def known_query(names: Sequence[str]) -> None:
    """Check that a route knows all names in the query: without its filter, the answer would have too much.

    Raises Problem if one is unknown.
    """
    for name in request.args:
        if name not in names:
            detail = f"use {', '.join(names)}" if names else "this route has none"
            raise Problem(422, "query-invalid", f"{name[:64]!r} is not a query parameter: {detail}", name[:64])


def namespace(name: str) -> str:
    """Return a namespace's name from a path or a query.

    Raises Problem if it is not a valid name.
    """
    if not _NAMESPACE.fullmatch(name):
        detail = f"{name[:80]!r} is not the name of a namespace: use up to 63 characters of a-z, 0-9 and '-'"
        raise Problem(422, "namespace-invalid", detail, "namespace")
    return name


def parent(name: str) -> str:
    """Return the name of a team or an organisation from a path or a body.

    Raises Problem if it is not a valid name.
    """
    if not _NAMESPACE.fullmatch(name):
        detail = f"{name!r} is not the name of a team or an organisation: use up to 63 characters of a-z, 0-9 and '-'"
        raise Problem(422, "parent-invalid", detail, "parent")
    return name


def row_id(text: str) -> int:
    """Return the id of a row from a path; 0, which no row has, if it cannot be one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else 0


def time_zone(name: str) -> str:
    """Return the name of a time zone.

    Raises Problem if there is no such zone.
    """
    try:
        check_time_zone(name)
    except ValueError as error:
        raise Problem(422, "time-zone-unknown", f"timeZone: {error}; for example Europe/Berlin", "timeZone") from error
    return name


def instant(value: str, field: str) -> Instant:
    """Return an instant of a request in milliseconds.

    Raises Problem if it is not an instant, or lies before 1970.
    """
    detail = f"{field} must be RFC 3339, from 1970 to 9999 in UTC, for example 2026-11-30T12:00:00Z"
    try:
        found = parse_instant(value)
    except (ValueError, OverflowError) as error:
        raise Problem(422, "instant-invalid", detail, field) from error
    if found < 0:
        raise Problem(422, "instant-invalid", detail, field)
    return found


def plain(name: str, most: int = 253) -> str:
    """Return a text of the query; empty if there is none.

    Raises Problem if it is too long, or has characters that cannot be printed.
    """
    text = request.args.get(name, "")
    if len(text) > most or not text.isprintable():
        raise Problem(422, "query-invalid", f"{name} may have at most {most} printable characters", name)
    return text


def choice(name: str, allowed: Sequence[str]) -> str:
    """Return a word of the query; the first of `allowed` if there is none.

    Raises Problem if it is not one of `allowed`.
    """
    given = request.args.get(name) or allowed[0]
    if given not in allowed:
        raise Problem(422, "query-invalid", f"{name} must be one of {', '.join(allowed)}", name)
    return given


def interval(default: tuple[Instant, Instant]) -> tuple[Instant, Instant]:
    """Return the half-open interval from `from` to `to` of the query.

    Raises Problem if it is empty.
    """
    start, end = (
        instant(request.args[name], name) if request.args.get(name) else otherwise
        for name, otherwise in zip(("from", "to"), default, strict=True)
    )
    if end <= start:
        raise Problem(422, "interval-invalid", "to must be later than from", "to")
    return start, end


def if_match() -> frozenset[str] | None:
    """Return the versions, one of which the budget must have; None if the caller sets no such condition.

    Weak tags match nothing: RFC 9110 §13.1.1 requires the strong comparison.
    """
    if "If-Match" not in request.headers:
        return None
    given = request.if_match
    # Werkzeug returns whatever a header contains, such as quotes within a tag, or None for an empty one: no match.
    return frozenset({ANY_VERSION}) if given.star_tag else frozenset(f'"{tag}"' for tag in given.as_set())

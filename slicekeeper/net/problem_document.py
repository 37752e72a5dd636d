# SPDX-License-Identifier: Apache-2.0
"""The body with which every server refuses a request: an RFC 9457 problem document, whose `code` is stable."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

MEDIA_TYPE: Final = "application/problem+json"


class ProblemDocument(msgspec.Struct, omit_defaults=True):
    """The document. `field` names the wrong part of the request; empty if there is no single one."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str
    field: str = ""


def encode(*, status: int, code: str, detail: str, path: str, field: str = "") -> bytes:
    """Return the body of an answer to a request for `path`."""
    document = ProblemDocument(
        type=f"urn:slicekeeper:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        instance=path.encode(errors="replace").decode(),  # a path need not be UTF-8
        field=field,
    )
    return msgspec.json.encode(document)

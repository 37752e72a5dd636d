# SPDX-License-Identifier: Apache-2.0
"""What every server answers when it refuses a request: an RFC 9457 problem document, whose `code` is stable."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

MEDIA_TYPE: Final = "application/problem+json"


class ProblemDocument(msgspec.Struct, omit_defaults=True):
    """What is sent. `field` names what is wrong of the request, if one thing is."""

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
        instance=path.encode(errors="replace").decode(),  # a client may send what is no UTF-8
        field=field,
    )
    return msgspec.json.encode(document)

# SPDX-License-Identifier: Apache-2.0
"""JSON patches (RFC 6902), as the API server accepts them from the webhook and from its clients."""

from typing import Any

JsonPatch = list[dict[str, Any]]


def escape(member: str) -> str:
    """Return the name of an object's member, escaped for a JSON pointer (RFC 6901)."""
    return member.replace("~", "~0").replace("/", "~1")

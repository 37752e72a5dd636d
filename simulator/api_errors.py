# SPDX-License-Identifier: Apache-2.0
"""Refusals of the simulated API server, with Kubernetes' own codes, reasons and words."""

from __future__ import annotations

from typing import Any

from slicekeeper.kube.client import Resource


class ApiError(Exception):
    """An answer with a Status. Its subclasses are the ones that occur more than once."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    def status(self) -> dict[str, Any]:
        """Return the Status object."""
        why = {"message": str(self), "reason": self.reason, "code": self.code}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", **why}


class ObjectNotFound(ApiError):
    """404."""

    def __init__(self, resource: Resource, name: str) -> None:
        super().__init__(404, "NotFound", f'{resource.plural} "{name}" not found')


class ObjectConflict(ApiError):
    """409: another client wrote first, or the name is taken."""

    def __init__(self, message: str, reason: str = "Conflict") -> None:
        super().__init__(409, reason, message)


class Expired(ApiError):
    """410: the resource version is older than the history."""

    def __init__(self, message: str) -> None:
        super().__init__(410, "Expired", message)


class Invalid(ApiError):
    """422."""

    def __init__(self, message: str) -> None:
        super().__init__(422, "Invalid", message)


class Malformed(ApiError):
    """400."""

    def __init__(self, message: str) -> None:
        super().__init__(400, "BadRequest", message)


class Denied(ApiError):
    """403 by default: an admission plugin or webhook said no; `code` is the webhook's own if it gave one."""

    def __init__(self, message: str, code: int = 403, reason: str = "Forbidden") -> None:
        super().__init__(code, reason, message)

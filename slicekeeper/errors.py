# SPDX-License-Identifier: Apache-2.0
"""The errors that callers of the kernel may catch. A message may be improved any time; a violation's code is stable.

SlicekeeperError                 anything that a caller may catch
├── SettingsError                a setting, a policy file or a command line is wrong: fix it and start again
├── RequestRefused               a manifest breaks a rule; carries the violations
└── ServiceError                 another process answered with an error, or not at all
    ├── Unavailable              no answer: worth a retry
    ├── NotFound                 404
    ├── Conflict                 409: another client wrote first, or it exists
    ├── Gone                     410: the resource version is too old, list again
    └── Forbidden                401 and 403
"""

from __future__ import annotations

from dataclasses import dataclass


class SlicekeeperError(Exception):
    """Base of all errors that Slicekeeper raises on purpose."""


class SettingsError(SlicekeeperError):
    """A setting is unknown, missing or out of range; the message names it, its value and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One broken rule of one manifest.

    `code` is stable. `container` is empty if the rule concerns the whole pod; `field` is a path in the user's
    manifest; `example` is a line that would pass.
    """

    code: str
    container: str = ""
    field: str
    value: str
    rule: str
    example: str

    def __str__(self) -> str:
        where = f"container {self.container!r}: " if self.container else ""
        return f"{where}{self.field} is {self.value}: {self.rule}; for example {self.example}"


class RequestRefused(SlicekeeperError):
    """A manifest breaks rules. The message contains every violation, in order."""

    def __init__(self, violations: list[Violation]) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = tuple(violations)


class ServiceError(SlicekeeperError):
    """Another process answered with an error. `status` is 0 if there was no answer."""

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Unavailable(ServiceError):
    """No answer, or one that says to try again later (429, 5xx)."""


class NotFound(ServiceError):
    """404."""


class Conflict(ServiceError):
    """409."""


class Gone(ServiceError):
    """410: the watch's resource version is no longer held; list again."""


class Forbidden(ServiceError):
    """401 or 403: the client is unknown or may not do this."""


_BY_STATUS: dict[int, type[ServiceError]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: Unavailable,
}


def service_error(status: int, message: str, reason: str = "") -> ServiceError:
    """Return the error of the right type for an HTTP status."""
    kind = _BY_STATUS.get(status, Unavailable if status >= 500 else ServiceError)
    return kind(message, status, reason)

# SPDX-License-Identifier: Apache-2.0
"""Collect the rules that a manifest breaks, so that a user sees all of them at once."""

from __future__ import annotations

from slicekeeper.errors import Violation
from slicekeeper.untyped import show


class Refusals:
    """The violations found so far, in the order of the manifest."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def add(self, *, code: str, field: str, value: object, rule: str, example: str, container: str = "") -> None:
        """Record that `field` breaks a rule; `value` is shown as in YAML."""
        self.violations.append(
            Violation(code=code, container=container, field=field, value=show(value), rule=rule, example=example)
        )

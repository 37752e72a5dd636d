# SPDX-License-Identifier: Apache-2.0
"""Collect the rules that a manifest breaks, so that a user sees all of them at once."""

from __future__ import annotations

from slicekeeper.errors import Violation
from slicekeeper.untyped_json import show


class Violations(list[Violation]):
    """The violations found so far, in the order of the manifest."""

    def add(self, *, code: str, field: str, value: object, rule: str, example: str, container: str = "") -> None:
        """Record that `field` breaks a rule; `value` is shown as in YAML."""
        self.append(
            Violation(code=code, container=container, field=field, value=show(value), rule=rule, example=example)
        )

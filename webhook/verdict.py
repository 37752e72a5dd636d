# SPDX-License-Identifier: Apache-2.0
"""The result of a review, before it is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slicekeeper.errors import Violation
from slicekeeper.wire.json_patch import JsonPatch


@dataclass(frozen=True)
class Verdict:
    """A patch and warnings, or violations."""

    patch: JsonPatch = field(default_factory=list)
    warnings: Sequence[str] = ()
    violations: Sequence[Violation] = ()

    @property
    def allowed(self) -> bool:
        """Whether the object passes."""
        return not self.violations

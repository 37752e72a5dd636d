# SPDX-License-Identifier: Apache-2.0
"""The rule by which a node's arbiter shares GPU time that is left over: the node's label names it, or the settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from nodeagent.arbiter_client import Arbiter, ArbiterRefused
from slicekeeper import names
from slicekeeper.config.settings import RULES, Rule
from slicekeeper.untyped_json import as_map

log = logging.getLogger(__name__)


class SharingRule:
    """The node's rule, as the arbiter must have it."""

    def __init__(self, usual: Rule) -> None:
        """`usual` is the settings' rule, for a node without a label or with one that is no rule."""
        self._usual = usual
        self._rule = ""
        """Empty until the node is known."""
        self._label: object = None

    def look_at(self, node: Mapping[str, Any]) -> bool:
        """Read the node's label; return whether the rule has changed."""
        label = as_map(as_map(node.get("metadata")).get("labels")).get(names.RULE, self._usual)
        before, self._rule = self._rule, label if label in RULES else self._usual
        if label not in (self._rule, self._label):
            log.warning("label %s is %r: it must be one of %s", names.RULE, label, ", ".join(RULES))
        self._label = label
        return self._rule != before

    def give(self, arbiter: Arbiter, current: str) -> None:
        """Tell the arbiter the rule if its `current` one is another. Raises ArbiterAway."""
        if not self._rule or current in ("", self._rule):
            return
        try:
            arbiter.follow(self._rule)
            log.info("time that is left over is shared by the rule %s, not %s", self._rule, current)
        except ArbiterRefused as error:
            log.error("the rule is still %s: %s", current, error)

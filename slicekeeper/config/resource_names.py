# SPDX-License-Identifier: Apache-2.0
"""Match resources against a setting's names, which are full names or prefixes (`nvidia.com/mig-*`)."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache


def is_named(resource: object, patterns: tuple[str, ...]) -> bool:
    """Whether one of `patterns` matches a resource: by its name, or by the prefix before a `*`."""
    whole, beginnings = _sorted_out(patterns)
    return isinstance(resource, str) and (resource in whole or resource.startswith(beginnings))


def any_named(resources: Collection[object], patterns: tuple[str, ...]) -> bool:
    """Whether patterns match any of several resources."""
    whole, beginnings = _sorted_out(patterns)
    if not whole.isdisjoint(resources):
        return True
    return bool(beginnings) and any(is_named(resource, patterns) for resource in resources)


@lru_cache(maxsize=64)  # patterns come only from the settings: a handful of tuples in a process's life
def _sorted_out(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the full names among patterns, and the prefixes."""
    beginnings = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return frozenset(pattern for pattern in patterns if not pattern.endswith("*")), beginnings

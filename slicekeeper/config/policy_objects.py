# SPDX-License-Identifier: Apache-2.0
"""Apply GpuPolicies over the policy file: which of them applies to which names and patterns. Pure.

The result depends only on the current objects and not on earlier ones, so all parts and replicas, restarted or not,
have the same policy:

1. Exact names take precedence over patterns, and a name or pattern of an object over the same one in the file.
2. Objects' patterns are ordered by their text: first the one with the longest literal prefix, then the longer one, then
   in alphabetical order. The file's patterns follow in the file's order.
3. Of two objects with the same name or pattern the older one applies: the earlier `creationTimestamp`, then the lower
   UID.
4. An object that is not valid is ignored. Its earlier state is not used: a part that has just started does not know it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from slicekeeper.config.patterns import is_pattern, problem_of
from slicekeeper.config.policy import NamespacePolicy, NamespaceRule, Origin, PolicyBook
from slicekeeper.config.policy_entry import policy_of
from slicekeeper.config.yaml_file import convert
from slicekeeper.errors import SettingsError
from slicekeeper.untyped_json import as_map

_SIGN: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class GpuPolicy:
    """The relevant fields of an object; changes of all others, such as its status, have no effect."""

    name: str
    uid: str
    created: str
    """`creationTimestamp`, which the API server writes in UTC, to the second."""
    spec: Mapping[str, Any]
    writer: str | None = None
    """The author of the spec, None if unknown; has no effect."""

    @property
    def age(self) -> tuple[str, str]:
        """Sort key: the older of two comes first."""
        return self.created, self.uid


@dataclass(frozen=True)
class AppliedPolicies:
    """A book with objects applied over it, and the result for each object."""

    book: PolicyBook
    errors: Mapping[str, str] = field(default_factory=dict)
    """Why objects are left out, by their UID."""
    holders: Mapping[str, GpuPolicy] = field(default_factory=dict)
    """The object that has each name or pattern."""


@dataclass(frozen=True)
class Judged:
    """The policy of one object, whose keys override a file's `default`."""

    by: GpuPolicy
    base: Mapping[str, Any]
    matches: tuple[str, ...] = ()
    policy: NamespacePolicy = field(default_factory=NamespacePolicy)
    error: str = ""


def read(obj: Mapping[str, Any]) -> GpuPolicy:
    """Return the relevant fields of an object."""
    metadata = obj["metadata"]
    return GpuPolicy(
        metadata["name"], metadata["uid"], str(metadata.get("creationTimestamp", "")), as_map(obj.get("spec"))
    )


def matches_of(policy: GpuPolicy) -> tuple[str, ...]:
    """Return the names and patterns of an object.

    Raises SettingsError if there is none, or one that no namespace can have.
    """
    match = policy.spec.get("match")
    if not match:
        raise SettingsError("spec.match is missing; for example match: [team-a, research-*]")
    found = convert({"match": match}, NamespaceRule, "spec").match
    for one in found:
        if problem := problem_of(one):
            raise SettingsError(f"spec.match {one!r}: {problem}; for example team-a, or team-*")
    return found


def _judge(one: GpuPolicy, base: Mapping[str, Any]) -> Judged:
    own = {key: value for key, value in one.spec.items() if key != "match"}
    try:
        return Judged(one, base, matches_of(one), policy_of(base, own, _where))
    except SettingsError as error:
        return Judged(one, base, error=str(error))


def apply_policies(
    book: PolicyBook, objects: Iterable[GpuPolicy], known: dict[str, Judged] | None = None
) -> AppliedPolicies:
    """Return a file's book in which objects take precedence over the file's entries.

    Their keys also override the file's `default`. `known` has the previous results by UID, so that only changed objects
    are evaluated again.
    """
    known = {} if known is None else known
    errors: dict[str, str] = {}
    holders: dict[str, GpuPolicy] = {}
    policies: dict[str, NamespacePolicy] = {}
    those = sorted(objects, key=lambda policy: policy.age)
    for gone in known.keys() - {one.uid for one in those}:
        del known[gone]
    for one in those:
        judged = known.get(one.uid)
        if judged is None or judged.base is not book.base or judged.by != one:
            judged = known[one.uid] = _judge(one, book.base)
        if judged.error:
            errors[one.uid] = judged.error
        for match in judged.matches:
            if match not in holders:
                holders[match], policies[match] = one, judged.policy
    exact = {match: policy for match, policy in policies.items() if not is_pattern(match)}
    patterns = tuple((match, policies[match]) for match in sorted(policies.keys() - exact.keys(), key=_precedence))
    over = PolicyBook(
        book.default,
        {**book.exact, **exact},
        (*patterns, *book.patterns),
        book.exempt,
        book.warnings,
        book.base,
        {match: Origin(one.name, one.writer) for match, one in holders.items()},
    )
    return AppliedPolicies(over, errors, holders)


def _precedence(pattern: str) -> tuple[int, int, str]:
    return -len(_SIGN.split(pattern, maxsplit=1)[0]), -len(pattern), pattern


def _where(_path: tuple[str, ...]) -> str:
    return "spec"

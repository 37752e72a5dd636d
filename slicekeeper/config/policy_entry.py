# SPDX-License-Identifier: Apache-2.0
"""Make a namespace's policy from the keys of a GpuPolicy or of an entry in the file, and check each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache
from typing import Any, Final

from slicekeeper import names
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.yaml_file import check_keys, convert
from slicekeeper.errors import SettingsError
from slicekeeper.units import parse_quantity
from slicekeeper.untyped_json import as_list

_CLASS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_CLASS_EXAMPLE: Final = "for example research-high"


def policy_of(base: Mapping[str, Any], own: Any, where: Callable[[tuple[str, ...]], str]) -> NamespacePolicy:
    """Return the policy of an entry, whose keys override those of `base`.

    Raises SettingsError that names the place (`where` of the path below the entry), the key, the value and what is
    allowed.
    """
    if not isinstance(own, dict):
        raise SettingsError(f"{where(())}: must be a mapping, not a {type(own).__name__}")
    own = plain(own)
    check_keys(own, NamespacePolicy, where)
    for mode in names.PLANNED_SHARING_MODES:
        if mode in as_list(own.get("sharing")):
            allowed = ", ".join(names.SHARING_MODES)
            raise SettingsError(
                f"{where(('sharing',))}: sharing: {mode} is planned but not available yet; choose one of {allowed}"
            )
    policy = convert(_merge(base, own), NamespacePolicy, where)
    checks: tuple[tuple[str, str, Callable[[], object]], ...] = (
        ("budget.amount", "for example 20h", lambda: policy.budget.amount_ms),
        ("budget.credit", "for example 2h", lambda: policy.budget.credit_ms),
        ("budget.rollover", "for example 5h", lambda: policy.budget.rollover_ms),
        ("budget.anchor", "for example 2026-04-01T00:00:00+02:00", lambda: policy.budget.anchor_ms),
        ("budget.grace", "for example 5m", lambda: policy.budget.grace_ms),
        ("backgroundRate", "for example 1/2", lambda: policy.background_fraction),
        ("sidecar.cpu", "for example 10m", lambda: _check_amount(policy.sidecar.cpu)),
        ("foreign.gpuMemory", "for example 80Gi", lambda: policy.foreign.gpu_memory_mib),
        ("sidecar.memory", "for example 48Mi", lambda: _check_amount(policy.sidecar.memory)),
        ("budget.timeZone", "for example Europe/Berlin", lambda: check_time_zone(policy.budget.time_zone)),
        ("inBudgetClass", _CLASS_EXAMPLE, lambda: _check_classes(*filter(None, [policy.in_budget_class]))),
        ("overBudgetClass", _CLASS_EXAMPLE, lambda: _check_classes(*filter(None, [policy.over_budget_class]))),
        ("allowedPriorityClasses", _CLASS_EXAMPLE, lambda: _check_classes(*policy.allowed_priority_classes)),
    )
    for key, example, check in checks:
        try:
            check()
        except (ValueError, ArithmeticError) as error:
            raise SettingsError(f"{where(tuple(key.split('.')))}: {key}: {error}; {example}") from error
    return policy


def plain(own: Any) -> Any:
    """Return an entry with its words restored that YAML 1.1 reads as something else if they have no quotes."""
    if not isinstance(own, dict):
        return own
    if own.get("mode") is False:
        own = {**own, "mode": "off"}
    budget = own.get("budget")
    if isinstance(budget, dict) and isinstance(budget.get("anchor"), date):
        own = {**own, "budget": {**budget, "anchor": budget["anchor"].isoformat()}}
    return own


def _check_classes(*named: str) -> None:
    for name in named:
        if not _CLASS_NAME.fullmatch(name):
            raise ValueError(f"{name!r} can be no PriorityClass's name")


def _check_amount(quantity: str) -> None:
    if parse_quantity(quantity) <= 0:
        raise ValueError(f"{quantity!r} is not above zero")


def check_time_zone(name: str) -> None:
    """Check that a name is a time zone's, and means the same on every machine.

    Raises ValueError if it does not: `localtime` depends on the server, and `right/...` counts leap seconds.
    """
    if name not in _zones():
        raise ValueError(f"{name!r} is no IANA time zone")


@cache
def _zones() -> frozenset[str]:
    from zoneinfo import available_timezones  # noqa: PLC0415 - only here, and not in a sidecar

    return frozenset(available_timezones() - {"Factory", "localtime"})


def _merge(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged

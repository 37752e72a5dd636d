# SPDX-License-Identifier: Apache-2.0
"""The policy of each namespace, set by the administrator; `policy_file` reads it from a YAML file.

Exact names take precedence over patterns, patterns are tried in the file's order, then the file's `default` applies,
then the defaults below. GpuPolicies take precedence over the file's entries (`slicekeeper.config.policy_objects`).
"""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from slicekeeper import names
from slicekeeper.config.foreign_dialects import DialectName
from slicekeeper.config.settings import Name, PolicySettings, Section, about
from slicekeeper.units import GpuMilliseconds, Instant, parse_duration, parse_instant, parse_quantity

log = logging.getLogger(__name__)

Mode = Literal["enforce", "observe", "off"]
StaleMode = Literal["allow-in-budget", "over-budget", "deny"]
Sharing = Literal["adaptive", "exclusive", "shared", "mig"]
Period = Literal["none", "hour", "day", "week", "month", "year"]
Enforcement = Literal["soft", "hard", "safe"]


MAX_AMOUNT_MS: Final = 10**14
"""3,170 GPU-years in one budget or grant; the sum of ten thousand such grants still fits 64 bits."""

LAST_ANCHOR: Final = 221_845_392_000_000
"""The beginning of the year 9000: all earlier instants can be shown on every zone's wall clock."""


def _gpu_time(text: str) -> GpuMilliseconds:
    found = parse_duration(text)
    if found > MAX_AMOUNT_MS:
        raise ValueError(f"more than {MAX_AMOUNT_MS // 3_600_000}h, the maximum of a ledger")
    return GpuMilliseconds(found)


class BudgetPolicy(Section, frozen=True):
    """The budget of a namespace that has none of its own."""

    amount: Annotated[str, about("GPU time per period, for example 20h or 90m.")] = "20h"
    period: Annotated[Period, about("How often the amount is granted again; none: once.")] = "month"
    time_zone: Annotated[str, about("IANA name of the zone in which periods begin.")] = "UTC"
    anchor: Annotated[
        str,
        about("An instant (RFC 3339) at which a period begins, by the zone's wall clock; empty: as in the calendar."),
    ] = ""
    credit: Annotated[str, about("How far the balance may go below zero, for example 2h.")] = "0s"
    rollover: Annotated[str, about("How much unused time at most carries over to the next period, for example 5h.")] = (
        "0s"
    )
    thresholds: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=100)], ...],
        about(
            "Percent of the budget used; each is announced once per period, and the lowest sets the state to warning."
        ),
    ] = (80, 95)
    enforcement: Annotated[
        Enforcement,
        about(
            "What happens when it is spent. soft: pods give way; hard: new pods are refused, running ones evicted "
            "after the grace period; safe: a pod starts only when GPU time until its deadline is reserved."
        ),
    ] = "soft"
    grace: Annotated[str, about("Under hard: time from the budget's end to the eviction, for example 5m.")] = "5m"

    @property
    def amount_ms(self) -> GpuMilliseconds:
        """The amount in GPU-milliseconds."""
        return _gpu_time(self.amount)

    @property
    def credit_ms(self) -> GpuMilliseconds:
        """The credit in GPU-milliseconds."""
        return _gpu_time(self.credit)

    @property
    def rollover_ms(self) -> GpuMilliseconds:
        """The maximum of unused time that carries over to the next period, in GPU-milliseconds."""
        found = _gpu_time(self.rollover)
        if found and self.period == "none":
            raise ValueError("a budget without periods has nothing to roll over; set it to 0s")
        return found

    @property
    def anchor_ms(self) -> Instant | None:
        """An instant at which a period begins; None: periods follow the calendar."""
        if not self.anchor:
            return None
        if self.period == "none":
            raise ValueError("a budget without periods has no anchor; set it to ''")
        found = parse_instant(self.anchor)
        if not 0 <= found <= LAST_ANCHOR:
            raise ValueError(f"{self.anchor} is not between 1970 and the year 9000")
        return found

    @property
    def grace_ms(self) -> int:
        """The time that running pods have under `hard` once the budget is spent."""
        return parse_duration(self.grace)


class SidecarPolicy(Section, frozen=True):
    """The reporting sidecar's image and resources; requests equal limits, so a pod's QoS class does not change.

    The CPU is for its start: it takes 0.17 s of CPU time until the sidecar can notice that its pod has ended.
    """

    image: Annotated[str, about("Image; empty: that of `images` in the settings.")] = ""
    cpu: Annotated[str, about("CPU, as requests and limits.")] = "50m"
    memory: Annotated[str, about("Memory, as requests and limits.")] = "48Mi"


class ForeignPolicy(Section, frozen=True):
    """Conversion of requests that were written for other GPU sharing systems."""

    dialects: Annotated[
        tuple[DialectName, ...], about("GPU sharing systems whose requests are converted at admission.")
    ] = ()
    gpu_memory: Annotated[
        str, about("Memory of one GPU, for example 80Gi, for requests of a part of a GPU's memory.")
    ] = ""

    @property
    def gpu_memory_mib(self) -> int | None:
        """Memory of one GPU in MiB; None if not given."""
        if not self.gpu_memory:
            return None
        found = parse_quantity(self.gpu_memory) / (1 << 20)
        if not 256 <= found <= 1 << 20:
            raise ValueError("the memory of one GPU must be between 256Mi and 1Ti")
        return int(found)


class NamespacePolicy(Section, frozen=True):
    """The policy of one namespace."""

    mode: Annotated[Mode, about("enforce, observe (meter and warn) or off.")] = "enforce"
    budget: BudgetPolicy = BudgetPolicy()
    background_rate: Annotated[str, about("Rate of `gpu-class: background` work, for example 1/2.")] = "1/2"
    ceiling: Annotated[
        int, Meta(ge=1, le=100), about("The largest share, and how far one may grow, in percent of a GPU.")
    ] = 100
    sharing: Annotated[tuple[Sharing, ...], about("Sharing modes that users may request.")] = names.SHARING_MODES
    in_budget_class: Annotated[str, about("PriorityClass in budget; empty: the cluster's setting.")] = ""
    over_budget_class: Annotated[str, about("PriorityClass over budget; empty: the cluster's setting.")] = ""
    allowed_priority_classes: Annotated[
        tuple[str, ...], about("PriorityClasses that a user may name on a GPU pod, kept while in budget.")
    ] = ()
    stale: Annotated[StaleMode, about("How the namespace is treated while its budget state is unknown.")] = (
        "allow-in-budget"
    )
    sidecar: SidecarPolicy = SidecarPolicy()
    nvidia_gpu: Annotated[
        Literal["metered", "refused", "ignored"], about("Pods that request the resources of NVIDIA's device plugin.")
    ] = "metered"
    audit: Annotated[
        Literal["tell", "evict"],
        about("Pods that use a GPU outside their slice are reported in an event, or evicted too."),
    ] = "tell"

    foreign: ForeignPolicy = ForeignPolicy()

    @property
    def audit_evicts(self) -> bool:
        """Whether pods that use a GPU outside their slice are evicted."""
        return self.mode == "enforce" and self.audit == "evict"

    @property
    def evicts(self) -> bool:
        """Whether pods that run are evicted when the budget is spent."""
        return self.mode == "enforce" and self.budget.enforcement == "hard"

    @property
    def reserves(self) -> bool:
        """Whether a pod starts only when GPU time until its deadline is set aside."""
        return self.mode == "enforce" and self.budget.enforcement == "safe"

    @property
    def background_fraction(self) -> Fraction:
        """The rate of background work as an exact fraction."""
        return parse_rate(self.background_rate)


class NamespaceRule(Section, frozen=True):
    """The namespaces of one entry of the file; its other keys are those of `NamespacePolicy`."""

    match: tuple[Name, ...]


def parse_rate(text: str) -> Fraction:
    """Return a rate (`1`, `0.5`, `3/2`) as an exact fraction.

    Raises ValueError if it is not a number, negative, or finer than a millionth.
    """
    numerator, slash, denominator = text.strip().partition("/")
    divisor = parse_quantity(denominator.strip()) if slash else Fraction(1)
    if not divisor:
        raise ValueError("a rate's denominator is not 0")
    rate = parse_quantity(numerator.strip()) / divisor
    if not 0 <= rate <= 1_000_000 or rate.denominator > 1_000_000:
        raise ValueError("a rate lies between 0 and 1,000,000 with a denominator up to 1,000,000")
    return rate


@dataclass(frozen=True)
class Origin:
    """The GpuPolicy that determines a namespace's policy."""

    name: str
    writer: str | None
    """The author of its spec; None if unknown."""


class PolicyBook:
    """All namespaces' policies. Immutable: a changed file or GpuPolicy results in a new book."""

    def __init__(
        self,
        default: NamespacePolicy | None = None,
        exact: Mapping[str, NamespacePolicy] | None = None,
        patterns: tuple[tuple[str, NamespacePolicy], ...] = (),
        exempt: tuple[str, ...] = PolicySettings().exempt_namespaces,
        warnings: tuple[str, ...] = (),
        base: Mapping[str, Any] | None = None,
        origins: Mapping[str, Origin] | None = None,
        text: str = "",
    ) -> None:
        self.default = default or NamespacePolicy()
        self.exact = dict(exact or {})
        self.patterns = patterns
        self.exempt = exempt
        self.warnings = warnings
        """The entries of the file that never apply."""
        self.base = base or {}
        """The keys of the file's `default`, which those of an entry override."""
        self.text = text
        """The file's text; empty without a file."""
        self._origins = dict(origins or {})
        self._off = msgspec.structs.replace(self.default, mode="off")

    def is_exempt(self, namespace: str) -> bool:
        """Whether a namespace is never touched, whatever the file says."""
        return any(fnmatch.fnmatchcase(namespace, pattern) for pattern in self.exempt)

    def of(self, namespace: str) -> NamespacePolicy:
        """Return the policy of a namespace; an exempt one is always off."""
        if self.is_exempt(namespace):
            return self._off
        found = self.exact.get(namespace)
        if found is not None:
            return found
        for pattern, policy in self.patterns:
            if fnmatch.fnmatchcase(namespace, pattern):
                return policy
        return self.default

    def match_of(self, namespace: str) -> str:
        """Return the name or pattern that determines a namespace's policy; empty if exempt, or if the default does."""
        if self.is_exempt(namespace):
            return ""
        if namespace in self.exact:
            return namespace
        return next((pattern for pattern, _ in self.patterns if fnmatch.fnmatchcase(namespace, pattern)), "")

    def origin_of(self, namespace: str) -> Origin | None:
        """Return the GpuPolicy that determines a namespace's policy; None if the file or the default does."""
        return self._origins.get(self.match_of(namespace))

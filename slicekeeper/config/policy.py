# SPDX-License-Identifier: Apache-2.0
"""What the administrator decided for each namespace: one YAML file outside the code, reloaded when it changes.

Exact names win over patterns, patterns are tried in the file's order, then the file's `default` holds, then the
defaults below. A file that cannot be read or breaks a rule changes nothing: the policy before it stays in force.
GpuPolicies come before the file's entries (`slicekeeper.config.policy_objects`).
"""

from __future__ import annotations

import fnmatch
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from slicekeeper import names, threads
from slicekeeper.config.dialects import DialectName
from slicekeeper.config.patterns import is_pattern, leave_nothing, problem_of
from slicekeeper.config.settings import Name, PolicySettings, Section, about
from slicekeeper.config.yaml_file import check_keys, convert, read_yaml
from slicekeeper.errors import SettingsError
from slicekeeper.units import GpuMilliseconds, Instant, parse_duration, parse_instant, parse_quantity
from slicekeeper.untyped import as_list

log = logging.getLogger(__name__)

Mode = Literal["enforce", "observe", "off"]
StaleMode = Literal["allow-in-budget", "over-budget", "deny"]
Sharing = Literal["adaptive", "exclusive", "shared", "mig"]
Period = Literal["none", "hour", "day", "week", "month", "year"]
Enforcement = Literal["soft", "hard", "safe"]


MAX_AMOUNT_MS: Final = 10**14
"""3,170 GPU-years in one budget or grant; and ten thousand such grants still fit 64 bits."""

LAST_ANCHOR: Final = 221_845_392_000_000
"""The beginning of the year 9000: a wall clock can show every anchor before it."""

_CLASS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_CLASS_EXAMPLE: Final = "for example research-high"


def _gpu_time(text: str) -> GpuMilliseconds:
    found = parse_duration(text)
    if found > MAX_AMOUNT_MS:
        raise ValueError(f"more than {MAX_AMOUNT_MS // 3_600_000}h, the maximum of a ledger")
    return GpuMilliseconds(found)


class BudgetPolicy(Section, frozen=True):
    """The budget that a namespace has until an operator gives it one of its own by REST."""

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
        """The most that a period leaves to the next one, in GPU-milliseconds."""
        return _gpu_time(self.rollover)

    @property
    def anchor_ms(self) -> Instant | None:
        """An instant at which a period begins; None: as calendars do."""
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
    """The reporting sidecar's image and resources; requests equal limits, so a pod's QoS class stays.

    The CPU is for its start: 0.17 s of it are needed before it can hear that its pod has ended.
    """

    image: Annotated[str, about("Image; empty: that of `images` in the settings.")] = ""
    cpu: Annotated[str, about("CPU, as requests and limits.")] = "50m"
    memory: Annotated[str, about("Memory, as requests and limits.")] = "48Mi"


class ForeignPolicy(Section, frozen=True):
    """Requests that were written for other GPU sharing systems, and how they are read."""

    dialects: Annotated[
        tuple[DialectName, ...], about("GPU sharing systems whose requests are converted at admission.")
    ] = ()
    gpu_memory: Annotated[
        str, about("Memory of one GPU, for example 80Gi, for requests of a part of a GPU's memory.")
    ] = ""

    @property
    def gpu_memory_mib(self) -> int | None:
        """Memory of one GPU in MiB; None: not said."""
        if not self.gpu_memory:
            return None
        found = parse_quantity(self.gpu_memory) / (1 << 20)
        if not 256 <= found <= 1 << 20:
            raise ValueError("the memory of one GPU must be between 256Mi and 1Ti")
        return int(found)


class NamespacePolicy(Section, frozen=True):
    """What holds for one namespace."""

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
        """Whether pods that use a GPU outside of their slice are evicted."""
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
    """Which namespaces one entry of the file is for; its other keys are those of `NamespacePolicy`."""

    match: tuple[Name, ...]


def parse_rate(text: str) -> Fraction:
    """Return a rate (`1`, `0.5`, `3/2`) as an exact fraction.

    Raises ValueError if it is no number, negative, or finer than a millionth.
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
    """The GpuPolicy by which a namespace has its policy."""

    name: str
    writer: str | None
    """Who wrote its spec, None if that is not known."""


class PolicyBook:
    """All namespaces' policies. Immutable: a changed file makes a new book, and so does a changed GpuPolicy."""

    def __init__(
        self,
        default: NamespacePolicy | None = None,
        exact: Mapping[str, NamespacePolicy] | None = None,
        patterns: tuple[tuple[str, NamespacePolicy], ...] = (),
        exempt: tuple[str, ...] = PolicySettings().exempt_namespaces,
        warnings: tuple[str, ...] = (),
        base: Mapping[str, Any] | None = None,
        origins: Mapping[str, Origin] | None = None,
    ) -> None:
        self.default = default or NamespacePolicy()
        self.exact = dict(exact or {})
        self.patterns = patterns
        self.exempt = exempt
        self.warnings = warnings
        """What of the file never applies."""
        self.base = base or {}
        """The keys of the file's `default`, over which those of an entry are laid."""
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
        """Return the name or pattern by which a namespace has its policy; empty if it is exempt, or has the default."""
        if self.is_exempt(namespace):
            return ""
        if namespace in self.exact:
            return namespace
        return next((pattern for pattern, _ in self.patterns if fnmatch.fnmatchcase(namespace, pattern)), "")

    def origin_of(self, namespace: str) -> Origin | None:
        """Return the GpuPolicy by which a namespace has its policy; None if it has it from the file or by default."""
        return self._origins.get(self.match_of(namespace))


def read_book(settings: PolicySettings) -> PolicyBook:
    """Return the book of the settings' file.

    Raises SettingsError naming the file, the line, the key, the value and what is allowed.
    """
    for name in settings.exempt_namespaces:
        if problem := problem_of(name):
            raise SettingsError(f"policy.exemptNamespaces (is {name!r}): {problem}; for example infra-*")
    if not settings.file:
        return PolicyBook(exempt=settings.exempt_namespaces)
    file = Path(settings.file)
    document = read_yaml(file)
    tree = {key: value for key, value in document.tree.items() if value is not None}

    def place(*path: str | int) -> str:
        return f"{file}: line {document.line(*path)}"

    unknown = sorted(str(key) for key in set(tree) - {"default", "namespaces"})
    if unknown:
        raise SettingsError(f"{place(unknown[0])}: unknown key {unknown[0]}; known here: default, namespaces")
    base = _plain(tree.get("default", {}))
    default = policy_of({}, base, lambda path: f"{place('default', *path)}: default")
    rules: list[tuple[int, int, str, NamespacePolicy]] = []
    entries = tree.get("namespaces", [])
    if not isinstance(entries, list):
        raise SettingsError(f"{place('namespaces')}: namespaces must be a list of entries with `match`")
    for index, entry in enumerate(entries):

        def where(path: tuple[str, ...], index: int = index) -> str:
            return f"{place('namespaces', index, *path)}: namespaces[{index}]"

        if not isinstance(entry, dict) or not entry.get("match"):
            raise SettingsError(f"{where(())}: `match` is missing; for example match: [team-a, research-*]")
        matches = [entry["match"]] if isinstance(entry["match"], str) else entry["match"]
        rule = convert({"match": matches}, NamespaceRule, where)
        policy = policy_of(base, {k: v for k, v in entry.items() if k != "match"}, where)
        for position, match in enumerate(rule.match):
            rules.append((document.line("namespaces", index, "match", position), index, match, policy))
    _check_matches(file, [rule[:3] for rule in rules])
    return PolicyBook(
        default,
        {match: policy for *_, match, policy in rules if not is_pattern(match)},
        tuple((match, policy) for *_, match, policy in rules if is_pattern(match)),
        settings.exempt_namespaces,
        tuple(_never_applied(file, [rule[:3] for rule in rules], settings.exempt_namespaces)),
        base,
    )


def _check_matches(file: Path, rules: list[tuple[int, int, str]]) -> None:
    """Refuse names and patterns that no namespace can have, and those that stand twice."""
    seen: dict[str, tuple[int, int]] = {}
    for line, index, match in rules:
        where = f"{file}: line {line}: namespaces[{index}]"
        if problem := problem_of(match):
            raise SettingsError(f"{where}: match {match!r}: {problem}; for example team-a, or team-*")
        if match in seen:
            above = "line {}, namespaces[{}]".format(*seen[match])
            raise SettingsError(f"{where}: match {match} is in an entry above ({above}); keep one of them")
        seen[match] = line, index


def _never_applied(file: Path, rules: list[tuple[int, int, str]], exempt: tuple[str, ...]) -> Iterator[str]:
    """Yield a warning for each name and pattern of which others take all that it matches.

    A warning and no error: the file says what holds all the same, and a server must come up.
    """
    # Exact names win over patterns in whatever order.
    before = [match for *_, match in rules if not is_pattern(match)]
    for line, index, match in rules:
        where = f"{file}: line {line}: namespaces[{index}]: match {match} never applies"
        if leave_nothing(match, exempt):
            yield f"{where}: policy.exemptNamespaces goes before it; take it out of one of the two"
        if not is_pattern(match):
            continue
        if leave_nothing(match, before):
            one = next((other for other in before if leave_nothing(match, [other])), "")
            above = f"{one}, which goes before it, matches" if one else "the entries that go before it match"
            yield f"{where}: {above} all of it; put it above, or delete it"
        before.append(match)


def policy_of(base: Mapping[str, Any], own: Any, where: Callable[[tuple[str, ...]], str]) -> NamespacePolicy:
    """Return the policy that an entry's keys make when they are laid over those of `base`.

    Raises SettingsError naming the place (`where` of the path below the entry), the key, the value and what is allowed.
    """
    if not isinstance(own, dict):
        raise SettingsError(f"{where(())}: must be a mapping, not a {type(own).__name__}")
    own = _plain(own)
    check_keys(own, NamespacePolicy, where)
    for mode in names.PLANNED_SHARING_MODES:
        if mode in as_list(own.get("sharing")):
            allowed = ", ".join(names.SHARING_MODES)
            raise SettingsError(
                f"{where(('sharing',))}: sharing: {mode} is planned and not there yet; choose of {allowed}"
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


def _plain(own: Any) -> Any:
    """Return an entry's keys with the words that YAML 1.1 reads as something else without quotes."""
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
    """Check that a name is a time zone's, and the same one on every machine.

    Raises ValueError if it is not: `localtime` is whatever a server was set to, `right/...` counts leap seconds.
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


class PolicyFile:
    """The book in force, kept up to date by a thread that looks at the file.

    What comes before the file's entries, such as GpuPolicies, is laid over it by whoever follows it (`lay_over`).
    """

    def __init__(self, settings: PolicySettings, last: PolicyBook | None = None) -> None:
        """Read the file; if it is broken, `last` stays in force.

        Raises SettingsError if the file is broken and there is no `last`.
        """
        self._settings = settings
        self._stop = threading.Event()
        self._seen = self._mark()
        self.error = ""
        """Why the file as it is now is not in force; empty while it is."""
        self.complete = threading.Event()
        """Set once what the settings have laid over the file is known; at once if they have nothing laid over it."""
        if not settings.objects:
            self.complete.set()
        self._lock = threading.Lock()
        self._over: Callable[[PolicyBook], PolicyBook] = lambda book: book
        self.unread = False
        """Whether the file has been broken ever since the start, and what was given instead is in force."""
        self.objects_trouble: Callable[[], str] = lambda: ""
        """Returns why what is laid over the file may have changed unseen; empty while it is followed."""
        try:
            self._file = read_book(settings)
        except SettingsError as error:
            if last is None:
                raise
            self._file, self.unread = last, True
            self._refuse(error)
        else:
            self._warn()
        self.book = self._file

    def of(self, namespace: str) -> NamespacePolicy:
        """Return the policy in force for a namespace."""
        return self.book.of(namespace)

    def lay_over(self, over: Callable[[PolicyBook], PolicyBook]) -> None:
        """Have `over` make the book in force of the file's, now and whenever the file changes."""
        with self._lock:
            self._over = over
            self.book = over(self._file)
        self.complete.set()

    def start(self) -> None:
        """Start looking at the file, in a daemon thread."""
        if self._settings.file:
            threads.keep("policy-file", self._run, self._stop.is_set)

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()

    def refresh(self) -> bool:
        """Read the file if it changed; return whether a new book is in force."""
        mark = self._mark()
        if mark == self._seen:
            return False
        self._seen = mark
        try:
            file = read_book(self._settings)
        except SettingsError as error:
            self._refuse(error)
            return False
        with self._lock:
            self._file, self.book = file, self._over(file)
        self.error, self.unread = "", False
        log.info("policy file loaded: %s", self._settings.file)
        self._warn()
        return True

    def _warn(self) -> None:
        for warning in self._file.warnings:
            log.warning("policy file: %s", warning)

    def _refuse(self, error: SettingsError) -> None:
        self.error = str(error)
        log.error("policy file refused, the old policy stays in force: %s", error)

    def _run(self) -> None:
        while not self._stop.wait(self._settings.reload_seconds):
            self.refresh()

    def _mark(self) -> tuple[int, int, int]:
        """Return what changes when the file does; a ConfigMap swaps a link, so the inode counts too."""
        if not self._settings.file:
            return (0, 0, 0)
        try:
            stat = Path(self._settings.file).stat()
        except OSError:
            return (0, 0, 0)
        return (stat.st_ino, stat.st_mtime_ns, stat.st_size)

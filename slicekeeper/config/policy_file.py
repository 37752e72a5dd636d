# SPDX-License-Identifier: Apache-2.0
"""Read the file with the namespaces' policies, and follow its changes while a part runs.

A file that cannot be read or breaks a rule changes nothing: the previous policy stays in force, also in a part that
starts meanwhile, if it has the accepted file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from slicekeeper import threads
from slicekeeper.config.patterns import is_pattern, leave_nothing, problem_of
from slicekeeper.config.policy import NamespacePolicy, NamespaceRule, PolicyBook
from slicekeeper.config.policy_entry import plain, policy_of
from slicekeeper.config.settings import PolicySettings
from slicekeeper.config.yaml_file import Document, convert, read_yaml
from slicekeeper.errors import SettingsError

log = logging.getLogger(__name__)


class _PolicyRule(NamedTuple):
    """A name or a pattern, where it is in the file (line, and index of its entry), and the policy for it."""

    line: int
    entry: int
    match: str
    policy: NamespacePolicy


def read_book(settings: PolicySettings) -> PolicyBook:
    """Return the book of the settings' file.

    Raises SettingsError that names the file, the line, the key, the value and what is allowed.
    """
    for name in settings.exempt_namespaces:
        if problem := problem_of(name):
            raise SettingsError(f"policy.exemptNamespaces (is {name!r}): {problem}; for example infra-*")
    if not settings.file:
        return PolicyBook(exempt=settings.exempt_namespaces)
    return book_of(read_yaml(Path(settings.file)), settings.file, settings.exempt_namespaces)


def book_of(document: Document, file: str, exempt: tuple[str, ...]) -> PolicyBook:
    """Return the book of a policy file that was read. Raises SettingsError as `read_book` does."""
    tree = {key: value for key, value in document.tree.items() if value is not None}

    def place(*path: str | int) -> str:
        return f"{file}: line {document.line(*path)}"

    unknown = sorted(str(key) for key in set(tree) - {"default", "namespaces"})
    if unknown:
        raise SettingsError(f"{place(unknown[0])}: unknown key {unknown[0]}; known here: default, namespaces")
    base = plain(tree.get("default", {}))
    default = policy_of({}, base, lambda path: f"{place('default', *path)}: default")
    entries = tree.get("namespaces", [])
    if not isinstance(entries, list):
        raise SettingsError(f"{place('namespaces')}: namespaces must be a list of entries with `match`")
    rules: list[_PolicyRule] = []
    for index, entry in enumerate(entries):
        rules += _rules_of(entry, index, base, document, place)
    _check_matches(file, rules)
    return PolicyBook(
        default,
        {rule.match: rule.policy for rule in rules if not is_pattern(rule.match)},
        tuple((rule.match, rule.policy) for rule in rules if is_pattern(rule.match)),
        exempt,
        tuple(_never_applied(file, rules, exempt)),
        base,
        text=document.text,
    )


def read_first_book(settings: PolicySettings, last: PolicyBook | None = None) -> tuple[PolicyBook, str]:
    """Return the book to start with, and why it is not the file's, empty if it is.

    If the file is broken, the book is that of the accepted file, or else `last`. Raises SettingsError if there is
    neither.
    """
    try:
        return read_book(settings), ""
    except SettingsError as error:
        accepted = msgspec.structs.replace(settings, file=settings.accepted_file)
        if accepted.file and Path(accepted.file).is_file():
            with suppress(SettingsError):
                return read_book(accepted), str(error)
        if last is None:
            raise
        return last, str(error)


def _rules_of(
    entry: Any, index: int, base: Mapping[str, Any], document: Document, place: Callable[..., str]
) -> Iterator[_PolicyRule]:
    """Yield the rules of one entry of `namespaces`, one for each name or pattern in its `match`."""

    def where(path: tuple[str, ...]) -> str:
        return f"{place('namespaces', index, *path)}: namespaces[{index}]"

    if not isinstance(entry, dict) or not entry.get("match"):
        raise SettingsError(f"{where(())}: `match` is missing; for example match: [team-a, research-*]")
    matches = [entry["match"]] if isinstance(entry["match"], str) else entry["match"]
    rule = convert({"match": matches}, NamespaceRule, where)
    policy = policy_of(base, {k: v for k, v in entry.items() if k != "match"}, where)
    for position, match in enumerate(rule.match):
        yield _PolicyRule(document.line("namespaces", index, "match", position), index, match, policy)


def _check_matches(file: str, rules: list[_PolicyRule]) -> None:
    """Refuse names and patterns that no namespace can have, and those that appear twice."""
    seen: dict[str, tuple[int, int]] = {}
    for line, index, match, _ in rules:
        where = f"{file}: line {line}: namespaces[{index}]"
        if problem := problem_of(match):
            raise SettingsError(f"{where}: match {match!r}: {problem}; for example team-a, or team-*")
        if match in seen:
            above = "line {}, namespaces[{}]".format(*seen[match])
            raise SettingsError(f"{where}: match {match} is in an entry above ({above}); keep one of them")
        seen[match] = line, index


def _never_applied(file: str, rules: list[_PolicyRule], exempt: tuple[str, ...]) -> Iterator[str]:
    """Yield a warning for each name and pattern whose matches are all taken by others.

    These are no errors, because the file is still unambiguous, and a server must be able to start.
    """
    # Exact names take precedence over patterns in any order.
    before = [rule.match for rule in rules if not is_pattern(rule.match)]
    for line, index, match, _ in rules:
        where = f"{file}: line {line}: namespaces[{index}]: match {match} never applies"
        if leave_nothing(match, exempt):
            yield f"{where}: policy.exemptNamespaces goes before it; remove it from one of the two"
        if not is_pattern(match):
            continue
        if leave_nothing(match, before):
            one = next((other for other in before if leave_nothing(match, [other])), "")
            above = f"{one}, which goes before it, matches" if one else "the entries that go before it match"
            yield f"{where}: {above} all of it; put it above, or delete it"
        before.append(match)


class PolicyFile:
    """The policy book in force, kept up to date by a thread that checks the file.

    Entries that take precedence over the file's, such as GpuPolicies, are added with `apply_over`.
    """

    def __init__(self, settings: PolicySettings, last: PolicyBook | None = None) -> None:
        """Start with what `read_first_book` returns. Raises SettingsError as it does."""
        self._settings = settings
        self._stop = threading.Event()
        self._seen = self._mark()
        self.error = ""
        """Why the current file is not in force; empty if it is."""
        self.complete = threading.Event()
        """Set once the entries that take precedence over the file are known; at once if the settings have none."""
        if not settings.objects:
            self.complete.set()
        self._lock = threading.Lock()
        self._over: Callable[[PolicyBook], PolicyBook] = lambda book: book
        self.unread = False
        """Whether the file has been broken since the start, and the last one without errors is unknown."""
        self.on_change: Callable[[], None] = lambda: None
        """Called whenever another book comes into force."""
        self.objects_trouble: Callable[[], str] = lambda: ""
        """Returns why changes of the entries over the file may have been missed; empty while they are followed."""
        self._file, wrong = read_first_book(settings, last)
        if wrong:
            self.unread = self._file is last
            self._refuse(wrong)
        else:
            self._warn()
        self.book = self._file

    def of(self, namespace: str) -> NamespacePolicy:
        """Return the policy in force for a namespace."""
        return self.book.of(namespace)

    @property
    def text(self) -> str:
        """The text of the file in force, which need not be the current file's."""
        return self._file.text

    def apply_over(self, over: Callable[[PolicyBook], PolicyBook]) -> None:
        """Let `over` compute the book in force from the file's, now and whenever the file changes."""
        with self._lock:
            self._over = over
            self.book = over(self._file)
        self.complete.set()
        self.on_change()

    def start(self) -> None:
        """Start watching the file, in a daemon thread."""
        if self._settings.file:
            threads.repeat("policy-file", self.refresh, self._stop, self._settings.reload_seconds)

    def stop(self) -> None:
        """Stop watching."""
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
            self._refuse(str(error))
            return False
        with self._lock:
            self._file, self.book = file, self._over(file)
        self.error, self.unread = "", False
        log.info("policy file loaded: %s", self._settings.file)
        self._warn()
        self.on_change()
        return True

    def _warn(self) -> None:
        for warning in self._file.warnings:
            log.warning("policy file: %s", warning)

    def _refuse(self, error: str) -> None:
        self.error = error
        log.error("policy file refused, the old policy stays in force: %s", error)

    def _mark(self) -> tuple[int, int, int]:
        """Return values that change when the file does; a ConfigMap swaps a link, so the inode is among them."""
        if not self._settings.file:
            return (0, 0, 0)
        try:
            stat = Path(self._settings.file).stat()
        except OSError:
            return (0, 0, 0)
        return (stat.st_ino, stat.st_mtime_ns, stat.st_size)

# SPDX-License-Identifier: Apache-2.0
"""Which of file and GpuPolicies holds for a namespace: a table, any order, a naive oracle, and what is not valid."""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slicekeeper.config.policy import Origin, PolicyBook
from slicekeeper.config.policy_entry import policy_of
from slicekeeper.config.policy_file import PolicyFile, read_book
from slicekeeper.config.policy_objects import AppliedPolicies, GpuPolicy, apply_policies
from slicekeeper.config.settings import PolicySettings

FILE = """
default: {ceiling: 1, budget: {amount: 5h, period: week}}
namespaces:
  - {match: [exact, both], ceiling: 2}
  - {match: 'team-*', ceiling: 3}
  - {match: 'team-a*', ceiling: 4}
  - {match: kube-system, ceiling: 5}
"""


def book_of(tmp_path: Path, text: str = FILE) -> PolicyBook:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    return read_book(PolicySettings(file=str(file)))


def policy(name: str, *match: str, created: str = "2026-01-01T00:00:00Z", uid: str = "", **spec: Any) -> GpuPolicy:
    return GpuPolicy(name, uid or f"uid-{name}", created, {"match": list(match), **spec})


@pytest.mark.parametrize(
    ("objects", "namespace", "ceiling"),
    [
        ([], "exact", 2),
        ([], "team-ab", 3),
        # Of two exact names, and of two patterns, the object's.
        ([policy("o", "exact", ceiling=50)], "exact", 50),
        ([policy("o", "team-*", ceiling=50)], "team-ab", 50),
        ([policy("o", "*", ceiling=50)], "team-ab", 50),
        # A name before a pattern, whoever says it.
        ([policy("o", "*", ceiling=50)], "exact", 2),
        ([policy("o", "team-ab", ceiling=50)], "team-ab", 50),
        ([policy("o", "team-ab", ceiling=50), policy("p", "team-*", ceiling=60)], "team-ab", 50),
        # The longest beginning, then the longer pattern, then the alphabet; never the age.
        ([policy("o", "team-*", ceiling=50), policy("p", "team-a*", ceiling=60)], "team-ab", 60),
        ([policy("o", "team-*", ceiling=50, created="2020-01-01T00:00:00Z"), policy("p", "team-a*", ceiling=60)],
         "team-ab", 60),
        ([policy("o", "*-ab", ceiling=50), policy("p", "t*", ceiling=60)], "team-ab", 60),
        ([policy("o", "team-*", ceiling=50), policy("p", "team-??", ceiling=60)], "team-ab", 60),
        ([policy("o", "team-?b", ceiling=50), policy("p", "team-*b", ceiling=60)], "team-ab", 60),
        # What matches nothing of it changes nothing.
        ([policy("o", "guest-*", ceiling=50)], "team-ab", 3),
        ([policy("o", "guest-*", ceiling=50)], "lonely", 1),
        # The older of two that say the same; of two of one second, the lower UID.
        ([policy("o", "team-*", ceiling=50, created="2026-01-01T00:00:01Z"), policy("p", "team-*", ceiling=60)],
         "team-ab", 60),
        ([policy("o", "team-*", ceiling=50, uid="2"), policy("p", "team-*", ceiling=60, uid="1")], "team-ab", 60),
        # What the older has is gone for the younger, and nothing else.
        ([policy("o", "exact", ceiling=50), policy("p", "exact", "both", ceiling=60, uid="z")], "both", 60),
        # Exempt namespaces are off, whatever is said: the ceiling is the default's.
        ([policy("o", "kube-system", ceiling=50, mode="enforce")], "kube-system", 1),
    ],
)  # fmt: skip
def test_which_one_holds(tmp_path: Path, objects: list[GpuPolicy], namespace: str, ceiling: int) -> None:
    book = book_of(tmp_path)
    for order in (objects, objects[::-1]):
        over = apply_policies(book, order).book
        assert over.of(namespace).ceiling == ceiling
        assert over.is_exempt("kube-system")
        assert over.of("kube-system").mode == "off"


def test_an_object_is_laid_over_the_files_default_and_over_no_entry_of_the_file(tmp_path: Path) -> None:
    found = apply_policies(book_of(tmp_path), [policy("o", "exact", budget={"amount": "9h"})]).book.of("exact")
    assert (found.budget.amount, found.budget.period, found.ceiling) == ("9h", "week", 1)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, "spec.match is missing"),
        ({"match": []}, "spec.match is missing"),
        ({"match": ["Team"]}, "no namespace can have this name"),
        ({"match": ["team-[ab"]}, "never closed"),
        ({"match": ["team-*", "x.*"]}, "it matches no name"),
        ({"match": [7]}, "match"),
        ({"match": ["t"], "ceilling": 3}, "unknown key ceilling; did you mean ceiling?"),
        ({"match": ["t"], "ceiling": 101}, "ceiling (is 101)"),
        ({"match": ["t"], "mode": "on"}, "mode (is 'on')"),
        ({"match": ["t"], "budget": {"timeZone": "Mars/Olympus"}}, "no IANA time zone"),
        ({"match": ["t"], "budget": {"amount": "99999999999d"}}, "the maximum of a ledger"),
        ({"match": ["t"], "budget": {"amount": "5h", "period": "none", "anchor": "2026-01-01T00:00:00Z"}}, "no anchor"),
        ({"match": ["t"], "budget": 5}, "budget"),
        ({"match": ["t"], "sharing": ["remote"]}, "remote is planned"),
        ({"match": ["t"], "backgroundRate": "1/0"}, "backgroundRate"),
        ({"match": ["t"], "foreign": {"gpuMemory": "1Mi"}}, "between 256Mi and 1Ti"),
        ({"match": ["t"], "sidecar": {"cpu": "0"}}, "not above zero"),
    ],
)
def test_an_object_that_is_not_valid_is_left_out_and_the_rest_holds(
    tmp_path: Path, spec: dict[str, Any], why: str
) -> None:
    bad = GpuPolicy("bad", "uid-bad", "2020-01-01T00:00:00Z", spec)
    book = book_of(tmp_path)
    applied = apply_policies(book, [bad, policy("good", "t", "team-*", ceiling=40)])
    assert why in applied.errors["uid-bad"]
    assert applied.errors["uid-bad"].startswith("spec")
    assert (applied.book.of("t").ceiling, applied.book.of("team-x").ceiling, applied.book.of("exact").ceiling) == (
        40,
        40,
        2,
    )
    assert {holder.name for holder in applied.holders.values()} == {"good"}


# A naive oracle: for each namespace all candidates are looked at, and the best is taken.

NAMES = ("a", "ab", "abc", "b", "ba", "infra")
MATCHES = st.sampled_from([*NAMES, "*", "a*", "ab*", "?", "??", "[ab]*", "*a", "*b*", "a?c", "inf*"])
ENTRIES = st.lists(MATCHES, min_size=1, max_size=3, unique=True)


@st.composite
def objects_of(draw: st.DrawFn) -> list[GpuPolicy]:
    found = []
    for index, match in enumerate(draw(st.lists(ENTRIES, max_size=5))):
        spec = {"ceiling": 10 + index} if draw(st.booleans()) else {"ceiling": draw(st.sampled_from([0, 10 + index]))}
        created = f"2026-01-01T00:00:0{draw(st.integers(0, 2))}Z"
        found.append(policy(f"o{index}", *match, created=created, uid=draw(st.uuids()).hex, **spec))
    return found


def oracle(file: Sequence[Sequence[str]], objects: Sequence[GpuPolicy], namespace: str) -> int | None:
    """Return the ceiling of the one that holds, None for the default."""
    candidates: list[tuple[tuple[Any, ...], int]] = []
    for one in objects:
        if one.spec["ceiling"] == 0:
            continue
        for match in one.spec["match"]:
            if match == namespace:
                candidates.append(((0, 0, one.created, one.uid), one.spec["ceiling"]))
            elif fnmatch.fnmatchcase(namespace, match):
                beginning = next(length for length, sign in enumerate(match) if sign in "*?[")
                order = (2, -beginning, -len(match), match, one.created, one.uid)
                candidates.append((order, one.spec["ceiling"]))
    for index, entry in enumerate(file):
        for position, match in enumerate(entry):
            if match == namespace:
                candidates.append(((1, 0, "", ""), 50 + index))
            elif fnmatch.fnmatchcase(namespace, match):
                candidates.append(((3, index, position), 50 + index))
    return min(candidates)[1] if candidates else None


@given(st.lists(ENTRIES, max_size=3), objects_of(), st.randoms(use_true_random=False))
def test_every_namespace_has_the_policy_that_a_naive_reading_gives(
    tmp_path_factory: pytest.TempPathFactory, file: list[list[str]], objects: list[GpuPolicy], chance: random.Random
) -> None:
    seen: set[str] = set()
    entries = [[match for match in entry if not (match in seen or seen.add(match))] for entry in file]  # type: ignore[func-returns-value]
    entries = [entry for entry in entries if entry]
    namespaces = [{"match": entry, "ceiling": 50 + index} for index, entry in enumerate(entries)]
    path = tmp_path_factory.getbasetemp() / "any-policy.yaml"
    path.write_text(yaml.safe_dump({"namespaces": namespaces}))
    book = read_book(PolicySettings(file=str(path), exempt_namespaces=("infra",)))
    applied = apply_policies(book, objects)
    chance.shuffle(objects)
    again: AppliedPolicies = apply_policies(book, objects)
    for name in NAMES[:-1]:
        wanted = oracle(entries, objects, name)
        assert applied.book.of(name).ceiling == again.book.of(name).ceiling == (100 if wanted is None else wanted)
        holder = applied.holders.get(applied.book.match_of(name))
        assert (None if holder is None else holder.spec["ceiling"]) == (
            wanted if wanted is not None and wanted < 50 else None
        )
    assert (applied.book.of("infra").mode, applied.book.match_of("infra")) == ("off", "")
    assert applied.errors.keys() == {one.uid for one in objects if one.spec["ceiling"] == 0}


# Over a file that changes.


def rewrite(settings: PolicySettings, text: str) -> None:
    file = Path(settings.file)
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_objects_stay_over_a_file_that_changes_and_over_one_that_breaks(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(FILE)
    settings = PolicySettings(file=str(file), objects=True)
    policies = PolicyFile(settings)
    assert not policies.complete.is_set()
    objects = [policy("o", "exact", ceiling=50)]
    policies.apply_over(lambda book: apply_policies(book, objects).book)
    assert policies.complete.is_set()
    rewrite(settings, FILE.replace("period: week", "period: year"))
    assert policies.refresh()
    assert (policies.of("exact").ceiling, policies.of("exact").budget.period) == (50, "year")
    rewrite(settings, "default: {ceiling: 700}")
    assert not policies.refresh()
    assert (policies.of("exact").ceiling, policies.of("both").ceiling) == (50, 2)
    objects.clear()
    policies.apply_over(lambda book: apply_policies(book, objects).book)
    assert (policies.of("exact").ceiling, policies.of("exact").budget.period) == (2, "year")


def test_a_change_of_the_file_makes_an_object_valid_or_not(tmp_path: Path) -> None:
    one = policy("o", "exact", budget={"anchor": "2026-01-15T00:00:00Z"})
    assert apply_policies(book_of(tmp_path), [one]).errors == {}
    assert (
        "has no anchor" in apply_policies(book_of(tmp_path, "default: {budget: {period: none}}"), [one]).errors["uid-o"]
    )


def test_without_objects_the_file_alone_is_complete() -> None:
    assert PolicyFile(PolicySettings()).complete.is_set()


@pytest.mark.parametrize("default", ["mode: off", "budget: {amount: 5h, period: week, anchor: 2026-04-01T00:00:00Z}"])
def test_what_yaml_reads_as_something_else_in_the_default_makes_no_object_invalid(tmp_path: Path, default: str) -> None:
    applied = apply_policies(book_of(tmp_path, f"default: {{{default}}}"), [policy("o", "exact", ceiling=50)])
    assert applied.errors == {}
    kept = applied.book.of("exact")
    assert (kept.ceiling, kept.mode, kept.budget.anchor) == (
        50,
        applied.book.default.mode,
        applied.book.default.budget.anchor,
    )


def test_a_namespaces_policy_names_the_object_that_it_is_from(tmp_path: Path) -> None:
    objects = [policy("o", "team-*", "both"), replace(policy("p", "team-a", "kube-system"), writer="alice")]
    book = apply_policies(book_of(tmp_path), objects).book
    found = {name: book.origin_of(name) for name in ("team-x", "both", "team-a", "exact", "other", "kube-system")}
    o, p = Origin("o", None), Origin("p", "alice")
    assert found == {"team-x": o, "both": o, "team-a": p, "exact": None, "other": None, "kube-system": None}


def test_what_has_not_changed_is_not_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Any] = []

    def judge(base: Any, own: Any, where: Any) -> Any:
        judged.append(own)
        return policy_of(base, own, where)

    monkeypatch.setattr("slicekeeper.config.policy_objects.policy_of", judge)
    book, known = book_of(tmp_path), {}
    objects = [policy(f"p{number}", f"t{number}", ceiling=number + 1) for number in range(9)]
    first = apply_policies(book, objects, known)
    changed = [*objects[:-1], policy("p8", "t8", ceiling=90)]
    assert apply_policies(book, changed, known).book.of("t8").ceiling == 90
    assert (len(judged), first.book.of("t8").ceiling) == (10, 9)
    apply_policies(book, changed[1:], known)
    apply_policies(book, changed, known)
    assert len(judged) == 11, "one that was gone is judged again"
    other = book_of(tmp_path, "default: {budget: {amount: 7h, period: week}}")
    assert apply_policies(other, changed, known).book.of("t0").budget.amount == "7h"
    assert len(judged) == 20, "the file's default has changed"

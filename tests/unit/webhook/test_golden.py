# SPDX-License-Identifier: Apache-2.0
"""Manifests in `tests/golden/`: each `NAME.input.yaml` with what comes of it beside it.

`NAME.golden.yaml` is the manifest as admitted, `refusals/NAME.golden.yaml` the broken rules. The comment at the top
of an input says what it shows and what else holds: `namespace`, `overBudget`, `policy`, `settings`. After a
change that is meant, write them again with `UPDATE_GOLDEN=1 .venv/bin/pytest tests/unit/webhook/test_golden.py` and
read the difference.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.json_patch import apply

from slicekeeper.config.policy import NamespacePolicy, PolicyBook
from slicekeeper.config.settings import Settings
from slicekeeper.config.yaml_file import convert
from webhook import offline_review
from webhook.admission import Admission
from webhook.budget_standing import Standing
from webhook.review_inputs import Case

GOLDEN = Path(__file__).parents[2] / "golden"
ADMITTED = sorted(GOLDEN.glob("*.input.yaml"))
REFUSED = sorted((GOLDEN / "refusals").glob("*.input.yaml"))


class Input:
    """One input file: its manifests, and the facts in its comment."""

    def __init__(self, file: Path) -> None:
        lines = file.read_text("utf-8").splitlines()
        head = yaml.safe_load("\n".join(line[2:] for line in lines if line.startswith("# ")))
        assert set(head) <= {"about", "namespace", "overBudget", "policy", "settings"}, file
        self.namespace = head.get("namespace", "research")
        self.over_budget = head.get("overBudget", False)
        self.settings = convert(head.get("settings", {}), Settings, file.name)
        self.book = PolicyBook(convert(head.get("policy", {}), NamespacePolicy, file.name))
        with file.open("rb") as stream:
            self.documents = offline_review.read(stream, file.name)
        self.golden = file.with_name(file.name.replace(".input.", ".golden."))

    def outcomes(self) -> list[offline_review.ReviewOutcome]:
        return offline_review.review(
            self.documents, self.namespace, self.settings, self.book, over_budget=self.over_budget
        )

    def compare(self, text: str) -> None:
        if os.environ.get("UPDATE_GOLDEN"):
            self.golden.write_text(text, "utf-8")
        assert text == self.golden.read_text("utf-8")


def name(file: Path) -> str:
    return file.name.removesuffix(".input.yaml")


def test_there_are_enough_and_none_is_left_over() -> None:
    assert len(ADMITTED) >= 45
    assert len(REFUSED) >= 45
    for folder in (GOLDEN, GOLDEN / "refusals"):
        inputs = {name(file) for file in folder.glob("*.input.yaml")}
        assert inputs == {file.name.removesuffix(".golden.yaml") for file in folder.glob("*.golden.yaml")}


@pytest.mark.parametrize("file", ADMITTED, ids=name)
def test_admitted(file: Path) -> None:
    case = Input(file)
    outcomes = case.outcomes()
    assert all(outcome.verdict.allowed for outcome in outcomes)
    warnings = "".join(f"# Warning: {w}\n" for o in outcomes for w in o.verdict.warnings)
    case.compare(warnings + offline_review.as_yaml(outcomes))


@pytest.mark.parametrize("file", ADMITTED, ids=name)
def test_what_is_admitted_is_left_alone_and_validated(file: Path) -> None:
    case = Input(file)
    admission = Admission(case.settings)
    for outcome in case.outcomes():
        if outcome.before["kind"] != "Pod":
            continue
        namespace = outcome.before["metadata"].get("namespace", case.namespace)
        facts = Case(namespace, case.book.of(namespace), Standing(over_budget=case.over_budget))
        assert admission.mutate(outcome.admitted, facts).patch == []
        assert admission.validate(outcome.admitted, facts).allowed
        untouched: dict[str, Any] = dict(outcome.before)
        assert apply(untouched, outcome.verdict.patch) == outcome.admitted


@pytest.mark.parametrize("file", REFUSED, ids=name)
def test_refused(file: Path) -> None:
    case = Input(file)
    violations = [violation for outcome in case.outcomes() for violation in outcome.verdict.violations]
    assert violations
    for violation in violations:
        assert violation.code
        assert violation.field
        assert violation.value
        assert violation.rule
        assert violation.example
    listed = [asdict(violation) for violation in violations]
    case.compare(yaml.safe_dump(listed, sort_keys=False, width=1000, allow_unicode=False))

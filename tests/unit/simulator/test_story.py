# SPDX-License-Identifier: Apache-2.0
"""Folders of manifests as stories."""

from pathlib import Path

import pytest

from simulator.commands import examples_folder
from simulator.story import read
from simulator.submit import documents
from slicekeeper.errors import SettingsError

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\n"


def test_the_examples_are_a_story_whose_files_are_all_there() -> None:
    folder = examples_folder()
    story = read(folder)
    told = {step.submit for step in story.steps} | {story.policy, "story.yaml", ""}
    assert {path.name for path in folder.glob("*.yaml")} == told - {""}
    for name in told - {"", story.policy, "story.yaml"}:
        assert list(documents((folder / name).read_text(), name))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("steps:\n- {submitt: a.yaml}\n", "did you mean"),
        ("steps:\n- {submit: absent.yaml}\n", r"absent\.yaml is not in"),
        ("steps:\n- {expect: maybe}\n", "expect"),
    ],
)
def test_a_story_with_a_mistake_names_it(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "story.yaml").write_text(text)
    with pytest.raises(SettingsError, match=what):
        read(tmp_path)


def test_a_folder_without_a_story_is_submitted_in_order(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no \*\.yaml"):
        read(tmp_path)
    for name in ("b.yaml", "a.yaml"):
        (tmp_path / name).write_text(POD % "x")
    assert [step.submit for step in read(tmp_path).steps] == ["a.yaml", "b.yaml"]

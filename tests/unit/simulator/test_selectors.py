# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors."""

import pytest

from simulator.selectors import SelectorError, compile_selectors

POD = {
    "metadata": {"name": "a", "labels": {"app": "web", "slicekeeper.io/managed": "true"}},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("labels", "fields", "selected"),
    [
        ("", "", True),
        ("app=web", "", True),
        ("app==web,slicekeeper.io/managed=true", "", True),
        ("app=web,slicekeeper.io/managed=false", "", False),
        ("app!=web", "", False),
        ("tier!=x", "", True),
        ("app", "", True),
        ("!app", "", False),
        ("app in (web, db),!tier", "", True),
        ("app notin (web)", "", False),
        ("", "spec.nodeName=n1,status.phase!=Failed", True),
        ("", "spec.nodeName=", False),
        ("", "metadata.name=b", False),
    ],
)
def test_selectors_select(labels: str, fields: str, selected: bool) -> None:
    assert compile_selectors(labels, fields)(POD) is selected


@pytest.mark.parametrize(("labels", "fields"), [("a=b=c", ""), ("", "spec.color=red"), ("a in", "")])
def test_what_cannot_be_read_is_refused(labels: str, fields: str) -> None:
    with pytest.raises(SelectorError):
        compile_selectors(labels, fields)

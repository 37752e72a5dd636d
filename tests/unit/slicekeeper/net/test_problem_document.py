# SPDX-License-Identifier: Apache-2.0
"""Problem documents, the same for all servers."""

from __future__ import annotations

import json

from slicekeeper.net import problem_document


def test_a_problem_says_what_and_where_by_a_stable_code() -> None:
    assert json.loads(
        problem_document.encode(status=409, code="grant-begun", detail="it has begun", path="/mutate")
    ) == {
        "type": "urn:slicekeeper:problem:grant-begun",
        "title": "Conflict",
        "status": 409,
        "detail": "it has begun",
        "code": "grant-begun",
        "instance": "/mutate",
    }


def test_a_path_that_is_no_text_is_told_all_the_same() -> None:
    body = problem_document.encode(status=404, code="not-found", detail="no", path="/\udcff", field="path")
    assert json.loads(body)["instance"] == "/?"
    assert json.loads(body)["field"] == "path"

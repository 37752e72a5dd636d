# SPDX-License-Identifier: Apache-2.0
"""Events are within the API server's limits, whatever they say."""

from __future__ import annotations

from typing import Any

import pytest

from slicekeeper.clock import Clock
from slicekeeper.kube import events

POD = {"metadata": {"namespace": "team", "name": "train", "uid": "uid-1"}}


class Written:
    """Keeps the events that are created."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def create(self, _resource: object, event: dict[str, Any], _namespace: str) -> None:
        """Keep one."""
        self.events.append(event)


@pytest.mark.parametrize("letter", ["n", "ä", "…", "\N{GRINNING FACE}"])
def test_a_note_is_cut_by_its_bytes_as_the_api_server_counts_them(letter: str) -> None:
    client: Any = Written()
    text = {"kind": "Normal", "reason": "Waits", "action": "Place", "reporter": "scheduler"}
    events.write(client, Clock(), POD, note=f"x{letter * 2000}", **text)  # type: ignore[typeddict-item]
    [event] = client.events
    assert 1020 < len(event["message"].encode()) <= 1024
    assert event["message"].strip("x").strip(letter) == ""

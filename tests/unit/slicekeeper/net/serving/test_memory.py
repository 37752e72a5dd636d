# SPDX-License-Identifier: Apache-2.0
"""When memory is given back."""

import pytest

from slicekeeper.net.serving import memory
from slicekeeper.net.serving.memory import KEPT_BYTES, Surplus

MIB = 1 << 20


class Process:
    """Needs some memory, and holds garbage beside it until it gives it back."""

    def __init__(self) -> None:
        self.needs = self.garbage = self.given = 0

    def held_bytes(self) -> int:
        return self.needs + self.garbage

    def give_back(self) -> None:
        self.garbage = 0
        self.given += 1


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    made = Process()
    monkeypatch.setattr(memory, "held_bytes", made.held_bytes)
    monkeypatch.setattr(memory, "give_back", made.give_back)
    return made


def test_what_a_process_comes_to_need_is_looked_through_once(process: Process) -> None:
    surplus = Surplus()
    process.needs = KEPT_BYTES + MIB
    for _ in range(100):
        surplus.look()
    assert process.given == 1


def test_garbage_never_stays_above_what_may_be_kept(process: Process) -> None:
    surplus = Surplus()
    process.needs = 2 * KEPT_BYTES
    for _ in range(100):
        process.garbage += MIB
        surplus.look()
        assert process.garbage <= KEPT_BYTES
    assert process.given == 1 + 99 * MIB // (KEPT_BYTES + MIB)


def test_after_a_burst_as_little_is_kept_as_before(process: Process) -> None:
    surplus = Surplus()
    process.needs = 10 * KEPT_BYTES
    surplus.look()
    process.needs = 0
    surplus.look()
    process.garbage = KEPT_BYTES + MIB
    surplus.look()
    assert process.garbage == 0

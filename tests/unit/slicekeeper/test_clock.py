# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
import threading
import time

import pytest
from support.manual_clock import ManualClock

from slicekeeper import clock
from slicekeeper.clock import Clock
from slicekeeper.config.settings import ClockSettings
from slicekeeper.errors import SettingsError
from slicekeeper.units import format_instant


def test_unscaled_clock_is_the_systems() -> None:
    before = time.time_ns() // 1_000_000
    assert before <= Clock().now_ms() <= time.time_ns() // 1_000_000


def test_processes_with_the_same_settings_agree() -> None:
    settings = ClockSettings(origin=format_instant(time.time_ns() // 1_000_000 - 5_000), speed=100.0)
    one, other = clock.from_settings(settings), clock.from_settings(settings)
    first, second, third = one.now_ms(), other.now_ms(), one.now_ms()
    assert first <= second <= third
    assert first - (time.time_ns() // 1_000_000) > 400_000


def test_scaled_time_needs_an_origin() -> None:
    with pytest.raises(SettingsError, match="clock.origin"):
        clock.from_settings(ClockSettings(speed=60.0))


def test_wait_ends_at_once_when_the_event_is_set() -> None:
    event = threading.Event()
    event.set()
    assert Clock(0, 10.0).wait(event, 10_000)


def test_manual_clock_moves_only_by_its_owner() -> None:
    manual = ManualClock(1_000)
    assert not manual.wait(threading.Event(), 2.5)
    assert manual.now_ms() == 3_500
    assert manual.monotonic_ns() == 2_500_000_000


@pytest.mark.parametrize("shift", [1000, -100])
def test_the_machines_clock_is_the_same_in_a_time_namespace(shift: int) -> None:
    program = [sys.executable, "-c", "from slicekeeper.clock import machine_ns; print(machine_ns())"]
    before = clock.machine_ns()
    run = subprocess.run(
        ["unshare", "-rT", "--monotonic", str(shift), "--fork", *program], capture_output=True, text=True, check=False
    )
    if run.returncode:
        pytest.skip(f"no time namespace can be made here: {run.stderr}")
    assert before < int(run.stdout) < clock.machine_ns()

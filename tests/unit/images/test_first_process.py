# SPDX-License-Identifier: Apache-2.0
"""The first process of the sidecar's container ends soon after SIGTERM, with 0, and passes other exit codes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support.waiting import wait_for

from images.programs import compile_first_process

READY = "echo ready; "


def first_process(folder: Path, script: str) -> list[str]:
    """Return the command of a first process that starts a shell script."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc to build the first process with")
    (folder / "script").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "script").chmod(0o755)
    compile_first_process(folder / "first", str(folder / "script"))
    return [str(folder / "first")]


def told_to_end(command: list[str], *signals: signal.Signals) -> tuple[int, str]:
    """Start a command, and send it the signals as soon as it is ready; return its exit code and what it printed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in signals:
            process.send_signal(number)
        printed = process.stdout.read()
    return process.returncode, printed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_ends_by_itself_is_waited_for(tmp_path: Path, number: signal.Signals) -> None:
    command = first_process(tmp_path, "trap 'echo last; exit 3' TERM; " + READY + "while :; do sleep 0.01; done")
    assert told_to_end(command, number) == (0, "last\n")


def test_a_program_without_a_handler_ends_at_once(tmp_path: Path) -> None:
    assert told_to_end(first_process(tmp_path, READY + "exec sleep 1000"), signal.SIGTERM) == (0, "")


def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    command = first_process(tmp_path, "trap '' TERM INT; " + READY + "exec sleep 1000")
    assert told_to_end(command, signal.SIGTERM, signal.SIGINT, signal.SIGTERM) == (0, "")


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 1), ("kill $$", 1)])
def test_an_exit_that_nobody_asked_for_is_passed_on_and_is_never_137(tmp_path: Path, script: str, code: int) -> None:
    assert subprocess.run(first_process(tmp_path, script), check=False, stderr=subprocess.DEVNULL).returncode == code


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    command = first_process(tmp_path, "exit 0")
    (tmp_path / "script").unlink()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (127, f"{tmp_path}/script: No such file or directory\n")


def test_arguments_reach_the_program(tmp_path: Path) -> None:
    command = first_process(tmp_path, 'printf "%s," "$0" "$@"')
    done = subprocess.run([*command, "sidecar", "run", "a b"], check=True, capture_output=True, text=True)
    assert done.stdout == f"{tmp_path}/script,sidecar,run,a b,"


def test_a_program_ends_with_the_first_process(tmp_path: Path) -> None:
    command = first_process(tmp_path, "echo $$; exec sleep 1000")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        assert process.stdout.read() == ""  # it has closed its end
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "its end")


def test_orphans_leave_no_zombies(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a PID namespace needs root")
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
    orphans = "for _ in 1 2 3; do (sleep 0.01 &); done; "
    until = "while [ $(cat /proc/[0-9]*/comm | grep -c sleep) -gt 0 ]; do :; done; "
    done = subprocess.run(
        [*inside, *first_process(tmp_path, orphans + until + "exit 4")], check=False, capture_output=True, timeout=60
    )
    assert done.returncode == 4, done.stderr

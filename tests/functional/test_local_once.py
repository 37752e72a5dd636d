# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper local` as a person types it: once, for good, twice on one home, interrupted and killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from support.local_cluster import COMMAND, processes_of
from support.waiting import wait_for

PATIENCE = 240


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "SLICEKEEPER_HOME": str(home), "PYTHONUNBUFFERED": "1"}


def run(home: Path, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        env=environment(home),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@contextlib.contextmanager
def launched(home: Path, *args: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Local mode that stays up; yields the process and the file of its output."""
    output = home.with_suffix(".out")
    with output.open("wb") as file:
        process = subprocess.Popen([*COMMAND, "local", *args], env=environment(home), stdout=file, stderr=file)
    try:
        yield process, output
    finally:
        process.kill()
        process.wait()


def told_by(process: subprocess.Popen[bytes], output: Path, told: str) -> None:
    """Wait until the output holds `told`; fail with all of it if the process ends or takes too long."""
    end = time.monotonic() + PATIENCE
    while told not in output.read_text():
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < end, f"{told!r} did not come within {PATIENCE} s:\n{output.read_text()}"
        time.sleep(0.05)


@contextlib.contextmanager
def staying(home: Path, *args: str, told: str = "Try from") -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Local mode as `launched`, once its output contains `told`."""
    with launched(home, *args) as (process, output):
        told_by(process, output, told)
        yield process, output


def test_once_tells_the_story_and_ends_with_a_table(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = run(home, "local", "--once", "-o", "json")
    told = done.stderr
    assert done.returncode == 0, told
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    for verb in ("admitted", "bound", "refused", "ran out", "demoted", "reclaimed", "granted", "restored", "charged"):
        assert any(line[10:].startswith(verb) for line in told.splitlines()), f"nobody was {verb}:\n{told}"
    by_name = {row["name"]: row for row in rows}
    assert by_name["no-memory"]["decision"].startswith("refused: container 'main'")
    mnist = by_name["mnist-case"]
    assert (mnist["priorityClass"], mnist["decision"]) == ("gpu-default-priority", "admitted")
    assert mnist["chargedMs"] > 0
    assert mnist["gpus"].startswith("GPU-")
    assert by_name["late"]["priorityClass"] == "gpu-lower-priority"
    assert sum(row["overBudgetMs"] or 0 for row in rows if row["namespace"] == "trial") > 0
    assert all(not row["overBudgetMs"] for row in rows if row["namespace"] == "vision")
    trial = [row for row in rows if row["name"].startswith("sweep")]
    assert len(trial) == 6, "four, and the successors of the two that gave way"
    assert processes_of(home) == []


def test_a_story_that_does_not_come_out_says_where_and_stays_up_unless_once(tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    folder.mkdir()
    (folder / "story.yaml").write_text("steps:\n- {submit: pod.yaml, expect: refused}\n")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    (folder / "pod.yaml").write_text(yaml.safe_dump(pod))
    done = run(tmp_path / "home", "local", "--once", "--examples", str(folder))
    assert done.returncode == 1
    wrong = "pod.yaml: expected to be refused, but Pod default/p admitted"
    assert wrong in done.stderr
    assert processes_of(tmp_path / "home") == []
    with staying(tmp_path / "home", "--examples", str(folder)) as (process, output):  # to find out why
        assert f"The story ends here: {wrong}" in output.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0, output.read_text()


def test_it_stays_up_for_other_terminals_until_interrupted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with staying(home, "--speed", "120") as (process, output):
        second = run(home, "local", "--once")
        assert second.returncode == 2
        assert f"local mode already runs in {home} (process {process.pid})" in second.stderr

        budgets = json.loads(run(home, "budget", "list", "-o", "json").stdout)
        assert {"vision", "trial"} <= {budget["namespace"] for budget in budgets}
        assert "mnist-case" in run(home, "pods").stdout
        assert "A100" in run(home, "nodes").stdout

        manifest = "apiVersion: v1\nkind: List\nitems:\n" + "".join(
            f"- {{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{restartPolicy: Never, containers: "
            f"[{{name: c, image: i, resources: {{limits: {{tencent.com/vcuda-core: {core}, "
            f"tencent.com/vcuda-memory: 1}}}}}}]}}}}\n"
            for name, core in (("good", 5), ("bad", 150))
        )
        missing = run(home, "submit", "-f", "-", "-n", "mine", stdin=manifest)
        assert missing.returncode == 1
        assert 'namespaces "mine" not found' in missing.stdout
        done = run(home, "submit", "-f", "-", "-n", "mine", "--create-namespace", "-o", "json", stdin=manifest)
        assert done.returncode == 1
        good, bad = json.loads(done.stdout)
        assert (good["admitted"], good["priorityClass"]) == (True, "gpu-default-priority")
        assert not bad["admitted"]
        assert "150" in bad["message"]
        wait_for(lambda: "mine" in run(home, "pods", "-n", "mine").stdout, "the pod's charge")

        policy = (home / "policy.yaml").read_text()
        (home / "policy.yaml").write_text("defaults: {}\n")
        told_by(process, output, "policy.yaml: line 1: unknown key defaults")
        (home / "policy.yaml").write_text(policy)
        told_by(process, output, "the changed file is in force")

        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0, output.read_text()
    assert processes_of(home) == []
    assert "Traceback" not in output.read_text()


def test_the_commands_that_it_suggests_work_as_they_are_printed(tmp_path: Path) -> None:
    with staying(tmp_path / "home", "--examples", str(story_of_nothing(tmp_path))) as (process, output):
        told = output.read_text().partition("in this folder:\n")[2]
        commands = [line.strip() for line in told.splitlines() if line.startswith("  ")]
        assert len(commands) == 6
        for command in commands:
            if "grant trial" in command:  # a namespace of the usual story
                continue
            if command.startswith("curl") and shutil.which("curl") is None:
                continue
            done = subprocess.run(
                command, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path
            )
            assert done.returncode == 0, (command, done.stderr)
            assert "unauthorized" not in done.stdout.lower(), command
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def story_of_nothing(folder: Path) -> Path:
    (folder / "examples").mkdir()
    (folder / "examples" / "story.yaml").write_text("steps: []\n")
    return folder / "examples"


def test_two_that_start_at_once_keep_to_themselves(tmp_path: Path) -> None:
    homes = [tmp_path / "one", tmp_path / "two"]
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(launched(home)) for home in homes]
        for process, output in started:
            told_by(process, output, "ran out")
        urls = {yaml.safe_load((home / "config.yaml").read_text())["timekeeperClient"]["url"] for home in homes}
        assert len(urls) == 2
        assert "it is started again" not in "".join(output.read_text() for _, output in started)


def test_nothing_outlives_local_mode_that_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with staying(home, told="ran out") as (process, _):
        assert len(processes_of(home)) >= 5
        assert run(home, "budget", "list").returncode == 0
        process.kill()
        process.wait()
        wait_for(lambda: not processes_of(home), "the end of all processes")
    left = run(home, "budget", "list")
    assert left.returncode == 2
    assert f"the local mode in {home} has ended" in left.stderr


def test_one_that_is_stopped_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for number in (signal.SIGTERM, signal.SIGINT):
        with staying(home, told="ready at http") as (process, output):
            process.send_signal(number)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            assert "Traceback" not in output.read_text()
        assert processes_of(home) == []

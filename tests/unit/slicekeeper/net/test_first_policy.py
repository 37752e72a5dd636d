# SPDX-License-Identifier: Apache-2.0
"""A first installation with a broken policy file: the server waits, and says what is wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ports import free_port
from support.waiting import wait_for

from slicekeeper.config.settings import PolicySettings, ServingSettings, TlsSettings
from slicekeeper.errors import SettingsError
from slicekeeper.net.first_policy import wait_for_policy

BROKEN = "default: {budget: {amount: 20x}}"
Answers = dict[str, tuple[int, str]]


def settings(folder: Path, text: str, accepted: str = "accepted.yaml") -> PolicySettings:
    file = folder / "policy.yaml"
    file.write_text(text)
    return PolicySettings(file=str(file), accepted_file=str(folder / accepted) if accepted else "")


def wait(policy: PolicySettings, port: int) -> None:
    wait_for_policy(policy, f"127.0.0.1:{port}", TlsSettings(), ServingSettings())


def asked(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextlib.contextmanager
def beside(port: int, found: Answers) -> Iterator[threading.Event]:
    """Ask the server, in a thread, as soon as it listens; the event is set when all is answered."""
    done = threading.Event()

    def listens() -> bool:
        with contextlib.suppress(OSError):
            return asked(port, "/healthz")[0] == 200
        return False

    def ask() -> None:
        wait_for(listens, "a server", 60)
        found.update({path: asked(port, path) for path in ("/healthz", "/readyz", "/mutate")})
        done.set()

    thread = threading.Thread(target=ask)
    thread.start()
    yield done
    thread.join()


def test_it_answers_with_the_error_until_the_file_is_corrected(tmp_path: Path) -> None:
    policy, port = settings(tmp_path, BROKEN), free_port()
    found: Answers = {}

    def correct() -> None:
        done.wait(60)
        Path(policy.file).write_text("default: {budget: {amount: 20h}}")

    with beside(port, found) as done:
        corrected = threading.Thread(target=correct)
        corrected.start()
        wait(policy, port)
        corrected.join()
    assert found["/healthz"][0] == 200
    for path in ("/readyz", "/mutate"):
        assert found[path][0] == 503
        assert "budget.amount" in found[path][1]
    with pytest.raises(OSError):  # noqa: PT011 - the part's own server gets the port
        asked(port, "/healthz")


def test_it_ends_at_once_when_it_is_told_to(tmp_path: Path) -> None:
    policy, port = settings(tmp_path, BROKEN), free_port()
    found: Answers = {}
    with beside(port, found) as done:
        threading.Thread(target=lambda: done.wait(60) and os.kill(os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(SystemExit) as ended:
            wait(policy, port)
    assert ended.value.code == 0


def test_nothing_is_waited_for_with_a_good_file_or_an_accepted_one(tmp_path: Path) -> None:
    wait(settings(tmp_path, ""), 1)
    (tmp_path / "accepted.yaml").write_text("")
    wait(settings(tmp_path, BROKEN), 1)


def test_without_a_cluster_the_error_ends_the_command(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"budget\.amount"):
        wait(settings(tmp_path, BROKEN, accepted=""), 1)

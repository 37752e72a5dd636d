# SPDX-License-Identifier: Apache-2.0
"""What a person does at a cluster: kubectl, and patience with an end."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from support import waiting

T = TypeVar("T")
Object = dict[str, Any]

NEVER_TAKEN = "TLS handshake timeout"
TRIES = 3


class Refused(Exception):
    """kubectl ended with an error; the message is what it said."""


class Kubectl:
    """kubectl for one cluster; `user` is who acts, with what the cluster's own roles give."""

    def __init__(self, program: Path, kubeconfig: Path, *more: str) -> None:
        self.program = program
        self.kubeconfig = kubeconfig
        self._more = more

    def acting(self, *more: str) -> Kubectl:
        """Return one that acts as another user, for example `--as=alice` or `--token=…`."""
        return Kubectl(self.program, self.kubeconfig, *self._more, *more)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line."""
        return [str(self.program), f"--kubeconfig={self.kubeconfig}", *self._more, *arguments]

    def __call__(self, *arguments: str, stdin: str = "", timeout: float = 180.0) -> str:
        """Run it; return its standard output.

        A request that a starved API server never took is sent again. Raises Refused with kubectl's standard error.
        """
        command = self.command(*arguments)
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.kubeconfig.parent)}
        for _ in range(TRIES):
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, check=False, timeout=timeout, env=environ
            )
            if done.returncode == 0:
                return done.stdout
            if NEVER_TAKEN not in done.stderr:
                break
        raise Refused(done.stderr.strip())

    def apply(self, *objects: Object, namespace: str = "", dry_run: bool = False) -> str:
        """Apply manifests."""
        return self("apply", *_in(namespace), *_dry(dry_run), "-f", "-", stdin=yaml.safe_dump_all(objects))

    def create(self, *objects: Object, namespace: str = "", dry_run: bool = False) -> str:
        """Create objects."""
        return self("create", *_in(namespace), *_dry(dry_run), "-f", "-", stdin=yaml.safe_dump_all(objects))

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        """Return one object."""
        answer: Object = json.loads(self("get", kind, name, *_in(namespace), "-o", "json"))
        return answer

    def list(self, kind: str, namespace: str = "", selector: str = "") -> list[Object]:
        """Return objects, of all namespaces if none is named."""
        where = _in(namespace) or ["--all-namespaces"]
        select = ["--selector", selector] if selector else []
        items: list[Object] = json.loads(self("get", kind, *where, *select, "-o", "json"))["items"]
        return items

    def patch(self, kind: str, name: str, patch: Any, namespace: str = "", *more: str) -> str:
        """Merge-patch an object."""
        return self("patch", kind, name, *_in(namespace), "--type=merge", *more, "-p", json.dumps(patch))

    def wait(self, condition: str, what: str, namespace: str = "", seconds: int = 240) -> None:
        """Wait until an object has a condition."""
        until = (f"--for=condition={condition}", f"--timeout={seconds}s")
        self("wait", *until, what, *_in(namespace), timeout=seconds + 10)

    def rollout(self, workload: str, namespace: str, seconds: int = 240) -> None:
        """Wait until a workload has the pods that it should have, and no others."""
        self("rollout", "status", workload, *_in(namespace), f"--timeout={seconds}s", timeout=seconds + 10)


def _in(namespace: str) -> list[str]:
    return ["--namespace", namespace] if namespace else []


def _dry(dry_run: bool) -> list[str]:
    return ["--dry-run=server"] if dry_run else []


def wait_for(check: Callable[[], T | None], what: str, seconds: float = 180.0, pause: float = 0.3) -> T:
    """Wait with longer pauses: each look is a process, on a machine that has a cluster to run."""
    return waiting.wait_for(check, what, seconds, pause)

# SPDX-License-Identifier: Apache-2.0
"""Helm on a cluster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from cluster.harness import binaries
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, Refused
from support.chart import CHART, RELEASE, SERVER


class Helm:
    """Helm on one cluster, with a home of its own."""

    def __init__(self, home: Path, kubeconfig: Path) -> None:
        """Build it if it is not there yet."""
        binaries.build(binaries.HELM)
        self._program = binaries.HELM.bin / "helm"
        self._environ = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(kubeconfig)}

    def __call__(self, *arguments: str, values: Mapping[str, Any] | None = None, timeout: float = 300) -> str:
        """Run it in our namespace; return its standard output. Raises Refused with what it said else."""
        command = [str(self._program), "--namespace", NAMESPACE, *arguments]
        if values is not None:
            command += ["--values", "-"]
        done = subprocess.run(
            command,
            input=yaml.safe_dump(dict(values or {})),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env=self._environ,
        )
        if done.returncode != 0:
            raise Refused(done.stderr.strip())
        return done.stdout

    def render(self, values: Mapping[str, Any], *arguments: str, server: str = SERVER) -> list[Object]:
        """Return the chart's objects."""
        text = self("template", RELEASE, str(CHART), "--kube-version", server, *arguments, values=values)
        return [obj for obj in yaml.safe_load_all(text) if obj]

# SPDX-License-Identifier: Apache-2.0
"""The Helm chart: what its templates have, read without Helm; and what Helm renders of it, if there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from cluster.harness import binaries

Object = dict[str, Any]
MANIFESTS = Path(__file__).parents[2] / "manifests"
CHART = MANIFESTS / "chart"
TEMPLATES = CHART / "templates"
RELEASE, NAMESPACE = "slicekeeper", "slicekeeper-system"
SERVER = binaries.NEWEST.version
"""The API server's version that the chart is rendered for if nothing else is said."""

CHOICES: Mapping[str, Mapping[str, Any]] = {
    "install": {"mode": "enforce"},
    "install-observe": {"mode": "observe"},
    "install-single": {"mode": "enforce", "components": {"single": True}},
    "install-postgresql": {"mode": "enforce", "components": {"postgresql": True}},
}
"""The values of each rendered file; `install` is kept in the repository."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_HEAD = "# Rendered from the chart by `make manifests`: change that. Apply it with `kubectl apply --server-side -f`.\n"


def program() -> Path | None:
    """Return the helm on PATH, or the one that the cluster suite has built; None if there is neither."""
    built = binaries.HELM.bin / "helm"
    found = shutil.which("helm")
    return Path(found) if found else built if built.exists() else None


def render(helm: Path, values: Mapping[str, Any], server: str = SERVER) -> str:
    """Return what Helm makes of the chart for a file that kubectl applies."""
    command = [str(helm), "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", server]
    text = yaml.safe_dump({**values, "createNamespace": True})
    done = subprocess.run([*command, "-f", "-"], input=text, capture_output=True, text=True, check=True, timeout=60)
    return _HEAD + done.stdout


def write(helm: Path, build: Path) -> None:
    """Write every rendered file: the one that the repository has to its place, the others to a folder."""
    build.mkdir(parents=True, exist_ok=True)
    for name, values in CHOICES.items():
        file = (MANIFESTS if name == "install" else build) / f"{name}.yaml"
        file.write_text(render(helm, values))
        print(file)


def documents(pattern: str = "**/*.yaml") -> Iterator[Object]:
    """Yield every object of the templates, with all that a value may add, and `x` for what Helm fills in."""
    for file in sorted(TEMPLATES.glob(pattern)):
        lines = (
            line
            for line in file.read_text().splitlines()
            if not re.match(r"\s*\{\{-? ?(if|else|end|range|\$|/\*)", line)
        )
        text = re.sub(r"\{\{ \$(suffix|label) \}\}", "", "\n".join(line for line in lines if "{{- include" not in line))
        text = re.sub(r"\{\{.*?\}\}", "x", text)
        yield from (found for found in yaml.load_all(text, Loader=_LOADER) if found)


def installed() -> list[Object]:
    """Return the objects of the rendered file that the repository has."""
    return _objects((MANIFESTS / "install.yaml").read_text())


def kube_scheduler_config() -> Object:
    """Return the installed configuration of kube-scheduler."""
    [text] = [one["data"]["kube-scheduler.yaml"] for one in installed() if "kube-scheduler.yaml" in one.get("data", {})]
    found: Object = yaml.load(text, Loader=_LOADER)
    return found


def stale(helm: Path) -> list[str]:
    """Return the objects that are not in the repository's rendered file as the chart has them."""
    ours, theirs = _by_name(installed()), _by_name(_objects(render(helm, CHOICES["install"])))
    return sorted(key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))


def _by_name(objects: list[Object]) -> dict[str, Object]:
    return {f"{one['kind']} {one['metadata']['name']}": one for one in objects}


def _objects(text: str) -> list[Object]:
    return [found for found in yaml.load_all(text, Loader=_LOADER) if found]

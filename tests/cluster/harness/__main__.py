# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes to play with: `python -m cluster.harness up`, `down`, `build`; and `render` for the chart's files."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

from cluster.harness import binaries, cluster, images, install
from cluster.harness.helm import Helm
from cluster.harness.kubectl import Kubectl, Refused
from support import chart


def up() -> None:
    """Start a cluster with fake GPUs and Slicekeeper in it, and leave it up."""
    made = cluster.start(stay=True)
    kubectl = Kubectl(made.kubectl, made.kubeconfig)
    try:
        install.load_images(made)
        install.give_storage(made, kubectl)
        helm = Helm(made.folder, made.kubeconfig)
        helm("install", chart.RELEASE, str(chart.CHART), "--create-namespace", values=install.PLAYGROUND)
        install.wait_until_ready(kubectl)
        kubectl.rollout("deployment/objects", install.NAMESPACE)
    except (Refused, RuntimeError) as error:
        sys.exit(f"Slicekeeper did not come up: {error}\nThe cluster stays for a look; logs are in {made.logs}")
    print(
        f"export KUBECONFIG={shlex.quote(str(made.kubeconfig))}\n"
        f"export PATH={shlex.quote(str(made.kubectl.parent))}:{shlex.quote(str(Path(sys.executable).parent))}:$PATH"
        "   # kubectl, slicekeeper\n"
        "# Images are those in the node; a shell is slicekeeper.test/shell:1. End it with `make cluster-down`."
    )


def down() -> None:
    """End every cluster that was left up on this machine, and clean up after those that were killed."""
    for one in cluster.living():
        if one.stays:
            one.stop()
    cluster.sweep()


def build() -> None:
    """Build what a cluster needs, and start none."""
    binaries.ensure()
    with tempfile.TemporaryDirectory() as folder:
        images.make(Path(folder) / "images.tar", install.IMAGES)


def render() -> None:
    """Write the chart's rendered files."""
    binaries.build(binaries.HELM)
    chart.write(binaries.HELM.bin / "helm", install.ROOT / "build")


def main() -> None:
    """Run the command that is named."""
    commands = {"up": up, "down": down, "build": build, "render": render}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(f"usage: python -m cluster.harness {'|'.join(commands)}")
    try:
        commands[sys.argv[1]]()
    except binaries.Missing as error:
        sys.exit(f"cluster: {error}")


if __name__ == "__main__":
    main()

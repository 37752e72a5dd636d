# SPDX-License-Identifier: Apache-2.0
"""The images that a test cluster needs, as one archive: Slicekeeper's, kube-scheduler's, and three of busybox."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from cluster.harness.binaries import KUBERNETES, cache
from cluster.harness.programs import PAUSE_IMAGE

from images import archive
from images.oci import Image, write_archive, write_layer
from images.recipes import RECIPES
from slicekeeper.config.settings import Images

SHELL_IMAGE = "slicekeeper.test/shell:1"
"""busybox, for the containers that users would bring; `plain` is a musl program that says if the limiter is in it."""

_EXAMPLES_IMAGE = "docker.io/library/busybox:1.37"
"""What manifests/examples name: the node reaches no registry, so that they run it has ours under this name."""

_PLAIN = Path(__file__).resolve().parents[3] / "vcuda/test/run/plain.c"

_APPLETS = ("sh", "sleep", "cat", "env", "echo", "ls", "true", "false", "date", "wget", "id", "touch", "test", "kill")


def make(file: Path, named: Images) -> None:
    """Write the archive with every image; layers that did not change are taken as they are."""
    kept = cache() / "images"
    with tempfile.TemporaryDirectory() as folder:
        ours = archive.images(archive.build_wheel(Path(folder)), list(RECIPES), named)
    write_archive(file, [*ours, *_busybox(kept), _kube_scheduler(kept)])


def _busybox(kept: Path) -> list[Image]:
    layer = kept / "busybox-and-musl.tar"
    if not layer.exists():
        with tempfile.TemporaryDirectory() as folder:
            binary = Path(folder) / "bin/busybox"
            binary.parent.mkdir()
            shutil.copy2(str(shutil.which("busybox")), binary)
            subprocess.run(["musl-gcc", "-o", binary.with_name("plain"), _PLAIN], check=True)
            [loader] = Path("/lib").glob("ld-musl-*.so.1")
            (Path(folder) / "lib").mkdir()
            shutil.copy2(loader, Path(folder) / "lib" / loader.name)
            for name in ("tmp", "etc", "run", "proc", "dev", "sys"):
                (Path(folder) / name).mkdir()
            write_layer(layer, Path(folder), links={f"bin/{applet}": "busybox" for applet in _APPLETS})
    path = {"PATH": "/bin"}
    return [
        Image(PAUSE_IMAGE, (layer,), ("/bin/busybox", "sleep", "infinity"), environ=path),
        Image(SHELL_IMAGE, (layer,), (), environ=path),
        Image(_EXAMPLES_IMAGE, (layer,), (), environ=path),
    ]


def _kube_scheduler(kept: Path) -> Image:
    """Return the image that a cluster takes from Kubernetes' own registry, made from the same source."""
    layer = kept / f"kube-scheduler-{KUBERNETES.version}.tar"
    if not layer.exists():
        with tempfile.TemporaryDirectory() as folder:
            binary = Path(folder) / "usr/local/bin/kube-scheduler"
            binary.parent.mkdir(parents=True)
            shutil.copy2(KUBERNETES.bin / "kube-scheduler", binary)
            for name in ("tmp", "etc", "run", "proc", "dev", "sys"):
                (Path(folder) / name).mkdir()
            write_layer(layer, Path(folder))
    # The manifests name the newest version; the node has that of its own control plane under this name.
    name = f"registry.k8s.io/kube-scheduler:{KUBERNETES.version}"
    return Image(name, (layer,), ("/usr/local/bin/kube-scheduler",), environ={"PATH": "/usr/local/bin"})

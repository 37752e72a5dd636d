# SPDX-License-Identifier: Apache-2.0
"""A real cert-manager: its controllers in one pod, with the CRDs of the same release.

Its injector and its admission webhook are not there: nothing of ours needs the first, and what the second checks beyond
the CRDs' schemas is not checked.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from cluster.harness.binaries import CERT_MANAGER, build, source
from cluster.harness.cluster import Cluster
from cluster.harness.kubectl import Kubectl, Object
from cluster.harness.role_bindings import role_binding, service_account

from images.oci import Image, write_archive, write_layer

NAMESPACE = "cert-manager"
IMAGE = f"slicekeeper.test/cert-manager:{CERT_MANAGER.version}"
CERTIFICATES = "certificates.cert-manager.io"


def install(cluster: Cluster, kubectl: Kubectl) -> None:
    """Build cert-manager if necessary, and start it."""
    build(CERT_MANAGER)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "root/usr/local/bin/cert-manager"
        program.parent.mkdir(parents=True)
        shutil.copy2(CERT_MANAGER.bin / "cert-manager", program)
        write_layer(folder / "layer.tar", folder / "root")
        image = Image(IMAGE, (folder / "layer.tar",), ("/usr/local/bin/cert-manager",))
        write_archive(folder / "image.tar", [image])
        cluster.load(folder / "image.tar")
    kubectl("create", "-f", str(source(CERT_MANAGER) / "deploy/crds"))
    kubectl.wait("Established", f"crd/{CERTIFICATES}")
    kubectl.apply(*_objects())
    kubectl.rollout("deployment/cert-manager", NAMESPACE)


def renew(kubectl: Kubectl, name: str, namespace: str) -> None:
    """Have a certificate renewed at once, as `cmctl renew` does."""
    found = kubectl.get(CERTIFICATES, name, namespace)
    kept = [c for c in found["status"]["conditions"] if c["type"] != "Issuing"]
    issuing = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by a test"}
    status = {"status": {"conditions": [*kept, issuing]}}
    patch = json.dumps(status)
    kubectl("patch", CERTIFICATES, name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)


def _objects() -> list[Object]:
    labels = {"app": "cert-manager"}
    container = {"name": "cert-manager", "image": IMAGE}
    spec = {"serviceAccountName": "cert-manager", "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "cert-manager", "namespace": NAMESPACE}},
        role_binding("cert-manager", "cluster-admin", service_account("cert-manager", NAMESPACE), everywhere=True),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "cert-manager", "namespace": NAMESPACE},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        },
    ]

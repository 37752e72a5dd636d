# SPDX-License-Identifier: Apache-2.0
"""Two mutating webhooks of other people, one before ours and one after it, for as long as a test runs."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.harness.install import IMAGES
from cluster.harness.kubectl import Object, Refused, wait_for
from cluster.harness.pki import Authority
from cluster.harness.site import Site

BEFORE, AFTER = "aa-mesh", "zz-mesh"
"""The API server calls webhooks in the order of their configurations' names."""


@contextmanager
def mesh(site: Site, team: str) -> Iterator[None]:
    """Add sidecars to the pods of namespace `team`."""
    namespace = site.namespace("mesh")
    host = f"mesh.{namespace}.svc"
    authority = Authority(site.folder / f"mesh-{secrets.token_hex(3)}")
    authority.issue("mesh", user=host, hosts=(host,))
    script = Path(__file__).with_name("mutator.py").read_text()
    metadata = {"name": "mesh", "namespace": namespace}
    site.kubectl.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mutator.py": script}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": metadata,
            "data": {
                f"tls.{end}": base64.b64encode((authority.folder / f"mesh.{end}").read_bytes()).decode()
                for end in ("crt", "key")
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": {"app": "mesh"}, "ports": [{"port": 443, "targetPort": 8443}]},
        },
        _server(metadata),
    )
    site.kubectl.wait("Ready", "pod/mesh", namespace)
    bundle = base64.b64encode(authority.ca_file.read_bytes()).decode()
    site.kubectl.create(
        _configuration(BEFORE, "/first/aa-sidecar", namespace, team, bundle),
        _configuration(AFTER, "/last/zz-sidecar", namespace, team, bundle),
    )
    try:
        wait_for(lambda: _answer(site, team), "answer of the other webhooks")
        yield
    finally:
        site.kubectl("delete", "mutatingwebhookconfiguration", BEFORE, AFTER)


def _answer(site: Site, team: str) -> bool:
    """Whether both are reached: a pod is Ready some time before its service's traffic gets to it."""
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": {"containers": [{"name": "probe", "image": "probe"}]},
    }
    try:
        site.kubectl.create(probe, namespace=team, dry_run=True)
    except Refused as refused:
        if "failed calling webhook" not in str(refused):
            raise
        return False
    return True


def _server(metadata: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": {"app": "mesh"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "mesh",
                    "image": IMAGES.of("webhook"),
                    "command": ["/usr/local/bin/python3", "/script/mutator.py", "/tls"],
                    "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
                    "volumeMounts": [{"name": "script", "mountPath": "/script"}, {"name": "tls", "mountPath": "/tls"}],
                }
            ],
            "volumes": [
                {"name": "script", "configMap": {"name": "mesh"}},
                {"name": "tls", "secret": {"secretName": "mesh", "defaultMode": 0o444}},
            ],
        },
    }


def _configuration(name: str, path: str, namespace: str, team: str, bundle: str) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": f"{name}.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "reinvocationPolicy": "IfNeeded",
                "clientConfig": {
                    "service": {"name": "mesh", "namespace": namespace, "path": path},
                    "caBundle": bundle,
                },
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            }
        ],
    }

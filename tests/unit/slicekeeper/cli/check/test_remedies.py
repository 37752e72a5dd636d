# SPDX-License-Identifier: Apache-2.0
"""Remedies are commands of the tool by which Slicekeeper was installed."""

from __future__ import annotations

import json

from support.checked_cluster import API_SERVICE, ARBITERS, Server, check, with_registry

HELM = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  annotations: {meta.helm.sh/release-name: gpus}
  labels:
    app.kubernetes.io/managed-by: Helm
"""


def test_what_helm_installed_is_mended_by_helm(server: Server) -> None:
    def by_helm(text: str) -> str:
        return text.replace("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  labels:\n", HELM)

    server.install_manifests(by_helm)
    server.objects[API_SERVICE] = None
    del server.objects[ARBITERS]
    found = {one["problem"]: one["remedy"] for one in json.loads(check(server, "-o", "json").stdout)}
    upgrade = "helm upgrade gpus manifests/chart -n slicekeeper-system --reset-then-reuse-values"
    assert {remedy for problem, remedy in found.items() if "is missing" in problem} == {upgrade}
    [registry] = [remedy for problem, remedy in found.items() if "images.registry is not set" in problem]
    assert registry == f"{upgrade} --set images.registry=REGISTRY"
    server.install_manifests(lambda text: by_helm(with_registry(text)).replace("  mode: enforce", "  audit: evict"))
    server.refused.add(("nodeagent", "create", "pods/eviction"))
    [missed] = json.loads(check(server, "-o", "json").stdout)
    assert missed["remedy"] == f"{upgrade} --set components.auditEvictions=true"

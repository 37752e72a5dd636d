# SPDX-License-Identifier: Apache-2.0
"""Remedies are commands of the tool by which Slicekeeper was installed."""

from __future__ import annotations

import json

from support.checked_cluster import API_SERVICE, ARBITERS, Server, check, with_registry

HELM = "annotations: {meta.helm.sh/release-name: gpus}\n  labels: {app.kubernetes.io/managed-by: Helm, "


def test_what_helm_installed_is_mended_by_helm(server: Server) -> None:
    def by_helm(text: str) -> str:
        return text.replace("labels: {app.kubernetes.io/part-of", f"{HELM}app.kubernetes.io/part-of")

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


def test_what_kubectl_installed_is_mended_by_the_chart_rendered_again(server: Server) -> None:
    server.install_manifests()
    del server.objects[ARBITERS]
    found = {one["problem"]: one["remedy"] for one in json.loads(check(server, "-o", "json").stdout)}
    render = "helm template slicekeeper manifests/chart -n slicekeeper-system --values VALUES.yaml"
    apply = "| kubectl apply --server-side -f -"
    assert {remedy for problem, remedy in found.items() if "is missing" in problem} == {f"{render} {apply}"}
    [registry] = [remedy for problem, remedy in found.items() if "images.registry is not set" in problem]
    assert registry == f"{render} --set images.registry=REGISTRY {apply}"

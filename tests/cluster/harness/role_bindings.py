# SPDX-License-Identifier: Apache-2.0
"""Give a cluster role to users and service accounts, in one namespace or everywhere."""

from __future__ import annotations

from cluster.harness.kubectl import Object


def role_binding(name: str, role: str, *subjects: Object, everywhere: bool = False) -> Object:
    """Return a RoleBinding of a ClusterRole, or a ClusterRoleBinding if it is for all namespaces."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding" if everywhere else "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [*subjects],
    }


def service_account(name: str, namespace: str) -> Object:
    """Return a service account as the subject of a binding."""
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}

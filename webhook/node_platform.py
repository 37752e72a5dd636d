# SPDX-License-Identifier: Apache-2.0
"""Pods for nodes or runtimes on which a GPU cannot be shared: Windows, and sandboxes such as Kata's and gVisor's.

A pod says Windows by `spec.os`, by its node selector, or by a required affinity to Windows nodes alone. The webhook
knows a RuntimeClass by its name; the API server adds the overhead of a virtual machine to a pod before it asks us.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from slicekeeper.errors import Violation
from slicekeeper.kube.objects import NodeRequirement, PodSpec
from slicekeeper.untyped_json import show

_WINDOWS: Final = "windows"
_OS_LABELS: Final = ("kubernetes.io/os", "beta.kubernetes.io/os")
_WINDOWS_LABEL: Final = "node.kubernetes.io/windows-build"
_SANDBOX: Final = re.compile(r"kata|gvisor|runsc|firecracker", re.IGNORECASE)


def of_spec(spec: PodSpec) -> Iterator[Violation]:
    """Yield the fields that place a GPU pod on Windows nodes."""
    for field, value in _windows_fields(spec):
        yield Violation(
            code="os-windows",
            field=field,
            value=show(value),
            rule="shares of GPUs, their meter and their limiter are supported only on Linux",
            example=f"no {field}",
        )


def _windows_fields(spec: PodSpec) -> Iterator[tuple[str, object]]:
    if spec.os.name == _WINDOWS:
        yield "spec.os.name", _WINDOWS
    for label, value in spec.node_selector.items():
        if (label in _OS_LABELS and value == _WINDOWS) or label == _WINDOWS_LABEL:
            yield f"spec.nodeSelector[{label}]", value
    required = spec.affinity.node_affinity.required
    terms = required.node_selector_terms
    if terms and all(any(map(_demands_windows, term.match_expressions)) for term in terms):
        yield "spec.affinity.nodeAffinity", msgspec.to_builtins(required)


def _demands_windows(expression: NodeRequirement) -> bool:
    label, operator, values = expression.key, expression.operator, expression.values
    if label == _WINDOWS_LABEL:
        return operator in ("In", "Exists")
    return label in _OS_LABELS and (
        (operator == "In" and values == (_WINDOWS,)) or (operator == "NotIn" and "linux" in values)
    )


def warnings(spec: PodSpec) -> Iterator[str]:
    """Yield what happens to a GPU in a sandbox: its container cannot reach the node's arbiter."""
    name = spec.runtime_class_name
    if name and (_SANDBOX.search(name) or spec.overhead):
        yield (
            f"runtimeClassName {show(name)}: from inside a sandbox (Kata, gVisor) a container reaches neither its GPU "
            "nor its seat. CUDA fails, and the pod is charged; leave it out, or name NVIDIA's class"
        )

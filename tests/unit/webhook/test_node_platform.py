# SPDX-License-Identifier: Apache-2.0
"""GPU pods for Windows are refused, and those in a sandbox get a warning."""

from typing import Any

import pytest

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Settings
from webhook.admission import Admission
from webhook.admission_review import WARNING_CHARACTERS
from webhook.review_inputs import Case

ADMISSION, CASE = Admission(Settings()), Case("research", NamespacePolicy())
SHARE = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "15"}


def pod(limits: dict[str, str] = SHARE, **spec: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": limits}}], **spec}}


def affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions} for expressions in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def os_is(operator: str, *values: str) -> dict[str, Any]:
    return {"key": "kubernetes.io/os", "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"os": {"name": "windows"}}, "spec.os.name"),
        ({"nodeSelector": {"kubernetes.io/os": "windows"}}, "spec.nodeSelector[kubernetes.io/os]"),
        ({"nodeSelector": {"beta.kubernetes.io/os": "windows"}}, "spec.nodeSelector[beta.kubernetes.io/os]"),
        ({"nodeSelector": {"node.kubernetes.io/windows-build": "10.0.20348"}},
            "spec.nodeSelector[node.kubernetes.io/windows-build]"),
        ({"affinity": affinity([os_is("In", "windows")])}, "spec.affinity.nodeAffinity"),
        ({"affinity": affinity([{"key": "a", "operator": "Exists"}, os_is("NotIn", "linux")])},
            "spec.affinity.nodeAffinity"),
    ],
)  # fmt: skip
def test_a_gpu_pod_for_windows_is_refused(spec: dict[str, Any], field: str) -> None:
    assert [(v.code, v.field) for v in ADMISSION.mutate(pod(**spec), CASE).violations] == [("os-windows", field)]
    template = ADMISSION.validate_template({}, pod(**spec), CASE, "spec.template")
    assert [violation.field for violation in template.violations] == [f"spec.template.{field}"]
    assert ADMISSION.mutate(pod({"cpu": "1"}, **spec), CASE).allowed


@pytest.mark.parametrize(
    "spec",
    [
        {"os": {"name": "linux"}},
        {"nodeSelector": {"kubernetes.io/os": "linux"}},
        {"affinity": affinity([os_is("In", "windows", "linux")])},
        {"affinity": affinity([os_is("In", "windows")], [os_is("In", "linux")])},
        {"affinity": affinity([os_is("NotIn", "windows")])},
        {"affinity": affinity()},
    ],
)
def test_a_pod_that_may_run_on_linux_passes(spec: dict[str, Any]) -> None:
    assert ADMISSION.mutate(pod(**spec), CASE).allowed


@pytest.mark.parametrize(
    ("spec", "warned"),
    [
        ({"runtimeClassName": "kata-qemu-nvidia-gpu"}, True),
        ({"runtimeClassName": "gvisor"}, True),
        ({"runtimeClassName": "runsc"}, True),
        ({"runtimeClassName": "confidential", "overhead": {"cpu": "250m", "memory": "160Mi"}}, True),
        ({"runtimeClassName": "nvidia"}, False),
        ({"runtimeClassName": ""}, False),
        ({}, False),
    ],
)
def test_a_gpu_in_a_sandbox_causes_a_warning(spec: dict[str, Any], warned: bool) -> None:
    for verdict in (
        ADMISSION.mutate(pod(**spec), CASE),
        ADMISSION.validate_template({}, pod(**spec), CASE, "spec.template"),
    ):
        assert verdict.allowed
        assert ["sandbox" in warning for warning in verdict.warnings] == [True] * warned
        assert all(len(warning) <= WARNING_CHARACTERS for warning in verdict.warnings)
    assert ADMISSION.mutate(pod({"nvidia.com/gpu": "1"}, **spec), CASE).warnings == []

# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper review` of objects of operators: pod templates are found in any kind, or it says that none was."""

from typing import Any

import pytest
import yaml

from slicekeeper.config.policy import ForeignPolicy, NamespacePolicy, PolicyBook
from slicekeeper.config.settings import Settings
from webhook.offline_review import ReviewOutcome, review
from webhook.template_search import search

CONTAINER = "{name: c, image: i, resources: {limits: {tencent.com/vcuda-core: CORE, tencent.com/vcuda-memory: 15}}}"
ALONE = CONTAINER.replace("name: c, ", "")

OBJECTS = {
    "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]": f"""
        apiVersion: kubeflow.org/v1
        kind: PyTorchJob
        spec:
          pytorchReplicaSpecs:
            Master: {{replicas: 1, template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}
            Worker: {{replicas: 2, template: {{spec: {{containers: [{CONTAINER}]}}}}}}
        """,
    "spec.headGroupSpec.template.spec.containers[0]": f"""
        apiVersion: ray.io/v1
        kind: RayCluster
        spec:
          headGroupSpec: {{rayStartParams: {{}}, template: {{spec: {{containers: [{CONTAINER}]}}}}}}
        """,
    "spec.rayClusterSpec.workerGroupSpecs[1].template.spec.containers[0]": f"""
        apiVersion: ray.io/v1
        kind: RayJob
        spec:
          rayClusterSpec:
            workerGroupSpecs:
            - {{template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}
            - {{template: {{spec: {{containers: [{CONTAINER}]}}}}}}
        """,
    "spec.templates[1].container": f"""
        apiVersion: argoproj.io/v1alpha1
        kind: Workflow
        spec:
          entrypoint: main
          templates:
          - {{name: main, steps: [[{{name: a, template: train}}]]}}
          - {{name: train, activeDeadlineSeconds: "30", container: {ALONE}}}
        """,
    "spec.workflowSpec.templates[0].script": f"""
        apiVersion: argoproj.io/v1alpha1
        kind: CronWorkflow
        spec: {{workflowSpec: {{templates: [{{name: t, script: {ALONE}}}]}}}}
        """,
    "spec.templates[0].containerSet.containers[0]": f"""
        apiVersion: argoproj.io/v1alpha1
        kind: WorkflowTemplate
        spec: {{templates: [{{name: t, containerSet: {{containers: [{CONTAINER}]}}}}]}}
        """,
    "spec.tasks[0].template.spec.containers[0]": f"""
        apiVersion: batch.volcano.sh/v1alpha1
        kind: Job
        spec: {{tasks: [{{replicas: 2, template: {{spec: {{containers: [{CONTAINER}]}}}}}}]}}
        """,
    "spec.replicatedJobs[0].template.spec.template.spec.containers[0]": f"""
        apiVersion: jobset.x-k8s.io/v1alpha2
        kind: JobSet
        spec: {{replicatedJobs: [{{template: {{spec: {{template: {{spec: {{containers: [{CONTAINER}]}}}}}}}}}}]}}
        """,
    "spec.predictor.containers[0]": f"""
        apiVersion: serving.kserve.io/v1beta1
        kind: InferenceService
        spec: {{predictor: {{minReplicas: 1, containers: [{CONTAINER}]}}}}
        """,
    "spec.predictor.model": f"""
        apiVersion: serving.kserve.io/v1beta1
        kind: InferenceService
        spec:
          transformer: {{containers: [{{name: c, image: i}}]}}
          predictor: {{model: {{modelFormat: {{name: onnx}}, {ALONE.removeprefix("{image: i, ")}}}
        """,
    "spec.containers[0]": f"""
        apiVersion: example.com/v1
        kind: Task
        spec: {{containers: [{CONTAINER}]}}
        """,
    "template.spec.containers[0]": f"""
        apiVersion: v1
        kind: PodTemplate
        template: {{spec: {{containers: [{CONTAINER}]}}}}
        """,
}


def reviewed(text: str, policy: NamespacePolicy | None = None) -> ReviewOutcome:
    book = PolicyBook(policy or NamespacePolicy())
    [outcome] = review([yaml.safe_load(text)], "research", Settings(), book, over_budget=False)
    return outcome


@pytest.mark.parametrize(("field", "text"), OBJECTS.items())
def test_the_template_of_an_operators_object_is_reviewed(field: str, text: str) -> None:
    [violation] = reviewed(text.replace("CORE", "150")).verdict.violations
    assert violation.code == "core-not-whole"
    assert violation.field == f"{field}.resources.limits[tencent.com/vcuda-core]"
    admitted = reviewed(text.replace("CORE", "50"))
    assert admitted.verdict.allowed
    assert list(admitted.verdict.warnings) == []
    if ".template." in field:
        assert str(admitted.admitted).count("gpu-sidecar") == 1


def test_each_template_of_an_object_is_reviewed() -> None:
    whole = OBJECTS["spec.headGroupSpec.template.spec.containers[0]"].replace("CORE", "150")
    document = yaml.safe_load(whole)
    document["spec"]["workerGroupSpecs"] = [document["spec"]["headGroupSpec"]] * 2
    [outcome] = review([document], "research", Settings(), PolicyBook(), over_budget=False)
    assert [violation.field.partition(".template")[0] for violation in outcome.verdict.violations] == [
        "spec.headGroupSpec",
        "spec.workerGroupSpecs[0]",
        "spec.workerGroupSpecs[1]",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{apiVersion: sparkoperator.k8s.io/v1, kind: SparkApplication, spec: {driver: {cores: 1}}}", True),
        ("{apiVersion: kubeshare.nthu/v1, kind: SharePod, spec: {containers: [{name: c, image: i}]}}", True),
        ("{apiVersion: cert-manager.io/v1, kind: Certificate, spec: {}}", True),
        ("{apiVersion: v1, kind: ConfigMap, data: {a: b}}", False),
        ("{apiVersion: networking.k8s.io/v1, kind: Ingress, spec: {}}", False),
        ("{apiVersion: slicekeeper.io/v1alpha1, kind: GpuBudget, spec: {amount: 1h}}", False),
    ],
)  # fmt: skip
def test_a_kind_without_a_pod_template_is_said_not_to_be_looked_at(text: str, said: bool) -> None:
    outcome = reviewed(text)
    assert outcome.verdict.allowed
    assert ["not looked at" in warning for warning in outcome.verdict.warnings] == [True] * said


def test_a_value_that_an_operator_fills_in_later_is_no_mistake() -> None:
    text = OBJECTS["spec.templates[1].container"].replace("CORE", '"{{inputs.parameters.core}}"')
    outcome = reviewed(text)
    assert outcome.verdict.allowed
    assert "filled in later" in " ".join(outcome.verdict.warnings)


def test_requests_of_other_systems_are_converted_in_any_kind() -> None:
    text = """
        apiVersion: ray.io/v1
        kind: RayCluster
        spec:
          headGroupSpec:
            template:
              spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000}}}]}
        """
    outcome = reviewed(text, NamespacePolicy(foreign=ForeignPolicy(dialects=("hami",), gpu_memory="80Gi")))
    assert "converted from hami" in outcome.verdict.warnings[0]
    assert "tencent.com/vcuda-core" in str(outcome.admitted)


@pytest.mark.parametrize(
    "value", [None, [], {}, "x", 1, [None], [{}], {"containers": "x"}, {"spec": {"containers": 3}}]
)
def test_what_is_no_template_is_passed_over(value: Any) -> None:
    nested: Any = value
    for _ in range(3000):
        nested = {"a": [nested]}
    assert search({"kind": "X", "apiVersion": "example.com/v1", "spec": value, "deep": nested}) == []

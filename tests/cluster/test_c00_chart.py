# SPDX-License-Identifier: Apache-2.0
"""The Helm chart is what kustomize makes of the manifests, refuses wrong values, and fits the platforms it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.harness.helm import CHART, SERVER, Helm
from cluster.harness.install import ROOT
from cluster.harness.kubectl import Object, Refused
from cluster.harness.site import Site

from slicekeeper import __version__
from slicekeeper.cli.check.installed import COMPARED
from slicekeeper.config import chart, manifests
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import PARTS, Images
from slicekeeper.config.yaml_file import convert

MANIFESTS = ROOT / "manifests"
COMPONENTS = chart.components(MANIFESTS)
WORKLOADS = ("Deployment", "DaemonSet")
OTHER_APIS = ("cert-manager.io", "security.openshift.io")
"""What the API server of the suite does not know."""

HASHED = re.compile(r"\b(slicekeeper-(?:config|kube-scheduler))-[0-9a-z]{10}\b")
DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def helm(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"), site.kubectl.kubeconfig)


@pytest.fixture(scope="module")
def default(helm: Helm) -> list[Object]:
    """What the chart installs if nothing is said."""
    return helm.render({})


def kustomized(site: Site, folder: Path, *components: str) -> list[Object]:
    up = "../" * (len(folder.resolve().parts) - 1)
    wanted = {
        "resources": [f"{up}{MANIFESTS.resolve()}/base".replace("//", "/")],
        "components": [f"{up}{MANIFESTS.resolve()}/components/{name}".replace("//", "/") for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    rendered = HASHED.sub(r"\1", site.kubectl("kustomize", str(folder)))
    return [obj for obj in yaml.safe_load_all(rendered) if obj["kind"] != "Namespace"]


def values_for(*components: str, **more: Any) -> dict[str, Any]:
    wanted = {chart.component_value(name): True for name in components if name != "observe"}
    return {"mode": "observe" if "observe" in components else "enforce", "components": wanted, **more}


def compared(objects: list[Object]) -> dict[tuple[str, str], Object]:
    """Return objects by kind and name, without what Helm needs different and with files as what they say."""
    found = {}
    for obj in map(deepcopy, objects):
        kind, metadata = obj["kind"], obj["metadata"]
        assert kind != "Job", "GitOps tools make one again that has ended and gone"
        if kind == "PersistentVolumeClaim":
            metadata.pop("annotations", None)
        if kind in WORKLOADS:
            obj["spec"]["template"]["metadata"].pop("annotations", None)
            assert pod_of(obj).pop("imagePullSecrets", []) == []
        if kind == "ConfigMap":
            obj["data"] = {name: yaml.safe_load(text) for name, text in obj["data"].items()}
            for policy in (data for name, data in obj["data"].items() if name == "policy.yaml"):
                policy["default"] = convert(policy["default"], NamespacePolicy, "default")
        assert (kind, metadata["name"]) not in found
        found[kind, metadata["name"]] = obj
    return found


def test_the_chart_is_made_of_todays_manifests(site: Site) -> None:
    stale = chart.write(MANIFESTS, dry=True, kustomize=lambda folder: site.kubectl("kustomize", str(folder)))
    assert stale == [], "make it again: slicekeeper config chart"


SETS = (
    (),
    ("observe", "objects", "sharepods", "openshift", "postgresql", "nvidia-runtime", "quota-weight"),
    ("cert-manager", "postgresql", "hard-budgets", "audit-evictions", "critical-quota"),
    ("host-network", "cert-manager", "aks", "plain-driver", "fake-gpus", "single"),
)
"""Sets of components in which each is once at least."""


def test_each_component_is_compared() -> None:
    assert {name for components in SETS for name in components} == {"observe", *COMPONENTS}


@pytest.mark.parametrize("components", SETS, ids=lambda components: "+".join(components) or "default")
def test_the_chart_installs_what_kustomize_does(
    site: Site, helm: Helm, tmp_path: Path, components: tuple[str, ...]
) -> None:
    enforced = {"namespaces": [{"match": ["slicekeeper-enforced"], "mode": "enforce"}]}
    more = {"policy": enforced} if "observe" in components else {}
    theirs = compared(helm.render(values_for(*components, **more)))
    ours = compared(kustomized(site, tmp_path, *components))
    assert theirs.keys() == ours.keys()
    for key, obj in ours.items():
        assert theirs[key] == obj, key


def test_the_first_command_observes(default: list[Object]) -> None:
    [policy] = [o for o in default if o["metadata"]["name"] == "slicekeeper-policy"]
    assert yaml.safe_load(policy["data"]["policy.yaml"])["default"]["mode"] == "observe"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"mode": "enforced"}, "mode.*'observe', 'enforce'"),
        ({"image": {"registry": "a.example"}}, "image"),
        ({"images": {"registry": "gpus"}}, "images/registry.*does not match"),
        ({"images": {"digests": {"web": DIGEST}}}, "images/digests.*web"),
        ({"images": {"digests": {"webhook": "sha256:1"}}}, "images/digests/webhook.*does not match"),
        ({"components": {"certManager": "yes"}}, "components/certManager.*boolean"),
        ({"components": {"postgres": True}}, "components.*postgres"),
        ({"imagePullSecrets": ["registry"]}, "imagePullSecrets/0.*object"),
        ({"timekeeper": {"replicas": 2}}, "timekeeper.replicas is 2, and the ledger is on SQLite.*components.postg"),
        ({"timekeeper": {"replicas": -1}}, "timekeeper/replicas.*minimum"),
        ({"kubeScheduler": {"version": "1.36"}}, "kubeScheduler/version.*does not match"),
        ({"config": {"timekeeper": {"weight": "size"}}}, "config/timekeeper/weight.*'core', 'max', 'mean', 'quota'"),
        ({"config": {"timekeeper": {"wieght": "max"}}}, "config/timekeeper.*wieght"),
        ({"policy": {"default": {"budget": {"period": "days"}}}}, "policy/default/budget/period.*'day'"),
        ({"policy": {"namespaces": [{"mode": "off"}]}}, "policy/namespaces/0.*match"),
        ({"policy": {"default": {"budget": {"amount": "20x"}}}}, "policy/default/budget/amount.*does not match"),
        ({"policy": {"default": {"budget": {"anchor": "monday"}}}}, "policy/default/budget/anchor.*does not match"),
        ({"policy": {"default": {"backgroundRate": "abc"}}}, "policy/default/backgroundRate.*does not match"),
        ({"policy": {"default": {"budget": {"timeZone": "Mars/Base"}}}}, "Mars/Base, which is no IANA time zone"),
        ({"policy": {"namespaces": [{"match": "a", "budget": {"timeZone": "Europe/Berlinn"}}]}}, "Europe/Berlinn"),
        ({"policy": {"namespaces": [{"match": "Team_A"}]}}, "policy/namespaces/0/match"),
        ({"policy": {"namespaces": [{"match": ["a", "a"]}]}}, "policy/namespaces/0/match"),
        ({"policy": {"namespaces": [{"match": "a"}, {"match": ["b", "a"]}]}}, "has two entries for a: keep one"),
        ({"policy": {"default": {"mode": "enforce"}}}, "policy.default.mode is set: the chart's own value `mode`"),
        ({"policy": {"default": {"budget": {"enforcement": "hard"}}}}, "set components.hardBudgets=true"),
        ({"policy": {"namespaces": [{"match": ["a"], "audit": "evict"}]}}, "set components.auditEvictions=true"),
        ({"config": {"timekeeper": {"weight": "quota"}}}, "set components.quotaWeight=true"),
        *(({"config": _nested}, "config.* is set") for _nested in (
            {"images": {"tag": "1"}}, {"resources": {"core": "a.example/b"}}, {"webhook": {"schedulerName": "mine"}},
            {"classes": {"inBudget": {"name": "a", "value": 1, "preemptionPolicy": "Never"}}},
            {"policy": {"exemptNamespaces": ["infra"]}}, {"timekeeper": {"audience": "other"}},
        )),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_what_is_wrong(helm: Helm, values: dict[str, Any], told: str) -> None:
    with pytest.raises(Refused, match=f"(?s){told}"):
        helm.render(values)


@pytest.mark.parametrize(
    "zone", ["UTC", "Etc/UTC", "Zulu", "Europe/London", "Africa/Abidjan", "Asia/Kolkata", "Etc/GMT+5"]
)
def test_a_time_zone_that_there_is_is_accepted(helm: Helm, zone: str) -> None:
    rule = {"match": ["team-*", "a"], "budget": {"timeZone": zone}}
    objects = helm.render({"policy": {"default": {"budget": {"timeZone": zone}}, "namespaces": [rule]}})
    [policy] = [o for o in objects if o["metadata"]["name"] == "slicekeeper-policy"]
    assert yaml.safe_load(policy["data"]["policy.yaml"])["namespaces"] == [rule]


def test_what_settings_decide_in_manifests_is_refused_as_a_value() -> None:
    """`slicekeeper check` compares these settings with manifests, which a chart's values cannot change."""
    text = (CHART / "templates/_helpers.tpl").read_text()
    listed = re.findall(r'"([\w.]+)"', text.partition("$path := list")[2].partition("-}}")[0])
    assert sorted(listed) == sorted(name.rstrip(".") for name in COMPARED)


def test_another_namespace_is_refused(helm: Helm) -> None:
    with pytest.raises(Refused, match="add `--namespace slicekeeper-system --create-namespace`"):
        helm.render({}, "--namespace", "gpus")


def test_images_and_settings_are_those_of_the_values(helm: Helm) -> None:
    images = Images(registry="registry.example:5000/gpus", tag="1.2.3", digests={"scheduler": DIGEST})
    config = {"timekeeper": {"debt": "carry"}, "webhook": {"maxBodyBytes": 33_554_432}}
    wanted = {"registry": images.registry, "tag": images.tag, "digests": images.digests}
    objects = helm.render({"images": wanted, "config": config, "components": {"postgresql": True, "objects": True}})
    [text] = [o["data"]["config.yaml"] for o in objects if o["metadata"]["name"] == manifests.CONFIG_MAP]
    settings = manifests.parse(text, "chart")
    assert settings.images == images
    assert settings.timekeeper.debt == "carry"
    assert settings.webhook.max_body_bytes == 33_554_432, "no number of a floating point"
    assert settings.timekeeper.bind == "0.0.0.0:8444", "beside what the manifests say"
    of_workloads = [pod_of(o) for o in objects if o["kind"] in WORKLOADS]
    used = [c["image"] for pod in of_workloads for c in [*pod.get("initContainers", []), *pod["containers"]]]
    parts = [part for part in PARTS if part != "sidecar"]
    assert set(used) == {images.of(part) for part in parts} | {f"registry.k8s.io/kube-scheduler:{SERVER}"}


def test_every_pod_of_ours_pulls_with_the_secrets_of_the_values(helm: Helm) -> None:
    secrets = [{"name": "registry"}, {"name": "mirror"}]
    components = {chart.component_value(name): True for name in ("postgresql", "objects")}
    objects = helm.render({"imagePullSecrets": secrets, "components": components})
    pulling = {o["metadata"]["name"]: pod_of(o)["imagePullSecrets"] for o in objects if o["kind"] in WORKLOADS}
    assert all(found == secrets for found in pulling.values())
    others = {"webhook", "scheduler", "nodeagent", "arbiter", "objects", "timekeeper-forwarder", "certificates"}
    assert set(pulling) == {"timekeeper", *others}


@pytest.mark.parametrize(("wanted", "postgresql", "made"), [(0, False, 1), (1, False, 1), (0, True, 2), (5, True, 5)])
def test_the_timekeepers_replicas_are_those_of_the_values(helm: Helm, wanted: int, postgresql: bool, made: int) -> None:
    objects = helm.render({"timekeeper": {"replicas": wanted}, "components": {"postgresql": postgresql}})
    [found] = [o["spec"] for o in objects if (o["kind"], o["metadata"]["name"]) == ("Deployment", "timekeeper")]
    assert found["replicas"] == made


def test_other_settings_are_other_pods(helm: Helm) -> None:
    def sums(debt: str) -> set[str]:
        objects = helm.render({"config": {"timekeeper": {"debt": debt}}, "components": {"postgresql": True}})
        templates = (o["spec"]["template"]["metadata"] for o in objects if o["kind"] in WORKLOADS)
        return {one.get("annotations", {}).get("slicekeeper.io/config", "") for one in templates}

    assert not (sums("carry") & sums("forgive")) - {""}


@pytest.mark.parametrize(
    ("server", "tag"),
    [
        ("v1.30.4", "v1.30.4"),
        ("v1.34.1+k3s1", "v1.34.1"),
        ("v1.33.5-gke.1080000", "v1.33.5"),
        ("v1.34.2-eks-3025e55", "v1.34.2"),
    ],
)
def test_kube_scheduler_is_as_new_as_the_api_server(helm: Helm, server: str, tag: str) -> None:
    [scheduler] = [o for o in helm.render({}, server=server) if (o["kind"], o["metadata"]["name"]) == SCHEDULER]
    assert pod_of(scheduler)["containers"][0]["image"] == f"registry.k8s.io/kube-scheduler:{tag}"


def test_an_api_server_that_is_too_old_is_refused(helm: Helm) -> None:
    with pytest.raises(Refused, match="kubeVersion"):
        helm.render({}, server="v1.29.9")


def test_the_charts_version_is_the_releases() -> None:
    told = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (told["version"], told["appVersion"]) == (__version__, __version__)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert sorted(values["components"]) == sorted(map(chart.component_value, COMPONENTS))


SCHEDULER = ("Deployment", "scheduler")
CRITICAL = ("system-cluster-critical", "system-node-critical")
RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
"""What OpenShift's `restricted-v2` lets pods mount."""


def pod_of(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def pods(objects: list[Object]) -> dict[str, Object]:
    return {o["metadata"]["name"]: pod_of(o) for o in objects if o["kind"] in WORKLOADS}


def called(objects: list[Object]) -> Iterator[Object]:
    """Yield the pods that the API server calls: those behind the Services of webhooks and APIs."""
    names = {o["spec"]["service"]["name"] for o in objects if o["kind"] == "APIService"}
    names |= {h["clientConfig"]["service"]["name"] for o in objects for h in o.get("webhooks", [])}
    selectors = [o["spec"]["selector"] for o in objects if o["kind"] == "Service" and o["metadata"]["name"] in names]
    assert len(selectors) == len(names) == 2
    for obj in (o for o in objects if o["kind"] == "Deployment"):
        labels = obj["spec"]["template"]["metadata"]["labels"]
        if any(selector.items() <= labels.items() for selector in selectors):
            yield obj


def on_kind(objects: list[Object]) -> None:
    assert {o["spec"]["replicas"] for o in objects if o["kind"] == "Deployment"} == {1}
    for obj in (o for o in objects if o["kind"] == "DaemonSet"):
        assert "nodeSelector" not in pod_of(obj)
        assert "SLICEKEEPER_NODE_AGENT_FAKE_GPUS" in {e["name"] for e in pod_of(obj)["containers"][0]["env"]}


def with_nvidias_runtime(objects: list[Object]) -> None:
    classes = {name: pod.get("runtimeClassName") for name, pod in pods(objects).items()}
    assert {name for name, found in classes.items() if found == "nvidia"} == {"nodeagent", "arbiter"}
    paths = {v["hostPath"]["path"] for v in pods(objects)["nodeagent"]["volumes"] if "hostPath" in v}
    assert {"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources", "/var/run/cdi"} <= paths


def on_gke(objects: list[Object]) -> None:
    """A limited resource's rule: a critical pod needs a quota of its namespace whose scope has its class."""
    allowed = {
        (o["metadata"]["namespace"], name)
        for o in objects
        if o["kind"] == "ResourceQuota"
        for scope in o["spec"]["scopeSelector"]["matchExpressions"]
        if (scope["scopeName"], scope["operator"]) == ("PriorityClass", "In")
        for name in scope["values"]
    }
    for obj in (o for o in objects if o["kind"] in WORKLOADS and pod_of(o).get("priorityClassName") in CRITICAL):
        assert (obj["metadata"]["namespace"], pod_of(obj)["priorityClassName"]) in allowed


def on_the_pods_network(objects: list[Object]) -> None:
    assert not [name for name, pod in pods(objects).items() if pod.get("hostNetwork")]


def on_the_nodes_network(objects: list[Object]) -> None:
    ports: list[int] = []
    for obj in called(objects):
        pod, strategy = pod_of(obj), obj["spec"]["strategy"]
        assert pod["hostNetwork"] is True
        assert pod["dnsPolicy"] == "ClusterFirstWithHostNet", "they ask for Services by name"
        ports += [port["containerPort"] for container in pod["containers"] for port in container["ports"]]
        assert strategy.get("type") == "Recreate" or strategy["rollingUpdate"]["maxSurge"] == 0, "a port once a node"
    assert len(ports) == len(set(ports)), "two parts on one node"
    assert not set(ports) & {10250, 10256, 10257, 10259}, "the node's own"


def on_aks(objects: list[Object]) -> None:
    hooks = [o for o in objects if o.get("webhooks")]
    assert len(hooks) == 2
    assert all(o["metadata"]["annotations"] == {"admissions.enforcer/disabled": "true"} for o in hooks)
    for hook in (h for o in hooks for h in o["webhooks"]):
        [left_out] = hook["namespaceSelector"]["matchExpressions"]
        assert "kube-system" in left_out["values"], "what the enforcer would have seen to"


def on_openshift(objects: list[Object]) -> None:
    [constraints] = [o for o in objects if o["kind"] == "SecurityContextConstraints"]
    for obj in (o for o in objects if o["kind"] in WORKLOADS):
        pod = pod_of(obj)
        containers = [*pod.get("initContainers", []), *pod["containers"]]
        contexts = [pod["securityContext"], *(c["securityContext"] for c in containers)]
        mounted = {next(key for key in volume if key != "name") for volume in pod["volumes"]}
        added = {c for context in contexts for c in context.get("capabilities", {}).get("add", [])}
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all(context["allowPrivilegeEscalation"] is False for context in contexts[1:])
        assert not pod.get("hostNetwork")
        if obj["kind"] == "DaemonSet":
            account = f"system:serviceaccount:{obj['metadata']['namespace']}:{pod['serviceAccountName']}"
            assert account in constraints["users"]
            assert mounted <= set(constraints["volumes"])
            assert added <= set(constraints["allowedCapabilities"])
            assert constraints["allowHostPID"] or not pod.get("hostPID")
            continue
        assert mounted <= RESTRICTED_VOLUMES
        assert not added
        assert not pod.get("hostPID")
        for context in contexts:
            assert not context.keys() & {"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups", "seLinuxOptions"}


RULES: Mapping[str, Callable[[list[Object]], None]] = {
    "aks": on_aks,
    "eks": on_the_pods_network,
    "eks-overlay-network": on_the_nodes_network,
    "gke": on_gke,
    "k3s": with_nvidias_runtime,
    "kind": on_kind,
    "kubeadm": with_nvidias_runtime,
    "openshift": on_openshift,
}


def test_every_profile_has_its_platforms_rules() -> None:
    assert {path.stem for path in (CHART / "profiles").iterdir()} == set(RULES)


@pytest.mark.parametrize("profile", RULES)
def test_a_profile_fits_its_platform_and_is_accepted_by_the_api_server(site: Site, helm: Helm, profile: str) -> None:
    objects = helm.render({}, "--values", str(CHART / f"profiles/{profile}.yaml"))
    RULES[profile](objects)
    known = [o for o in objects if not o["apiVersion"].startswith(OTHER_APIS)]
    site.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(known))


@pytest.mark.parametrize("profile", ["gke", "openshift"])
def test_a_profile_fits_with_all_that_runs_more_pods(helm: Helm, profile: str) -> None:
    more = {"components": {"postgresql": True, "objects": True, "sharepods": True}}
    RULES[profile](helm.render(more, "--values", str(CHART / f"profiles/{profile}.yaml")))


@pytest.mark.parametrize("profile", ["aks", "eks-overlay-network", "gke", "kind", "openshift"])
def test_without_its_profile_a_platforms_rules_are_broken(default: list[Object], profile: str) -> None:
    """Else a rule would say nothing."""
    with pytest.raises((AssertionError, KeyError, ValueError)):
        RULES[profile](default)

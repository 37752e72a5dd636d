# SPDX-License-Identifier: Apache-2.0
"""What the Helm chart makes of its values, what it refuses, and that it fits the platforms it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import yaml
from cluster.harness import binaries
from cluster.harness.helm import Helm
from cluster.harness.kubectl import Object, Refused
from cluster.harness.site import Site
from support import chart as charts
from support import values_schema
from support.chart import CHART, SERVER

from slicekeeper.config import manifests
from slicekeeper.config.foreign_dialects import DIALECTS
from slicekeeper.config.settings import PARTS, Images, Resources
from slicekeeper.config.yaml_file import convert

WORKLOADS = ("Deployment", "DaemonSet")
OTHER_APIS = ("cert-manager.io", "security.openshift.io")
"""What the API server of the suite does not know."""

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def helm(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"), site.kubectl.kubeconfig)


@pytest.fixture(scope="module")
def default(helm: Helm) -> list[Object]:
    """What the chart installs if nothing is said."""
    return helm.render({})


def test_every_rendered_file_is_the_charts(helm: Helm) -> None:
    """The repository has one of them; the others differ from it in what they are named after."""
    program = binaries.HELM.bin / "helm"
    assert charts.stale(program) == [], "render it again: make manifests"
    found = {name: _by_name(charts.render(program, values)) for name, values in charts.CHOICES.items()}
    usual = found.pop("install")
    differ = {
        name: {key for key in {**usual, **objects} if usual.get(key) != objects.get(key)}
        for name, objects in found.items()
    }
    two = ("certificates", "webhook", "scheduler", "timekeeper-forwarder")
    assert differ == {
        "install-observe": {("ConfigMap", "slicekeeper-policy")},
        "install-single": {("Deployment", part) for part in two},
        "install-postgresql": {
            (kind, "timekeeper") for kind in ("Deployment", "PersistentVolumeClaim", "PodDisruptionBudget")
        },
    }


def _by_name(text: str) -> dict[tuple[str, str], Object]:
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}


def test_no_object_is_there_twice_and_none_is_a_job(helm: Helm) -> None:
    """GitOps tools make a Job again that has ended and gone."""
    components = [name for name in values_schema.values()["components"] if name not in ("postgresql", "certManager")]
    objects = helm.render({"components": dict.fromkeys(components, True), "config": {"scheduler": {"shards": ["b"]}}})
    names = [(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in objects]
    assert len(set(names)) == len(names)
    assert "Job" not in {kind for kind, _, _ in names}


RENAMED = {
    "core": "gpu.example/percent", "memory": "gpu.example/blocks", "seat": "gpu.example/seat",
    "device": ["nvidia.com/gpu", "gpu.example/slice-*", "other.example/*"],
}  # fmt: skip
OLD = re.compile(r"tencent\.com/vcuda-(core|memory)(?!-limit)|slicekeeper\.io/seat\b|nvidia\.com/mig-|gpu\.shared")


def test_renamed_resources_hold_everywhere_and_the_api_server_accepts_them(site: Site, helm: Helm) -> None:
    config = {"resources": RENAMED, "webhook": {"schedulerName": "gpu-scheduler"}}
    objects = helm.render({"config": config, "createNamespace": True})
    resources = convert(RENAMED, Resources, "here")
    places = list(manifests.found(manifests.ASKS, _cel(objects)))
    assert {frozenset(place) for place in places} == {frozenset(manifests.names_of(resources))}
    assert len(places) == 12
    assert list(manifests.found(manifests.AMOUNTS, _cel(objects))) == [(resources.core, resources.memory)]
    assert not OLD.search(str(objects))
    config = _kube_scheduler(objects, "slicekeeper-kube-scheduler")
    managed = [{"name": name, "ignoredByScheduler": False} for name in (resources.core, resources.memory)]
    assert config["extenders"][0]["managedResources"] == managed
    assert config["profiles"] == [{"schedulerName": "gpu-scheduler"}]
    site.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(objects))


@pytest.mark.parametrize("device", ["nvidia.com/gpu", ["nvidia.com/*"]])
def test_requests_of_other_systems_come_to_the_webhook_if_the_settings_say_so(helm: Helm, device: object) -> None:
    told = {"foreign": sorted(DIALECTS), "device": device}
    resources = convert(told, Resources, "here")
    text = _cel(helm.render({"config": {"resources": told}}))
    for shape, wanted in (
        (manifests.ASKS, manifests.names_of(resources)),
        (manifests.ANNOTATIONS, manifests.annotations_of(resources)),
        (manifests.LABELS, manifests.labels_of(resources)),
    ):
        assert {frozenset(place) for place in manifests.found(shape, text)} == {frozenset(wanted)}


def test_namespaces_classes_and_audience_hold_everywhere(helm: Helm) -> None:
    config = {
        "policy": {"exemptNamespaces": ["kube-system", "infra", "infra-*"]},
        "timekeeper": {"audience": "budgets.example"},
        "classes": {
            "inBudget": {"name": "gpu-first", "value": 1_000_000, "preemptionPolicy": "Never"},
            "overBudget": {"name": "gpu-lower-priority", "value": -20, "preemptionPolicy": "PreemptLowerPriority"},
        },
    }
    objects = helm.render({"config": config, "components": {"objects": True}})
    spared = ["kube-system", "infra", "slicekeeper-system"]  # our own always, and no pattern
    hooks = [hook for one in objects for hook in one.get("webhooks", []) if "namespaceSelector" in hook]
    assert [hook["namespaceSelector"]["matchExpressions"][0]["values"] for hook in hooks] == [spared] * 7
    assert list(manifests.found(manifests.NAMESPACES, _cel(objects))) == [tuple(spared)] * 2
    assert [match["value"] for match in manifests.LOWER.finditer(_cel(objects))] == ["1000000", "1000000"]
    made = {one["metadata"]["name"]: one for one in objects if one["kind"] == "PriorityClass"}
    assert {name: (one["value"], one["preemptionPolicy"]) for name, one in made.items()} == {
        "gpu-first": (1_000_000, "Never"),
        "gpu-lower-priority": (-20, "PreemptLowerPriority"),
    }
    volumes = [volume for pod in pods(objects).values() for volume in pod["volumes"]]
    sources = [source for volume in volumes for source in volume.get("projected", {}).get("sources", [])]
    tokens = [source["serviceAccountToken"]["audience"] for source in sources if "serviceAccountToken" in source]
    assert tokens == ["budgets.example"] * 2


def test_each_shard_has_a_scheduler_of_its_own(helm: Helm) -> None:
    objects = helm.render({"config": {"scheduler": {"shards": ["b", "c"]}}})
    configs = {suffix: _kube_scheduler(objects, f"slicekeeper-kube-scheduler{suffix}") for suffix in ("", "-b")}
    assert {suffix: _nodes_of(config["profiles"][0]) for suffix, config in configs.items()} == {
        "": ("slicekeeper-scheduler", "NotIn", ["b", "c"]),
        "-b": ("slicekeeper-scheduler-b", "In", ["b"]),
    }
    assert configs["-b"]["leaderElection"]["resourceName"] == "slicekeeper-scheduler-b"
    named = {one["kind"]: one for one in objects if one["metadata"]["name"] == "scheduler-b"}
    assert named.keys() == {"Role", "RoleBinding", "Deployment"}
    assert [subject["name"] for subject in named["RoleBinding"]["subjects"]] == ["scheduler"]
    assert named["RoleBinding"]["roleRef"]["name"] == "scheduler-b"
    leases = {name for rule in named["Role"]["rules"] for name in rule.get("resourceNames", [])}
    assert leases == {"slicekeeper-scheduler-b", "slicekeeper-reclaimer-b", "slicekeeper-binder-b"}
    spec = named["Deployment"]["spec"]
    labels = {"app.kubernetes.io/name": "scheduler", "slicekeeper.io/shard": "b"}
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == labels
    extender = next(one for one in pod_of(named["Deployment"])["containers"] if one["name"] == "extender")
    assert extender["env"] == [{"name": "SLICEKEEPER_SCHEDULER_SHARD", "value": "b"}]
    volumes = pod_of(named["Deployment"])["volumes"]
    mounted = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
    assert mounted == ["slicekeeper-kube-scheduler-b", "slicekeeper-config"]


def _cel(objects: list[Object]) -> str:
    """Return all text of webhooks and guards."""
    return " ".join(_texts([one for one in objects if one["apiVersion"].startswith("admission")]))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for below in value.values() if isinstance(value, dict) else value:
            yield from _texts(below)


def _kube_scheduler(objects: list[Object], name: str) -> Object:
    [found] = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", name)]
    config: Object = yaml.safe_load(found["data"]["kube-scheduler.yaml"])
    return config


def _nodes_of(profile: Object) -> tuple[str, str, list[str]]:
    [setting] = profile["pluginConfig"]
    [term] = setting["args"]["addedAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    [wanted] = term["matchExpressions"]
    assert wanted["key"] == "slicekeeper.io/shard"
    return profile["schedulerName"], wanted["operator"], wanted["values"]


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
        ({"config": {"images": {"tag": "1"}}}, "config.images is set: the chart's own value `images`"),
        ({"config": {"resources": {"core": "gpu"}}}, "config/resources/core.*does not match"),
        ({"config": {"resources": {"core": "a.example/b'"}}}, "config/resources/core.*does not match"),
        ({"config": {"resources": {"device": ["a.example/*/b"]}}}, "config/resources/device"),
        ({"config": {"resources": {"seat": "tencent.com/vcuda-core"}}}, "config.resources names .*vcuda-core twice"),
        ({"config": {"resources": {"core": "nvidia.com/mig-1"}}}, "config.resources names nvidia.com/mig-1 twice"),
        ({"config": {"resources": {"foreign": ["hamm"]}}}, "config/resources/foreign"),
        ({"config": {"policy": {"exemptNamespaces": ["it's"]}}}, "config/policy/exemptNamespaces"),
        ({"config": {"classes": {"inBudget": {"value": "high"}}}}, "config/classes/inBudget/value.*integer"),
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
    assert settings.timekeeper.bind == "0.0.0.0:8444", "beside the chart's own"
    of_workloads = [pod_of(o) for o in objects if o["kind"] in WORKLOADS]
    used = [c["image"] for pod in of_workloads for c in [*pod.get("initContainers", []), *pod["containers"]]]
    parts = [part for part in PARTS if part != "sidecar"]
    assert set(used) == {images.of(part) for part in parts} | {f"registry.k8s.io/kube-scheduler:{SERVER}"}


def test_every_pod_of_ours_pulls_with_the_secrets_of_the_values(helm: Helm) -> None:
    secrets = [{"name": "registry"}, {"name": "mirror"}]
    components = {"postgresql": True, "objects": True}
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

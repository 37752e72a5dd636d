# SPDX-License-Identifier: Apache-2.0
"""The installation, images and settings agree with the release and with each other."""

from __future__ import annotations

import yaml
from support import chart

from images.recipes import RECIPES
from slicekeeper import names
from slicekeeper.config.settings import PARTS, Images, Settings
from slicekeeper.config.yaml_file import convert

INSTALLED = {(one["kind"], one["metadata"]["name"]): one for one in chart.installed()}
SETTINGS = convert(yaml.safe_load((chart.CHART / "files/config.yaml").read_text()), Settings, "config.yaml")


def test_every_image_is_this_releases_and_has_a_recipe() -> None:
    pods = [one["spec"]["template"]["spec"] for one in INSTALLED.values() if one["kind"] in ("Deployment", "DaemonSet")]
    named = {container["image"] for pod in pods for container in pod["containers"]}
    ours = {one for one in named if not one.startswith("registry.k8s.io/kube-scheduler:")}
    assert ours == {Images().of(part) for part in set(RECIPES) - {"sidecar", "objects"}}
    assert set(RECIPES) == set(PARTS)


def test_the_injection_is_the_limiters() -> None:
    assert SETTINGS.webhook.injection == "limiter"


def test_every_server_has_the_certificate_that_is_made_for_it() -> None:
    rules = [rule for kind in ("Role", "ClusterRole") for rule in _rules(kind)]
    for service in SETTINGS.certificates.services:
        assert any(f"{service}-tls" in rule.get("resourceNames", []) for rule in rules)
        assert {"name": "tls", "secret": {"secretName": f"{service}-tls"}} in _volumes(service)
    assert SETTINGS.timekeeper.tls == SETTINGS.webhook.tls != Settings().timekeeper.tls
    home = f"https://timekeeper.{SETTINGS.certificates.namespace}.svc:8444"
    assert SETTINGS.timekeeper_client.url == home
    assert any(rule.get("resourceNames") == [names.CA_CONFIG_MAP] for rule in rules)
    trusted = {"name": names.CA_CONFIG_MAP, "items": [{"key": names.CA_KEY, "path": names.CA_KEY}]}
    assert {"configMap": trusted} in [one for volume in _volumes("webhook") for one in _sources(volume)]


def _rules(kind: str) -> list[chart.Object]:
    return [rule for one in INSTALLED.values() if one["kind"] == kind for rule in one["rules"]]


def _volumes(deployment: str) -> list[chart.Object]:
    found: list[chart.Object] = INSTALLED["Deployment", deployment]["spec"]["template"]["spec"]["volumes"]
    return found


def _sources(volume: chart.Object) -> list[chart.Object]:
    found: list[chart.Object] = volume.get("projected", {}).get("sources", [])
    return found


def test_the_priority_classes_are_those_of_the_settings() -> None:
    for known in (Settings().classes.in_budget, Settings().classes.over_budget):
        installed = INSTALLED["PriorityClass", known.name]
        assert (installed["value"], installed["preemptionPolicy"]) == (known.value, known.preemption_policy)


def test_kube_scheduler_asks_about_the_settings_resources() -> None:
    config = chart.kube_scheduler_config()
    [extender] = config["extenders"]
    resources = Settings().resources
    assert [r["name"] for r in extender["managedResources"]] == [resources.core, resources.memory]
    assert extender["urlPrefix"].endswith(Settings().scheduler.bind)
    assert config["profiles"] == [{"schedulerName": Settings().webhook.scheduler_name}]


def test_the_timekeepers_image_speaks_to_both_databases() -> None:
    assert RECIPES["timekeeper"]["extras"] == ["timekeeper", "postgresql"]

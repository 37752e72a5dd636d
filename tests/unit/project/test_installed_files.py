# SPDX-License-Identifier: Apache-2.0
"""Manifests, images and settings agree with the release and with each other."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from images.recipes import RECIPES
from slicekeeper import __version__, names
from slicekeeper.config.settings import PARTS, Images, Settings
from slicekeeper.config.yaml_file import convert

ROOT = Path(__file__).resolve().parents[3]
BASE = ROOT / "manifests/base"


def test_the_manifests_name_this_release_and_every_image_has_a_recipe() -> None:
    files = [*BASE.glob("*.yaml"), *(BASE.parent / "components").rglob("*.yaml")]
    named = {one for file in files for one in re.findall(r"image: (slicekeeper\S+)", file.read_text())}
    assert named == {Images().of(part) for part in set(RECIPES) - {"sidecar"}}
    assert all(one.endswith(f":{__version__}") for one in named)
    assert set(RECIPES) == set(PARTS)


def test_the_installed_settings_are_valid() -> None:
    settings = convert(yaml.safe_load((BASE / "config/config.yaml").read_text()), Settings, "config.yaml")
    assert settings.webhook.injection == "limiter"


def test_every_server_has_the_certificate_that_is_made_for_it() -> None:
    settings = convert(yaml.safe_load((BASE / "config/config.yaml").read_text()), Settings, "config.yaml")
    rules = (BASE / "certificates.yaml").read_text()
    for service in settings.certificates.services:
        assert f"{service}-tls" in rules
        assert f"secret: {{secretName: {service}-tls}}" in (BASE / f"{service}.yaml").read_text()
    assert settings.timekeeper.tls == settings.webhook.tls != Settings().timekeeper.tls
    home = f"https://timekeeper.{settings.certificates.namespace}.svc:8444"
    assert settings.timekeeper_client.url == home
    assert f"resourceNames: [{names.CA_CONFIG_MAP}]" in rules
    trusted = f"configMap: {{name: {names.CA_CONFIG_MAP}, items: [{{key: {names.CA_KEY}, path: {names.CA_KEY}}}]}}"
    assert trusted in (BASE / "webhook.yaml").read_text()


def test_the_priority_classes_are_those_of_the_settings() -> None:
    classes = {c["metadata"]["name"]: c for c in yaml.safe_load_all((BASE / "priority-classes.yaml").read_text())}
    for known in (Settings().classes.in_budget, Settings().classes.over_budget):
        assert classes[known.name]["value"] == known.value
        assert classes[known.name]["preemptionPolicy"] == known.preemption_policy


def test_kube_scheduler_asks_about_the_settings_resources() -> None:
    config = yaml.safe_load((BASE / "config/kube-scheduler.yaml").read_text())
    [extender] = config["extenders"]
    resources = Settings().resources
    assert [r["name"] for r in extender["managedResources"]] == [resources.core, resources.memory]
    assert extender["urlPrefix"].endswith(Settings().scheduler.bind)
    assert config["profiles"][0]["schedulerName"] == Settings().webhook.scheduler_name


def test_the_timekeepers_image_speaks_to_both_databases() -> None:
    assert RECIPES["timekeeper"]["extras"] == ["timekeeper", "postgresql"]

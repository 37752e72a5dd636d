# SPDX-License-Identifier: Apache-2.0
"""What the settings determine in installed objects, and the settings of an installation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from slicekeeper.config import manifests
from slicekeeper.config.load import load
from slicekeeper.config.policy import SidecarPolicy
from slicekeeper.config.settings import Resources, Settings
from slicekeeper.errors import SettingsError
from webhook.sidecar_container import sidecar_container

DIGEST = "sha256:" + "0123456789abcdef" * 4


def configure(folder: Path, tree: dict[str, Any]) -> Settings:
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(tree))
    return load(config, {}).settings


def test_requests_of_other_systems_come_to_the_webhook_if_the_settings_say_so() -> None:
    resources = Resources(foreign=("kai", "gpushare", "kubeshare"))
    asked = manifests.names_of(resources)
    assert set(asked) > {"aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "nvidia.com/gpu"}
    assert len(set(asked)) == len(asked)
    assert manifests.annotations_of(resources)[-2:] == ("gpu-fraction", "gpu-memory")
    assert manifests.labels_of(resources)[:2] == ("slicekeeper.io/managed", "sharedgpu/gpu_request")


def test_resources_that_a_prefix_of_ours_covers_are_not_named_again() -> None:
    resources = Resources(device=("nvidia.com/*",), foreign=("hami",))
    assert [name for name in manifests.names_of(resources) if name.startswith("nvidia.com/")] == ["nvidia.com/*"]


def test_no_pattern_is_among_the_namespaces_that_are_left_alone(tmp_path: Path) -> None:
    settings = configure(tmp_path, {"policy": {"exemptNamespaces": ["kube-system", "infra", "infra-*"]}})
    assert manifests.left_alone(settings) == ("kube-system", "infra", "slicekeeper-system")


def test_the_sidecars_image_is_that_of_the_settings(tmp_path: Path) -> None:
    settings = configure(tmp_path, {"images": {"registry": "registry.example:5000/gpus", "tag": "1.2.3"}})
    assert sidecar_container(settings, SidecarPolicy())["image"] == "registry.example:5000/gpus/sidecar:1.2.3"
    settings = configure(tmp_path, {"images": {"registry": "registry.example", "digests": {"sidecar": DIGEST}}})
    assert sidecar_container(settings, SidecarPolicy())["image"] == f"registry.example/sidecar@{DIGEST}"


@pytest.mark.parametrize(
    ("images", "told"),
    [
        ({"registry": "slicekeeper"}, "must begin with a host"),
        ({"registry": "library/slicekeeper"}, "must begin with a host"),
        ({"registry": "https://registry.example"}, "must begin with a host"),
        ({"registry": "registry.example/"}, "must begin with a host"),
        ({"registry": "registry.example/UPPER"}, "must begin with a host"),
        ({"tag": "a b"}, "'a b' is not a tag"),
        ({"digests": {"webhok": DIGEST}}, "digests names 'webhok': it must be one of"),
        ({"digests": {"webhook": "sha256:12"}}, "the digest of webhook is 'sha256:12'"),
    ],
)
def test_what_no_image_can_be_called_is_refused(tmp_path: Path, images: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        configure(tmp_path, {"images": images})


def test_a_date_that_is_none_is_an_error_of_its_config_map() -> None:
    with pytest.raises(SettingsError, match="configmap x: config.yaml is not valid YAML: month must be"):
        manifests.parse("webhook: 2026-13-01", "configmap x")

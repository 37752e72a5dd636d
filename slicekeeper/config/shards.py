# SPDX-License-Identifier: Apache-2.0
"""The objects of each additional scheduler in `scheduler.shards`.

These are a Deployment, the right to its leases, and the configuration of its kube-scheduler. They are derived from the
first scheduler's, both for kustomize and for the chart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

from slicekeeper import names
from slicekeeper.config.settings import Settings

FOLDER: Final = "shards"
"""Of the manifests; it has a folder for each shard, which an overlay names among its resources."""

KUBE_SCHEDULER: Final = "slicekeeper-kube-scheduler"
"""The ConfigMap with kube-scheduler's configuration."""

_OWN: Final = (("Role", "scheduler"), ("RoleBinding", "scheduler"), ("Deployment", "scheduler"))
_MADE: Final = "# Made by `slicekeeper config manifests` of scheduler.shards in base/config/config.yaml; edit that.\n"


def files(manifests: Path, settings: Settings) -> Iterator[tuple[Path, str]]:
    """Yield the files of every shard's folder of the manifests, with their contents."""
    base = manifests / "base"
    objects = list(yaml.safe_load_all((base / "scheduler.yaml").read_text("utf-8")))
    config = yaml.safe_load((base / "config/kube-scheduler.yaml").read_text("utf-8"))
    first = yaml.safe_load((base / "kustomization.yaml").read_text("utf-8"))
    for subject in (subject for obj in objects for subject in obj.get("subjects", [])):
        subject["namespace"] = first["namespace"]  # kustomize fills it in beside the account alone
    for shard in settings.scheduler.shards:

        def own(name: str, shard: str = shard) -> str:
            return f"{name}-{shard}"

        config["profiles"] = [{"schedulerName": settings.scheduler_name(shard), **affinity("In", [shard])}]
        config["leaderElection"]["resourceName"] = own("slicekeeper-scheduler")
        texts = {
            "kustomization.yaml": yaml.safe_dump(_kustomization(first, own(KUBE_SCHEDULER)), sort_keys=False),
            "scheduler.yaml": yaml.safe_dump_all(shards_own(objects, own, shard), sort_keys=False),
            "kube-scheduler.yaml": yaml.safe_dump(config, sort_keys=False),
        }
        for name, text in texts.items():
            yield manifests / FOLDER / shard / name, _MADE + text


def shards_own(objects: Sequence[dict[str, Any]], own: Callable[[str], str], shard: str) -> list[dict[str, Any]]:
    """Return a shard's own objects; `own` derives the shard's name of an object from the first scheduler's."""
    found = [obj for obj in map(deepcopy, objects) if (obj["kind"], obj["metadata"]["name"]) in _OWN]
    for obj in found:
        obj["metadata"]["name"] = own("scheduler")
        if obj["kind"] == "Role":
            for rule in (rule for rule in obj["rules"] if "resourceNames" in rule):
                rule["resourceNames"] = [own(name) for name in rule["resourceNames"]]
        elif obj["kind"] == "RoleBinding":
            obj["roleRef"]["name"] = own("scheduler")
        else:
            _deployment(obj["spec"], own, shard)
    return found


def affinity(operator: str, values: Sequence[str]) -> dict[str, Any]:
    """Return the setting that limits a kube-scheduler's profile to some nodes: it does not ask about the others."""
    terms = [{"matchExpressions": [{"key": names.SHARD, "operator": operator, "values": list(values)}]}]
    added = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"pluginConfig": [{"name": "NodeAffinity", "args": {"addedAffinity": added}}]}


def _deployment(spec: dict[str, Any], own: Callable[[str], str], shard: str) -> None:
    pod = spec["template"]["spec"]
    spread = [constraint["labelSelector"]["matchLabels"] for constraint in pod["topologySpreadConstraints"]]
    for labels in (spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"], *spread):
        labels[names.SHARD] = shard
    [extender] = [container for container in pod["containers"] if container["name"] == "extender"]
    extender["env"] = [{"name": f"{names.ENV_PREFIX}SCHEDULER_SHARD", "value": shard}]
    for volume in pod["volumes"]:
        if volume.get("configMap", {}).get("name") == KUBE_SCHEDULER:
            volume["configMap"]["name"] = own(KUBE_SCHEDULER)


def _kustomization(first: Mapping[str, Any], config_map: str) -> dict[str, Any]:
    return {
        **{key: first[key] for key in ("apiVersion", "kind", "namespace", "labels", "images")},
        "resources": ["scheduler.yaml"],
        "configMapGenerator": [{"name": config_map, "files": ["kube-scheduler.yaml"]}],
    }

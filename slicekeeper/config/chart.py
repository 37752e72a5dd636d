# SPDX-License-Identifier: Apache-2.0
"""Generate the Helm chart from what kustomize renders of the base, alone and with each of its components.

If a component's objects differ from the base's, the template tests a value with the component's name. What the chart
has beyond that is text of its own (`_helpers.tpl`, `config.yaml`, `NOTES.txt`): the ConfigMaps, which are made of
values, and what a value may not be. Everything else comes from the manifests, so the two ways to install cannot differ:
it is in `templates/generated`, which has nothing else.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from slicekeeper.config import manifests, shards
from slicekeeper.config.chart_template import MISSING, Code, template
from slicekeeper.config.policy import NamespacePolicy, NamespaceRule
from slicekeeper.config.settings import PARTS, SHARD, Settings
from slicekeeper.errors import SettingsError

Kustomize = Callable[[Path], str]
"""Renders a folder that has a kustomization.yaml."""

_Objects = dict[tuple[str, str], dict[str, Any]]
"""By kind and name."""

_BY_MODE: Final = "observe"
"""The component without a value of its name: `mode` selects it."""

_GENERATED: Final = "# Made by `slicekeeper config chart` of the manifests beside this folder; edit those, not this.\n"
_TEMPLATES: Final = "templates/generated"
_HASHED: Final = re.compile(r"\b(slicekeeper-(?:config|kube-scheduler))-[0-9a-z]{10}\b")
_IMAGE: Final = re.compile(rf"\S+/(?P<part>{'|'.join(PARTS)})(?:[:@]\S+)?")
_KUBE_SCHEDULER: Final = re.compile(r"\S*/kube-scheduler(?:[:@]\S+)?")
_FILES: Final = ("config.yaml", "kube-scheduler.yaml", "policy.yaml")
_READ_ONCE: Final = {
    manifests.CONFIG_MAP: '{{ include "slicekeeper.settings" . | sha256sum }}',
    shards.KUBE_SCHEDULER: '{{ .Files.Get "files/kube-scheduler.yaml" | sha256sum }}',
}
_EACH_SHARD: Final = (
    '{{- range $shard := (include "slicekeeper.settings" . | fromYaml).scheduler.shards }}\n{{- with $ }}'
)
_KUBECTL_SECONDS: Final = 60
_NAME_OR_PATTERN: Final = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?|[-a-z0-9!\]]*[*?\[][-a-z0-9*?!\[\]]*)$"


def kubectl(folder: Path) -> str:
    """Render a folder with this machine's kubectl. Raises SettingsError if that fails."""
    try:
        done = subprocess.run(  # noqa: S603 - a folder of this machine's user
            ["kubectl", "kustomize", str(folder)],  # noqa: S607 - the user's own, wherever it is
            capture_output=True,
            text=True,
            check=False,
            timeout=_KUBECTL_SECONDS,
        )
    except FileNotFoundError as error:
        raise SettingsError("no kubectl on PATH: it renders the manifests that the chart is made of") from error
    if done.returncode != 0:
        raise SettingsError(f"kubectl kustomize {folder}: {done.stderr.strip()}")
    return done.stdout


def write(folder: Path, *, dry: bool = False, kustomize: Kustomize = kubectl) -> list[Path]:
    """Update `chart` in a folder of manifests from the rest of the folder; return what changed.

    `dry` writes nothing. Raises SettingsError if the manifests cannot be rendered, or if two components change the same
    field.
    """
    chart = folder / "chart"
    wanted = {chart / name: text for name, text in _chart(folder, kustomize).items()}
    for name in _FILES:
        wanted[chart / "files" / name] = (folder / "base/config" / name).read_text("utf-8")
    changed = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
    former = [path for path in (chart / _TEMPLATES).glob("*.yaml") if path not in wanted]
    if not dry:
        for path in changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], "utf-8")
        for path in former:
            path.unlink()
    return [*changed, *former]


def components(folder: Path) -> list[str]:
    """Return the names of the components that are values of the chart."""
    found = (path.parent.name for path in (folder / "components").glob("*/kustomization.yaml"))
    return sorted(name for name in found if name != _BY_MODE)


def component_value(component: str) -> str:
    """Return the name of a component's value in the chart: `certManager` for `cert-manager`."""
    first, *rest = component.split("-")
    return first + "".join(word.capitalize() for word in rest)


def _chart(folder: Path, kustomize: Kustomize) -> dict[str, str]:
    base = _rendered(folder, "", kustomize)
    variants = {
        f".Values.components.{component_value(name)}": _rendered(folder, name, kustomize) for name in components(folder)
    }
    of_shards = _of_each_shard(base, variants)
    homes = dict(_homes(folder))
    texts: dict[str, list[str]] = {}
    for key in dict.fromkeys((*base, *(key for objects in variants.values() for key in objects))):
        of_each = {condition: objects.get(key, MISSING) for condition, objects in variants.items()}
        lines = template(" ".join(key), base.get(key, MISSING), of_each)
        texts.setdefault(homes[key], []).extend(["---", *lines])
    if of_shards:
        texts["shards"] = [_EACH_SHARD, *of_shards, "{{- end }}", "{{- end }}"]
    files = {f"{_TEMPLATES}/{home}.yaml": _GENERATED + "\n".join(lines) + "\n" for home, lines in sorted(texts.items())}
    return {**files, "values.schema.json": json.dumps(schema(folder), indent=2) + "\n"}


def _of_each_shard(base: _Objects, variants: Mapping[str, _Objects]) -> list[str]:
    """Return what each shard's scheduler has of its own, with `$shard` for the shard's name."""

    def own(objects: _Objects) -> _Objects:
        found = shards.shards_own(list(objects.values()), _own_name, Code("{{ $shard | quote }}"))
        return {(obj["kind"], obj["metadata"]["name"]): obj for obj in found}

    of_variants = {condition: own(objects) for condition, objects in variants.items()}
    lines = []
    for key, obj in own(base).items():
        of_each = {condition: objects.get(key, MISSING) for condition, objects in of_variants.items()}
        lines += ["---", *template(" ".join(key), obj, of_each)]
    return lines


def _own_name(name: str) -> str:
    return Code(f"{name}-{{{{ $shard }}}}")


def _rendered(folder: Path, component: str, kustomize: Kustomize) -> _Objects:
    """Return the objects of the base, optionally with a component, by kind and name, in the chart's form."""
    with tempfile.TemporaryDirectory() as made:
        here = Path(made).resolve()
        near = Path(os.path.relpath(folder.resolve(), here))
        wanted = {"resources": [str(near / "base")]}
        if component:
            wanted["components"] = [str(near / "components" / component)]
        (here / "kustomization.yaml").write_text(yaml.safe_dump(wanted), "utf-8")
        text = _HASHED.sub(r"\1", kustomize(here))
    objects = [obj for obj in yaml.safe_load_all(text) if obj["kind"] not in ("Namespace", "ConfigMap")]
    return {(obj["kind"], obj["metadata"]["name"]): _in_chart(obj) for obj in objects}


def _homes(folder: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the file of the manifests, or the component, that contains each object."""
    for path in sorted(folder.glob("base/*.yaml")) + sorted(folder.glob("components/*/*.yaml")):
        name = path.stem if path.parent.name == "base" else path.parent.name
        for obj in yaml.safe_load_all(path.read_text("utf-8")):
            if isinstance(obj, dict) and "metadata" in obj:
                yield (obj["kind"], obj["metadata"]["name"]), name


def _in_chart(obj: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the changes that Helm needs."""
    found: dict[str, Any] = _with_values(obj)
    metadata = found["metadata"]
    if found["kind"] == "PersistentVolumeClaim":  # the ledger outlives `helm uninstall`
        metadata["annotations"] = {"helm.sh/resource-policy": "keep"}
    if found["kind"] == "Deployment" and metadata["name"] == "timekeeper":
        found["spec"]["replicas"] = Code(
            f"{{{{ .Values.timekeeper.replicas | default {obj['spec']['replicas']} | int }}}}"
        )
    if found["kind"] in ("Deployment", "DaemonSet"):
        pod = found["spec"]["template"]
        pod["spec"]["imagePullSecrets"] = Code("{{ toJson .Values.imagePullSecrets }}")
        # A changed ConfigMap keeps its name: this restarts its readers.
        if read := {
            f"slicekeeper.io/{name.removeprefix('slicekeeper-')}": Code(_READ_ONCE[name])
            for name in _read_once(pod["spec"])
        }:
            pod["metadata"]["annotations"] = read
    return found


def _read_once(pod: dict[str, Any]) -> Iterator[str]:
    """Yield the ConfigMaps that a pod mounts and its programs read when they start."""
    for volume in pod.get("volumes") or []:
        for source in (volume, *(volume.get("projected") or {}).get("sources", [])):
            name = (source.get("configMap") or {}).get("name")
            if name in _READ_ONCE:
                yield name


def _with_values(value: Any, key: str = "") -> Any:
    """Return a tree with templates for the chart's values, and with all other text escaped."""
    if isinstance(value, dict):
        return {below: _with_values(one, below) for below, one in value.items()}
    if isinstance(value, list):
        return [_with_values(one) for one in value]
    if not isinstance(value, str):
        return value
    if key == "image":
        if found := _IMAGE.fullmatch(value):
            return Code(f'{{{{ include "slicekeeper.image" (list "{found["part"]}" .) }}}}')
        if _KUBE_SCHEDULER.fullmatch(value):
            return Code('{{ include "slicekeeper.kubeScheduler" . }}')
    if key == "name" and value == "timekeeper-database":
        return Code("{{ .Values.databaseSecret }}")
    return value


def schema(folder: Path) -> dict[str, Any]:
    """Return the schema of the values, with the settings' and the policy's own types."""
    _, known = msgspec.json.schema_components((Settings, NamespacePolicy, NamespaceRule), ref_template="#/$defs/{name}")
    for one in known.values():
        one.pop("required", None)
        if "description" in one:
            one["description"] = inspect.cleandoc(one["description"])  # Python 3.13 does so by itself
        for below in one.get("properties", {}).values():
            below.pop("default", None)
    rule = known.pop("NamespaceRule")
    policy = known["NamespacePolicy"]
    policy["properties"]["mode"] = {
        "enum": [*policy["properties"]["mode"]["enum"], False]
    }  # YAML 1.1 reads `off` as false
    entry = {**policy, "properties": {**rule["properties"], **policy["properties"]}, "required": ["match"]}
    # Helm must refuse what the parts would refuse after it has installed them; `_helpers.tpl` has what a schema cannot.
    for path, bounds in _bounds_of_policies(folder):
        _field(known, "NamespacePolicy", path).update(bounds)
    name = {**rule["properties"]["match"]["items"], "pattern": _NAME_OR_PATTERN}
    entry["properties"]["match"] = {
        "anyOf": [name, {"type": "array", "items": name, "minItems": 1, "uniqueItems": True}]
    }
    known["SchedulerSettings"]["properties"]["shards"] |= {
        "items": {"type": "string", "pattern": f"^{SHARD.pattern}$"},
        "uniqueItems": True,
    }
    images = known["Images"]["properties"]
    properties = {
        "images": {
            **known["Images"],
            "properties": {
                # A host is needed: without one it would be a public registry's, in which anyone may take the name.
                "registry": {"type": "string", "pattern": r"^(|[^/]*[.:][^/]*(/.+)?|localhost(/.+)?)$"},
                "tag": images["tag"],
                "digests": _closed(**{part: {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"} for part in PARTS}),
            },
        },
        "mode": {"enum": ["observe", "enforce"]},
        "policy": _closed(default={"$ref": "#/$defs/NamespacePolicy"}, namespaces={"type": "array", "items": entry}),
        "config": {"$ref": "#/$defs/Settings"},
        "kubeScheduler": _closed(
            image={"type": "string", "minLength": 1}, version={"type": "string", "pattern": r"^(v\d+\.\d+\.\d+)?$"}
        ),
        "imagePullSecrets": {
            "type": "array",
            "items": {**_closed(name={"type": "string", "minLength": 1}), "required": ["name"]},
        },
        "timekeeper": _closed(replicas={"type": "integer", "minimum": 0}),
        "databaseSecret": {"type": "string", "minLength": 1},
        "components": _closed(**{component_value(name): {"type": "boolean"} for name in components(folder)}),
        "global": {"type": "object"},
    }
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_closed(**properties), "$defs": known}


def _bounds_of_policies(folder: Path) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the path of each text of a GpuPolicy that has a pattern, with what limits it."""
    file = folder / "components/objects/gpupolicies.yaml"
    if not file.is_file():
        return
    [version] = yaml.safe_load(file.read_text("utf-8"))["spec"]["versions"]
    waiting: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        ((), version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    ]
    while waiting:
        path, below = waiting.pop()
        if "pattern" in below:
            yield path, {key: below[key] for key in ("pattern", "minLength", "maxLength") if key in below}
        waiting += [((*path, key), one) for key, one in below.get("properties", {}).items()]
        if "items" in below:
            waiting.append(((*path, "items"), below["items"]))


def _field(known: dict[str, Any], name: str, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of one field of a type of the settings."""
    found: dict[str, Any] = known[name]
    for key in path:
        found = found["items"] if key == "items" else found["properties"][key]
        reference = next((one["$ref"] for one in [found, *found.get("allOf", [])] if "$ref" in one), "")
        if reference:
            found = known[reference.rpartition("/")[2]]
    return found


def _closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}

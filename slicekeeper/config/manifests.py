# SPDX-License-Identifier: Apache-2.0
"""The parts of the manifests that the settings determine: write them, and compare them with the installed objects.

These are the images; the resources that the webhook is asked about, those of the node guard, and those that
kube-scheduler asks its extender about; the namespaces that webhooks and guards ignore; the two PriorityClasses; and the
audience of the tokens with which the webhook authenticates to the timekeeper. The manifests have comments for people,
so only these places are rewritten. Each is recognised by its shape and not by the names in it, so they can be rewritten
again and again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import yaml

from slicekeeper import names
from slicekeeper.config import shards
from slicekeeper.config.foreign_dialects import DIALECTS
from slicekeeper.config.load import load
from slicekeeper.config.patterns import is_pattern
from slicekeeper.config.resource_names import is_named
from slicekeeper.config.settings import PARTS, Classes, Resources, Settings
from slicekeeper.config.yaml_file import check_keys, convert
from slicekeeper.errors import SettingsError

HOME: Final = "slicekeeper-system"
"""The namespace that the manifests install into."""

CONFIG_MAP: Final = "slicekeeper-config"
CONFIG_KEY: Final = "config.yaml"
_OURS: Final = "app.kubernetes.io/part-of: slicekeeper"

ASKS: Final = re.compile(
    r"exists\(resource,\s+resource\s+in\s+\[(?P<names>[^\]]*)\]"
    r"(?:\s+\|\|\s+\[(?P<beginnings>[^\]]*)\]\.exists\(prefix,\s+resource\.startsWith\(prefix\)\))?\)"
)
"""In CEL: a container names one of our resources."""

ANNOTATIONS: Final = re.compile(
    r"annotations\.orValue\(\{\}\)\.exists\(k, k\.startsWith\('+gpu\.slicekeeper\.io/'+\) \|\|"
    r"\s+k in \[(?P<names>[^\]]*)\]"
)
"""In CEL: a pod has one of the annotations that we write, or that request GPUs."""

LABELS: Final = re.compile(r"labels\.orValue\(\{\}\)\.exists\(k, k in \[(?P<names>[^\]]*)\]")
"""In CEL: a pod has one of the labels that we write, or that request GPUs."""

AMOUNTS: Final = re.compile(r"\[(?P<names>[^\]]*)\]\.exists\(amount,")
"""In CEL: a node's capacity of one of our resources."""

NAMESPACES: Final = re.compile(r"request\.namespace\s+in\s+\[(?P<names>[^\]]*)\]")
"""In CEL: a request concerns a namespace that is never touched."""

LOWER: Final = re.compile(
    r"(?P<before>priority\.orValue\(0\)\s+<\s+|pods\s+with\s+a\s+priority\s+below\s+)(?P<value>-?\d+)"
)
"""In CEL and in its message: a pod's priority is below that of GPU pods in budget."""

_SELECTOR: Final = re.compile(
    r"^(?P<before> *- key: kubernetes\.io/metadata\.name\n *operator: NotIn\n(?P<indent> *)values:)"
    r"(?: \[(?P<flow>[^\]]*)\]\n|\n(?P<block>(?:(?P=indent) *- \S+\n)+))",
    re.M,
)
_CLASS: Final = re.compile(r"^kind: PriorityClass$", re.M)
_CLASS_STATE: Final = re.compile(
    rf"{re.escape(names.BUDGET_STATE)}: (?P<state>{names.IN_BUDGET}|{names.OVER_BUDGET})\b"
)
_AUDIENCE: Final = re.compile(r"(?P<before>serviceAccountToken:\s+\{?\s*audience: )(?P<audience>\"[^\"]*\"|[^\s,}]+)")
_PLAIN: Final = re.compile(r"[A-Za-z][-\w./]*(?::[-\w./]+)*")
"""Text that needs no quotes in YAML."""

_MANAGED: Final = re.compile(
    r"^(?P<indent> *)managedResources:\n(?:(?P=indent) *- \{name: \S+, ignoredByScheduler: false\}(?:\n|\Z))+", re.M
)
_PROFILE: Final = re.compile(
    r"^(?P<before> *profiles:\n(?P<indent> *)- schedulerName: )\S+\n(?:(?P=indent)  pluginConfig: .+\n)?", re.M
)
_IMAGE: Final = re.compile(rf"^(?P<before> *(?:- )?image: )\S+/(?P<part>{'|'.join(PARTS)})(?:[:@]\S+)?$", re.M)


def asks(resources: Resources) -> str:
    """Return the CEL that tests whether `resource` is one for which the webhook is called."""
    wanted = names_of(resources)
    exact = [name for name in wanted if not name.endswith("*")]
    beginnings = [name[:-1] for name in wanted if name.endswith("*")]
    rest = f" || {_listed(beginnings)}.exists(prefix, resource.startsWith(prefix))" if beginnings else ""
    return f"exists(resource, resource in {_listed(exact)}{rest})"


def names_of(resources: Resources) -> tuple[str, ...]:
    """Return the resources for which a pod is sent to the webhook; a trailing `*` matches any suffix."""
    foreign = [name for dialect in resources.foreign for name in DIALECTS[dialect].resources]
    own = (resources.core, resources.memory, resources.seat, *resources.devices)
    return (*own, *(name for name in dict.fromkeys(foreign) if not is_named(name, own)))


def annotations_of(resources: Resources) -> tuple[str, ...]:
    """Return the full names of the annotations for which a pod is sent to the webhook."""
    foreign = [name for dialect in resources.foreign for name in DIALECTS[dialect].annotations]
    return (names.BOUND_AT, names.SHARING_MODE, names.BUDGET_STATE, *foreign)


def labels_of(resources: Resources) -> tuple[str, ...]:
    """Return the labels for which a pod is sent to the webhook."""
    return (names.MANAGED_LABEL, *(name for dialect in resources.foreign for name in DIALECTS[dialect].labels))


def left_alone(settings: Settings, home: str = HOME) -> tuple[str, ...]:
    """Return the names of namespaces for which no webhook is called: exempt ones, and that of the parts themselves.

    Only names, because a selector has no patterns: for namespaces that a pattern exempts, the webhook is called and
    admits the pod.
    """
    exempt = (name for name in settings.policy.exempt_namespaces if not is_pattern(name))
    return tuple(dict.fromkeys((*exempt, home)))


def found(shape: re.Pattern[str], text: str) -> Iterator[tuple[str, ...]]:
    """Return the names in each place of one shape (`ASKS`, `AMOUNTS`, `NAMESPACES`)."""
    return map(_names_in, shape.finditer(text))


def render(text: str, settings: Settings) -> str:
    """Return manifests with the parts that the settings determine."""
    resources = settings.resources
    amounts = (resources.core, resources.memory)
    text = ASKS.sub(lambda match: _like(match, names_of(resources), asks(resources)), text)
    for shape, wanted in ((ANNOTATIONS, annotations_of(resources)), (LABELS, labels_of(resources))):
        text = shape.sub(partial(_with_names, wanted=wanted), text)
    text = AMOUNTS.sub(lambda match: _like(match, amounts, f"{_listed(amounts)}.exists(amount,"), text)
    text = _MANAGED.sub(lambda match: _managed(match["indent"], resources), text)
    spared = left_alone(settings)
    text = NAMESPACES.sub(lambda match: _like(match, spared, f"request.namespace in {_listed(spared)}"), text)
    text = _SELECTOR.sub(lambda match: _selector(match, spared), text)
    text = LOWER.sub(lambda match: f"{match['before']}{settings.classes.in_budget.value}", text)
    text = "".join(_class(part, settings.classes) for part in re.split(r"(^---\n)", text, flags=re.M))
    text = _AUDIENCE.sub(lambda match: f"{match['before']}{_scalar(settings.timekeeper.audience)}", text)
    text = _PROFILE.sub(lambda match: _profile(match, settings), text)
    return _IMAGE.sub(lambda match: f"{match['before']}{settings.images.of(match['part'])}", text)


def write(path: Path, *, dry: bool = False) -> list[Path]:
    """Update a folder of manifests, or one rendered file, from the settings; return what changed.

    The settings are those of the manifests: `base/config/config.yaml` of a folder, the ConfigMap in a file. `dry`
    writes nothing. Raises SettingsError if there are none, or if they are wrong.
    """
    if path.is_dir():
        config = path / "base/config/config.yaml"
        settings = load(config, {}).settings
        files = sorted(file for part in ("base", "components") for file in (path / part).rglob("*.yaml"))
        texts = {file: render(file.read_text("utf-8"), settings) for file in files if file != config}
        texts |= shards.files(path, settings)
    else:
        text = _read(path)
        settings = _settings_in(text, path)
        parts = re.split(r"(^---\n)", text, flags=re.M)
        texts = {path: "".join(render(part, settings) if _OURS in part else part for part in parts)}
    changed = [file for file, text in texts.items() if not file.is_file() or text != file.read_text("utf-8")]
    for file in changed if not dry else ():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(texts[file], "utf-8")
    return changed


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read; name the folder `manifests` or a rendered file") from error


def _settings_in(text: str, path: Path) -> Settings:
    try:
        objects = [obj for obj in yaml.safe_load_all(text) if isinstance(obj, dict)]
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no number or date
        raise SettingsError(f"{path}: not valid YAML: {error}") from error
    for obj in objects:
        if obj.get("kind") == "ConfigMap" and str((obj.get("metadata") or {}).get("name")).startswith(CONFIG_MAP):
            return parse(str((obj.get("data") or {}).get(CONFIG_KEY, "")), f"{path}: ConfigMap {CONFIG_MAP}")
    raise SettingsError(f"{path}: no ConfigMap {CONFIG_MAP} in it, which has the settings; render a whole overlay")


def parse(text: str, where: str) -> Settings:
    """Return the settings of an installation's `config.yaml`."""
    try:
        tree = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{where}: {CONFIG_KEY} is not valid YAML: {error}") from error
    check_keys(tree, Settings, where)
    return convert(tree, Settings, where)


def _profile(match: re.Match[str], settings: Settings) -> str:
    line = f"{match['before']}{settings.webhook.scheduler_name}\n"
    if not settings.scheduler.shards:
        return line
    [(key, value)] = shards.affinity("NotIn", settings.scheduler.shards).items()
    return f"{line}{match['indent']}  {key}: {json.dumps(value)}\n"


def _managed(indent: str, resources: Resources) -> str:
    lines = [
        f"{indent}  - {{name: {name}, ignoredByScheduler: false}}\n" for name in (resources.core, resources.memory)
    ]
    return f"{indent}managedResources:\n{''.join(lines)}"


def _selector(match: re.Match[str], wanted: tuple[str, ...]) -> str:
    there = (
        re.findall(r"[^\s,]+", match["flow"]) if match["flow"] is not None else re.findall(r"- (\S+)", match["block"])
    )
    if set(there) == set(wanted):
        return match[0]
    if match["flow"] is not None:
        return f"{match['before']} [{', '.join(wanted)}]\n"
    indent = match["block"].partition("-")[0]
    return "".join((match["before"], "\n", *(f"{indent}- {name}\n" for name in wanted)))


def _class(text: str, classes: Classes) -> str:
    """Return one object's text; a PriorityClass of ours, identified by its label, follows the settings."""
    state = _CLASS_STATE.search(text)
    if state is None or not _CLASS.search(text):
        return text
    known = classes.in_budget if state["state"] == names.IN_BUDGET else classes.over_budget
    for key, value in (
        ("  name", _scalar(known.name)),
        ("value", known.value),
        ("preemptionPolicy", known.preemption_policy),
    ):
        text = re.sub(rf"^{key}: .+$", f"{key}: {value}", text, flags=re.M)
    return text


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _names_in(match: re.Match[str]) -> tuple[str, ...]:
    parts = match.groupdict()
    return (*_quoted(parts["names"]), *(f"{beginning}*" for beginning in _quoted(parts.get("beginnings") or "")))


def _like(match: re.Match[str], wanted: tuple[str, ...], text: str) -> str:
    """Return CEL quoted as what it replaces: kustomize writes some of it as YAML strings in single quotes.

    A list of the same resources stays unchanged, wherever its lines break.
    """
    if set(_names_in(match)) == set(wanted):
        return match[0]
    return text.replace("'", "''") if "''" in match[0] else text


def _with_names(match: re.Match[str], wanted: tuple[str, ...]) -> str:
    """Return CEL that differs only in its list of names."""
    text = match[0].replace(f"[{match['names']}]", _listed(wanted))
    return _like(match, wanted, text.replace("''", "'"))


def _listed(texts: Iterable[str]) -> str:
    return f"[{', '.join(repr(text) for text in texts)}]"


def _quoted(text: str) -> list[str]:
    return re.findall(r"'+([^']+)'+", text)

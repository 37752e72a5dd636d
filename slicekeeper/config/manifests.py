# SPDX-License-Identifier: Apache-2.0
"""The parts of the installed objects that the settings determine, as the Helm chart writes them: for comparisons.

These are the resources that the webhook is asked about, and those of the node guard; the namespaces that webhooks and
guards ignore; and the priority below which the scheduler may preempt other pods. Each place in CEL is recognised by its
shape and not by the names in it, so that names which differ from the settings' are found too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from slicekeeper import names
from slicekeeper.config.foreign_dialects import DIALECTS
from slicekeeper.config.patterns import is_pattern
from slicekeeper.config.resource_names import is_named
from slicekeeper.config.settings import Resources, Settings
from slicekeeper.config.yaml_file import check_keys, convert
from slicekeeper.errors import SettingsError

HOME: Final = "slicekeeper-system"
"""The namespace that the chart installs into."""

CONFIG_MAP: Final = "slicekeeper-config"
CONFIG_KEY: Final = "config.yaml"

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


def parse(text: str, where: str) -> Settings:
    """Return the settings of an installation's `config.yaml`."""
    try:
        tree = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{where}: {CONFIG_KEY} is not valid YAML: {error}") from error
    check_keys(tree, Settings, where)
    return convert(tree, Settings, where)


def _names_in(match: re.Match[str]) -> tuple[str, ...]:
    parts = match.groupdict()
    return (*_quoted(parts["names"]), *(f"{beginning}*" for beginning in _quoted(parts.get("beginnings") or "")))


def _quoted(text: str) -> list[str]:
    return re.findall(r"'+([^']+)'+", text)

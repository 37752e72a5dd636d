# SPDX-License-Identifier: Apache-2.0
"""Read the settings, once, from a YAML file and the environment, and record where each came from.

`SLICEKEEPER_WEBHOOK_BIND` overrides `webhook.bind`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from slicekeeper import names
from slicekeeper.config.settings import Section, Settings
from slicekeeper.config.yaml_file import check_keys, convert, lookup, read_yaml
from slicekeeper.errors import SettingsError

_OTHER_VARIABLES = (names.ENV_PREFIX + "CONFIG", names.ENV_PREFIX + "HOME", names.ENV_PREFIX + "CACHE")
_IN_CONTAINERS = re.compile(names.ENV_PREFIX + "(SEAT|LIMITER|FAKE_.*)")
"""What a container with a slice has in its environment: the limiter and its seat, the fake driver's variables."""

_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?)")
"""What kubelet adds to a container's environment for each Service of its namespace."""


@dataclass(frozen=True)
class Key:
    """One setting: its dotted path in YAML, its variable, documentation, type and default."""

    path: tuple[str, ...]
    kind: str
    default: Any
    text: str

    @property
    def dotted(self) -> str:
        """The path as it is written in messages."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The environment variable that overrides it."""
        return names.ENV_PREFIX + "_".join(map(_snake_case, self.path)).upper()

    def of(self, settings: Section) -> Any:
        """Return the value that a settings tree has for it."""
        return reduce(getattr, map(_snake_case, self.path), settings)


def _snake_case(name: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()


def keys(section: Section | None = None, path: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield every setting with its default, in the order of the documentation."""
    section = section or Settings()
    hints = get_type_hints(type(section), include_extras=True)
    for item in msgspec.structs.fields(section):
        value = getattr(section, item.name)
        here = (*path, item.encode_name)
        if isinstance(value, Section):
            yield from keys(value, here)
            continue
        hint = hints[item.name]
        texts = [m.description for m in getattr(hint, "__metadata__", ()) if m.description]
        yield Key(here, _kind(hint), value, texts[0] if texts else "")


def _kind(hint: Any) -> str:
    base = hint.__origin__ if hasattr(hint, "__metadata__") else hint
    if getattr(base, "__origin__", None) is Literal:
        return " | ".join(base.__args__)
    return str(base).replace("typing.", "") if hasattr(base, "__args__") else str(base.__name__)


@dataclass(frozen=True)
class Loaded:
    """Settings in force, and where each that is not a default came from."""

    settings: Settings
    origin: Mapping[str, str]


def load(file: Path | None, environ: Mapping[str, str]) -> Loaded:
    """Read settings from a YAML file (None: none) and the environment.

    Raises SettingsError that names the key, its value, and the remedy.
    """
    tree: dict[str, Any] = {}
    origin: dict[str, str] = {}
    known = {key.path: key for key in keys()}
    if file is not None:
        tree = read_yaml(file).tree
        check_keys(tree, Settings, str(file))
        for path in known:
            if lookup(tree, path) is not None:
                origin[".".join(path)] = str(file)
    variables = {key.variable: key for key in known.values()}
    for variable, text in environ.items():
        key = variables.get(variable)
        if key is None:
            _check_variable(variable, variables)
            continue
        value: Any = text.split(",") if key.kind.startswith("tuple") else text
        if key.kind.startswith("tuple") and not text:
            value = []
        elif key.kind.startswith("dict"):
            value = dict(pair.partition("=")[::2] for pair in text.split(",") if pair)
        _insert(tree, key.path, value)
        origin[key.dotted] = f"${variable}"
    allowed = {key.dotted: key.kind for key in known.values()}
    return Loaded(convert(tree, Settings, "settings", allowed), origin)


def _check_variable(variable: str, known: Mapping[str, Key]) -> None:
    """Refuse a variable with our prefix that is no setting; Kubernetes' service links are ignored."""
    if not variable.startswith(names.ENV_PREFIX) or variable in _OTHER_VARIABLES:
        return
    if _IN_CONTAINERS.fullmatch(variable) or _SERVICE_LINK.fullmatch(variable):
        return
    near = difflib.get_close_matches(variable, known, 1, 0.5)
    remedy = f"did you mean {near[0]}?" if near else "see `slicekeeper config show`"
    raise SettingsError(f"environment: unknown variable {variable}; {remedy}")


def _insert(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        below = tree.get(part)
        if not isinstance(below, dict):
            below = tree[part] = {}
        tree = below
    tree[path[-1]] = value

# SPDX-License-Identifier: Apache-2.0
"""Read a YAML file that a person wrote, and report errors with their lines.

The error names an unknown key and the nearest known one, both lines of a key that appears twice, or the key of a value
of the wrong type and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import yaml

from slicekeeper import typed_json
from slicekeeper.errors import SettingsError

T = TypeVar("T", bound=msgspec.Struct)

Where = str | Callable[[tuple[str, ...]], str]
"""The place to name in a message: the same for all of a tree, or one for each path below."""


class Document(NamedTuple):
    """A YAML file's mapping, and the line of each part of it."""

    tree: dict[str, Any]
    root: yaml.Node | None
    text: str

    def line(self, *path: str | int) -> int:
        """Return the line, from 1, of the deepest part of a path that exists."""
        node, line = self.root, 1
        for part in path:
            found = _below(node, part)
            if found is None:
                break
            line, node = found
        return line


def _below(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return _line(node.value[part]), node.value[part]
    if isinstance(node, yaml.MappingNode):
        return next(((_line(key), value) for key, value in node.value if key.value == part), None)
    return None


def _repeated_key(root: yaml.Node | None) -> str:
    """Return which key appears twice in a mapping, where one would be ignored silently; empty if there is none."""
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)
            continue
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    return f"line {_line(key)}: key {key.value} is in line {lines[key.value]} already"
                lines[key.value] = _line(key)
        waiting += [value for _, value in reversed(node.value)]
    return ""


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def read_yaml(file: Path) -> Document:
    """Return a YAML file's mapping, empty for an empty file.

    Raises SettingsError if it cannot be read, a key appears twice, or it is no mapping.
    """
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read ({error.strerror}); name a readable file") from error
    except ValueError as error:
        raise SettingsError(f"{file}: not valid YAML: {error}") from error
    return parse_yaml(text, str(file))


def parse_yaml(text: str, name: str) -> Document:
    """Return what `read_yaml` does for a text, which errors call by its name."""
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            twice = _repeated_key(root)
            tree = None if root is None or twice else loader.construct_document(root)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no such number or date
        raise SettingsError(f"{name}: not valid YAML: {error}") from error
    if twice:
        raise SettingsError(f"{name}: {twice}; keep one of the two")
    if tree is None:
        return Document({}, None, text)
    if not isinstance(tree, dict):
        raise SettingsError(f"{name}: the file must contain a mapping, not a {type(tree).__name__}")
    return Document(tree, root, text)


def _at(where: Where, path: tuple[str, ...]) -> str:
    return where if isinstance(where, str) else where(path)


def convert(tree: Mapping[str, Any], kind: type[T], where: Where, allowed: Mapping[str, str] | None = None) -> T:
    """Return `tree` as `kind`.

    Raises SettingsError that names the place and, for keys in `allowed`, the allowed values.
    """
    try:
        return typed_json.convert(tree, kind, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        path = place.strip("`").removeprefix("$.") or "top level"
        value = lookup(tree, tuple(path.split("."))) if place else None
        # A section may have other values, which are right, and may be secret.
        shown = "" if value is None or isinstance(value, dict) else f" (is {value!r})"
        known = (allowed or {}).get(path)
        at = _at(where, tuple(path.split(".")))
        raise SettingsError(f"{at}: {path}{shown}: {message}{f' ({known})' if known else ''}") from error


def check_keys(tree: Any, kind: type[msgspec.Struct], where: Where, path: str = "") -> None:
    """Refuse a key that `kind` does not have; the error names the nearest one that it has."""
    if not isinstance(tree, dict):
        return
    fields = {item.encode_name: item for item in msgspec.structs.fields(kind)}
    for key, value in tree.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, 1, 0.5)
            remedy = f"did you mean {path}{near[0]}?" if near else f"known here: {', '.join(fields)}"
            at = _at(where, (*path.split(".")[:-1], str(key)))
            raise SettingsError(f"{at}: unknown key {path}{key}; {remedy}")
        below = fields[key].type
        if isinstance(below, type) and issubclass(below, msgspec.Struct):
            check_keys(value, below, where, f"{path}{key}.")


def lookup(tree: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path in a mapping of mappings; None if there is none."""
    for part in path:
        if not isinstance(tree, Mapping) or part not in tree:
            return None
        tree = tree[part]
    return tree

# SPDX-License-Identifier: Apache-2.0
"""One Helm template for an object's variants: the base's, and that of each component.

If they differ, the template tests the component's value. Only these conditions distinguish components, so two that
change the same field in different ways are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from slicekeeper.errors import SettingsError

MISSING: Final = object()
"""Placeholder for an object that a variant does not have."""

_MARK: Final = "\N{LEFT CEILING}"
_IDENTITIES: Final = ("mountPath", "name")
"""The keys that identify an item of a list: a mount's path, or else a name."""


class Code(str):
    """A template's own text instead of a value."""


class _TemplateDumper(yaml.SafeDumper):
    """YAML with multi-line texts in a readable form."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


def _code(dumper: yaml.SafeDumper, code: Code) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", f"{_MARK}{code}", style="")


_TemplateDumper.add_representer(str, _text)
_TemplateDumper.add_representer(Code, _code)


def template(what: str, base: Any, variants: Mapping[str, Any]) -> list[str]:
    """Return the lines of one object's template; `variants` are by the conditions under which they hold.

    Raises SettingsError, which names `what`, if two variants change the same field in different ways.
    """
    if base is MISSING:
        there = {name: obj for name, obj in variants.items() if obj is not MISSING}
        return _when(_same(what, there), _dump(next(iter(there.values()))))
    gone = [name for name, obj in variants.items() if obj is MISSING]
    lines = list(_mapping(what, base, {name: obj for name, obj in variants.items() if obj is not MISSING}))
    return _when(f"not {_any(gone)}", lines) if gone else lines


def _mapping(what: str, base: Mapping[str, Any], variants: Mapping[str, Any]) -> Iterator[str]:
    for key in _merged(list(base), [list(variant) for variant in variants.values()]):
        ours = base.get(key, MISSING)
        theirs = {n: v.get(key, MISSING) for n, v in variants.items() if v.get(key, MISSING) != ours}
        where = f"{what}.{key}"
        lists = [value for value in (ours, *theirs.values()) if isinstance(value, list)]
        if not theirs:
            yield from _dump({key: ours})
        elif all(isinstance(value, dict) for value in (ours, *theirs.values())):
            yield f"{key}:"
            yield from _indented(_mapping(where, ours, theirs))
        elif len(lists) == len(theirs) + 1 and (identity := _identity(lists)):
            yield f"{key}:"
            yield from _items(where, identity, ours, theirs)
        elif ours is MISSING and len(lists) == len(theirs) > 1 and (identity := _identity(lists)):
            yield from _when(_any(list(theirs)), [f"{key}:", *_indented(_items(where, identity, [], theirs))])
        else:
            yield from _leaf(where, key, ours, theirs)


def _leaf(what: str, key: str, ours: Any, theirs: Mapping[str, Any]) -> Iterator[str]:
    condition = _same(what, theirs)
    value = next(iter(theirs.values()))
    if ours is MISSING:
        yield from _when(condition, _dump({key: value}))
    elif value is MISSING:
        yield from _when(f"not {condition}", _dump({key: ours}))
    else:
        yield from _when(condition, [*_dump({key: value}), "{{- else }}", *_dump({key: ours})])


def _items(what: str, identity: str, ours: list[Any], theirs: Mapping[str, list[Any]]) -> Iterator[str]:
    base = {item[identity]: item for item in ours}
    variants = {name: {item[identity]: item for item in items} for name, items in theirs.items()}
    for key in _merged(list(base), [list(items) for items in variants.values()]):
        item = base.get(key, MISSING)
        others = {n: v.get(key, MISSING) for n, v in variants.items() if v.get(key, MISSING) != item}
        where = f"{what}[{key}]"
        if item is MISSING or any(other is MISSING for other in others.values()):
            condition = _same(where, others)
            shown = next(iter(others.values())) if item is MISSING else item
            yield from _when(condition if item is MISSING else f"not {condition}", _dump([shown]))
            continue
        rest = {name: {k: v for k, v in other.items() if k != identity} for name, other in others.items()}
        first = _dump({identity: key})
        lines = [*first, *_mapping(where, {k: v for k, v in item.items() if k != identity}, rest)]
        yield f"- {lines[0]}"
        yield from _indented(iter(lines[1:]))


def _identity(lists: list[list[Any]]) -> str:
    """Return the key that distinguishes all items of some lists; empty if there is none."""
    for key in _IDENTITIES:
        if all(
            all(isinstance(item, dict) and key in item for item in items)
            and len({item[key] for item in items}) == len(items)
            for items in lists
        ):
            return key
    return ""


def _merged(base: list[str], others: list[list[str]]) -> list[str]:
    """Return all keys once, each new one after the one that it follows."""
    merged = list(base)
    for keys in others:
        at = 0
        for key in keys:
            if key in merged:
                at = merged.index(key) + 1
            else:
                merged.insert(at, key)
                at += 1
    return merged


def _same(what: str, theirs: Mapping[str, Any]) -> str:
    """Return the condition for one value. Raises SettingsError if components set different values for it."""
    first, *rest = theirs.items()
    for name, value in rest:
        if value != first[1]:
            raise SettingsError(f"{first[0]} and {name} both change {what}: a template has room for one change")
    return _any(list(theirs))


def _any(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"(or {' '.join(names)})"


def _when(condition: str, lines: list[str]) -> list[str]:
    return [f"{{{{- if {condition} }}}}", *lines, "{{- end }}"]


def _indented(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.startswith("{{-") or not line else f"  {line}"


def _dump(value: Any) -> list[str]:
    text = yaml.dump(value, Dumper=_TemplateDumper, width=10**9, sort_keys=False, allow_unicode=True).rstrip("\n")
    return [_unmarked(line) for line in text.split("\n")]


def _unmarked(line: str) -> str:
    """Return a line with its template, if it has one, or with everything escaped that Helm would treat as one."""
    before, mark, template = line.partition(_MARK)
    if not mark:
        return line.replace("{{", '{{ "{{" }}')
    return before.rstrip("'\"") + template.rstrip("'\"")

# SPDX-License-Identifier: Apache-2.0
"""The API server's rules for names, labels and the keys of annotations, with its own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from simulator.api_errors import Invalid
from simulator.kinds import BY_RESOURCE
from slicekeeper.kube.client import NAMESPACES, Object, Resource

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PART: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"


class _Rule(NamedTuple):
    """What a name must match, how long it may be, and how the API server says so."""

    pattern: re.Pattern[str]
    longest: int
    words: str

    def wrong(self, text: str) -> Iterator[str]:
        if len(text) > self.longest:
            yield f"must be no more than {self.longest} characters"
        if not self.pattern.fullmatch(text):
            yield f"{self.words}, regex used for validation is '{self.pattern.pattern}')"


_LABEL_NAME: Final = _Rule(
    re.compile(_LABEL),
    63,
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc'",
)
_SUBDOMAIN: Final = _Rule(
    re.compile(rf"{_LABEL}(\.{_LABEL})*"),
    253,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com'",
)
_QUALIFIED: Final = _Rule(
    re.compile(_PART),
    63,
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc'",
)
_VALUE: Final = _Rule(
    re.compile(f"({_PART})?"),
    63,
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345'",
)


def check_names(resource: Resource, obj: Object) -> None:
    """Raise Invalid if the object's name, a label or the key of an annotation is one that the API server refuses."""
    metadata = obj["metadata"]
    rule = _LABEL_NAME if resource == NAMESPACES else _SUBDOMAIN
    wrong = [
        f"metadata.{key}: Invalid value: {_quoted(text)}: {why}"
        for key, text in (("generateName", _without_dash(metadata)), ("name", metadata.get("name")))
        if text
        for why in (rule.wrong(text) if isinstance(text, str) else ("must be a string",))
    ]
    wrong += _of_labels(metadata, "metadata")
    template = (obj.get("spec") or {}).get("template")
    if isinstance(template, dict) and isinstance(template.get("metadata"), dict):
        wrong += _of_labels(template["metadata"], "spec.template.metadata")
    if wrong:
        name = metadata.get("name") or metadata.get("generateName")
        several = f"[{', '.join(wrong)}]" if len(wrong) > 1 else wrong[0]
        raise Invalid(f"{BY_RESOURCE[resource].name} {_quoted(name)} is invalid: {several}")


def _without_dash(metadata: Object) -> Any:
    """Return the beginning of a name that the server completes; it may end with a dash."""
    given = metadata.get("generateName")
    return given[:-1] + "a" if isinstance(given, str) and given.endswith("-") else given


def _of_labels(metadata: Object, where: str) -> Iterator[str]:
    for field in ("labels", "annotations"):
        for key, value in (metadata.get(field) or {}).items():
            prefix, slash, name = key.rpartition("/")
            for why in (*(_SUBDOMAIN.wrong(prefix) if slash else ()), *_QUALIFIED.wrong(name)):
                yield f"{where}.{field}: Invalid value: {_quoted(key)}: {why}"
            if field == "labels":
                for why in _VALUE.wrong(str(value)):
                    yield f"{where}.{field}: Invalid value: {_quoted(value)}: {why}"


def _quoted(value: object) -> str:
    return '"{}"'.format(str(value).replace('"', '\\"'))

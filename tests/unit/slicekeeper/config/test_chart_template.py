# SPDX-License-Identifier: Apache-2.0
"""Where an object's variants differ, its template asks; elsewhere it is the object. The cluster suite has Helm."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from slicekeeper.config.chart_template import MISSING, Code, template
from slicekeeper.errors import SettingsError

BASE = {
    "kind": "Deployment",
    "spec": {"replicas": 2, "hostPID": True, "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
}


def lines(**variants: Any) -> list[str]:
    return template("Deployment one", BASE, variants)


def changed(**spec: Any) -> dict[str, Any]:
    return {**BASE, "spec": {key: value for key, value in {**BASE["spec"], **spec}.items() if value is not MISSING}}


def test_what_nothing_changes_is_as_it_is() -> None:
    assert yaml.safe_load("\n".join(lines(x=BASE))) == BASE


def test_another_value_has_the_template_ask() -> None:
    assert lines(x=changed(replicas=1))[1:7] == [
        "spec:",
        "{{- if x }}",
        "  replicas: 1",
        "{{- else }}",
        "  replicas: 2",
        "{{- end }}",
    ]


def test_what_a_variant_adds_or_takes_away_is_asked_about() -> None:
    told = "\n".join(lines(x=changed(hostPID=MISSING), y=changed(dnsPolicy="Default")))
    assert "{{- if not x }}\n  hostPID: true\n{{- end }}" in told
    assert "{{- if y }}\n  dnsPolicy: Default\n{{- end }}" in told


def test_items_of_a_list_are_told_apart_by_their_names() -> None:
    first, second = BASE["spec"]["env"]  # type: ignore[index]
    told = "\n".join(lines(x=changed(env=[{"name": "Z", "value": "0"}, first, {**second, "value": "3"}])))
    assert "  env:\n{{- if x }}\n  - name: Z\n    value: '0'\n{{- end }}\n  - name: A\n    value: '1'\n" in told
    assert "  - name: B\n{{- if x }}\n    value: '3'\n{{- else }}\n    value: '2'\n{{- end }}" in told


def test_one_change_by_two_variants_is_made_for_either() -> None:
    assert "{{- if (or x y) }}" in lines(x=changed(replicas=1), y=changed(replicas=1))


def test_a_list_that_only_variants_have_has_the_items_of_those_that_are_wanted() -> None:
    a, b, c = ({"name": name, "value": "1"} for name in "ABC")
    told = "\n".join(
        template("Job one", {"kind": "Job"}, {"x": {"kind": "Job", "env": [a, b]}, "y": {"kind": "Job", "env": [b, c]}})
    )
    assert "{{- if (or x y) }}\nenv:\n{{- if x }}\n  - name: A\n" in told
    assert "{{- if (or x y) }}\n  - name: B\n" in told
    assert told.endswith("{{- if y }}\n  - name: C\n    value: '1'\n{{- end }}\n{{- end }}")
    with pytest.raises(SettingsError, match=r"x and y both change Job one\.env\[A\]"):
        template("Job one", {}, {"x": {"env": [a]}, "y": {"env": [{**a, "value": "2"}]}})


def test_two_changes_of_one_field_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"x and y both change Deployment one\.spec\.replicas"):
        lines(x=changed(replicas=1), y=changed(replicas=3))


def test_an_object_of_a_variant_alone_is_asked_about_whole() -> None:
    assert template("Job one", MISSING, {"x": {"kind": "Job"}, "y": MISSING}) == [
        "{{- if x }}",
        "kind: Job",
        "{{- end }}",
    ]
    assert template("Job one", {"kind": "Job"}, {"x": {"kind": "Job"}, "y": MISSING}) == [
        "{{- if not y }}",
        "kind: Job",
        "{{- end }}",
    ]


def test_a_value_is_no_template_unless_it_is_meant_to_be_one() -> None:
    assert template("Job one", {"a": "say {{ this }}", "b": Code('{{ include "x" . }}')}, {}) == [
        """a: say {{ "{{" }} this }}""",
        """b: {{ include "x" . }}""",
    ]

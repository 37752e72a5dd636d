# SPDX-License-Identifier: Apache-2.0
"""KubeShare's words, read as ours: its own examples, the slides' figures, every edge, and every mistake."""

from __future__ import annotations

from typing import Any

import pytest
from support.sharepods import SHARE, sharepod

from objects.sharepods.template import template_of
from slicekeeper import names
from slicekeeper.config.settings import Resources

CORE, MEMORY = Resources().core, Resources().memory
LIMIT = names.limit_annotation("cuda")
K, G = "kubeshare/", "gemini/"


def said(prefix: str = K, **words: str) -> dict[str, str]:
    return {prefix + word: value for word, value in words.items()}


def share(request: str = "0.5", limit: str = "1.0", mem: str = "1073741824", prefix: str = K, **more: str) -> Any:
    return said(prefix, gpu_request=request, gpu_limit=limit, gpu_mem=mem, **more)


def asked(annotations: dict[str, str], labels: dict[str, str] | None = None) -> tuple[Any, ...]:
    """Return core, blocks and ceiling of the pod's first container."""
    obj = sharepod(annotations=annotations)
    obj["metadata"]["labels"] = labels or {}
    template = template_of(obj, Resources())
    assert template.violations == ()
    limits = template.pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return limits.get(CORE), limits.get(MEMORY), template.pod["metadata"]["annotations"].get(LIMIT)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        # doc/yaml of KubeShare 1.0: pod1, pod2, and sharepod1 to sharepod4
        (share("0.4", "1.0", "3145728000"), ("40", "12", "100")),
        (share("0.6", "1.0", "3145728000"), ("60", "12", "100")),
        (share("0.5", "1.0", "3145728000"), ("50", "12", "100")),
        # the slides
        (share("0.4", "0.4", prefix=G), ("40", "4", "40")),
        (share("0.6", "0.6", prefix=G), ("60", "4", "60")),
        (share("0.4", "0.7", prefix=G), ("40", "4", "70")),
        (share("0.6", "0.8", prefix=G), ("60", "4", "80")),
        # edges
        (share("1.0"), ("100", None, None)),
        (share("1"), ("100", None, None)),
        (share("0.999"), ("99", "4", "100")),
        (share("0.001", "0.01"), ("1", "4", "1")),
        (share("0.333", "0.666"), ("33", "4", "66")),
        (share("0.5", "0.5", "1"), ("50", "1", "50")),
        (share("0.5", "0.5", "268435457"), ("50", "2", "50")),
        (share(".5"), ("50", "4", "100")),
        ({**said(K, gpu_request="0.5", gpu_limit="1.0"), **said(G, gpu_mem="1073741824")}, ("50", "4", "100")),
        ({**share(), **share(prefix=G)}, ("50", "4", "100")),
        ({}, (None, None, None)),
        (said(GPUID="", sched_affinity=""), (None, None, None)),
    ],
)
def test_a_share_is_asked_for(annotations: dict[str, str], expected: tuple[Any, ...]) -> None:
    assert asked(annotations) == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"gpu_request": "0.5", "gpu_limit": "1.0", "gpu_mem": "1073741824"}, ("50", "4", "100")),
        ({"gpu_request": "0.4", "gpu_mem": "1073741824"}, ("40", "4", "40")),
        ({"gpu_request": "2", "gpu_limit": "2"}, ("200", None, None)),
        ({"gpu_model": "A100"}, (None, None, None)),
    ],
)
def test_labels_of_kubeshare_2_ask_for_it_too(labels: dict[str, str], expected: tuple[Any, ...]) -> None:
    assert asked({}, {f"sharedgpu/{word}": value for word, value in labels.items()}) == expected


def test_a_request_of_nothing_is_background_work() -> None:
    template = template_of(sharepod(annotations=share("0", "0.5")), Resources())
    assert template.pod["metadata"]["annotations"][names.GPU_CLASS] == names.BACKGROUND
    assert asked(share("0", "0.5")) == ("1", "4", "50")
    assert "background" in template.notes[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"sched_affinity": "red"}, {names.GPU_AFFINITY: "red"}),
        ({"sched_anti-affinity": "green"}, {names.GPU_ANTI_AFFINITY: "green"}),
        ({"sched_exclusion": "blue"}, {names.GPU_EXCLUSION: "blue"}),
        ({"GPUID": "xyz"}, {names.GPU_AFFINITY: "gpuid.xyz"}),
        ({"GPUID": "abcde", "sched_anti-affinity": "green", "sched_exclusion": "blue"},
         {names.GPU_AFFINITY: "gpuid.abcde", names.GPU_ANTI_AFFINITY: "green", names.GPU_EXCLUSION: "blue"}),
        # the README's own example
        ({"sched_affinity": "red", "sched_anti-affinity": "green", "sched_exclusion": "blue"},
         {names.GPU_AFFINITY: "red", names.GPU_ANTI_AFFINITY: "green", names.GPU_EXCLUSION: "blue"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", [K, G])
def test_company_is_the_schedulers_affinity_anti_affinity_and_exclusion(
    words: dict[str, str], expected: dict[str, str], prefix: str
) -> None:
    template = template_of(sharepod(annotations={**share(), **said(prefix, **words)}), Resources())
    assert template.violations == ()
    annotations = template.pod["metadata"]["annotations"]
    ours = (names.GPU_AFFINITY, names.GPU_ANTI_AFFINITY, names.GPU_EXCLUSION)
    assert {key: annotations[key] for key in ours if key in annotations} == expected


@pytest.mark.parametrize(
    ("annotations", "field", "value", "rule"),
    [
        (share("half"), "kubeshare/gpu_request", '"half"', "from 0 to 1.0"),
        (share("-0.1"), "kubeshare/gpu_request", '"-0.1"', "from 0 to 1.0"),
        (share("1.5", "1.5"), "kubeshare/gpu_request", '"1.5"', "from 0 to 1.0"),
        (share("2", "2"), "kubeshare/gpu_request", '"2"', "from 0 to 1.0"),
        (share("NaN"), "kubeshare/gpu_request", '"NaN"', "from 0 to 1.0"),
        (share("0.5", "1.1"), "kubeshare/gpu_limit", '"1.1"', "from 0 to 1.0"),
        (share("0.5", "0.4"), "kubeshare/gpu_limit", '"0.4"', "at least gpu_request"),
        (share("0", "0"), "kubeshare/gpu_limit", '"0"', "at least 0.01"),
        (share(mem="0"), "kubeshare/gpu_mem", '"0"', "whole number of bytes"),
        (share(mem="-5"), "kubeshare/gpu_mem", '"-5"', "whole number of bytes"),
        (share(mem="1.5"), "kubeshare/gpu_mem", '"1.5"', "whole number of bytes"),
        (share(mem="lots"), "kubeshare/gpu_mem", '"lots"', "whole number of bytes"),
        (share(mem="9" * 30), "kubeshare/gpu_mem", '"953674316406249999999999 MiB"', "blocks of"),
        (said(gpu_request="0.5"), "kubeshare/gpu_limit", '""', "gpu_request, gpu_limit and gpu_mem"),
        (said(G, gpu_limit="0.5", gpu_mem="1"), "gemini/gpu_request", '""', "gpu_request, gpu_limit and gpu_mem"),
        (said(GPUID="xyz"), "kubeshare/gpu_request", '""', "gpu_request, gpu_limit and gpu_mem"),
        (said(sched_affinity="red"), "kubeshare/gpu_request", '""', "gpu_request, gpu_limit and gpu_mem"),
        (share(GPUID="x y"), "kubeshare/GPUID", '"x y"', "up to 57 letters"),
        (share(GPUID="x" * 58), "kubeshare/GPUID", '"' + "x" * 58 + '"', "up to 57 letters"),
        (share(GPUID="-x-"), "kubeshare/GPUID", '"-x-"', "up to 57 letters"),
        (share(sched_affinity="a/b"), "kubeshare/sched_affinity", '"a/b"', "up to 63 letters"),
        (share(sched_exclusion="é"), "kubeshare/sched_exclusion", '"\\u00e9"', "up to 63 letters"),
        (share(GPUID="xyz", sched_affinity="red"), "kubeshare/sched_affinity", '"red"', "leave one of the two out"),
        (share("1.0", GPUID="xyz"), "kubeshare/gpu_request", '"1.0"', "is not shared"),
        (share(gpu_memory="1"), "kubeshare/gpu_memory", '"1"', "gpu_mem, GPUID"),
        (share(gpuid="xyz"), "kubeshare/gpuid", '"xyz"', "gpu_mem, GPUID"),
        ({**share(), "gemini/gpu_request": "0.6"}, "gemini/gpu_request", '"0.6"', "leave one of them out"),
        ({**share(GPUID="xyz"), names.GPU_AFFINITY: "red"}, names.GPU_AFFINITY, '"red"', "leave one of them out"),
    ],
)
def test_a_mistake_is_told_with_field_value_and_remedy(
    annotations: dict[str, str], field: str, value: str, rule: str
) -> None:
    violation = template_of(sharepod(annotations=annotations), Resources()).violations[0]
    assert (violation.field, violation.value) == (f"metadata.annotations[{field}]", value)
    assert rule in violation.rule
    assert violation.example
    assert (violation.code, violation.container) == ("not-convertible", "cuda")


@pytest.mark.parametrize(
    ("annotations", "labels", "field", "rule"),
    [
        (SHARE, {"gpu_request": "0.5"}, "gpu_request", "leave the label out"),
        ({}, {"gpu_request": "0.5"}, "gpu_mem", "must state its memory in bytes"),
        ({}, {"gpu_request": "x", "gpu_mem": "1"}, "gpu_request", "a part of one GPU"),
        ({}, {"gpu_request": "0.5", "gpu_mem": "x"}, "gpu_mem", "bytes"),
    ],
)
def test_so_is_one_in_a_label(annotations: dict[str, str], labels: dict[str, str], field: str, rule: str) -> None:
    obj = sharepod(annotations=annotations)
    obj["metadata"]["labels"] = {f"sharedgpu/{word}": value for word, value in labels.items()}
    violation = template_of(obj, Resources()).violations[0]
    assert violation.field == f"metadata.labels[sharedgpu/{field}]"
    assert rule in violation.rule

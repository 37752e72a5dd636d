# SPDX-License-Identifier: Apache-2.0
"""What the golden files of foreign manifests do not show: amounts at the edges, second passes, other modes."""

from typing import Any

import pytest

from slicekeeper.config.foreign_dialects import DIALECTS
from slicekeeper.config.policy import ForeignPolicy, NamespacePolicy
from slicekeeper.config.policy_file import read_book
from slicekeeper.config.settings import PolicySettings, Settings
from slicekeeper.errors import SettingsError
from webhook.admission import Admission
from webhook.foreign.conversion import NOTHING, convert
from webhook.json_patch import apply
from webhook.manifest import Manifest
from webhook.review_inputs import Case

SETTINGS = Settings()
ADMISSION = Admission(SETTINGS)
ALL = ("hami", "kai", "volcano-vgpu", "gpushare", "kubeshare", "gpu-manager")
CORE, MEMORY = SETTINGS.resources.core, SETTINGS.resources.memory


def policy(*dialects: Any, gpu_memory: str = "80Gi", **more: Any) -> NamespacePolicy:
    return NamespacePolicy(foreign=ForeignPolicy(dialects, gpu_memory), **more)


def pod(limits: dict[str, Any] | None = None, **metadata: dict[str, str]) -> dict[str, Any]:
    resources = {"resources": {"limits": limits}} if limits is not None else {}
    return {"metadata": metadata, "spec": {"containers": [{"name": "a", **resources}]}}


def asked(manifest: dict[str, Any], dialect: str, gpu_memory: str = "80Gi") -> tuple[str | None, str | None] | str:
    """Return what a pod asks for in our terms once it is converted, or why it is refused."""
    found = convert(Manifest(manifest), policy(dialect, gpu_memory=gpu_memory), SETTINGS.resources, "ours")
    if found.violations:
        return found.violations[0].field
    limits = apply(manifest, found.patch)["spec"]["containers"][0]["resources"]["limits"]
    assert set(limits) <= {CORE, MEMORY, "cpu"}
    return limits.get(CORE), limits.get(MEMORY)


GPU, MIB, PERCENT, CORES = (f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpumem-percentage", "gpucores"))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: 1}, ("100", None)),
        ({GPU: "1", PERCENT: 100}, ("100", None)),
        ({GPU: 1, CORES: 0}, ("100", None)),
        ({GPU: 1, CORES: 50}, ("50", "320")),  # of memory there is no word: all of it
        ({GPU: 1, PERCENT: 50}, ("50", "160")),
        ({GPU: 1, PERCENT: 1}, ("1", "3")),
        ({MIB: 1, CORES: 1}, ("1", "1")),
        ({MIB: 256, CORES: 99}, ("99", "1")),
        ({MIB: 257, CORES: 99}, ("99", "2")),
        ({GPU: 1, MIB: 81920}, ("100", None)),
        ({GPU: 1, MIB: 40960}, ("50", "160")),
        ({GPU: 1, MIB: 98304}, ("100", "384")),  # on a larger GPU than the policy's
        ({GPU: 1, MIB: "9" * 400}, f"spec.containers[0].resources.limits[{MIB}]"),
        ({GPU: 1, CORES: 5, MIB: "9" * 39}, "spec.containers[0].resources.limits"),
        ({GPU: 8, CORES: 100}, ("800", None)),
        ({GPU: 1, CORES: 101}, f"spec.containers[0].resources.limits[{CORES}]"),
        ({GPU: 1, PERCENT: 0}, f"spec.containers[0].resources.limits[{PERCENT}]"),
        ({GPU: 1, PERCENT: 101}, f"spec.containers[0].resources.limits[{PERCENT}]"),
        ({GPU: "500m"}, f"spec.containers[0].resources.limits[{GPU}]"),
        ({GPU: 1, MIB: -5}, f"spec.containers[0].resources.limits[{MIB}]"),
        ({GPU: 2, MIB: 3000}, f"spec.containers[0].resources.limits[{GPU}]"),
    ],
)
def test_virtual_gpus(limits: dict[str, Any], expected: Any) -> None:
    assert asked(pod(limits), "hami") == expected


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [
        ("0.5", ("50", "160")),
        ("0.333", ("33", "106")),
        (".25", ("25", "80")),
        ("0.001", ("1", "1")),
        ("0.999", ("99", "319")),
        *((bad, "metadata.annotations[gpu-fraction]") for bad in ("1", "0", "-0.5", "half", "", "1e400")),
    ],
)
def test_fractions(fraction: str, expected: Any) -> None:
    assert asked(pod(annotations={"gpu-fraction": fraction}), "kai") == expected


@pytest.mark.parametrize(
    ("amount", "gpu_memory", "expected"),
    [
        (3, "80Gi", ("3", "12")),
        (80, "80Gi", ("100", None)),
        (81, "80Gi", ("1", "1")),  # no GPU has 81 GiB, so these are MiB
        (8138, "16Gi", ("49", "32")),
        (3, "", "spec.containers[0].resources.limits"),
    ],
)
def test_memory_in_gib_or_mib(amount: int, gpu_memory: str, expected: Any) -> None:
    assert asked(pod({"aliyun.com/gpu-mem": amount}), "gpushare", gpu_memory) == expected


SHARED = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"


@pytest.mark.parametrize(
    ("amounts", "labels", "expected"),
    [
        ((8, 50, None), {}, ("50", "32")),
        ((8, 200, None), {}, ("200", None)),
        ((8, 150, None), {}, f"spec.containers[0].resources.limits[{SHARED[1]}]"),
        ((8, None, 1), {}, ("10", "32")),
        ((8, None, 2), {}, f"spec.containers[0].resources.limits[{SHARED[2]}]"),
        ((8, None, None), {SHARED[2]: "1"}, ("10", "32")),
        ((8, None, None), {SHARED[2]: "2"}, f"metadata.labels[{SHARED[2]}]"),
        ((None, None, 2), {}, f"spec.containers[0].resources.limits[{SHARED[2]}]"),
    ],
)
def test_compute_and_number_of_gpus_in_gpushares_terms(amounts: Any, labels: dict[str, str], expected: Any) -> None:
    limits = {name: amount for name, amount in zip(SHARED, amounts, strict=True) if amount is not None}
    assert asked(pod(limits, labels=labels), "gpushare") == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"volcano.sh/gpu-memory": 1024}, ("1", "4")),
        ({"volcano.sh/gpu-memory": 40960}, ("50", "160")),
        ({"volcano.sh/gpu-number": 2}, ("200", None)),
        ({"volcano.sh/gpu-number": 0}, (None, None)),
    ],
)
def test_volcanos_older_plugin(limits: dict[str, Any], expected: Any) -> None:
    found = convert(Manifest(pod(limits)), policy("volcano-vgpu"), SETTINGS.resources, "ours")
    converted = apply(pod(limits), found.patch)["spec"]["containers"][0]["resources"]["limits"]
    assert (converted.get(CORE), converted.get(MEMORY)) == expected


def notes(manifest: dict[str, Any], dialect: str) -> list[str]:
    """Return the warnings about a converted request."""
    found = convert(Manifest(manifest), policy(dialect), SETTINGS.resources, "ours")
    assert not found.violations
    return list(found.warnings[1:])


@pytest.mark.parametrize(
    ("limits", "note"),
    [
        ({GPU: 1, PERCENT: 33}, "a: memory is 105 blocks of 256 MiB, rounded from 27034 MiB"),
        ({GPU: 1, PERCENT: 50}, "a: memory is 160 blocks of 256 MiB"),
        ({GPU: 1, CORES: 10, PERCENT: 1}, "a: memory is 3 blocks of 256 MiB, rounded from 819.2 MiB"),
        ({GPU: 1, CORES: 5, MIB: 4096, PERCENT: 50}, f"a: {PERCENT} is ignored beside {MIB}"),
    ],
)
def test_every_rounding_is_stated(limits: dict[str, Any], note: str) -> None:
    assert notes(pod(limits), "hami") == [note]


def test_priorities_and_queues_of_other_schedulers_are_ignored_and_the_user_is_told() -> None:
    limits = {GPU: 1, CORES: 50, MIB: 4096, "nvidia.com/priority": 1}
    manifest = pod(limits, annotations={"hami.io/gpu-scheduler-policy": "spread", "hami.io/other": "1"})
    assert [note.partition(" is ignored")[0] for note in notes(manifest, "hami")] == [
        "hami.io/gpu-scheduler-policy",
        "hami.io/other",
        "a: nvidia.com/priority",
    ]
    labels, annotations = (
        {"kai.scheduler/queue": "q", "app": "x"},
        {"gpu-fraction": "0.5", "kai.scheduler/topology": "t"},
    )
    told = notes(pod(labels=labels, annotations=annotations), "kai")
    assert [note.partition(" is ignored")[0] for note in told[1:]] == ["kai.scheduler/queue", "kai.scheduler/topology"]
    shared = {"gpu_request": "0.5", "gpu_limit": "1.0", "gpu_mem": "1073741824", "priority": "9", "min_available": "2"}
    told = notes(pod(labels={f"sharedgpu/{word}": value for word, value in shared.items()}), "kubeshare")
    assert [note.partition(" is ignored")[0] for note in told] == ["sharedgpu/priority", "sharedgpu/min_available"]


@pytest.mark.parametrize(
    ("words", "limits", "field"),
    [
        ({"gpu_request": "0.5", "gpu_limit": "0.3"}, {}, "metadata.labels[sharedgpu/gpu_limit]"),
        ({"gpu_request": "2", "gpu_limit": "1"}, {}, "metadata.labels[sharedgpu/gpu_limit]"),
        ({"gpu_mem": "1073741824"}, {}, "metadata.labels[sharedgpu/gpu_mem]"),
        ({"gpu_request": "0.5", "gpu_limit": "1"}, {GPU: 1}, f"spec.containers[0].resources.limits[{GPU}]"),
    ],
)
def test_what_kubeshare_would_not_place_is_refused(words: dict[str, str], limits: dict[str, Any], field: str) -> None:
    labels = {f"sharedgpu/{word}": value for word, value in words.items()}
    assert asked(pod(limits, labels=labels), "kubeshare") == field


def test_hami_may_name_one_gpu() -> None:
    one, several = ({"nvidia.com/use-gpuuuid": uuids} for uuids in ("GPU-1", "GPU-1,GPU-2"))
    found = convert(Manifest(pod({GPU: 1}, annotations=one)), policy("hami"), SETTINGS.resources, "ours")
    assert {"op": "add", "path": "/metadata/annotations/slicekeeper.io~1gpu-uuid", "value": "GPU-1"} in found.patch
    assert asked(pod({GPU: 1}, annotations=several), "hami") == "metadata.annotations[nvidia.com/use-gpuuuid]"


def test_kai_takes_a_fraction_or_memory() -> None:
    annotations = {"gpu-fraction": "0.5", "gpu-memory": "2000"}
    assert asked(pod(annotations=annotations), "kai") == "metadata.annotations[gpu-memory]"


@pytest.mark.parametrize("size", ["9" * 400, "1e300", "-1", "0", "0.5", "much", "9" * 5000])
def test_bytes_that_no_gpu_has_are_refused(size: str) -> None:
    labels = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_mem": size}
    assert asked(pod(labels=labels), "kubeshare") == "metadata.labels[sharedgpu/gpu_mem]"


@pytest.mark.parametrize("value", [None, 1.5, [], {}, True, "\x00", "1e999999999"])
@pytest.mark.parametrize("place", ["annotations", "labels", "limits"])
def test_whatever_stands_in_a_foreign_field_is_read_or_refused(place: str, value: Any) -> None:
    for dialect, names in DIALECTS.items():
        keys = {"annotations": names.annotations, "labels": names.labels, "limits": names.resources}[place]
        amounts = dict.fromkeys(keys, value)
        manifest = pod(amounts) if place == "limits" else pod(**{place: amounts})
        found = convert(Manifest(manifest), policy(dialect), SETTINGS.resources, "ours")
        assert found.violations or not found.patch or value == 1.5


@pytest.mark.parametrize("size", ["-1", "0", "0.5", "much", "9" * 39])
def test_memory_that_no_gpu_has_is_refused(size: str) -> None:
    assert asked(pod(annotations={"gpu-memory": size}), "kai") == "metadata.annotations[gpu-memory]"


@pytest.mark.parametrize(
    ("dialect", "resource", "mode"),
    [("hami", GPU, "nvidia.com/vgpu-mode"), ("volcano-vgpu", "volcano.sh/vgpu-number", "volcano.sh/vgpu-mode")],
)
def test_mig_slices_on_demand_are_refused(dialect: str, resource: str, mode: str) -> None:
    assert asked(pod({resource: 1}, annotations={mode: "mig"}), dialect) == f"metadata.annotations[{mode}]"
    assert asked(pod({resource: 1}, annotations={mode: "hami-core"}), dialect) == ("100", None)


def test_kai_takes_whole_gpus_or_a_part() -> None:
    part = {"gpu-fraction": "0.5"}
    assert asked(pod({GPU: 1}, annotations=part), "kai") == f"spec.containers[0].resources.limits[{GPU}]"
    assert asked(pod({GPU: "0"}, annotations=part), "kai") == ("50", "160")


def test_a_whole_gpu_is_placed_by_us_whichever_dialect_reads_it() -> None:
    manifest = pod({GPU: 1})
    manifest["spec"]["schedulerName"] = "kai-scheduler"
    found = convert(Manifest(manifest), policy("hami", "kai"), SETTINGS.resources, "ours")
    assert apply(manifest, found.patch)["spec"]["schedulerName"] == "ours"


def test_amounts_in_full_need_no_word_on_the_gpus_memory() -> None:
    assert asked(pod({GPU: 1, MIB: 3000, CORES: 30}), "hami", "") == ("30", "12")
    labels = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_mem": str(3 << 30)}
    assert asked(pod(labels=labels), "kubeshare", "") == ("50", "12")


@pytest.mark.parametrize("limits", [None, {}, {"cpu": 1}, {GPU: 0}])
def test_what_asks_for_nothing_is_left_alone(limits: dict[str, Any] | None) -> None:
    assert convert(Manifest(pod(limits)), policy(*ALL), SETTINGS.resources, "ours") == NOTHING


@pytest.mark.parametrize(
    ("said", "expected"), [(None, "50"), ("70", None), ("150", "100"), ("20", "50"), ("50", None), ("many", "50")]
)
def test_the_ceiling_of_gpu_manager(said: str | None, expected: str | None) -> None:
    annotations = {} if said is None else {"tencent.com/vcuda-core-limit": said}
    manifest = pod({CORE: 50, MEMORY: 8}, annotations=annotations)
    found = convert(Manifest(manifest), policy("gpu-manager", gpu_memory=""), SETTINGS.resources, "ours")
    limit = apply(manifest, found.patch)["metadata"]["annotations"].get("limit.slicekeeper.io/a")
    assert limit == expected


def test_a_share_never_grows_beyond_the_namespaces_ceiling() -> None:
    labels = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0", "sharedgpu/gpu_mem": str(1 << 30)}
    found = convert(Manifest(pod(labels=labels)), policy("kubeshare", ceiling=80), SETTINGS.resources, "ours")
    annotations = apply(pod(labels=labels), found.patch)["metadata"]["annotations"]
    assert annotations == {"limit.slicekeeper.io/a": "80"}


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_only_enforced_namespaces_are_converted(mode: Any) -> None:
    case = Case("research", policy("volcano-vgpu", mode=mode))
    assert ADMISSION.mutate(pod({"volcano.sh/vgpu-number": 1}), case).patch == []


def test_a_pod_that_was_converted_passes_once_and_again_and_one_that_bypassed_us_does_not() -> None:
    case = Case("research", policy(*ALL))
    manifest = pod({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-cores": 50})
    refused = ADMISSION.validate(manifest, case).violations
    assert [violation.code for violation in refused] == ["not-as-admitted"]
    admitted = apply(manifest, ADMISSION.mutate(manifest, case).patch)
    assert ADMISSION.validate(admitted, case).allowed
    assert ADMISSION.mutate(admitted, case).patch == []


def test_a_gpu_that_a_limit_range_gave_to_our_sidecar_is_no_request() -> None:
    case = Case("team", policy("hami"))
    once = apply(pod({GPU: 1}), ADMISSION.mutate(pod({GPU: 1}), case).patch)
    [sidecar] = once["spec"]["initContainers"]
    sidecar["resources"] = {section: {**amounts, GPU: "1"} for section, amounts in sidecar["resources"].items()}
    again = ADMISSION.mutate(once, case)
    assert again.allowed
    assert not again.warnings
    done = apply(once, again.patch)
    assert done["spec"]["initContainers"][0]["resources"]["limits"][GPU] == "0"
    assert ADMISSION.validate(done, case).allowed


def test_a_template_is_judged_as_its_pods_will_be() -> None:
    case = Case("research", policy("volcano-vgpu"))
    fits = ADMISSION.validate_template({}, pod({"volcano.sh/vgpu-memory": 3000}), case, "spec.template")
    assert fits.allowed
    assert any("3000 MiB are rounded up to 12 blocks" in warning for warning in fits.warnings)
    two = pod({"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-cores": 50})
    refused = ADMISSION.validate_template({}, two, case, "spec.template")
    assert [violation.field for violation in refused.violations] == [
        "spec.template.spec.containers[0].resources.limits[volcano.sh/vgpu-number]"
    ]


@pytest.mark.parametrize("memory", ["80", "-1Gi", "much", "2Ti"])
def test_the_policy_refuses_a_gpu_that_cannot_be(memory: str, tmp_path: Any) -> None:

    file = tmp_path / "policy.yaml"
    file.write_text(f"default: {{foreign: {{dialects: [kai], gpuMemory: '{memory}'}}}}\n")
    with pytest.raises(SettingsError, match=r"foreign\.gpuMemory"):
        read_book(PolicySettings(file=str(file)))


def test_a_damaged_pod_is_refused_and_not_converted() -> None:
    manifest = pod({GPU: 1, "nvidia.com/gpumem": 8192}) | {"metadata": {"finalizers": "none"}}
    found = convert(Manifest(manifest), policy("hami"), SETTINGS.resources, "ours")
    assert [(violation.code, violation.field) for violation in found.violations] == [
        ("manifest-malformed", "metadata.finalizers")
    ]

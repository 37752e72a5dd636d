# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper review`, as a user runs it."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from slicekeeper.cli.main import cli
from slicekeeper.config.load import load
from slicekeeper.config.settings import Settings
from slicekeeper.errors import SettingsError

POD = """
apiVersion: v1
kind: Pod
metadata: {name: a, annotations: {day: 2026-03-01}}
spec:
  containers:
  - {name: c, image: x, resources: {limits: {tencent.com/vcuda-core: 50, tencent.com/vcuda-memory: 15}}}
"""
BAD = POD.replace("vcuda-core: 50", "vcuda-core: 150").replace("name: a", "name: b", 1)


def run(tmp_path: Path, manifest: str, *options: str) -> Result:
    config = tmp_path / "config.yaml"
    config.write_text("{}", "utf-8")
    return CliRunner().invoke(cli, ["--config", str(config), "review", "-f", "-", *options], input=manifest)


def test_a_limit_range_among_the_manifests_applies_to_its_namespace(tmp_path: Path) -> None:
    pod = POD.replace("limits: {", "limits: {cpu: 1, ")
    limits = "kind: LimitRange\nspec: {limits: [{type: Container, min: {cpu: 100m}}]}\n"
    for manifest, cpu in ((f"{limits}---\n{pod}", "100m"), (pod, "50m")):
        *_, made = yaml.safe_load_all(run(tmp_path, manifest).stdout)
        assert made["spec"]["initContainers"][0]["resources"]["requests"]["cpu"] == cpu


def test_an_admitted_pod_is_printed_and_exit_is_0(tmp_path: Path) -> None:
    result = run(tmp_path, POD)
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout)["spec"]["schedulerName"] == "slicekeeper-scheduler"
    assert run(tmp_path, POD).stdout == result.stdout


def test_a_refusal_is_told_and_exit_is_1(tmp_path: Path) -> None:
    result = run(tmp_path, POD + "---" + BAD, "-n", "team-a")
    assert result.exit_code == 1
    assert [d["metadata"]["name"] for d in yaml.safe_load_all(result.stdout)] == ["a"]
    assert "Pod team-a/b: refused: container 'c': spec.containers[0]" in result.stderr
    assert "[core-not-whole]" in result.stderr


def test_json_of_one_object_is_the_object_and_of_several_a_list(tmp_path: Path) -> None:
    assert json.loads(run(tmp_path, POD, "-o", "json").stdout)["kind"] == "Pod"
    result = run(tmp_path, POD + "---" + BAD, "-o", "json")
    kinds = [item["kind"] for item in json.loads(result.stdout)["items"]]
    assert (kinds, result.exit_code) == (["Pod", "Status"], 1)


def test_diff_shows_only_what_the_webhook_adds(tmp_path: Path) -> None:
    lines = run(tmp_path, POD, "-o", "diff").stdout.splitlines()
    assert lines[0] == "--- Pod default/a"
    assert not [line for line in lines[2:] if line.startswith("-")]
    assert "+  schedulerName: slicekeeper-scheduler" in lines


def test_a_folder_is_read_with_the_policies_in_it(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "notes.txt").write_text("no manifest")
    policy = {"apiVersion": "slicekeeper.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "off"}}
    (tmp_path / "below/policy.json").write_text(json.dumps({**policy, "spec": {"match": ["default"], "mode": "off"}}))
    alone = CliRunner().invoke(cli, ["review", "-f", str(tmp_path / "pod.yaml")], env={})
    both = CliRunner().invoke(cli, ["review", "-f", str(tmp_path)], env={})
    assert (alone.exit_code, both.exit_code) == (0, 0)
    assert "slicekeeper.io/seat" in alone.stdout
    assert "slicekeeper.io/seat" not in both.stdout


def test_files_without_objects_are_named_and_passed_over_in_a_folder_only(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "policy.yaml").write_text("default: {mode: observe}\n")
    result = CliRunner().invoke(cli, ["review", "-f", str(tmp_path)])
    assert result.exit_code == 0, result.exception
    assert result.stderr.startswith(f"passed over: {tmp_path}/policy.yaml: ")
    assert "slicekeeper.io/seat" in result.stdout
    result = CliRunner().invoke(cli, ["review", "-f", str(tmp_path / "policy.yaml")])
    assert "begin it with apiVersion: and kind:" in str(result.exception)
    (tmp_path / "pod.yaml").write_text(POD.replace("kind: Pod\n", ""))
    result = CliRunner().invoke(cli, ["review", "-f", str(tmp_path)])
    assert f"{tmp_path}/pod.yaml: " in str(result.exception)


def test_over_budget_warns(tmp_path: Path) -> None:
    result = run(tmp_path, POD, "--over-budget")
    assert "gpu-lower-priority" in result.stdout
    assert "warning: namespace default is over its GPU budget" in result.stderr


def test_json_input_and_dates_stay_as_written(tmp_path: Path) -> None:
    result = run(tmp_path, json.dumps(yaml.safe_load(POD.replace("2026-03-01", "'2026-03-01'"))), "-o", "json")
    assert json.loads(result.stdout)["metadata"]["annotations"]["day"] == "2026-03-01"
    assert json.loads(run(tmp_path, POD, "-o", "json").stdout)["metadata"]["annotations"]["day"] == "2026-03-01"


@pytest.mark.parametrize(
    "text", ["{", "5", "[a]", "a: 1", "kind: 5", "&a [*a]", "kind: Pod\n? [a]\n: b", "\x00", "a: " + "[" * 3000]
)
def test_what_is_no_manifest_is_an_error_and_no_traceback(tmp_path: Path, text: str) -> None:
    result = run(tmp_path, text)
    assert isinstance(result.exception, SettingsError)
    assert "standard input: " in str(result.exception)


@pytest.mark.parametrize(
    "text",
    [
        "kind: Pod", "kind: Job", "kind: List\nitems: [5]", "kind: Pod\nspec: 5", "kind: CronJob\napiVersion: batch/v1",
        "kind: Pod\nmetadata: {namespace: 5, name: [x]}", "kind: Deployment\napiVersion: 5", "",
    ],
)  # fmt: skip
def test_strange_manifests_are_passed_on_or_refused(tmp_path: Path, text: str) -> None:
    assert run(tmp_path, text).exit_code in (0, 1)


def test_what_the_manifests_install_can_be_tried_from_a_checkout() -> None:
    installed = Path(__file__).parents[3] / "manifests/chart/files"
    options = ["--config", str(installed / "config.yaml"), "review", "-f", "-", "-o", "diff"]
    policy = {"SLICEKEEPER_POLICY_FILE": str(installed / "policy.yaml")}
    result = CliRunner().invoke(cli, options, input=POD, env=policy)
    assert result.exit_code == 0, result.output
    assert "value: https://timekeeper.slicekeeper-system.svc:8444" in result.stdout


def test_the_injection_is_that_of_the_manifests_unless_the_settings_say_otherwise(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    [container] = yaml.safe_load(run(tmp_path, POD).stdout)["spec"]["containers"]
    installed = load(root / "manifests/chart/files/config.yaml", {}).settings.webhook.injection
    assert Settings().webhook.injection == installed
    assert "LD_PRELOAD" in [entry["name"] for entry in container["env"]]
    config = tmp_path / "seats.yaml"
    config.write_text("webhook: {injection: seats}")
    told = CliRunner().invoke(cli, ["--config", str(config), "review", "-f", "-"], input=POD).stdout
    assert "slicekeeper.io/seat" in told
    assert "LD_PRELOAD" not in told


def test_a_mirror_of_a_static_pod_is_refused_as_by_the_server(tmp_path: Path) -> None:
    mirror = POD.replace("annotations: {", "annotations: {kubernetes.io/config.mirror: x, ")
    result = run(tmp_path, mirror)
    assert "only a kubelet creates mirrors" in result.stderr
    assert result.exit_code == 1
    assert run(tmp_path, mirror, "-n", "kube-system").exit_code == 0, "the server is not asked there"
    plain = mirror.replace("tencent.com/vcuda-core: 50, tencent.com/vcuda-memory: 15", "cpu: 1")
    assert run(tmp_path, plain).exit_code == 0, "nor about pods without GPUs"


def test_over_a_hard_budget_a_pod_is_refused_and_a_template_is_warned_of(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: {budget: {enforcement: hard}}\nnamespaces: [{match: '*'}, {match: 'a*'}]")
    config = tmp_path / "config.yaml"
    config.write_text(f"policy: {{file: {policy}}}")
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    manifests = json.dumps({**job, "spec": {"template": yaml.safe_load(POD)}}, default=str) + "\n---\n" + POD
    command = ["--config", str(config), "review", "-f", "-", "--over-budget"]
    result = CliRunner().invoke(cli, command, input=manifests)
    assert "Job default/j: warning: pods of this template will be refused: metadata.namespace" in result.stderr
    assert "Pod default/a: refused: metadata.namespace" in result.stderr
    assert "namespaces[1]: match a* never applies" in result.stderr


POLICY = """
apiVersion: slicekeeper.io/v1alpha1
kind: GpuPolicy
metadata: {name: guests}
spec: {match: [guest-*], ceiling: 30}
---
"""


def test_gpu_policies_among_the_manifests_hold_for_the_others(tmp_path: Path) -> None:
    refused = run(tmp_path, POLICY + POD, "-n", "guest-a")
    assert (refused.exit_code, "Pod guest-a/a: refused" in refused.stderr) == (1, True)
    assert run(tmp_path, POLICY + POD, "-n", "team-a").exit_code == 0
    # As `kubectl get gpupolicies -o yaml` prints them, whatever their order.
    listed = {"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(POLICY.removesuffix("---\n"))]}
    assert run(tmp_path, POD + "---\n" + json.dumps(listed), "-n", "guest-a").exit_code == 1


def test_a_gpu_policy_that_is_not_valid_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, POLICY.replace("ceiling", "ceilling") + POD)
    assert result.exit_code != 0
    assert isinstance(result.exception, SettingsError | SystemExit)
    assert "GpuPolicy guests: spec" in str(result.exception) + result.stderr


@pytest.mark.parametrize("text", ["", "---\n---\n", "# a comment\n", "null\n"])
def test_a_file_without_a_manifest_is_an_error(tmp_path: Path, text: str) -> None:
    result = run(tmp_path, text)
    assert isinstance(result.exception, SettingsError)
    assert "no manifest found" in str(result.exception)


@pytest.mark.parametrize("text", ["hello", "[5]", "5"])
def test_what_is_no_manifest_is_quoted(tmp_path: Path, text: str) -> None:
    assert f"{text!r} is not an object; begin it with apiVersion: and kind:" in str(run(tmp_path, text).exception)

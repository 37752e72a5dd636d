# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from slicekeeper.config.load import keys, load
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import SchedulerSettings, Settings
from slicekeeper.errors import SettingsError

ROOT = Path(__file__).parents[4]


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return file


def test_defaults_need_no_file() -> None:
    assert load(None, {}).settings == Settings()


def test_file_then_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "webhook: {workers: 3}\ntimekeeper: {threads: 4}\nsidecar: {containers: [a, b]}\n")
    loaded = load(file, {"SLICEKEEPER_WEBHOOK_WORKERS": "5", "SLICEKEEPER_POLICY_EXEMPT_NAMESPACES": "x,y-*"})
    assert loaded.settings.webhook.workers == 5
    assert loaded.settings.timekeeper.threads == 4
    assert loaded.settings.sidecar.containers == ("a", "b")
    assert loaded.settings.policy.exempt_namespaces == ("x", "y-*")
    assert loaded.origin["webhook.workers"] == "$SLICEKEEPER_WEBHOOK_WORKERS"
    assert loaded.origin["timekeeper.threads"] == str(file)
    assert "webhook.bind" not in loaded.origin


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("webhok: {}", "unknown key webhok; did you mean webhook?"),
        ("webhook: {worker: 2}", "unknown key webhook.worker; did you mean webhook.workers?"),
        ("webhook: {workers: 0}", "webhook.workers (is 0): Expected `int` >= 1"),
        ("webhook: 3", "webhook (is 3)"),
        ("log: {level: loud}", "log.level (is 'loud'): Invalid enum value 'loud' (debug | info | warning | error)"),
        ("clock: {speed: -1}", "clock.speed (is -1)"),
        ("scheduler: {shards: [b, Team_x]}", "'Team_x'; a name has at most 40 small letters, digits and hyphens"),
        ("scheduler: {bind: here}", "bind is 'here', which is no address and port, such as 127.0.0.1:8443"),
        ("scheduler: {metricsBind: '127.0.0.1:99999'}", "metricsBind is '127.0.0.1:99999', which is no address"),
        ("certificates: {probesBind: 'unix:/probes'}", "probesBind is 'unix:/probes', which is no address and port"),
        ("scheduler: {assumeSeconds: .inf}", "assumeSeconds"),
        ("scheduler: {leaseSeconds: .inf}", "leaseSeconds"),
        ("scheduler: {shards: [b, c, b]}", "shards has 'b' twice; name each shard once"),
        ("scheduler: {shards: [b], shard: c}", "shard is 'c', which is not among shards ['b']; add it there"),
        ("- a", "must contain a mapping, not a list"),
        ("a: [", "not valid YAML"),
        ("a: 2026-13-01", "not valid YAML"),
    ],
)
def test_errors_name_key_value_and_remedy(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(write(tmp_path, text), {})
    assert told in str(caught.value)


def test_an_error_of_a_section_does_not_show_its_other_values(tmp_path: Path) -> None:
    text = "timekeeper: {bind: here, database: 'postgresql://timekeeper:secret@db/ledger'}"
    with pytest.raises(SettingsError, match="timekeeper: bind is 'here'") as caught:
        load(write(tmp_path, text), {})
    assert "secret" not in str(caught.value)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="missing.yaml: cannot be read"):
        load(tmp_path / "missing.yaml", {})


def test_unknown_variable_is_refused_but_kubernetes_service_links_are_not() -> None:
    with pytest.raises(SettingsError, match="did you mean SLICEKEEPER_WEBHOOK_BIND"):
        load(None, {"SLICEKEEPER_WEBHOOK_BINDS": "x"})
    load(
        None, {"SLICEKEEPER_WEBHOOK_SERVICE_HOST": "10.0.0.1", "SLICEKEEPER_WEBHOOK_PORT_443_TCP": "tcp://10.0.0.1:443"}
    )


def test_variables_of_a_container_with_a_slice_are_no_settings() -> None:
    assert load(None, {"SLICEKEEPER_SEAT": "/run/seat", "SLICEKEEPER_FAKE_WORLD": "/w"}) == load(None, {})


def test_bad_variable_is_named_by_its_key() -> None:
    with pytest.raises(SettingsError, match="webhook.workers"):
        load(None, {"SLICEKEEPER_WEBHOOK_WORKERS": "many"})


def test_every_setting_is_documented() -> None:
    for key in [*keys(), *keys(NamespacePolicy())]:
        assert key.text.endswith("."), f"{key.dotted} has no documentation"


def test_reference_is_current() -> None:
    from click.testing import CliRunner

    from slicekeeper.cli.main import cli

    made = CliRunner().invoke(cli, ["config", "reference"])
    assert made.exit_code == 0
    text = (ROOT / "docs/settings.md").read_text()
    assert text.endswith(made.output), "docs/settings.md: run `slicekeeper config reference` and paste its output"


def test_no_two_settings_share_a_variable() -> None:
    variables = [key.variable for key in keys()]
    assert len(set(variables)) == len(variables)


def test_each_node_is_that_of_one_scheduler() -> None:
    assert SchedulerSettings().node_selector("") == ""
    two = SchedulerSettings(shards=("b", "c"))
    assert two.node_selector("") == "slicekeeper.io/shard notin (b,c)"
    assert two.node_selector("c") == "slicekeeper.io/shard=c"
    assert Settings(scheduler=two).schedulers == {
        "slicekeeper-scheduler": "",
        "slicekeeper-scheduler-b": "b",
        "slicekeeper-scheduler-c": "c",
    }

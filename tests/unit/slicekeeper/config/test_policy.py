# SPDX-License-Identifier: Apache-2.0
import logging
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import wait_for

from slicekeeper.config.policy import NamespacePolicy, PolicyBook, parse_rate
from slicekeeper.config.policy_file import PolicyFile, read_book
from slicekeeper.config.settings import PolicySettings
from slicekeeper.errors import SettingsError

BOOK = """
default: {ceiling: 80, budget: {amount: 10h, timeZone: Europe/Berlin}}
namespaces:
  - match: [research, "team-*"]
    ceiling: 60
  - match: team-b
    mode: off
  - match: "team-?"
    mode: observe
  - match: lab
    budget: {amount: 90m}
"""


def settings(tmp_path: Path, text: str) -> PolicySettings:
    file = tmp_path / "policy.yaml"
    file.write_text(text, "utf-8")
    return PolicySettings(file=str(file), reload_seconds=0.02)


def rewrite(book: PolicySettings, text: str) -> None:
    """Replace the file as a ConfigMap does: a new file under the old name."""
    new = Path(book.file + ".new")
    new.write_text(text, "utf-8")
    new.replace(book.file)


def test_exact_name_wins_over_pattern_and_the_first_pattern_over_later_ones(tmp_path: Path) -> None:
    book = read_book(settings(tmp_path, BOOK))
    assert book.of("team-b").mode == "off"
    assert book.of("team-a").mode == "enforce"
    assert book.of("team-a").ceiling == 60
    assert book.of("anything").ceiling == 80


def test_an_entry_lays_its_keys_over_the_default(tmp_path: Path) -> None:
    book = read_book(settings(tmp_path, BOOK))
    lab = book.of("lab")
    assert (lab.ceiling, lab.budget.amount_ms, lab.budget.time_zone) == (80, 90 * 60_000, "Europe/Berlin")


def test_a_default_budget_has_credit_rollover_and_an_anchor(tmp_path: Path) -> None:
    text = """
default: {budget: {amount: 20h, period: year, credit: 2h, rollover: 30m, anchor: 2026-04-01T00:00:00+02:00}}
namespaces: [{match: once, budget: {period: none, anchor: "", rollover: 0s}}]
"""
    book = read_book(settings(tmp_path, text))
    budget = book.of("any").budget
    assert (budget.credit_ms, budget.rollover_ms, budget.anchor_ms) == (7_200_000, 1_800_000, 1_774_994_400_000)
    assert book.of("once").budget.anchor_ms is None


def test_exempt_namespaces_are_off_whatever_the_file_says(tmp_path: Path) -> None:
    book = read_book(settings(tmp_path, "namespaces: [{match: kube-system, mode: enforce}]"))
    assert book.of("kube-system").mode == "off"
    assert PolicyBook(exempt=("infra-*",)).of("infra-dns").mode == "off"


def test_without_a_file_all_have_the_defaults() -> None:
    assert read_book(PolicySettings()).of("x") == NamespacePolicy()


def test_a_bare_off_is_the_mode_and_not_yaml_false(tmp_path: Path) -> None:
    assert read_book(settings(tmp_path, "default: {mode: off}")).of("x").mode == "off"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("defaults: {}", "unknown key defaults; known here: default, namespaces"),
        ("default: {ceilling: 50}", "unknown key ceilling; did you mean ceiling?"),
        ("default: {ceiling: 101}", "default: ceiling (is 101)"),
        ("default: {ceiling: half}", "default: ceiling (is 'half')"),
        ("default: {mode: on}", "default: mode (is True)"),
        ("default: {mode: enforced}", "mode (is 'enforced')"),
        ("default: [a]", "default: must be a mapping, not a list"),
        ("default: off", "default: must be a mapping, not a bool"),
        ("default: ''", "default: must be a mapping, not a str"),
        ("namespaces: false", "namespaces must be a list"),
        (f"default: {{ceiling: {'9' * 5000}}}", "not valid YAML: Exceeds the limit"),
        ("default: {budget: {anchor: 2026-13-01}}", "not valid YAML: month must be in 1..12"),
        ("default: {inBudgetClass: GPU_high}", "inBudgetClass: 'GPU_high' can be no PriorityClass's name; for example"),
        ("default: {overBudgetClass: a b}", "overBudgetClass: 'a b' can be no"),
        ("default: {allowedPriorityClasses: [gpu-high, '']}", "allowedPriorityClasses: '' can be no"),
        ("default: {stale: maybe}", "stale (is 'maybe')"),
        ("default: {nvidiaGpu: yes}", "nvidiaGpu (is True)"),
        ("default: {sharing: [remote]}", "sharing"),
        ("default: {budget: {amount: 20}}", "budget.amount"),
        ("default: {budget: {amount: 20 hours}}", "budget.amount: not a duration; for example 20h"),
        ("default: {budget: {timeZone: Mars/Olympus}}", "budget.timeZone: 'Mars/Olympus' is no IANA time zone"),
        ("default: {budget: {amount: 99999999999999h}}", "budget.amount: more than 27777777h"),
        ("default: {budget: {credit: -1h}}", "budget.credit: not a duration; for example 2h"),
        ("default: {budget: {rollover: some}}", "budget.rollover: not a duration; for example 5h"),
        ("default: {budget: {rollover: 1h, period: none}}", "budget.rollover: a budget without periods has nothing to"),
        ("default: {budget: {anchor: 2026-04-01}}", "budget.anchor"),
        ("default: {budget: {anchor: 2026-04-01T00:00:00}}", "budget.anchor: not an RFC 3339 instant with a zone"),
        ("default: {budget: {anchor: '9999-01-01T00:00:00Z'}}", "budget.anchor: 9999-01-01T00:00:00Z is not between"),
        (
            "default: {budget: {period: none, anchor: '2026-04-01T00:00:00Z'}}",
            "budget.anchor: a budget without periods",
        ),
        ("default: {budget: {period: fortnight}}", "budget.period (is 'fortnight')"),
        ("default: {backgroundRate: 1/0}", "backgroundRate"),
        ("default: {backgroundRate: '-1'}", "backgroundRate"),
        ("default: {sidecar: {memory: -1Mi}}", "sidecar.memory: '-1Mi' is not above zero"),
        ("default: {sidecar: {cpu: much}}", "sidecar.cpu"),
        ("default: {sidecar: {cpus: 10m}}", "unknown key sidecar.cpus; did you mean sidecar.cpu?"),
        ("namespaces: {match: a}", "namespaces must be a list"),
        ("namespaces: [a]", "namespaces[0]: `match` is missing"),
        ("namespaces: [{mode: off}]", "namespaces[0]: `match` is missing"),
        ("namespaces: [{match: a}, {match: [b, a]}]", "namespaces[1]: match a is in an entry above"),
        ("namespaces: [{match: 5}]", "namespaces[0]: match"),
        ("namespaces: [{match: a, ceiling: 0}]", "namespaces[0]: ceiling (is 0)"),
        (
            "namespaces:\n- match: a\n- match: [b, 'c-*']\n- match: [d, 'c-*']",
            "line 4: namespaces[2]: match c-* is in an",
        ),
        ("namespaces: [{match: ['c-*', 'c-*']}]", "namespaces[0]: match c-* is in an entry above (line 1, names"),
        ("namespaces: [{match: []}]", "namespaces[0]: `match` is missing"),
        ("namespaces: [{match: 'team-[ab'}]", "match 'team-[ab': the bracket `[` is never closed"),
        ("namespaces: [{match: 'team-[]'}]", "never closed"),
        ("namespaces: [{match: 'team-[!'}]", "never closed"),
        (
            "namespaces:\n- match: a\n- match:\n  - b\n  - Team_A",
            "line 5: namespaces[1]: match 'Team_A': no namespace can",
        ),
        ("namespaces: [{match: team-}]", "match 'team-': no namespace can have this name: up to 63"),
        ("namespaces: [{match: " + "a" * 64 + "}]", "no namespace can have this name"),
        ("namespaces: [{match: " + "a" * 64 + "*}]", "matches no name that a namespace can have"),
        ("namespaces: [{match: 'Team-*'}]", "match 'Team-*': it matches no name"),
        ("namespaces: [{match: 'team.*'}]", "match 'team.*': it matches no name"),
        ("namespaces: [{match: '-*'}]", "match '-*': it matches no name"),
        ("namespaces: [{match: '*-'}]", "match '*-': it matches no name"),
        ("namespaces: [{match: 'a[z-b]'}]", "match 'a[z-b]': it matches no name"),
        ("namespaces: [{match: ' a'}]", "match ' a': no namespace"),
        ("default: {ceiling: 50}\ndefault: {ceiling: 60}", "line 2: key default is in line 1 already; keep one of"),
        ("default:\n  ceiling: 50\n  mode: off\n  ceiling: 60", "line 4: key ceiling is in line 2 already"),
        ("namespaces:\n- match: a\n  budget:\n    amount: 1h\n    'amount': 2h", "line 5: key amount is in line 4"),
        ("namespaces: [{match: a, match: b}]", "line 1: key match is in line 1 already"),
        ("default:\n  mode: enforce\n\n  ceiling: 500", "line 4: default: ceiling (is 500)"),
        (
            "namespaces:\n- match: a\n  budget:\n    period: day\n    amount: lots",
            "line 5: namespaces[0]: budget.amount",
        ),
        (
            "namespaces:\n- match: a\n  budget:\n    perod: day",
            "line 4: namespaces[0]: unknown key budget.perod; did you",
        ),
        (
            "default: {sharing: [adaptive, remote]}",
            "sharing: remote is planned but not available yet; choose one of adaptive, exclu",
        ),
        ("- a", "must contain a mapping, not a list"),
        ("{", "not valid YAML"),
        ("a: " + "[" * 5000, "not valid YAML"),
    ],
)
def test_a_broken_file_is_refused_by_file_key_and_value(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_book(settings(tmp_path, text))
    assert "policy.yaml" in str(refused.value)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[{match: 'team-*'}, {match: 'team-?'}]",
            "namespaces[1]: match team-? never applies: team-*, which goes before",
        ),
        ("[{match: '*'}, {match: 'a*'}]", "match a* never applies: *, which"),
        ("[{match: 'a*b*'}, {match: 'a*b'}]", "match a*b never applies"),
        (
            "[{match: ['[a-m]*', '[n-z]*', '[0-9]*']}, {match: '*'}]",
            "match * never applies: the entries that go before",
        ),
        ("[{match: 'a[b]'}, {match: ab}]", "match a[b] never applies: ab, which"),
        ("[{match: 'x-**'}, {match: 'x-*'}]", "match x-* never applies"),
        ("[{match: kube-system}]", "match kube-system never applies: policy.exemptNamespaces goes before it"),
    ],
)
def test_what_never_applies_is_told_at_the_start_and_at_each_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    kept = settings(tmp_path, f"namespaces: {text}")
    policies = PolicyFile(kept)
    assert told in caplog.text
    assert "policy.yaml: line 1: namespaces" in caplog.text
    caplog.clear()
    rewrite(kept, f"namespaces: {text}\ndefault: {{ceiling: 50}}")
    assert policies.refresh()
    assert told in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "[{match: 'team-?'}, {match: 'team-*'}]",
        "[{match: team-a}, {match: 'team-*'}]",
        "[{match: 'a*'}, {match: '*a'}, {match: '*'}]",
        "[{match: 'team-a*'}, {match: 'team-[ab]*'}]",
        "[{match: ['[a-m]*', '[n-z]*']}, {match: '*'}]",
        "[{match: 'kube-*'}]",
    ],
)
def test_what_applies_to_some_namespace_is_not_told(tmp_path: Path, text: str) -> None:
    assert read_book(settings(tmp_path, f"namespaces: {text}")).warnings == ()


def test_exempt_namespaces_that_cannot_be_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"policy.exemptNamespaces \(is 'Kube_\*'\): it matches no name"):
        read_book(PolicySettings(exempt_namespaces=("kube-system", "Kube_*")))


def test_a_change_takes_effect(tmp_path: Path) -> None:
    kept = settings(tmp_path, "default: {ceiling: 50}")
    policies = PolicyFile(kept)
    assert not policies.refresh()
    rewrite(kept, "default: {ceiling: 70}")
    assert policies.refresh()
    assert policies.of("x").ceiling == 70


def test_a_broken_change_keeps_the_old_policy_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = settings(tmp_path, "default: {ceiling: 50}")
    policies = PolicyFile(kept)
    rewrite(kept, "default: {ceiling: 700}")
    with caplog.at_level(logging.ERROR):
        assert not policies.refresh()
        assert not policies.refresh()
    assert policies.of("x").ceiling == 50
    assert "ceiling (is 700)" in policies.error
    assert len(caplog.records) == 1
    rewrite(kept, "default: {ceiling: 60}")
    assert policies.refresh()
    assert (policies.of("x").ceiling, policies.error) == (60, "")


def test_a_file_taken_away_keeps_the_old_policy(tmp_path: Path) -> None:
    kept = settings(tmp_path, "default: {ceiling: 50}")
    policies = PolicyFile(kept)
    Path(kept.file).unlink()
    assert not policies.refresh()
    assert policies.of("x").ceiling == 50
    assert "cannot be read" in policies.error


def test_a_file_broken_at_the_start_is_an_error_unless_there_is_a_policy_to_keep(tmp_path: Path) -> None:
    kept = settings(tmp_path, "default: {ceiling: 700}")
    with pytest.raises(SettingsError):
        PolicyFile(kept)
    last = PolicyBook(NamespacePolicy(ceiling=30))
    policies = PolicyFile(kept, last)
    assert policies.of("x").ceiling == 30
    assert "ceiling (is 700)" in policies.error


def test_a_part_starts_with_the_accepted_file_while_the_file_is_broken(tmp_path: Path) -> None:
    accepted = tmp_path / "accepted.yaml"
    accepted.write_text("default: {ceiling: 40}")
    kept = msgspec.structs.replace(settings(tmp_path, "default: {ceiling: 700}"), accepted_file=str(accepted))
    policies = PolicyFile(kept, PolicyBook(NamespacePolicy(ceiling=30)))
    assert (policies.of("x").ceiling, policies.unread) == (40, False)
    assert "ceiling (is 700)" in policies.error
    assert policies.text == "default: {ceiling: 40}"
    rewrite(kept, "default: {ceiling: 60}")
    assert policies.refresh()
    assert (policies.of("x").ceiling, policies.text, policies.error) == (60, "default: {ceiling: 60}", "")


@pytest.mark.parametrize("accepted", [None, "default: {ceiling: 800}", "default: ["])
def test_without_an_accepted_file_the_error_is_the_files_own(tmp_path: Path, accepted: str | None) -> None:
    if accepted is not None:
        (tmp_path / "accepted.yaml").write_text(accepted)
    file = str(tmp_path / "accepted.yaml")
    kept = msgspec.structs.replace(settings(tmp_path, "default: {ceiling: 700}"), accepted_file=file)
    with pytest.raises(SettingsError, match=r"ceiling \(is 700\)"):
        PolicyFile(kept)
    policies = PolicyFile(kept, PolicyBook(NamespacePolicy(ceiling=30)))
    assert (policies.of("x").ceiling, policies.unread) == (30, True)


def test_the_thread_follows_the_file(tmp_path: Path) -> None:
    kept = settings(tmp_path, "default: {ceiling: 50}")
    policies = PolicyFile(kept)
    policies.start()
    try:
        rewrite(kept, "default: {ceiling: 70}")
        wait_for(lambda: policies.of("x").ceiling == 70, "it has read the file again")
    finally:
        policies.stop()


@given(st.fractions(min_value=0, max_value=1_000_000, max_denominator=1_000_000))
def test_rates_are_exact(rate: Fraction) -> None:
    assert parse_rate(f"{rate.numerator}/{rate.denominator}") == rate


@pytest.mark.parametrize("text", ["", "x", "1/", "-1", "1/3000000000", "2000000", "1//2"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises((ValueError, ArithmeticError)):
        parse_rate(text)


def test_the_example_in_the_docs_is_a_policy(tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "docs" / "policy.md").read_text("utf-8")
    book = read_book(settings(tmp_path, text.partition("```yaml\n")[2].partition("```")[0]))
    assert (book.of("research").ceiling, book.of("team-a").nvidia_gpu, book.of("playground").mode) == (
        80,
        "refused",
        "observe",
    )
    assert book.of("guest-1").budget.time_zone == "Europe/Berlin"

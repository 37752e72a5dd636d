# SPDX-License-Identifier: Apache-2.0
"""What the documents name exists: commands and their flags, settings, variables, metrics, files, make targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import msgspec
import pytest

from slicekeeper.cli.main import cli
from slicekeeper.config.load import keys
from slicekeeper.config.policy import NamespacePolicy

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
SETTINGS = {key.dotted for key in keys()}
VARIABLES = {key.variable for key in keys()}
CHART_VALUES = {"timekeeper.replicas"}
"""Values of the chart that are named as a setting would be."""
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def spans(page: Path) -> list[str]:
    """Return a page's inline code, each span on one line."""
    prose = FENCE.sub("", page.read_text("utf-8"))
    return CODE.findall(re.sub(r"(?<=\S)\n *(?=\S)", " ", prose))


def lines(page: Path) -> list[str]:
    """Return the lines of a page's code blocks, continued lines joined, without prompts."""
    blocks = (body for _, body in FENCE.findall(page.read_text("utf-8")))
    return [re.sub(r"^ *[$#] ", "", line).strip() for body in blocks for line in body.replace("\\\n", " ").splitlines()]


@cache
def sources() -> str:
    """Return the text of all code and manifests."""
    kinds = (".py", ".c", ".h", ".toml", ".yaml", ".def")
    parts = ("slicekeeper", "webhook", "timekeeper", "scheduler", "sidecar", "nodeagent", "certificates", "objects")
    folders = (*parts, "simulator", "images", "manifests", "vcuda", "tests", "benchmarks")
    files = (file for name in folders for file in (ROOT / name).rglob("*") if file.suffix in kinds)
    return "\n".join(file.read_text("utf-8") for file in files if file != Path(__file__))


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command of ours that a page shows, from the name of its subcommand on."""
    for text in [*lines(page), *spans(page)]:
        for part in re.split(r" && | \| |; ", text):
            found = re.match(
                r"(?:[A-Z_]+=\S+ )*(?:kubectl exec .* -- )?(?:\S*/)?(slicekeeper|kubectl gpubudget) ([a-z-].*)", part
            )
            if found is None:
                continue
            plain = re.sub(r" #.*|[<>]\S*|…", "", found[2])
            try:
                words = shlex.split(plain)
            except ValueError:
                words = plain.split()
            yield [*(["budget"] if found[1] == "kubectl gpubudget" else []), *words]


def wrong(words: list[str]) -> str:
    """Return what the command line does not know of these words; empty if it knows all."""
    command: click.Command = cli
    context = click.Context(cli)
    known = {"-h", "--help"}
    for word in words:
        known |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        if word.startswith("-"):
            name = word.partition("=")[0]
            if name not in known and not (name[:2] in known and name[1] != "-") and name not in ("-", "--"):
                return f"{' '.join(words)}: {name}"
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word):
            found = command.get_command(context, word)
            if found is None:
                return f"{' '.join(words)}: {word}"
            command = found
    return ""


@by_page
def test_commands_and_flags_exist(page: Path) -> None:
    assert [problem for words in commands(page) if (problem := wrong(words))] == []


def policy_keys(section: type[msgspec.Struct], above: str = "") -> Iterator[str]:
    """Yield the keys of a namespace's policy, with those above them."""
    for field in msgspec.structs.fields(section):
        key = f"{above}{field.encode_name}"
        yield key
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from policy_keys(field.type, f"{key}.")


@by_page
def test_settings_exist(page: Path) -> None:
    sections = {key.partition(".")[0] for key in SETTINGS}
    groups = {key.rpartition(".")[0] for key in SETTINGS}
    known = SETTINGS | groups | set(policy_keys(NamespacePolicy)) | CHART_VALUES
    named = [text for text in spans(page) if re.fullmatch(r"[a-z][A-Za-z]*(\.(?!py$|yaml$|tar$)[a-z][A-Za-z]*)+", text)]
    assert [text for text in named if text.partition(".")[0] in sections and text not in known] == []


@by_page
def test_variables_exist(page: Path) -> None:
    named = set(re.findall(r"\bSLICEKEEPER_[A-Z_]+[A-Z]\b", page.read_text("utf-8")))
    assert [name for name in sorted(named - VARIABLES) if name not in sources()] == []


@by_page
def test_metrics_exist(page: Path) -> None:
    named = set(re.findall(r"\bslicekeeper_[a-z_]+[a-z]\b", page.read_text("utf-8")))
    stems = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in named}
    assert [
        name for name in sorted(stems) if f'"{name}' not in sources() and f"`{name}_`" not in page.read_text()
    ] == []


@by_page
def test_files_exist(page: Path) -> None:
    tops = {entry.name for entry in ROOT.iterdir() if entry.is_dir() and not entry.name.startswith((".", "build"))}
    folders = [ROOT, page.parent]
    missing = []
    for text in [*spans(page), *(word for line in lines(page) for word in line.split())]:
        name = text.rstrip(".,:;)").partition(":")[0]
        name = re.sub(r"\b[A-Z]+(?=\.)", "*", name)  # NAME.yaml means any
        if not re.fullmatch(r"[\w.-]+(/[\w.*-]+)+/?", name) or name.partition("/")[0] not in tops or "/build/" in name:
            continue
        if not any(next(folder.glob(name.rstrip("/")), None) for folder in folders):
            missing.append(name)
    assert missing == []


@by_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {found[1] for text in [*lines(page), *spans(page)] if (found := re.match(r"make ([a-z][a-z-]+)\b", text))}
    assert sorted(named - targets) == []


@by_page
def test_names_of_labels_and_annotations_exist(page: Path) -> None:
    named = set(re.findall(r"(?<![\w.])slicekeeper\.io/[a-z-]+[a-z]", page.read_text("utf-8")))
    assert [name for name in sorted(named) if name not in sources() and name.partition("/")[2] not in sources()] == []


def test_the_cluster_suite_is_described() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    files = [file.stem for file in sorted((ROOT / "tests" / "cluster").glob("test_*.py"))]
    assert len(files) > 20
    assert [name for name in files if f"`{name}`" not in page] == []

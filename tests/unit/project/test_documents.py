# SPDX-License-Identifier: Apache-2.0
"""The house in order: links lead somewhere, sources name their licence, pins name no registry."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
if shutil.which("git") is None or not (ROOT / ".git").exists():
    pytest.skip("needs git and a checkout, to know which files are the project's", allow_module_level=True)
LISTED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
TRACKED = [ROOT / name for name in LISTED.splitlines()]
PAGES = [file for file in TRACKED if file.suffix == ".md" and file.exists()]
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
ANCHOR = re.compile(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_a_heading_find_it(page: Path) -> None:
    missing = [
        f"{link}#{anchor}"
        for link, anchor in ANCHOR.findall(page.read_text())
        if anchor not in anchors(page.parent / link if link else page)
    ]
    assert missing == []


def test_sources_name_their_licence() -> None:
    kinds = {".py", ".c", ".h", ".sh"}
    sources = [file for file in TRACKED if file.suffix in kinds and file.exists() and file.read_text().strip()]
    assert len(sources) > 50
    missing = [str(file) for file in sources if "SPDX-License-Identifier: Apache-2.0" not in file.read_text()[:400]]
    assert missing == []


def test_pins_are_exact_and_name_no_registry() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in lines)


def test_nothing_needs_what_lies_beside_the_checkout() -> None:
    texts = {
        file: file.read_text()
        for file in TRACKED
        if file.exists()
        and file.suffix in {".py", ".toml", ".yaml", ".md", ".c", ".h", ".sh"}
        and file != Path(__file__)
    }
    assert [str(file) for file, text in texts.items() if "../shared" in text or "/work/" in text] == []

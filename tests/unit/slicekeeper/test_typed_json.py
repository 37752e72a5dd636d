# SPDX-License-Identifier: Apache-2.0
"""Threads that meet a type at the same time, for the first time: msgspec by itself ends the process then."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys, threading
import msgspec
from slicekeeper import (typed_json)

TYPES = '''
class Part(msgspec.Struct):
    number: int
    text: str = ""
class Group(msgspec.Struct):
    parts: list[Part]
    named: dict[str, Part]
class Whole(msgspec.Struct):
    groups: list[Group]
    first: Part
'''
DATA = b'{"groups": [{"parts": [{"number": 1}], "named": {"a": {"number": 2}}}], "first": {"number": 3}}'

sys.setswitchinterval(1e-6)
for _ in range(300):
    made = {"msgspec": msgspec}
    exec(TYPES, made)
    together, found = threading.Barrier(4), []

    def work(kind):
        together.wait()
        found.append(DECODE)

    threads = [threading.Thread(target=work, args=(made["Whole"],)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [whole.first.number for whole in found] == [3] * 4
"""


@pytest.mark.parametrize(
    "decode", ["typed_json.decode(DATA, kind)", "typed_json.convert(msgspec.json.decode(DATA), kind)"]
)
def test_threads_that_meet_a_type_at_once_all_get_it(decode: str) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", PROGRAM.replace("DECODE", decode)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def test_nobody_has_msgspec_work_out_a_type_elsewhere() -> None:
    """Plain JSON, and objects of it, are nothing to be worked out."""
    found = []
    files = [file for part in ROOT.iterdir() if (part / "__init__.py").exists() for file in part.rglob("*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and file != ROOT / "slicekeeper/typed_json.py":
                name = ast.unparse(node.func)
                kinds = [ast.unparse(word.value) for word in node.keywords if word.arg == "type"]
                direct = name.startswith("msgspec.") and name.endswith(".decode")
                if name == "msgspec.convert" or (direct and any(not kind.startswith("dict[str, ") for kind in kinds)):
                    found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert len(files) > 200
    assert found == [], "slicekeeper.typed_json does it safely"

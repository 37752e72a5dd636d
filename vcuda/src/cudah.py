# SPDX-License-Identifier: Apache-2.0
"""Read the driver API out of cuda.h and cudaTypedefs.h.

cuda.h is preprocessed with __CUDA_API_VERSION_INTERNAL, which makes it declare every version and
every per-thread-default-stream variant of a function under its own symbol.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROTO = re.compile(r"CUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
PFN = re.compile(r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)")
ALIAS = re.compile(r"#define\s+(cu\w+)\s+(?:__CUDA_API_PT[SD][SZ]\()?(cu\w+)\)?")


@dataclass(frozen=True)
class Proto:
    """One exported symbol: its C argument list and the arguments' names."""

    symbol: str
    arguments: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Lookup:
    """What cuGetProcAddress(base, >= version, per-thread?) answers with."""

    base: str
    version: int
    per_thread: bool
    symbol: str


def _split(arguments: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, char in enumerate(arguments):
        depth += (char in "([") - (char in ")]")
        if char == "," and not depth:
            parts.append(arguments[start:i])
            start = i + 1
    return [*parts, arguments[start:]]


def _name(argument: str) -> str:
    pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)", argument)
    if pointer:
        return pointer.group(1)
    return re.findall(r"\w+", re.sub(r"\[[^]]*\]", "", argument))[-1]


def protos(folder: Path, cc: str = "cc") -> dict[str, Proto]:
    """Every driver function that cuda.h and interop.h declare, by symbol."""
    source = '#define __CUDA_API_VERSION_INTERNAL 1\n#include "cuda.h"\n#include "interop.h"\n'
    text = subprocess.run(
        [cc, "-E", "-P", f"-I{folder}", f"-I{Path(__file__).resolve().parent}", "-x", "c", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    text = re.sub(r"__attribute__\(\([^)]*\)\)|\s+", " ", text)
    found: dict[str, Proto] = {}
    for symbol, arguments in PROTO.findall(text):
        clean = arguments.strip() or "void"
        names = () if clean == "void" else tuple(_name(a) for a in _split(clean))
        found.setdefault(symbol, Proto(symbol, clean, names))
    return found


def lookups(folder: Path, known: dict[str, Proto]) -> list[Lookup]:
    """Make the table behind cuGetProcAddress, from the typedefs' version numbers.

    The i-th version of a base name is the symbol base, base_v2, base_v3 ...; where the header has
    no such symbol (cuGraphInstantiate at 12.0), it defines the base name as another one.
    """
    alias = dict(ALIAS.findall((folder / "cuda.h").read_text()))
    seen: dict[tuple[str, str], set[int]] = {}
    for base, version, kind in PFN.findall((folder / "cudaTypedefs.h").read_text()):
        seen.setdefault((base, kind), set()).add(int(version))
    rows: list[Lookup] = []
    for (base, kind), versions in sorted(seen.items()):
        ordered = sorted(seen.get((base, ""), set()) | versions)
        if kind:
            # A per-thread variant that came late keeps the number of the version it varies.
            plain = sorted(seen.get((base, ""), versions))
            ordered = plain if plain and all(v >= plain[0] for v in versions) else sorted(versions)
        for version in sorted(versions):
            place = max(i for i, v in enumerate(ordered) if v <= version)
            stem = base if place == 0 else f"{base}_v{place + 1}"
            symbol = stem + kind
            if symbol not in known:
                symbol = alias.get(base, base) + kind
            if symbol in known:
                rows.append(Lookup(base, version, bool(kind), symbol))
        # The header renames a few bases to a function of another family (cuGraphInstantiate is
        # cuGraphInstantiateWithFlags since 12.0); the driver answers for the base name as well.
        target = alias.get(base, base)
        if not kind and target in known and not re.fullmatch(rf"{base}(_v\d+)?", target):
            rows.append(Lookup(base, 12000, False, target))
    return rows

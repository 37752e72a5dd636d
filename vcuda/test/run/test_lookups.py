# SPDX-License-Identifier: Apache-2.0
"""Look-ups: every way to a driver function ends at the right hook, or at the driver's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from check import Skip, case, check
from harness import BUILD, ROOT, Node

sys.path.insert(0, str(ROOT / "src"))

import cudah
import headers
import hookgen

LOOKUP = str(BUILD / "fake" / "lookup")


def expected(table: list[cudah.Lookup], symbol: str, version: int, flags: int) -> str | None:
    """Name the symbol that a driver answers with: the newest version not above the asked one."""
    rows = [r for r in table if r.base == symbol and r.version <= version]
    threads = [r for r in rows if r.per_thread] if flags & 2 else []
    rows = threads or [r for r in rows if not r.per_thread]
    return max(rows, key=lambda r: r.version).symbol if rows else None


def ask(node: Node, lines: list[str]) -> list[list[str]]:
    env = node.env | {"LD_LIBRARY_PATH": str(BUILD / "fake"), "LD_PRELOAD": str(BUILD / "libvcuda.so")}
    out = subprocess.run(
        [LOOKUP], input="\n".join(lines) + "\n", env=env, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return [line.split() for line in out.splitlines()]


def verify(node: Node, name: str, lines: list[str], table: list[cudah.Lookup], hooks: set[str]) -> str:
    """Compare every answer with the header's; the full table goes to build/lookups/NAME.md."""
    wrong = []
    rows = ["| symbol | version | flags | resolved variant | in |", "|---|---|---|---|---|"]
    hooked = threads = 0
    for symbol, version, flags, got, library in ask(node, lines):
        want = expected(table, symbol, int(version), int(flags))
        rows.append(f"| {symbol} | {version} | {flags} | {got} | {library} |")
        place = "libvcuda.so" if want in hooks else "libcuda.so.1"
        hooked += want in hooks
        threads += bool(want and want.endswith(("_ptsz", "_ptds")))
        if (got, library) != ((want, place) if want else ("-", "-")):
            wrong.append(f"{symbol} {version} {flags}: {got} in {library}, not {want} in {place}")
    (BUILD / "lookups").mkdir(exist_ok=True)
    (BUILD / "lookups" / f"{name}.md").write_text("\n".join(rows) + "\n")
    check(not wrong, "; ".join(wrong[:5]))
    none = sum(row.endswith("| - | - |") for row in rows)
    return (
        f"{len(lines)} look-ups, {hooked} hooked, {threads} per-thread variants, {none} unknown to the driver; "
        f"table: build/lookups/{name}.md"
    )


def tables() -> tuple[list[cudah.Lookup], set[str]]:
    folder = headers.fetch("13")
    known = cudah.protos(folder)
    return cudah.lookups(folder, known), set(hookgen.hooked(known))


@case("look-ups: every name, version and flag of cuda.h 13")
def everything() -> str:
    table, hooks = tables()
    lines = sorted({f"{r.base} {v} {f}" for r in table for v in (r.version, r.version + 5, 13050) for f in (0, 1, 2)})
    with Node(virtual=False) as node:
        return verify(node, "cuda-h-13", lines, table, hooks)


def runtime(major: str) -> str:
    table, hooks = tables()
    library = Path(headers.fetch(major)) / "libcudart.so"
    if not library.exists():
        raise Skip("the CUDA runtime is not at hand")
    with Node(virtual=False) as node:
        asked = node.dir / "asked"
        env = node.env | {"LD_LIBRARY_PATH": str(BUILD / "fake"), "SLICEKEEPER_FAKE_LOOKUPS": str(asked)}
        subprocess.run([LOOKUP, "cudart", str(library)], env=env, check=False, timeout=240)
        lines = sorted(set(asked.read_text().splitlines()))
        check(len(lines) > 300, f"only {len(lines)} look-ups were seen")
        return verify(node, f"cudart-{major}", lines, table, hooks)


case("look-ups: those of the CUDA runtime 12", lambda: runtime("12"))
case("look-ups: those of the CUDA runtime 13", lambda: runtime("13"))


@case("look-ups: dlsym finds the hooks and leaves everything else alone")
def dlsym() -> None:
    with Node(virtual=False) as node:
        env = node.env | {"LD_LIBRARY_PATH": str(BUILD / "fake"), "LD_PRELOAD": str(BUILD / "libvcuda.so")}
        names = ["cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuInit", "cudnnCreate", "cuGetProcAddress_v2"]
        out = subprocess.run(
            [LOOKUP, "dlsym", *names], env=env, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        wanted = [
            "cuMemAlloc_v2 cuMemAlloc_v2 libvcuda.so",
            "cuLaunchKernel_ptsz cuLaunchKernel_ptsz libvcuda.so",
            "cuInit cuInit libcuda.so.1",
            "cudnnCreate - -",
            "cuGetProcAddress_v2 cuGetProcAddress_v2 libvcuda.so",
        ]
        check(out == wanted, str(out))
        subprocess.run([LOOKUP, "next"], env=env, check=True, capture_output=True)


@case("hooks: every call of cuda.h 12 and 13 is hooked, or listed with a reason, not both")
def coverage() -> None:
    _, _, listed = hookgen.definitions()
    for major in ("12", "13"):
        folder = headers.fetch(major)
        missing = hookgen.uncovered(folder)
        check(not missing, f"cuda.h {major}: {missing}")
        both = set(listed) & set(hookgen.hooked(cudah.protos(folder)))
        check(not both, f"cuda.h {major}, hooked and listed: {both}")
    check(all(listed.values()), f"without a reason: {[name for name in listed if not listed[name]]}")


@case("hooks: a header with a call that nobody decided about ends the build, by name")
def new_call() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cuda.h", "cudaTypedefs.h"):
            shutil.copy(headers.fetch("13") / name, folder)
        with (Path(folder) / "cuda.h").open("a") as header:
            header.write("CUresult CUDAAPI cuCtxAllocEverything(CUcontext ctx);\n")
        done = subprocess.run(
            [sys.executable, ROOT / "src/hookgen.py", "hooks", folder, f"{folder}/out"],
            capture_output=True,
            text=True,
            check=False,
        )
    check(done.returncode == 1 and "hooks.def why not: cuCtxAllocEverything\n" in done.stderr, done.stderr)

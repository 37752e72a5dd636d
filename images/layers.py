# SPDX-License-Identifier: Apache-2.0
"""The layers of an image: the interpreter of this machine, one part's dependencies, its C programs, its code.

Each is cached under a name derived from its inputs, so that a change of the code rebuilds only the last layer. Files
have the same paths as in `python:3.11-slim`; bytecode is included, because the root is read-only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from images import programs as native
from images.oci import write_layer
from images.recipes import ROOT

VERSION: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE: Final = f"usr/local/lib/{VERSION}/site-packages"

_NOT_NEEDED: Final = (
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "distutils",
    "pydoc_data",
    "site-packages",
    "dist-packages",
    "__pycache__",
)
_NOT_LOADED: Final = re.compile(r"(config-.*|_tkinter.*|_test.*|_ctypes_test.*|xxlimited.*|_crypt.*|nis.*|ossaudio.*)")

KEPT_LAYERS: Final = 3
IN_USE_SECONDS: Final = 3600
"""A layer that was used within this time is kept, because another run may still need it."""

COMMAND: Final = f"""#!/usr/local/bin/{VERSION}
import sys
from slicekeeper.cli.main import main
sys.exit(main())
"""


def runtime(cache: Path) -> Path:
    """Return the layer with Python and the libraries that it and every part's dependencies load."""
    key = _key("runtime", sys.version, sys.base_prefix, Path(__file__).read_text())

    def fill(tree: Path) -> None:
        binary = tree / "usr/local/bin" / VERSION
        binary.parent.mkdir(parents=True)
        shutil.copy2(Path(sys.executable).resolve(), binary)
        library = tree / "usr/local/lib" / VERSION
        shutil.copytree(sysconfig.get_paths()["stdlib"], library, ignore=_ignore, symlinks=False)
        (library / "site-packages").mkdir()
        shared = [binary, *library.rglob("*.so")]
        _copy_libraries(tree, shared)
        _copy_stubs(tree)
        _compile(library)
        zones = Path("/usr/share/zoneinfo")
        if zones.is_dir():
            shutil.copytree(
                zones, tree / "usr/share/zoneinfo", symlinks=True, ignore=shutil.ignore_patterns("right", "posix")
            )
        for folder in ("tmp", "etc", "run", "proc", "dev", "sys"):
            (tree / folder).mkdir(exist_ok=True)
        (tree / "tmp").chmod(0o1777)
        (tree / "etc/passwd").write_text(
            "root:x:0:0:root:/:/sbin/nologin\nslicekeeper:x:65532:65532::/tmp:/sbin/nologin\n"
        )

    links = {"usr/local/bin/python3": VERSION, "usr/local/bin/python": VERSION}
    return _layer(cache, key, fill, links)


def dependencies(cache: Path, wheel: Path, extras: list[str], constraints: Path) -> Path:
    """Return the layer with the dependencies of the wheel's extras, pinned by `constraints`."""
    wanted = sorted(requirements(wheel, extras))
    key = _key("deps-" + "-".join(extras), sys.version, Path(__file__).read_text(), constraints.read_text(), *wanted)

    def fill(tree: Path) -> None:
        site = tree / SITE
        site.mkdir(parents=True)
        if wanted:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
            _run([*pip, "--only-binary=:all:", f"--target={site}", f"--constraint={constraints}", *wanted])
        shutil.rmtree(site / "bin", ignore_errors=True)
        for tests in [path for path in site.rglob("tests") if path.is_dir()]:
            shutil.rmtree(tests)
        _copy_libraries(tree, site.rglob("*.so"), missing_from_runtime=True)
        _compile(site)

    return _layer(cache, key, fill)


def programs(cache: Path, wanted: list[str]) -> Path:
    """Return the layer with some of vcuda's programs, built by this machine's compiler."""
    root = ROOT / "vcuda"
    sources = [root / "Makefile", *(f for name in ("include", "src", "test/fake") for f in (root / name).rglob("*.*"))]
    texts = [file.read_text() for file in sorted(sources) if file.suffix in ("", ".c", ".h", ".py", ".def")]
    key = _key("programs", Path(native.__file__).read_text(), *wanted, *texts)
    return _layer(cache, key, lambda tree: native.copy(wanted, tree))


def first_process(cache: Path) -> Path:
    """Return the layer with the first process of a container, which starts the command."""
    key = _key("first", Path(native.__file__).read_text(), native.SOURCE.read_text())
    return _layer(cache, key, native.copy_first_process)


def part(cache: Path, wheel: Path, packages: list[str], others: set[str], command_path: str) -> Path:
    """Return the layer with the wheel's kernel, the named packages and the command, without those of other parts."""
    key = _key("part-" + "-".join(packages), sys.version, Path(__file__).read_text(), _content(wheel), command_path)

    def fill(tree: Path) -> None:
        site = tree / SITE
        site.mkdir(parents=True)
        with zipfile.ZipFile(wheel) as content:
            content.extractall(site)
        for other in others:
            shutil.rmtree(site / other, ignore_errors=True)
        command = tree / command_path
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(COMMAND)
        command.chmod(0o755)
        _compile(site)

    return _layer(cache, key, fill)


def requirements(wheel: Path, extras: list[str]) -> set[str]:
    """Return the wheel's dependencies with some extras, in pip's form."""
    with zipfile.ZipFile(wheel) as content:
        name = next(n for n in content.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(content.read(name).decode())
    found = set()
    for text in metadata.get_all("Requires-Dist") or []:
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            requirement.marker = None
            found.add(str(requirement))
    return found


def prune(cache: Path) -> None:
    """Remove layers that newer ones have replaced: of each kind the last few are kept, and all used within the hour."""
    kinds: dict[str, list[Path]] = {}
    for file in cache.glob("*-*.tar"):
        kinds.setdefault(file.name.rpartition("-")[0], []).append(file)
    for files in kinds.values():
        for file in sorted(files, key=lambda f: -f.stat().st_mtime)[KEPT_LAYERS:]:
            if file.stat().st_mtime < time.time() - IN_USE_SECONDS:
                file.unlink(missing_ok=True)
                file.with_suffix(".sha256").unlink(missing_ok=True)


def _ignore(_folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name in _NOT_NEEDED or _NOT_LOADED.fullmatch(name)}


def _copy_libraries(tree: Path, programs: Iterable[Path], *, missing_from_runtime: bool = False) -> None:
    """Copy the shared libraries that `programs` load into the folder that the loader searches first."""
    found: dict[str, str] = {}
    for program in programs:
        output = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        for line in output.splitlines():
            match = re.search(r"(\S+) => (/\S+)|^\s*(/\S+ld-linux\S+)", line)
            if match is None:
                continue
            path = match[2] or match[3]
            if not path.startswith(str(tree)):
                found[Path(path).name] = path
    for name, path in found.items():
        loader = name.startswith("ld-linux")
        if missing_from_runtime and (loader or name.startswith(("libc.", "libm.", "libpthread.", "libdl.", "librt."))):
            continue
        target = tree / path.lstrip("/") if loader else tree / "lib" / _multiarch() / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(path).resolve(), target)
        target.chmod(0o755)
        if shutil.which("strip") and not loader:
            subprocess.run(["strip", "--strip-unneeded", str(target)], capture_output=True, check=False)


def _copy_stubs(tree: Path) -> None:
    """Copy the parts of glibc that wheels need although this machine's Python does not."""
    folder = tree / "lib" / _multiarch()
    for name in ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libm.so.6"):
        source = Path("/lib") / _multiarch() / name
        if source.exists() and not (folder / name).exists():
            shutil.copy2(source.resolve(), folder / name)


def _multiarch() -> str:
    return str(sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu")


def _compile(folder: Path) -> None:
    compileall = [sys.executable, "-m", "compileall", "-q", "-j1", "--invalidation-mode=unchecked-hash"]
    # Packages ship files for other versions of Python that do not compile.
    _run([*compileall, "-s", str(folder), "-p", f"/usr/local/lib/{VERSION}", str(folder)], check=False)


def _layer(cache: Path, key: str, fill: Callable[[Path], None], links: dict[str, str] | None = None) -> Path:
    file = cache / f"{key}.tar"
    if file.exists():
        # In this order: a digest that is older than its layer is computed again.
        for used in (file, file.with_suffix(".sha256")):
            if used.exists():
                os.utime(used)
    else:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            tree = Path(folder)
            fill(tree)
            write_layer(file, tree, links=links)
    return file


def _key(kind: str, *inputs: str) -> str:
    return f"{kind}-{hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]}"


def _content(wheel: Path) -> str:
    """Return a name for a wheel's content that does not depend on the instants in it."""
    with zipfile.ZipFile(wheel) as content:
        return json.dumps(sorted((info.filename, info.CRC) for info in content.infolist()))


def _run(command: list[str], *, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-3000:]}")

